"""The text of a batch script, as three parts that a person can read: header, set-up, launch. Pure text, no I/O.

    render_script(header(options, comments), set_up(cluster), launch)

The script does the same under `sbatch x.sh` and, where its geometry allows, under `bash x.sh`.

Launch parts: torchrun, accelerate and deepspeed are one task per node and start the processes of their node; under
`srun` each GPU has a task. srun ends all of them when one fails, and exits with its code. The part for fault-tolerant
replicas (a lighthouse, R replicas that are restarted) is plain bash, for people to read and for clusters without shoal.
shoal's own supervisor does more: this script does not kill a replica that hangs, and for a lost lighthouse it requeues
the whole job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.batch import refuse_line_breaks, sbatch_lines, shell_command, shell_quote
from shoal.describe import REPLICA_PLACEHOLDERS, Cluster
from shoal.errors import InputError
from shoal.job import (
    LAUNCH_DEFAULTS,
    PORT_BASE,
    PORT_COUNT,
    LaunchGeometry,
    LaunchValues,
    compute_geometry,
    find_launcher,
)
from shoal.model import LaunchSettings, Request
from shoal.plan.containers import ContainerText

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(REPLICA_PLACEHOLDERS)})\}}")


class _Launch(NamedTuple):
    """What a launch part is written from; `start` is how torchrun is called, `program` what a launcher runs."""

    command: Sequence[str]
    request: Request
    geometry: LaunchGeometry
    settings: LaunchSettings
    container: ContainerText

    @property
    def start(self) -> list[str]:
        return split_torchrun(self.command)[0]

    @property
    def program(self) -> list[str]:
        return split_torchrun(self.command)[1]


def _replica_lines(launch: _Launch) -> str:
    """Shell lines; the program has the templates of the settings as further arguments."""
    request, geometry, settings, container = launch.request, launch.geometry, launch.settings, launch.container
    values = {**LAUNCH_DEFAULTS, **settings.record()}
    attempts = " ".join(str(number) for number in range(1, values["restarts"] + 2))
    min_replicas = geometry.min_replicas
    min_finished = settings.min_finished or min_replicas
    lighthouse = f"{_lighthouse_prefix(container)}torchft_lighthouse"
    return f"""\
{_require_allocation(request)}mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
logs="logs/replicas-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
mkdir -p "$logs"
# srun would take these from the job as options of each step, and the steps would wait for each other.
unset SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_GPUS_PER_NODE

# The replicas' meeting point, on a free port of the first node. {min_replicas} of {geometry.replicas} must be alive.
{lighthouse} --min_replicas {min_replicas} --bind '[::]:0' --quorum_tick_ms {values["quorum_tick_ms"]} \\
    --join_timeout_ms {values["join_timeout_ms"]} \\
    --heartbeat_timeout_ms {values["heartbeat_timeout_ms"]} > "$logs/lighthouse.log" 2>&1 &
lighthouse=$!
until port=$(sed -n 's|.*listening on: http://[^ ]*:\\([0-9]*\\).*|\\1|p' "$logs/lighthouse.log") && [ -n "$port" ]; do
    kill -0 "$lighthouse" || {{ cat "$logs/lighthouse.log" >&2; exit 1; }}
    sleep 0.1
done
export TORCHFT_LIGHTHOUSE="http://${{hosts[0]}}:$port" NUM_REPLICA_GROUPS={geometry.replicas}

# One replica: restarted, each time a little later, until it completes, its attempts are used up, or one has finished.
replica() {{
    local replica=$1 nodes=$2 attempt code
    export REPLICA_GROUP_ID=$replica
    for attempt in {attempts}; do
        code=0
        {_replica_srun(request, geometry)}{container.step} \\
            --nodelist="$nodes" --output="$logs/replica-$replica.attempt-$attempt.log" \\
            {container.around}{_replica_torchrun(launch)} \\
            {_replica_program(launch)} || code=$?
        [ "$code" -ne 0 ] || {{ echo "replica $replica finished"; touch "$logs/finished-$replica"; return 0; }}
        echo "replica $replica, attempt $attempt: exit code $code" >&2
        if compgen -G "$logs/finished-*" > /dev/null; then return "$code"; fi
        sleep "$((2 ** (attempt - 1)))"
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
        [ "${{SLURM_RESTART_COUNT:-0}}" -ge {values["run_restarts"]} ] || scontrol requeue "$SLURM_JOB_ID"
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
[ "$finished" -ge {min_finished} ] || exit "$first"
"""


def _lighthouse_prefix(container: ContainerText) -> str:
    """What stands before the lighthouse: its container, and under pyxis the step that has it as a flag."""
    step = 'srun --overlap --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" --gres=none'
    return f"{step}{container.step} \\\n    " if container.step else container.around


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


def _replica_torchrun(launch: _Launch) -> str:
    geometry, one_node = launch.geometry, launch.geometry.nodes_per_replica == 1
    values = LaunchValues(
        nodes=geometry.nodes_per_replica,
        processes=geometry.replica_processes,
        id="$SLURM_JOB_ID-$replica-$attempt",
        node="",
        address="${nodes%%,*}",
        port="" if one_node else f"$(({_PORT}))",
    )
    return f"{shell_command(launch.start)} {_option_words('torchrun', values)}"


def _replica_program(launch: _Launch) -> str:
    return " ".join([*(shell_quote(word) for word in launch.program), *with_placeholders(launch.settings.args)])


def _replica_nodes(geometry: LaunchGeometry) -> str:
    if geometry.nodes_per_replica == 1:
        return f'"${{hosts[i / {geometry.replicas_per_node}]}}"'
    over = geometry.nodes_per_replica
    return f'"$(IFS=,; echo "${{hosts[*]:i * {over}:{over}}}")"'


_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?", re.ASCII | re.DOTALL)


def launch_lines(
    launch: str,
    command: Sequence[str],
    request: Request,
    settings: LaunchSettings | None = None,
    container: ContainerText | None = None,
) -> str:
    """Shell that runs `command` over the nodes of `request`, contained or not; their exit code is the command's."""
    if not command:
        raise InputError("there is no command to launch")
    container = container or ContainerText()
    return container.lines + _launch_lines(launch, command, request, settings, container)


def _launch_lines(
    launch: str, command: Sequence[str], request: Request, settings: LaunchSettings | None, container: ContainerText
) -> str:
    if launch not in _LAUNCH_PARTS:
        raise InputError(f"unknown launch mode {launch!r}", hint=f"one of {', '.join(_LAUNCH_PARTS)}")
    values = settings or LaunchSettings()
    geometry = compute_geometry(launch, values.record(), request.nodes or 1, request.gpus or 0, request.cpus)
    return _LAUNCH_PARTS[launch](_Launch(command, request, geometry, values, container))


def split_torchrun(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """(how to start torchrun, what it runs). torchrun starts Python itself, so a leading `python` is taken off.

    A Python given by its path keeps its own torchrun; another program runs under --no-python.
    """
    start, program = ["torchrun"], list(command)
    if _PYTHON.fullmatch(program[0]):
        if "/" in program[0]:
            start = [program[0], "-m", "torch.distributed.run"]
        rest = program[1:]
        while rest[:1] == ["-u"]:
            rest = rest[1:]
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return start, rest
    elif program[0].endswith(".py"):
        return start, program
    return start, ["--no-python", *program]


def _single_process(launch: _Launch) -> str:
    request, container = launch.request, launch.container
    line = f"{container.around}{shell_command(launch.command)}\n"
    if (request.nodes or 1) == 1 and not container.step:
        return line
    return f"{_require_allocation(request)}{_srun_words(request, container)} \\\n    {line}"


def _torchrun(launch: _Launch) -> str:
    request, geometry, container = launch.request, launch.geometry, launch.container
    one_node = geometry.nodes == 1
    values = LaunchValues(
        nodes=geometry.nodes,
        processes=geometry.processes,
        id="$SLURM_JOB_ID",
        node="",
        address="$head",
        port="" if one_node else "$port",
        max_restarts=launch.settings.max_restarts or 0,
    )
    program = " ".join(shell_quote(word) for word in launch.program)
    line = f"{container.around}{shell_command(launch.start)} {_option_words('torchrun', values)} \\\n    {program}\n"
    if one_node and not container.step:
        return line
    hosts = "" if one_node else _FIRST_HOST_LINES
    return f"{_require_allocation(request)}{hosts}{_srun_words(request, container)} \\\n    {line}"


def _option_words(launcher: str, values: LaunchValues) -> str:
    """The launcher's options as inside a job; what the shell fills in is quoted as a whole."""
    return " ".join(f'"{word}"' if "$" in word else word for word in find_launcher(launcher).options(values))


#: Below the ephemeral ports, and by job id, so that two jobs of a node rarely meet; as in job/allocation.py.
_PORT = f"{PORT_BASE} + SLURM_JOB_ID % {PORT_COUNT}"
_FIRST_HOST_LINES = f"""\
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${{hosts[0]}}"
port=$(({_PORT}))
"""


def _srun_tasks(launch: _Launch) -> str:
    """One task per GPU; each learns its rank from Slurm at its own start, not from the batch shell."""
    geometry, container = launch.geometry, launch.container
    cpus = "" if geometry.cpus_per_task is None else f" --cpus-per-task={geometry.cpus_per_task}"
    place = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    return (
        f"{_require_allocation(launch.request)}{_FIRST_HOST_LINES}"
        'export MASTER_ADDR="$head" MASTER_PORT="$port"\n'
        f"srun --kill-on-bad-exit=1 --ntasks-per-node={geometry.tasks}{cpus}{container.step} \\\n"
        f"    bash -c '{place}; exec \"$@\"' rank \\\n"
        f"    {container.around}{shell_command(launch.command)}\n"
    )


def _accelerate(launch: _Launch) -> str:
    return _with_node_rank("accelerate", launch)


def _deepspeed(launch: _Launch) -> str:
    slots = f'printf "%s slots={launch.geometry.processes}\\n" "${{hosts[@]}}" > "$hostfile"\n'
    return _with_node_rank("deepspeed", launch, f'hostfile="hosts-$SLURM_JOB_ID"\n{slots}', ("$hostfile",))


def _with_node_rank(mode: str, launch: _Launch, lines: str = "", further: Sequence[str] = ()) -> str:
    """A launcher on each node, which learns its number inside the task of srun; it needs no ssh."""
    request, container, launcher = launch.request, launch.container, find_launcher(mode)
    given = ["$head", "$port", *further]
    values = LaunchValues(
        nodes=launch.geometry.nodes,
        processes=launch.geometry.processes,
        id="$SLURM_JOB_ID",
        node="$SLURM_NODEID",
        address="$0",
        port="$1",
        hostfile="$2",
        max_restarts=launch.settings.max_restarts or 0,
    )
    line = f'{shell_command(launcher.program)} {_option_words(mode, values)} "${{@:{len(given)}}}"'
    program = [launcher.no_python if word == "--no-python" else word for word in launch.program]
    words = " ".join(shell_quote(word) for word in (*launch.settings.options, *program))
    step = f"{_require_allocation(request)}{_FIRST_HOST_LINES}{lines}{_srun_words(request, container)}"
    values_given = " ".join(f'"{value}"' for value in given)
    return f"{step} \\\n    {container.around}bash -c 'exec {line}' {values_given} \\\n    {words}\n"


#: The launch part of a script for each launch mode (job/launch/geometry.py:LAUNCH_MODES).
_LAUNCH_PARTS: dict[str, Callable[[_Launch], str]] = {
    "process": _single_process,
    "torchrun": _torchrun,
    "srun": _srun_tasks,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "replicas": _replica_lines,
}


def _require_allocation(request: Request) -> str:
    """Outside a job srun would ask for an allocation of its own."""
    return f': "${{SLURM_JOB_ID:?this script needs {request.nodes} nodes: submit it with sbatch}}"\n'


def _srun_words(request: Request, container: ContainerText) -> str:
    # Since 22.05 srun does not take --cpus-per-task from the job: without it a task would get one core.
    cpus = (
        f"--cpus-per-task={request.cpus}"
        if request.cpus
        else '${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}'
    )
    return f"srun --kill-on-bad-exit=1 --ntasks-per-node=1 {cpus}{container.step}"


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Not `set -e`: that would also judge every command inside a sourced activation script, and those fail harmlessly.
_EXIT_TRAP = """trap 'failed=$?; [ "${FUNCNAME[0]}" != set_up ] || { trap - ERR; return "$failed"; }' ERR"""


def script_header(options: Sequence[tuple[str, str | None]], comments: Sequence[str] = ()) -> str:
    """Shebang, comments, one #SBATCH line for each option; sbatch reads these only up to the first command."""
    for comment in comments:
        refuse_line_breaks(comment, "a comment")
    lines = ["#!/bin/bash", *(f"# {comment}".rstrip() for comment in comments)]
    lines += sbatch_lines(options)
    return "\n".join(lines) + "\n"


def setup_text(cluster: Cluster, env: Mapping[str, str] | None = None) -> str:
    """The function `set_up`: exports of the profile, then of `env`, then the profile's own shell lines as they are.

    It returns the exit code of the first of these lines that fails. Call it as a plain command: bash does not notice
    failures inside of `if set_up` or `set_up || ...`.
    """
    exports = {**cluster.environment(), **(env or {})}
    lines = [_export(name, value) for name, value in exports.items()]
    lines += [
        f"    export {name}={shell_quote(value)}${{{name}:+:${name}}}"
        for name, value in cluster.prepends().items()
        if name not in exports
    ]
    # Lines that only make sense together (a here-document, a quoted text over lines) must not be indented.
    indent = "    " if all(_is_single_command(line) for line in cluster.setup) else ""
    if cluster.setup:
        lines += ["    # The first line that fails ends the set-up.", f"    {_EXIT_TRAP}"]
        lines += [f"{indent}{line}" if line.strip() else "" for line in cluster.setup]
        lines.append("    trap - ERR")
    return "\n".join(["set_up() {", *(lines or ["    :"]), "}"]) + "\n"


def _export(name: str, value: str) -> str:
    """Where scratch is, a person may have said already; $NAMES in it are filled in by each node for itself."""
    unless = '[ -n "${SHOAL_SCRATCH:-}" ] || ' if name == "SHOAL_SCRATCH" else ""
    return f"    {unless}export {_env_name(name)}={shell_quote(value)}"


def render_script(head: str, setup: str, launch: str) -> str:
    """The whole script. A failing line ends it with that line's exit code; the last line's is the job's.

    `set -eu` begins after the set-up part, because activation scripts of conda and modules read unset variables.
    """
    call = 'set_up\nstatus=$?\n[ "$status" -eq 0 ] || exit "$status"\nset -euo pipefail\n'
    return f"{head}\n{setup}\n{call}\n{launch.rstrip()}\n"


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise InputError(f"{name!r} is not the name of an environment variable")
    return name


def _is_single_command(line: str) -> bool:
    if "<<" in line or line.endswith("\\"):
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True
