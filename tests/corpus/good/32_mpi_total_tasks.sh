#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks=192
#SBATCH --time=10:00:00
#SBATCH --mem-per-cpu=3900M

module load openmpi
srun ./solver case.cfg
