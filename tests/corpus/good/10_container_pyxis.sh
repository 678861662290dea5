#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=14
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --job-name=nemo

set -eux
export OMP_NUM_THREADS=4
srun --kill-on-bad-exit=1 --cpus-per-task=14 --mpi=pmix \
    --container-image=/images/train.sqsh \
    --container-mounts=/data:/data,"$PWD":/workspace \
    --container-workdir=/workspace \
    python pretrain.py --config conf.yaml
