#!/usr/bin/env bash
source "$(shoal shell)"

export TRAINING_CONFIG="$TRAINING_CONFIG steps=50 rate=0.05"

train --cpus-per-task=1 --time=00:10:00
