"""What runs inside a job, on Slurm or on this machine.

main.py      a job of one run: who am I, may I run, which attempt is this, what follows its end
single.py    the executor with a queue of one, and what only a single run has
pack/        the executor with a queue of many
executor.py  starts attempts, passes signals on, stops what must stop, writes down how each one ended
attempt.py   one attempt: its start record, its phases, how it is asked to stop, its end record
children.py  processes: started, signalled, and nothing of them left behind
ledger.py    start and end records on their way to the disk
data.py      data of runs, brought in threads (handover.py: on all nodes; staging.py, copying.py: how)
usage.py     what runs use, sampled
survival.py  what an end means, and the job that follows it
launch/      processes of one run: torchrun, srun, replicas, containers

Standard library only and Python 3.8 or newer, because it runs with whatever Python a node has. The modules here and
those of `kernel/` travel as one file (`shipping.py` zips them into the project's state folder).
"""
