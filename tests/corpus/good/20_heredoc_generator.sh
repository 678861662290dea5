#!/bin/bash
# Writes one batch script for each depth and submits it.
set -euo pipefail
for depth in 4 8 16; do
    cat > "jobs/depth_${depth}.sh" <<EOF
#!/bin/bash
#SBATCH --job-name=depth_${depth}
#SBATCH --gres=gpu:1
#SBATCH --time=01:00:00
python train.py --depth ${depth}
EOF
    sbatch "jobs/depth_${depth}.sh"
done
