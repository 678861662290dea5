#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=48
#SBATCH --time=10:00:00
#SBATCH --mem-per-cpu=3900M
#SBATCH --job-name=cfd

set -e
module load openmpi
mpirun ./solver case.cfg
