#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=120G
#SBATCH --time=03:00:00

set -u
pids=()
for lr in 0.1 0.03 0.01 0.003; do
    srun --exact -n1 -c8 --gres=gpu:1 --mem=28G --output="logs/lr_${lr}.out" python train.py --lr "$lr" &
    pids+=($!)
done
rc=0
for pid in "${pids[@]}"; do
    wait "$pid" || rc=$?
done
exit "$rc"
