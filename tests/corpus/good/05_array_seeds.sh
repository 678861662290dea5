#!/usr/bin/env bash
#SBATCH --job-name=seeds
#SBATCH --array=0-9%4
#SBATCH --output=logs/%A_%a.out
#SBATCH --error=logs/%A_%a.err
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=6
#SBATCH --mem=24G
#SBATCH --time=04:00:00
#SBATCH --nodes=1

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
python train.py --seed "$SLURM_ARRAY_TASK_ID" --out "runs/seed_${SLURM_ARRAY_TASK_ID}"
