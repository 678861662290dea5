#!/bin/sh
#SBATCH --export=NONE
#SBATCH --nodes=1
#SBATCH --time=01:00:00
#SBATCH --mem=4G

module load python
srun python train.py
