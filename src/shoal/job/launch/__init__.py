"""How processes start inside an allocation: on Slurm or on this machine, the same way.

geometry.py    what a mode makes of nodes, GPUs and CPUs (pure; planning uses it too)
allocation.py  what this job really has: nodes, CPUs, GPUs, and whether Slurm signals our steps itself
network.py     addresses that other nodes can reach, ports that nobody else takes
words.py       argument lists: srun, torchrun, accelerate, deepspeed, the lighthouse (pure)
container.py   the container around them: words, binds (pure); container_needs.py: what of it is missing on a node
unit.py        one group of ranks (a whole run, or one try of one replica) as a small file that its nodes read
entry.py       the launcher, one per job: prepares units and starts them
node.py        one node of a unit: starts torchrun, hands signals to the ranks
node_guards.py a guard on each further node of a run, in a step of its own
rank.py        one rank: checks what it was given, opens its log, becomes the user's program
watch.py       stops ranks that train apart; shoal_watch.py is its eye inside the program
replicas.py    the supervisor of fault-tolerant replicas; policy.py decides, lighthouse.py is their meeting point
failures.py    which rank failed first, and with what code

The chain is agent -> launcher -> [srun] -> node -> torchrun -> rank. Each link dies with the one before it (by the
kernel's parent-death signal), so that killing any of them leaves nothing behind, although torchrun gives each rank a
session of its own.
"""
