#!/usr/bin/env bash
source "$(shoal shell)"

export TRAINING_CONFIG="$TRAINING_CONFIG steps=100 rate=0.2"

posttrain 000_pretrain1_0 --cpus-per-task=1 --time=00:10:00
