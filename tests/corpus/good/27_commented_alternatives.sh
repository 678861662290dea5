#!/bin/bash
#SBATCH --partition=a100
##SBATCH --partition=v100
#SBATCH --gres=gpu:2
##SBATCH --gres=gpu:4
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=96G
#SBATCH --time=0-12
# the next line is for reservations
##SBATCH --partition=reserved

set -e
srun -c 16 torchrun --standalone --nproc-per-node=gpu train.py
