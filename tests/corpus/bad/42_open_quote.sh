#!/bin/bash
#SBATCH --time=01:00:00
#SBATCH --mem=8G

echo "starting on $(hostname)
python train.py
