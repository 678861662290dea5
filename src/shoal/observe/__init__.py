"""The records of runs and one look at Slurm's queue, as run views: what each run is doing, and why."""
