#!/bin/bash
#SBATCH --job-name=ckpt
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=40G
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

on_signal() {
    kill -USR1 "$pid"
    wait "$pid"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap on_signal USR1

srun --cpus-per-task=8 python train.py --output runs/$SLURM_JOB_ID --resume-if-present &
pid=$!
wait "$pid"
rc=$?
exit $rc
