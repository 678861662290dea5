#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=64
#SBATCH --mem=400G
#SBATCH --time=1-00:00:00

export MASTER_ADDR=$(hostname -i)
export MASTER_PORT=12356

torchrun --nnodes=4 --nproc_per_node=4 --node_rank=$SLURM_NODEID \
    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py
