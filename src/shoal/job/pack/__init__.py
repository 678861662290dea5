"""The queue of runs inside an allocation: one engine per node works through the runs of a submission.

    main.py            `agent pack SUBMISSION_DIR`: sets an engine up; in a job of several nodes one on each node
    engine.py          the executor (job/executor.py) with a queue: starts what fits; probes runs of unknown length
    queue.py           the runs in order, and which of them to start next (pure)
    allocator.py       which run has which slot, GPU share and CPUs (pure)
    attempts.py        whether this engine may take a run, whether a run is retried; a run that has a slot
    run_status.py      the state of queued runs by their files, runs of other engines, dependencies, the summary
    node.py            what one engine works with on its node; sharing a GPU, with MPS where installed
    warm_starter.py    start runs by forking a process that has imported heavy modules; warm_server.py is that process
    ray_cluster.py ray_starter.py   Ray over the nodes of an allocation, and one of its workers per slot
    early_stopping.py  stop losing runs early
    follow_up.py       a follow-up job for what the time limit left

No interpreter is started for a run besides its own. Several engines (the nodes of a job, the tasks of an array) take
runs from one queue without communicating; whichever creates the start record of a run's next attempt works on that run.
"""
