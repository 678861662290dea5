#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=64
#SBATCH --mem=800G
#SBATCH --time=08:00:00
#SBATCH --exclusive

export MASTER_ADDR=localhost
export MASTER_PORT=$((10000 + RANDOM % 10000))
srun accelerate launch --num_machines 2 --num_processes 16 --machine_rank $SLURM_PROCID \
    --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT train.py
