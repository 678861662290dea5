source "$(shoal shell)"
export TRAINING_CONFIG="$TRAINING_CONFIG image_architecture=regnety_032"
train --cpus-per-task=32 --partition=a100-galvani --time=3-00:00:00 --gres=gpu:4
