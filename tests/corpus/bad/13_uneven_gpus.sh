#!/bin/bash
#SBATCH -N 2
#SBATCH -G 8
#SBATCH --ntasks-per-node=4
#SBATCH -c 8
#SBATCH --mem=200G
#SBATCH -t 8:00:00

export OMP_NUM_THREADS=8
srun --kill-on-bad-exit=1 -c 8 python train.py
