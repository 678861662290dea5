#!/usr/bin/env bash
source "$(shoal shell)"

evaluate 012_posttrain1_2 --cpus-per-task=1 --time=00:05:00
