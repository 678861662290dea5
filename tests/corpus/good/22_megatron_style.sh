#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=112
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=3-00:00:00
#SBATCH --job-name=pretrain_7b

set -e
GPUS_PER_NODE=8
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=$((12000 + SLURM_JOB_ID % 8000))

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $SLURM_NNODES
    --rdzv_id $SLURM_JOB_ID
    --rdzv_backend c10d
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT
)
MODEL_ARGS=(--num-layers 32 --hidden-size 4096)

srun --kill-on-bad-exit=1 --cpus-per-task=112 torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} --load ckpt
