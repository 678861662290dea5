"""How the processes of a run start inside an allocation: the same way on Slurm and on this machine.

    geometry.py        processes and their resources for each launch mode (pure; planning uses it too)
    launcher_args.py   argument lists: srun, torchrun, accelerate, deepspeed, the lighthouse (pure)
    container.py       the container around the processes, and what a node lacks to start it
    launch_spec.py     what the agent writes down for the launcher
    launcher.py        the launcher, one per job: prepares rank groups, starts them, finds the rank that failed first
    rank_group.py      one group of ranks (a whole run, or one attempt of one replica) as a file that its nodes read;
                       stops ranks that train separately, which shoal_watch.py reports from inside the program,
                       as it does the world size of a doctor's smoke run
    srun_steps.py      starts and signals a rank group, as a Slurm step or on this machine; preemption
    node.py            one node of a rank group: starts torchrun, forwards signals to the ranks
    node_guards.py     a guard on each further node of a run, in a step of its own
    rank.py            one rank: checks its environment, opens its log, becomes the user's program
    replicas.py        the supervisor of fault-tolerant replicas and their lighthouse; replica_policy.py decides

The chain is agent -> launcher -> [srun] -> node -> torchrun -> rank. Each process ends with the one before it (by the
kernel's parent-death signal), so that killing any of them leaves nothing behind, although torchrun gives each rank a
session of its own. What a job has (nodes, GPUs, addresses, ports) is read by job/allocation.py.
"""
