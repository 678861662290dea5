#!/bin/bash
# a comment
#SBATCH --job-name=000_pretrain1_0
#SBATCH --partition="a b\#c"
#SBATCH --requeue

set_up() {
    export FI_PROVIDER=efa
    export FI_EFA_USE_DEVICE_RDMA=1
    export NCCL_IB_DISABLE=1
    export NCCL_SOCKET_IFNAME=ib0
    export ODD='it'"'"'s $HOME
and a line'
    export LD_LIBRARY_PATH=/opt/amazon/efa/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # The first line that fails ends the set-up.
    trap 'failed=$?; [ "${FUNCNAME[0]}" != set_up ] || { trap - ERR; return "$failed"; }' ERR
    source env.sh
    module load cuda
    trap - ERR
}

set_up
status=$?
[ "$status" -eq 0 ] || exit "$status"
set -euo pipefail

: "${SLURM_JOB_ID:?this script needs 4 nodes: submit it with sbatch}"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${hosts[0]}"
port=$((20000 + SLURM_JOB_ID % 10000))
srun --kill-on-bad-exit=1 --ntasks-per-node=1 --cpus-per-task=96 \
    torchrun --nnodes=4 "--rdzv-id=$SLURM_JOB_ID" --rdzv-backend=c10d "--rdzv-endpoint=$head:$port" --nproc-per-node=8 \
    ./train.py '$HOME'
