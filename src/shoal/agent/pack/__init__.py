"""The queue inside an allocation: one engine per node works through the runs of a submission.

books.py     who holds which slot, GPU share and CPUs (pure)
machine.py   what this node really has: GPUs by index or UUID, CPUs, the time until the allocation ends
queue.py     the runs in order, and which of them to start next (pure)
claims.py    the durable side of a run: may I, I begin, it ended; taken by exclusive creation like everything else
children.py  a run's process: started, watched, signalled, and nothing of it left behind
warm.py      a parent that has imported the heavy modules once; runs are forked from it (warm_server.py)
ray_*.py     Ray over the nodes of an allocation, and a worker of it for each slot that starts runs there
sharing.py   runs that share a GPU: their part of its memory, and MPS
node.py      what one engine works with, and what surrounds a run there
running.py   a run that has a process: its limit, its beat, how it is asked to stop
ledger.py    starts and ends on their way to the disk, and a full disk
leases.py    signs of life of engines
others.py    runs that other engines have, and runs that others build on
again.py     is a run that was tried tried again? (pure)
turns.py     may this engine take a run, and does one that ended get another turn?
probe.py     short starts that tell how long a run would take
search.py    losing runs that are stopped early
spread.py    a job of several nodes: an engine on each, and nodes that are given back
data.py      data of runs that take turns, brought in threads
bell.py      what wakes the loop: signals, threads, the clock
beside.py    samples of what runs use, and words to a person
tally.py     how many runs ended how
engine.py    the loop: start what fits, reap what ended, stop when told to
follow.py    a follow-up job for what the time limit left over
entry.py     `agent pack SUBMISSION_DIR`: puts these together; several engines may share one queue

An engine is the agent for all its runs: no interpreter is started for a run that is not its own. Several engines (the
nodes of a job, the tasks of an array) pull from one queue without talking to each other; who works on a run is decided
by who creates the start record of its next attempt.
"""
