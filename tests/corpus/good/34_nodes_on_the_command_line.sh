#!/bin/bash
# sbatch -N 4 --gpus-per-node=8 --ntasks-per-node=1 -c 64 34_nodes_on_the_command_line.sh
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun -K -c "$SLURM_CPUS_PER_TASK" torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d \
    --rdzv-endpoint="$head:$((20000 + SLURM_JOB_ID % 10000))" train.py
