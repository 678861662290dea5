#!/bin/bash
#SBATCH --gres=gpu:4
#SBATCH --nodes=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=200G
#SBATCH --time=02:00:00

set -euo pipefail
port=$((20000 + SLURM_JOB_ID % 10000))
python -m vllm.entrypoints.openai.api_server --model my/model --tensor-parallel-size 4 --port "$port" &
server=$!
trap 'kill $server' EXIT
until curl -sf "localhost:$port/health"; do sleep 5; done
python evaluate.py --url "http://localhost:$port/v1"
