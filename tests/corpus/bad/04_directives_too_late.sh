#!/bin/bash
#SBATCH --job-name=late

module load cuda
#SBATCH --gres=gpu:2
#SBATCH --time=10:00:00

python train.py
