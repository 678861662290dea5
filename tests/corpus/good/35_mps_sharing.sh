#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=2
#SBATCH --mem=60G
#SBATCH --time=06:00:00

set -e
nvidia-cuda-mps-control -d
export OMP_NUM_THREADS=2
srun -K -c 2 python simulate.py --walkers 8
echo quit | nvidia-cuda-mps-control
