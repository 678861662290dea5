#!/bin/bash
# Submits three jobs, each after the one before; run it on the login node.
set -euo pipefail
first=$(sbatch --parsable --time=10:00:00 pretrain.sh)
second=$(sbatch --parsable --dependency=afterok:"$first" --kill-on-invalid-dep=yes finetune.sh)
sbatch --dependency=afterany:"$second" evaluate.sh --checkpoint last
echo "submitted $first $second"
