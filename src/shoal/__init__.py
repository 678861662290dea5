"""shoal runs many ML training experiments on Slurm clusters, or on a laptop without Slurm, from one description."""

__version__ = "0.1.0"
