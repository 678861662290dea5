#!/bin/bash
#SBATCH --job-name=interactive
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --mem=200G
#SBATCH --time=04:00:00

export OMP_NUM_THREADS=4
srun -K -c 4 python programs/lightning_2x4.py
