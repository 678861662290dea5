#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=16
#SBATCH --mem=400G
#SBATCH --time=1-12:00:00
#SBATCH --signal=SIGUSR1@300
#SBATCH --output=logs/lightning-%j.out

set -e
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=1
export NCCL_DEBUG=WARN

srun --kill-on-bad-exit=1 python programs/lightning_2x4.py --data /data/imagenet
