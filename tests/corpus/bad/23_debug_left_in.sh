#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=08:00:00

export NCCL_DEBUG=INFO
export NCCL_P2P_DISABLE=1
export NCCL_SOCKET_IFNAME=eno1
export CUDA_LAUNCH_BLOCKING=1
export OMP_NUM_THREADS=64
python -m torch.distributed.launch --nproc_per_node=8 --master_port=45678 train.py
