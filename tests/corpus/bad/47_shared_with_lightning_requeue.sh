#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=200G
#SBATCH --time=08:00:00
#SBATCH --signal=USR1@90
#SBATCH --dependency=afterok:4711

export OMP_NUM_THREADS=16
requeue() { scontrol requeue $SLURM_JOB_ID; }
trap requeue TERM
srun -K -c 16 python programs/lightning_2x4.py
