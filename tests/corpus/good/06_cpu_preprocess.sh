#!/bin/bash
#SBATCH --partition=cpu
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=64
#SBATCH --mem=240G
#SBATCH --time=06:00:00

set -euo pipefail
module load python/3.11
python preprocess.py --processes "$SLURM_CPUS_PER_TASK" raw/ processed/
du -sh processed/
