#!/bin/bash
#SBATCH --time=01:00:00
#SBATCH --mem=8G

cat > config.yaml <<EOF
lr: 0.1
python train.py --config config.yaml
