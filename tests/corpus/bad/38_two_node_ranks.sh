#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=08:00:00

nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
srun -c 32 -K -N1 -n1 -w ${nodes[0]} torchrun --nnodes=2 --node_rank=0 --nproc_per_node=4 --master_addr=${nodes[0]} train.py
srun -c 32 -K -N1 -n1 -w ${nodes[1]} torchrun --nnodes=2 --node_rank=1 --nproc_per_node=4 --master_addr=${nodes[0]} train.py
