#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --partition=<PARTITION>
#SBATCH --time={{ hours }}:00:00
#SBATCH --mem=8G

python train.py
