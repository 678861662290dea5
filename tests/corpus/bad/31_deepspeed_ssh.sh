#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=64
#SBATCH --mem=800G
#SBATCH --time=08:00:00

scontrol show hostnames $SLURM_JOB_NODELIST | sed 's/$/ slots=8/' > hostfile
deepspeed --hostfile hostfile --num_gpus 8 --num_nodes 2 train.py --deepspeed_config ds.json
