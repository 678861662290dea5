#!/bin/bash
#SBATCH --mem=32G
#SBATCH --mem-per-cpu=4G
#SBATCH --cpus-per-task=8
#SBATCH --time=02:00:00
#SBATCH --time=04:00:00

python train.py
