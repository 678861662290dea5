"""shoal.toml, the user's config and cluster profiles; every value knows where it came from.

locate.py    where the project, its state and the user's config are; imports nothing heavy, for commands that start fast
document.py  a TOML file whose values know their line; the errors for unknown keys and wrong types
steps.py     Step: a kind of work of the project
cluster.py   Cluster: how a portable request becomes one cluster's words
networks.py  presets of network variables, as data
project.py   Project: all of it together
"""
