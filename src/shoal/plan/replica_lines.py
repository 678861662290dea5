"""The launch part of a script for fault-tolerant replicas: a lighthouse, R replicas that come back, an honest end.

It is plain bash, for people to read and for clusters without shoal. shoal's own supervisor does more: this script does
not kill a replica that hangs, and for a lost lighthouse it requeues the whole job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.batch import shell_command, shell_quote
from shoal.describe import REPLICA_PLACEHOLDERS
from shoal.job import LAUNCH_DEFAULTS, PORT_BASE, PORT_COUNT, LaunchGeometry
from shoal.model import LaunchSettings, Request
from shoal.plan.container_lines import ContainerText

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(REPLICA_PLACEHOLDERS)})\}}")


def replica_lines(
    start: Sequence[str],
    program: Sequence[str],
    request: Request,
    geometry: LaunchGeometry,
    settings: LaunchSettings,
    box: ContainerText,
) -> str:
    """Shell lines; `start` is how torchrun is called and `program` what it runs, with the templates of the settings."""
    said = {**LAUNCH_DEFAULTS, **settings.record()}
    tries = " ".join(str(number) for number in range(1, said["restarts"] + 2))
    least = geometry.min_replicas
    finish = settings.finish or least
    lighthouse = f"{_lighthouse_prefix(box)}torchft_lighthouse"
    return f"""\
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
logs="logs/replicas-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
mkdir -p "$logs"
# srun would take these from the job as options of each step, and the steps would wait for each other.
unset SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_GPUS_PER_NODE

# The replicas' meeting point, on a free port of the first node. {least} of {geometry.replicas} must be alive.
{lighthouse} --min_replicas {least} --bind '[::]:0' --quorum_tick_ms {said["quorum_tick_ms"]} \\
    --join_timeout_ms {said["join_timeout_ms"]} \\
    --heartbeat_timeout_ms {said["heartbeat_timeout_ms"]} > "$logs/lighthouse.log" 2>&1 &
lighthouse=$!
until port=$(sed -n 's|.*listening on: http://[^ ]*:\\([0-9]*\\).*|\\1|p' "$logs/lighthouse.log") && [ -n "$port" ]; do
    kill -0 "$lighthouse" || {{ cat "$logs/lighthouse.log" >&2; exit 1; }}
    sleep 0.1
done
export TORCHFT_LIGHTHOUSE="http://${{hosts[0]}}:$port" NUM_REPLICA_GROUPS={geometry.replicas}

# One replica: started again, each time a little later, until it ends well, its tries are used up, or one has finished.
replica() {{
    local replica=$1 nodes=$2 try code
    export REPLICA_GROUP_ID=$replica
    for try in {tries}; do
        code=0
        {_replica_srun(request, geometry)}{box.step} \\
            --nodelist="$nodes" --output="$logs/replica-$replica.try-$try.log" \\
            {box.around}{_replica_torchrun(start, geometry)} \\
            {_replica_program(program, settings)} || code=$?
        [ "$code" -ne 0 ] || {{ echo "replica $replica finished"; touch "$logs/finished-$replica"; return 0; }}
        echo "replica $replica, try $try: exit code $code" >&2
        if compgen -G "$logs/finished-*" > /dev/null; then return "$code"; fi
        sleep "$((2 ** (try - 1)))"
    done
    return "$code"
}}

pids=()
for ((i = 0; i < {geometry.replicas}; i++)); do
    replica "$i" {_replica_nodes(geometry)} &
    pids+=("$!")
done

# A new lighthouse among old replicas would fail them all, so a lost one starts the job again from its checkpoints.
while kill -0 "${{pids[@]}}" 2> /dev/null; do
    if ! kill -0 "$lighthouse" 2> /dev/null; then
        echo "the lighthouse is gone" >&2
        [ "${{SLURM_RESTART_COUNT:-0}}" -ge {said["run_restarts"]} ] || scontrol requeue "$SLURM_JOB_ID"
        exit 75
    fi
    sleep 1
done

finished=0 first=0
for pid in "${{pids[@]}}"; do
    code=0
    wait "$pid" || code=$?
    if [ "$code" -eq 0 ]; then finished=$((finished + 1)); elif [ "$first" -eq 0 ]; then first=$code; fi
done
kill "$lighthouse"
[ "$finished" -ge {finish} ] || exit "$first"
"""


def _lighthouse_prefix(box: ContainerText) -> str:
    """What stands before the lighthouse: its container, and under pyxis the step that has it as a flag."""
    step = 'srun --overlap --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" --gres=none'
    return f"{step}{box.step} \\\n    " if box.step else box.around


def with_placeholders(words: Sequence[str]) -> list[str]:
    """Shell words in which {replica} and the like become the replica's own values."""
    found = []
    for word in words:
        parts = _PLACEHOLDER.split(word)
        quoted = (
            REPLICA_PLACEHOLDERS[one] if at % 2 else shell_quote(one) if one else "" for at, one in enumerate(parts)
        )
        found.append("".join(quoted) or "''")
    return found


def _replica_srun(request: Request, geometry: LaunchGeometry) -> str:
    over, per_node = geometry.nodes_per_replica, geometry.replicas_per_node
    words = [f"srun --exact --kill-on-bad-exit=1 --nodes={over} --ntasks={over} --ntasks-per-node=1"]
    if geometry.cpus is not None:
        words.append(f"--cpus-per-task={geometry.cpus // per_node}")
    words.append(f"--gres={f'gpu:{geometry.replica_gpus}' if geometry.gpus else 'none'}")
    if request.memory_mb is not None:
        words.append(f"--mem={request.memory_mb // per_node}M")
    return " ".join(words)


def _replica_torchrun(start: Sequence[str], geometry: LaunchGeometry) -> str:
    torchrun = shell_command(start)
    if geometry.nodes_per_replica == 1:
        return f"{torchrun} --standalone --nproc-per-node {geometry.replica_processes}"
    return (
        f"{torchrun} --nnodes {geometry.nodes_per_replica} --nproc-per-node {geometry.replica_processes} \\\n"
        '            --rdzv-id "$SLURM_JOB_ID-$replica-$try" --rdzv-backend c10d \\\n'
        f'            --rdzv-endpoint "${{nodes%%,*}}:$(({PORT_BASE} + SLURM_JOB_ID % {PORT_COUNT}))"'
    )


def _replica_program(program: Sequence[str], settings: LaunchSettings) -> str:
    return " ".join([*(shell_quote(word) for word in program), *with_placeholders(settings.args)])


def _replica_nodes(geometry: LaunchGeometry) -> str:
    if geometry.nodes_per_replica == 1:
        return f'"${{hosts[i / {geometry.replicas_per_node}]}}"'
    over = geometry.nodes_per_replica
    return f'"$(IFS=,; echo "${{hosts[*]:i * {over}:{over}}}")"'
