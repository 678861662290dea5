"""N: ports, addresses and network settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    is_native,
    rule,
    step_nodes,
    step_tasks_per_node,
    text_rule,
)
from shoal.doctor.job import ShellExport
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.script import BatchScript

_PORT_NAME = re.compile(r"(?:MASTER_|MAIN_PROCESS_|RDZV_|LIGHTHOUSE_|MAIN_|DIST_|DDP_|TRAIN_|M)?PORT")
_EPHEMERAL_PORTS = range(32768, 61000)
_PORT_FROM_JOB_ID = "$((20000 + SLURM_JOB_ID % 10000))"
_FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
#: Where native programs meet: --dist_url tcp://host:29500, --master_port 29500.
_URL_ARGUMENT = re.compile(
    r"--((?:dist|init)(?=[= ][\"']?tcp:)|(?:dist|init)[-_](?:url|method)|(?:master|dist|distributed|ddp|main)[-_]port)"
    r"[= ][\"']?(?:\w+://[^\s:]+:)?(\$?\{?\w+\}?)(?![\w:/.])"
)
_LOCAL_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|::1)\Z")
_RANDOM_SUM = re.compile(r"\(\([^()]*\bRANDOM\b[^()]*\)\)")
_RANDOM = re.compile(r"\bRANDOM\b|shuf\s+-i|get_free_port|free_port|random\.randint")
_RANGE = re.compile(
    r"(\d{4,6})\s*[-+]\s*(\d{4,6})|RANDOM\s*%\s*(\d+)\s*\+\s*(\d+)|(\d+)\s*\+\s*\(?\s*\$?\{?RANDOM\}?\s*%\s*(\d+)"
)
_DEBUG_SETTINGS = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
         "CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO TRACE"}  # fmt: skip

#: Commands that need the world outside, and what shows that they do not.
_DOWNLOAD = re.compile(
    r"^(?:wget|curl)\s|^git (?:clone|pull|fetch)\b|^(?:hf|huggingface-cli) (?:download|snapshot)|^gdown\b"
    r"|^(?:python3? -m )?(?:uv )?pip3? install\b|^(?:conda|mamba|micromamba) (?:install|create|update|env )"
)
_LOCAL_DOWNLOAD = re.compile(r"--no-index|--offline|localhost|127\.0\.0\.1|file://|--no-deps\s+(?:-e\s+)?\.")


def _ports(facts: CheckFacts) -> Iterator[tuple[int, str, str, ShellExport | ScriptLaunch]]:
    """(line, what sets it, value) of every rendezvous port that is written in the script."""
    for export in facts.job.exports:
        if _PORT_NAME.fullmatch(export.name) and export.value:
            yield export.line, export.name, export.value, export
    for launch in facts.job.launches:
        for name in ("master-port", "main-process-port", "rdzv-endpoint"):
            value = launch.option(name)
            if value:
                port = value.rpartition(":")[2] if name == "rdzv-endpoint" else value
                yield launch.line, f"--{name}", _port_value(port, facts), launch
        for match in _URL_ARGUMENT.finditer(" ".join(launch.args)):
            yield launch.line, f"--{match[1]}", _port_value(match[2], facts), launch


def _port_value(written: str, facts: CheckFacts) -> str:
    """The number that a variable of the script holds; a value that is no plain number stays as written."""
    number = as_number(written, facts.job.values)
    return written if number is None else str(number)


def _takes_whole_nodes(facts: CheckFacts) -> bool:
    """No other job can be on its nodes: it asks for them, or for all GPUs of a node (8 where no cluster tells).

    A header that names nodes and no GPUs is that of a site where jobs get whole nodes.
    """
    job = facts.job
    max_gpus = max((kind.gpus for kind in facts.node_kinds), default=8)
    memory = job.options["mem"].value if "mem" in job.options else ""
    if "exclusive" in job.options or memory == "0" or (job.geometry.gpus_per_node or 0) >= max_gpus:
        return True
    return facts.cluster is None and "nodes" in job.options and not job.geometry.wants_gpus


@rule("N01", "warning", "a fixed port", lower=("hint",))
def fixed_port(facts: CheckFacts) -> Iterator[RuleHit]:
    if not facts.job.header and facts.job.kind != "batch":
        return
    seen: set[str] = set()
    for line, name, value, source in _ports(facts):
        if not re.fullmatch(r"[1-9]\d{3,4}", value) or value in seen:
            continue
        one_process = facts.job.geometry.n == 1 and facts.job.geometry.gpus_total == 1
        if isinstance(source, ScriptLaunch) and source.launcher == "accelerate" and one_process:
            continue  # accelerate opens no port for one process
        seen.add(value)
        edits: tuple[ScriptEdit, ...] = ()
        if isinstance(source, ShellExport) and f"{name}={value}" in source.raw:
            edits = (ScriptEdit("replace", line, f"{name}={value}", f"{name}={_PORT_FROM_JOB_ID}"),)
        yield RuleHit(
            line,
            f"port {value} is the same for every job ({name})",
            "two jobs on one node clash (EADDRINUSE), or the second joins the first",
            f"export MASTER_PORT={_PORT_FROM_JOB_ID}",
            "hint" if _takes_whole_nodes(facts) else None,
            edits,
        )


@rule("N02", "warning", "a port that the system gives away")
def ephemeral_port(facts: CheckFacts) -> Iterator[RuleHit]:
    for line, name, value, _ in _ports(facts):
        top = _max_port(value)
        if top is not None and top in _EPHEMERAL_PORTS:
            yield RuleHit(
                line,
                f"{name} can lie in 32768-60999, from which the system takes ports for connections",
                "now and then the port is taken already (EADDRINUSE)",
                f"export MASTER_PORT={_PORT_FROM_JOB_ID}",
            )
            return


def _max_port(value: str) -> int | None:
    if value.isdigit():
        return int(value)
    match = _RANGE.search(value) if _RANDOM.search(value) else None
    if match is None:
        return None
    if match[1]:
        return max(int(match[1]), int(match[2]))
    low, width = (match[4], match[3]) if match[3] else (match[5], match[6])
    return int(low) + int(width) - 1


@rule("N03", "error", "localhost as the address of several nodes")
def localhost(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    yield from _own_name(facts)
    if job.geometry.n < 2:
        return
    alone = [launch.has("standalone") or launch.option("nnodes") == "1" for launch in job.work]
    for export in job.exports if not alone or not all(alone) else ():
        if export.name in ("MASTER_ADDR", "MAIN_PROCESS_IP", "RDZV_HOST") and _LOCAL_ADDRESS.fullmatch(export.value):
            yield RuleHit(
                export.line,
                f"{export.name}={export.value} is another machine on each of {job.geometry.n} nodes",
                "each node waits for the others alone, for ever",
                'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
                None,
                (ScriptEdit("replace", export.line, export.raw, f"{export.name}={_FIRST_NODE}"),),
            )
    for launch in job.work:
        if step_nodes(launch, job) in (None, 1) or launch.option("nnodes") == "1":
            continue
        for name in ("master-addr", "main-process-ip", "rdzv-endpoint"):
            host = (
                (launch.option(name) or "").rpartition(":")[0] if name == "rdzv-endpoint" else launch.option(name) or ""
            )
            if host and _LOCAL_ADDRESS.fullmatch(host):
                yield RuleHit(
                    launch.line,
                    f"--{name} {host} is another machine on each node",
                    "each node waits for the others alone, for ever",
                    '--rdzv-endpoint "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$MASTER_PORT"',
                )


_OWN_NAME = re.compile(r"[\"']?(?:\$\{?HOSTNAME\}?|\$\(hostname[^()]*\)|`hostname[^`]*`)[\"']?\Z")


def _own_name(facts: CheckFacts) -> Iterator[RuleHit]:
    """srun bash -c 'torchrun --rdzv-endpoint=$HOSTNAME:29500': in single quotes each node puts in its own name."""
    for launch in facts.job.work:
        if launch.srun is None or launch.quoting != "single" or step_nodes(launch, facts.job) == 1:
            continue
        if as_number(launch.option("nnodes"), facts.job.values) == 1 or launch.has("standalone"):
            continue
        for name in ("master-addr", "main-process-ip", "rdzv-endpoint"):
            value = launch.option(name) or ""
            host = value.rpartition(":")[0] if name == "rdzv-endpoint" and ":" in value else value
            if _OWN_NAME.fullmatch(host):
                yield RuleHit(
                    launch.line,
                    f"--{name} {host} stands in single quotes, so each node puts in its own name",
                    "each node waits for the others alone, until the rendezvous times out",
                    f"export MASTER_ADDR={_FIRST_NODE}   # before srun, and $MASTER_ADDR in its place",
                )


@rule("N04", "error", "a port that each process chooses for itself", lower=("warning",))
def port_per_process(facts: CheckFacts) -> Iterator[RuleHit]:
    for step in facts.job.steps:
        inner = [word for word in step.command.words if word.raw.startswith("'") or "\\$" in word.raw]
        if any("PORT" in word.raw.upper() and _RANDOM.search(word.raw) for word in inner):
            drawn = _RANDOM_SUM.findall(facts.line(step.line))
            yield RuleHit(
                step.line,
                "each task draws its own port",
                "the ranks look for each other at different ports, and hang",
                f"MASTER_PORT={_PORT_FROM_JOB_ID}, which is the same in every task",
                None,
                (ScriptEdit("replace", step.line, drawn[0], _PORT_FROM_JOB_ID[1:]),) if len(drawn) == 1 else (),
            )
    for launch in facts.job.work:
        hints = facts.job.hints(launch)
        tasks = step_tasks_per_node(launch, facts.job) or 1
        sets_port = any(one.name == "MASTER_PORT" for one in facts.job.exports)
        if hints is None or sets_port or not is_native(launch) or tasks * facts.job.geometry.n < 2:
            continue
        if hints.free_port and hints.inits_group and not hints.spawns:
            yield RuleHit(
                launch.line,
                f"{launch.program} looks for a free port in each of its processes",
                "unless rank 0 tells the others, they look for each other at different ports, and hang",
                f"export MASTER_PORT={_PORT_FROM_JOB_ID}   # before srun",
                "warning",
            )


@text_rule("N05", "hint", "the address of the node from hostname -i")
def hostname_i(script: BatchScript) -> Iterator[RuleHit]:
    for command in script.commands:
        words = command.texts
        at = next((index for index, word in enumerate(words) if word.rsplit("/", 1)[-1] == "hostname"), None)
        if at is not None and any(
            word in ("-i", "-I", "--ip-address", "--all-ip-addresses") for word in words[at + 1 :]
        ):
            yield RuleHit(
                command.line,
                "hostname -i may answer 127.0.1.1, or several addresses",
                "other nodes cannot connect, or the address cannot be parsed",
                'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )


@rule("N06", "hint", "the name of a network interface")
def network_interface(facts: CheckFacts) -> Iterator[RuleHit]:
    for export in facts.job.exports:
        named = export.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        if named and export.value and export.value[0] not in "^$" and not export.value.startswith("=^"):
            yield RuleHit(
                export.line,
                f"{export.name}={export.value} names an interface of one cluster",
                "elsewhere: no socket interface found",
                f"export {export.name}=^lo,docker0, or set it in the cluster's profile",
            )


@rule("N07", "hint", "a setting for debugging, left in")
def debug_settings(facts: CheckFacts) -> Iterator[RuleHit]:
    for export in facts.job.exports:
        if export.value and export.value.upper() in _DEBUG_SETTINGS.get(export.name, "").split():
            loud = export.name in ("NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG")
            yield RuleHit(
                export.line,
                f"{export.name}={export.value} is for finding faults",
                "logs grow large" if loud else "training runs slower, often several times",
                f"leave {export.name} out, unless this cluster needs it",
            )


@rule("N08", "warning", "one manager port for all replicas")
def shared_manager_port(facts: CheckFacts) -> Iterator[RuleHit]:
    for export in facts.job.exports:
        if export.name == "TORCHFT_MANAGER_PORT" and export.value not in ("", "0"):
            yield RuleHit(
                export.line,
                "TORCHFT_MANAGER_PORT is the same for all replicas",
                "the second replica on a node dies: address already in use (os error 98)",
                "unset TORCHFT_MANAGER_PORT",
            )


@text_rule("N10", "hint", "a download inside the job")
def download_in_job(script: BatchScript) -> Iterator[RuleHit]:
    if script.kind != "batch" or not script.header:
        return
    for command in script.commands:
        if _DOWNLOAD.search(" ".join(command.texts)) and not _LOCAL_DOWNLOAD.search(command.raw):
            yield RuleHit(
                command.line,
                f"the job itself fetches something from the network ({' '.join(command.texts[:2])})",
                "on many clusters compute nodes reach no network: it hangs or times out; else the GPUs wait for it",
                "fetch it on the login node before; in the job HF_HUB_OFFLINE=1 and WANDB_MODE=offline",
            )
            return


@rule("N11", "warning", "a launcher that needs ssh between nodes")
def ssh_launcher(facts: CheckFacts) -> Iterator[RuleHit]:
    if facts.job.geometry.n < 2:
        return
    by_srun = any(launch.srun is not None for launch in facts.job.work)  # then ssh only looks or prepares
    for command in facts.job.commands if not by_srun else ():
        if command.name in ("pdsh", "clush", "parallel-ssh") or (command.name == "ssh" and "loop" in command.within):
            yield RuleHit(
                command.line,
                f"{command.name} starts processes outside of Slurm's steps",
                "many clusters allow no ssh between nodes; where they do, Slurm cannot signal or account for it",
                "srun --ntasks-per-node=1 ...",
            )
    for launch in facts.job.launches:
        if launch.launcher != "deepspeed" or launch.has("no-ssh") or launch.srun is not None:
            continue
        if launch.option("launcher") not in ("slurm", "openmpi", "mpich", "mvapich"):
            yield RuleHit(
                launch.line,
                "deepspeed reaches other nodes with pdsh, by ssh",
                "without ssh between nodes it hangs or fails",
                "srun --ntasks-per-node=1 torchrun ..., or deepspeed --launcher slurm",
            )


@text_rule("N12", "warning", "Ray with its usual ports on a shared node", lower=("hint",))
def ray_ports(script: BatchScript) -> Iterator[RuleHit]:
    for command in script.commands:
        text = " ".join(command.texts)
        if not re.search(r"\bray start\b", text) or "--head" not in text or "exclusive" in script.options:
            continue
        port = re.search(r"--port[= ](\S+)", text)
        if port is None or port[1].isdigit() or "--temp-dir" not in text:
            missing = "--port" if port is None or port[1].isdigit() else "--temp-dir"
            yield RuleHit(
                command.line,
                f"Ray's head has no {missing} of its own",
                "on a shared node it clashes with another Ray, or joins it",
                f"ray start --head --port={_PORT_FROM_JOB_ID} --temp-dir=/tmp/ray-$SLURM_JOB_ID ...",
                "hint" if missing == "--temp-dir" else None,
            )
