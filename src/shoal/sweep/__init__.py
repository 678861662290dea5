"""From one description to many runs. Pure: nothing is read and nothing is asked here, except by `memory.py`.

values.py       the words that stand for values: lists, ranges, random draws, seeds
expressions.py  a small safe language for derived values, conditions and rules
axes.py         parameters: their names, constants, grids, zips, points, draws
blocks.py       one description, from TOML, Python or flags, as a typed record with places
expand.py       a block -> its points: grids, zips, exclusions, derived values, rules
naming.py       points -> run names that show what varies, and stay when a sweep grows
runs.py         points -> RunSpecs of a project
memory.py       what the names of a sweep rest on, kept in the state folder
"""
