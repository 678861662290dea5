#!/bin/bash
#SBATCH ––nodes=1
#SBATCH --ntasks = 1
#SBATCH --time=1:00:00

python train.py
