#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=08:00:00

NGPU=8
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
host=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
srun -c 32 -K torchrun --nnodes=4 --nproc_per_node=$NGPU --rdzv_backend=c10d --rdzv_endpoint=$host:$MASTER_PORT train.py
