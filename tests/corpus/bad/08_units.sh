#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64
#SBATCH --time=24
#SBATCH --nodes=1

python train.py
