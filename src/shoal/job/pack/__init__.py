"""The queue inside an allocation: one engine per node works through the runs of a submission.

engine.py    the executor (../executor.py) with a queue: start what fits, leave to others what they have, tell a person
entry.py     `agent pack SUBMISSION_DIR`: puts these together; several engines may share one queue
queue.py     the runs in order, and which of them to start next (pure)
books.py     who holds which slot, GPU share and CPUs (pure)
running.py   an attempt, its place in the queue, and what it holds
claims.py    how a run of the queue stands, by its files
turns.py     may this engine take a run, and is one that ended tried again?
others.py    runs that other engines have, and runs that others build on
node.py      what one engine works with, and what surrounds a run there
machine.py   what this node really has: GPUs by index or UUID, CPUs, the time until the allocation ends
sharing.py   runs that share a GPU: their part of its memory, and MPS
warm.py      a parent that has imported the heavy modules once; runs are forked from it (warm_server.py)
ray_*.py     Ray over the nodes of an allocation, and a worker of it for each slot that starts runs there
probe.py     short starts that tell how long a run would take
search.py    losing runs that are stopped early
spread.py    a job of several nodes: an engine on each, and nodes that are given back
tally.py     how many runs ended how
follow.py    a follow-up job for what the time limit left over

No interpreter is started for a run that is not its own. Several engines (the nodes of a job, the tasks of an array)
pull from one queue without talking to each other; who works on a run is decided by who creates the start record of its
next attempt.
"""
