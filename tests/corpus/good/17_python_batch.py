#!/usr/bin/env python3
#SBATCH --job-name=pyjob
#SBATCH --time=00:30:00
#SBATCH --cpus-per-task=4
import os

print("cpus:", os.environ["SLURM_CPUS_PER_TASK"])
