#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --mem=300G
#SBATCH --time=06:00:00

set -euo pipefail
export XLA_FLAGS="--xla_gpu_triton_gemm_any=True"
export OMP_NUM_THREADS=12
srun -c 12 --kill-on-bad-exit=1 python programs/jax_train.py
