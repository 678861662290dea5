#!/bin/bash
# submit everything
for seed in 1 2 3; do
    sbatch train.sh --gres=gpu:4 --time=10:00:00 $seed
done
sbatch -d afterok:100 evaluate.sh
