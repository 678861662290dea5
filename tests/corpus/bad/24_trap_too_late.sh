#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@30
#SBATCH --requeue

trap 'echo requeue; scontrol requeue $SLURM_JOB_ID' USR1
OUTPUT_DIR=runs/$(date +%s)
srun -c 8 python train.py --out $OUTPUT_DIR
