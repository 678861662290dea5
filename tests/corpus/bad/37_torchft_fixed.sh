#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=40
#SBATCH --mem=800G
#SBATCH --time=1-12:00:00
#SBATCH --requeue

export NUM_REPLICA_GROUPS=3
export TORCHFT_MANAGER_PORT=29512
export LIGHTHOUSE_PORT=29510
srun --overlap -N1 -n1 torchft_lighthouse --min_replicas 3 --bind [::]:29510 &
for r in 0 1 2; do
    srun --overlap -N1 -n1 torchrun --nproc-per-node=8 train.py --replica $r &
done
# wait
exit 0
