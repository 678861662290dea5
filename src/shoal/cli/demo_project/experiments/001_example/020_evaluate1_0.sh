#!/usr/bin/env bash
source "$(shoal shell)"

evaluate 010_posttrain1_0 --cpus-per-task=1 --time=00:05:00
