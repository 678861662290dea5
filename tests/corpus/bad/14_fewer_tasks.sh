#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=200G
#SBATCH --time=08:00:00

export SRUN_CPUS_PER_TASK=8
export OMP_NUM_THREADS=8
srun --kill-on-bad-exit=1 python programs/lightning_2x4.py
