#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=48
#SBATCH --mem=480G
#SBATCH --time=12:00:00

set -e
GPUS=4
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export MASTER_PORT=$(expr 10000 + $(echo -n "$SLURM_JOB_ID" | tail -c 4))
srun --kill-on-bad-exit=1 -c "$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node $GPUS \
    --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" \
    train.py --deepspeed ds_config.json
