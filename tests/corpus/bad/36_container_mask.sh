#!/bin/bash
#SBATCH --gres=gpu:2
#SBATCH --nodes=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=02:00:00

export APPTAINERENV_CUDA_VISIBLE_DEVICES=2,3
apptainer exec --nv torch.sif torchrun --standalone --nproc_per_node=2 train.py
