#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --nodes=1

cd "$(dirname "$(readlink -f "$0")")"
source env.sh
python train.py
sbatch "$0"
