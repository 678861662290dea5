"""Random faults on a real Slurm while several commands work on the same runs; what was promised is counted afterwards.

    make chaos SEEDS=20                      shoal, 20 seeds of about three minutes
    make chaos SEEDS=3 LAUNCHER=naive        the same faults for a loop over sbatch (or LAUNCHER=submitit)

plan       what happens when, from the seed alone     world      sandbox, small disk, ledger; heals and removes them
faults     how each fault is done and undone           people     commands given at once, some of them killed
launchers  shoal, a naive loop, submitit               judge      counts, from the program's own ledger
"""
