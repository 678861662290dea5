#!/bin/tcsh
#SBATCH --job-name=legacy
#SBATCH --time=01:00:00
#SBATCH --ntasks=1
setenv OMP_NUM_THREADS 4
./solver input.nml >& solver.log
