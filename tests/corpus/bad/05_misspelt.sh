#!/bin/bash
#sbatch --nodes=1
# SBATCH --gres=gpu:1
 #SBATCH --time=01:00:00
#SBATCH --mem=16G

python train.py
