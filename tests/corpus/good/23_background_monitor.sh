#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=05:00:00
#SBATCH --nodes=1

set -e
nvidia-smi --query-gpu=utilization.gpu --format=csv -l 30 > logs/gpu.csv &
monitor=$!
trap 'kill $monitor' EXIT
python train.py
