#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=10:00:00
#SBATCH --nodes=1

python train.py --config base.yaml
rc=$?
echo "training ended with $rc on $(hostname)"
cp -r outputs "/archive/$SLURM_JOB_ID"
exit $rc
