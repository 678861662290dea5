#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120

trap 'touch please_stop' USR1
srun -c 32 torchrun --standalone --nproc-per-node=4 train.py
