#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --exclusive
#SBATCH --ntasks=2

python train.py
