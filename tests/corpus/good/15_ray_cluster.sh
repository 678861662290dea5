#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=08:00:00

set -e
port=$((20000 + SLURM_JOB_ID % 10000))
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
srun --overlap -N1 -n1 -w "$head" ray start --head --port=$port --temp-dir=/tmp/ray-$SLURM_JOB_ID --num-cpus=32 --num-gpus=4 --block &
for ((i = 1; i < SLURM_NNODES; i++)); do
    srun --overlap -N1 -n1 -w "${nodes[$i]}" ray start --address "$head:$port" --num-cpus=32 --num-gpus=4 --block &
done
until ray status --address "$head:$port"; do sleep 2; done
python tune.py --address "$head:$port"
