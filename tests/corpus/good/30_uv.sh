#!/bin/bash
#SBATCH --gpus=1
#SBATCH --cpus-per-task=6
#SBATCH --mem=30G
#SBATCH --time=06:00:00
#SBATCH --nodes=1

set -euo pipefail
export HF_HOME=/scratch/hf
export TOKENIZERS_PARALLELISM=false
uv run --frozen python train.py
