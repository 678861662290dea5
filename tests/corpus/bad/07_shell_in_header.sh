#!/bin/bash
#SBATCH --job-name=$MODEL
#SBATCH --output=$SCRATCH/logs/%j.out
#SBATCH --error=~/logs/%j.err
#SBATCH --time=$HOURS
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G

python train.py
