#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=200G
#SBATCH --time=08:00:00

export OMP_NUM_THREADS=8
srun --kill-on-bad-exit=1 -c 8 python train.py
