#!/bin/bash
#SBATCH --array=1-50
#SBATCH --output=train.out
#SBATCH --error=train_%A.err
#SBATCH --time=01:00:00
#SBATCH --mem=4G

python train.py --seed $SLURM_ARRAY_TASK_ID
