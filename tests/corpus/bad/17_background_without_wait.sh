#!/bin/bash
#SBATCH --gres=gpu:4
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=100G
#SBATCH --time=04:00:00

for seed in 0 1 2 3; do
    srun -n1 python train.py --seed $seed > logs/$seed.txt 2>&1 &
done
