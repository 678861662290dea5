#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=200G
#SBATCH --time=08:00:00

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export OMP_NUM_THREADS=8
srun -K -c 8 bash -c 'export MASTER_PORT=$(shuf -i 20000-30000 -n 1); python train.py'
