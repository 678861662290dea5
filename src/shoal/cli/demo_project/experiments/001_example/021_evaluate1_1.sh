#!/usr/bin/env bash
source "$(shoal shell)"

evaluate 011_posttrain1_1 --cpus-per-task=1 --time=00:05:00
