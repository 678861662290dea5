#!/bin/bash
#SBATCH --gres=gpu:2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=10
#SBATCH --mem=80G
#SBATCH --time=1-00:00:00

set -eo pipefail
export HYDRA_FULL_ERROR=1
export OMP_NUM_THREADS=10
srun -c 10 --kill-on-bad-exit=1 python -m programs.lightning_cli trainer.devices=2 trainer.num_nodes=1 data.num_workers=8
