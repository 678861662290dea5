#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=18:00:00
#SBATCH --tmp=200G

set -euo pipefail
scratch=/scratch_local/$USER-$SLURM_JOB_ID
mkdir -p "$scratch"
trap 'rm -rf "$scratch"' EXIT
tar -xf /data/imagenet.tar -C "$scratch"
python train.py --data "$scratch" --workers 14
rsync -a "$scratch/out/" "$SLURM_SUBMIT_DIR/out/"
