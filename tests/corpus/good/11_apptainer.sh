#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=0-02:00
#SBATCH --nodes=1

set -e
apptainer exec --nv --bind /data:/data images/torch.sif python train.py --data /data/set
