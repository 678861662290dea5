#!/bin/bash
#SBATCH --workdir=/home/me/project
#SBATCH --ntask=4
#SBATCH --gres=gpu:1# one is enough
#SBATCH --cpus-per-task=4
#SBATCH --time=1:30
#SBATCH --mem=0

python train.py
