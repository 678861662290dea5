"""Many runs of different length in one allocation: what is decided before, and what is shown after.

options.py    how a pack is asked for
order.py      expected durations, and the order that wastes least: longest first
simulate.py   the engine's own decisions played through without processes: makespan, busy and idle time
shapes.py     job each, array, packs and pilots compared: hours asked for, used and idle, makespan, time limit
describe.py   runs and options -> the queue that travels with the submission
commands.py   a command with {parameters}, or a file of commands, as runs
timeline.py   what ran where and when, from the records of the runs; drawing.py shows it

What works through the queue is shoal.agent.pack, which runs inside the allocation.
"""
