#!/bin/bash
#SBATCH --job-name=resnet-cifar
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=08:00:00
#SBATCH --output=logs/%x-%j.out

set -euo pipefail
module purge
module load cuda/12.1
source venv/bin/activate

srun --cpus-per-task=$SLURM_CPUS_PER_TASK python train.py --epochs 90 --workers 6
