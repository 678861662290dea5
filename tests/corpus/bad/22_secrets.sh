#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --nodes=1

export WANDB_API_KEY=aaaabbbbccccddddeeeeffff0000111122223333
huggingface-cli login --token hf_abcdefghijklmnopqrstuvwx
python train.py
