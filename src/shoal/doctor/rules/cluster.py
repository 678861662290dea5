"""D, G: the request against the cluster of this machine. Without a cluster these rules find nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from shoal.doctor.edits import nearest_edits, option_edit
from shoal.doctor.finding import CheckFacts, RuleHit, rule
from shoal.doctor.launchers import base_name
from shoal.doctor.nearest import RequestMismatch, closest_node_kind, qos_mismatches
from shoal.units import plural

_GPU_NAMES = ("gpu", "a100", "h100", "h200", "v100", "a40", "l40", "b200", "gh200", "mi250", "mi300", "rtx", "2080")


def _option_line(facts: CheckFacts, name: str) -> int:
    options = facts.job.options
    option = options.get(name) or next(
        (options[other] for other in ("gres", "gpus-per-node", "gpus", "ntasks-per-node") if other in options), None
    )
    return option.line if option else 1


def _fix_text(facts: CheckFacts, otherwise: str) -> str:
    return f"sbatch {facts.nearest} {facts.job.path}   # tried: Slurm accepts it" if facts.nearest else otherwise


def _mismatches(facts: CheckFacts, *about: str) -> Iterator[tuple[str, RequestMismatch]]:
    if facts.cluster is None or facts.job.is_het:
        return
    best = closest_node_kind(facts.job.geometry, facts.job.options, facts.cluster)
    for misfit in best[1] if best else ():
        if misfit.about in about and best:
            yield best[0].partition, misfit


@rule("D11", "error", "more time than the partition gives")
def time_above_limit(facts: CheckFacts) -> Iterator[RuleHit]:
    for partition, misfit in _mismatches(facts, "time"):
        yield RuleHit(
            _option_line(facts, "time"),
            f"--time={misfit.asked} is more than partition {partition} gives: {misfit.nearest}",
            "Slurm refuses it, or accepts it and never starts it (PartitionTimeLimit)",
            _fix_text(facts, f"--time={misfit.nearest}"),
            None,
            nearest_edits(facts),
        )


@rule("D12", "error", "a GPU type that is not here")
def unavailable_gpu_type(facts: CheckFacts) -> Iterator[RuleHit]:
    for partition, misfit in _mismatches(facts, "type"):
        types = dict.fromkeys(name for kind in facts.node_kinds for name in kind.gpu_types)
        names = ", ".join(types) or "no named types"
        yield RuleHit(
            _option_line(facts, misfit.option),
            f"partition {partition} has no GPU type {misfit.asked}; it has {names} (capital letters count)",
            "Slurm refuses it: requested node configuration is not available",
            _fix_text(facts, f"--gres=gpu:{misfit.nearest}:{facts.job.geometry.gpus_per_node}"),
            None,
            nearest_edits(facts),
        )
    option = facts.job.options.get("gres")
    if option is not None and any(item.strip().startswith("gpus:") for item in (option.value or "").split(",")):
        yield RuleHit(
            option.line,
            "the generic resource is called gpu, not gpus",
            "sbatch refuses it: invalid generic resource specification",
            f"--gres={(option.value or '').replace('gpus:', 'gpu:')}",
            None,
            (option_edit("gres", (option.value or "").replace("gpus:", "gpu:")),),
        )


@rule("D13", "error", "more than any node has")
def request_above_node(facts: CheckFacts) -> Iterator[RuleHit]:
    cluster, options = facts.cluster, facts.job.options
    if cluster is None:
        return
    asked = options.get("partition")
    names = [one.name for one in cluster.partitions]
    for name in (asked.value or "").split(",") if asked is not None and asked.is_literal else ():
        if name and name not in names:
            yield RuleHit(
                asked.line if asked else 1,
                f"unknown partition {name} (available: {', '.join(names)})",
                "sbatch refuses it: invalid partition",
                _fix_text(facts, f"--partition={names[0]}" if names else "sinfo"),
                None,
                nearest_edits(facts),
            )
    words = {"gpus": "GPUs per node", "cpus": "CPUs per task", "memory": "memory per node", "nodes": "nodes",
             "tasks": "tasks per node"}  # fmt: skip
    for partition, misfit in _mismatches(facts, *words):
        yield RuleHit(
            _option_line(facts, misfit.option),
            f"no node of partition {partition} gives {misfit.asked} {words[misfit.about]}; at most {misfit.nearest}",
            "Slurm refuses it, or leaves it in the queue for ever",
            _fix_text(facts, f"--{misfit.option}={misfit.nearest}"),
            None,
            nearest_edits(facts),
        )
    for partition, misfit in _mismatches(facts, "feature"):
        yield RuleHit(
            _option_line(facts, "constraint"),
            f"no node of partition {partition} has the feature {misfit.asked}; there are: {misfit.nearest or 'none'}",
            "Slurm refuses it: invalid feature specification",
            _fix_text(facts, "leave --constraint out"),
            None,
            nearest_edits(facts),
        )


@rule("D21", "error", "more array tasks than the cluster takes")
def array_above_limit(facts: CheckFacts) -> Iterator[RuleHit]:
    last, max_size = facts.job.geometry.array_last, facts.cluster.max_array_size if facts.cluster else None
    if last is not None and max_size is not None and last >= max_size:
        yield RuleHit(
            _option_line(facts, "array"),
            f"the largest index of the array is {last}, and here it must be below {max_size}",
            "sbatch refuses it: invalid job array specification",
            f"--array=0-{max_size - 1}, and the rest as a second array, or several steps in each task",
        )


@rule("D27", "error", "an account or QOS that is not yours", lower=("warning",))
def account_not_allowed(facts: CheckFacts) -> Iterator[RuleHit]:
    cluster, options = facts.cluster, facts.job.options
    if cluster is None:
        return
    for name, known in (("account", cluster.accounts), ("qos", cluster.qos)):
        option = options.get(name)
        if option is not None and known and option.is_literal and option.value not in known:
            yield RuleHit(
                option.line,
                f"you have no {name} {option.value} here; you have {', '.join(known)}",
                "Slurm refuses it: invalid account, partition or QOS combination",
                _fix_text(facts, f"--{name}={known[0]}"),
                None,
                nearest_edits(facts),
            )
    for partition in facts.partitions:
        account = options["account"].value if "account" in options else cluster.default_account
        if partition.allow_accounts and account and account not in partition.allow_accounts:
            yield RuleHit(
                _option_line(facts, "partition"),
                f"partition {partition.name} is for {', '.join(partition.allow_accounts)}, not for account {account}",
                "Slurm refuses it, or leaves it in the queue for ever",
                _fix_text(facts, f"--account={partition.allow_accounts[0]}, if you have it"),
            )
        if not partition.is_up:
            yield RuleHit(
                _option_line(facts, "partition"),
                f"partition {partition.name} is not up",
                "the job waits until an administrator opens it",
                _fix_text(facts, "sinfo   # which partitions are up"),
                "warning",
            )


@rule("D28", "warning", "maintenance before the job can end")
def maintenance(facts: CheckFacts) -> Iterator[RuleHit]:
    cluster, limit = facts.cluster, facts.job.geometry.time_s
    if cluster is None or not limit:
        return
    for window in cluster.reservations:
        if window.whole_cluster and window.end_s > cluster.read_at_s and window.start_s < cluster.read_at_s + limit:
            left = max(0, int(window.start_s - cluster.read_at_s))
            when = datetime.fromtimestamp(window.start_s).strftime("%Y-%m-%d %H:%M")
            hours, minutes = divmod(left // 60, 60)
            yield RuleHit(
                _option_line(facts, "time"),
                f"maintenance {window.name} begins at {when}, before this job could end",
                "the job does not start until the maintenance is over",
                f"--time={hours:02}:{minutes:02}:00 would still fit before it"
                if left > 600
                else "wait until it is over",
            )
            return


@rule("D29", "error", "Slurm refuses the request")
def rejected_by_slurm(facts: CheckFacts) -> Iterator[RuleHit]:
    script = facts.script
    if facts.refusal is not None and script is not None:
        yield RuleHit(
            script.directives.lines[0] if script.directives.lines else 1,
            f"sbatch --test-only refuses the script: {facts.refusal}",
            "it cannot be submitted as it is",
            _fix_text(facts, f"sbatch --test-only {facts.job.path}   # asks again"),
            None,
            nearest_edits(facts),
        )


@rule("D32", "error", "more than the QOS gives")
def request_above_qos(facts: CheckFacts) -> Iterator[RuleHit]:
    if facts.cluster is None:
        return
    words = {"time": "of time", "gpus": "GPUs at once"}
    option = facts.job.options.get("qos")
    name = option.value if option else ""
    for misfit in qos_mismatches(facts.job.geometry, facts.job.options, facts.cluster):
        yield RuleHit(
            _option_line(facts, misfit.option),
            f"QOS {name} gives at most {misfit.nearest} {words[misfit.about]}, not {misfit.asked}",
            "Slurm accepts it and never starts it (QOSMaxWallDurationPerJobLimit, QOSMaxGRESPerUser)",
            _fix_text(facts, f"at most {misfit.nearest}, or another QOS"),
            None,
            nearest_edits(facts),
        )


@rule("G14", "error", "a GPU partition, and no GPU asked for", lower=("warning", "hint"))
def gpu_partition_without_gpu(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if job.geometry.wants_gpus or job.kind == "experiment" or job.is_het:
        return
    asks = [name for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task", "tres-per-task") if name in job.options]
    if asks:
        yield from _zero_gpus(facts, asks)
        return
    needs = any(one.is_distributed for one in job.work) or any(one.name == "nvidia-smi" for one in job.commands)
    option = job.options.get("partition")
    trains = any(base_name(one.program).startswith(("train", "pretrain", "finetune")) for one in job.work)
    if facts.cluster is not None:
        gpus = bool(facts.node_kinds) and all(kind.gpus for kind in facts.node_kinds)
        certain = needs
    else:
        gpus = option is not None and any(name in (option.value or "").lower() for name in _GPU_NAMES)
        certain = False
    # Sites that give whole nodes only take neither CPUs nor memory, and no GPUs.
    whole = facts.cluster is None and not {"cpus-per-task", "mem", "mem-per-cpu"} & set(job.options)
    if gpus and (needs or trains) and "exclusive" not in job.options:
        name = option.value if option is not None else "of this cluster"
        yield RuleHit(
            option.line if option else 1,
            f"partition {name} has GPUs, and the script asks for none",
            "the program finds no CUDA GPUs",
            "#SBATCH --gres=gpu:1",
            None if certain else "hint" if whole and (not needs or job.geometry.nodes_given) else "warning",
            (option_edit("gres", "gpu:1"),) if certain else (),
        )


_CUDA_ARGUMENT = re.compile(
    r"(?:^|\s)(?:--?(?:use[_-])?(?:gpus?|cuda)(?:[_-]ids?)?(?:\s|=|$)|--?device[= ]['\"]?(?:cuda|gpu))"
)
_NO_GPU_ARGUMENT = re.compile(
    r"--?(?:use[_-])?(?:gpus?|cuda)(?:[_-]ids?)?[= ](?:-1|none|false|no|off|cpu)\b|--?device[= ]cpu|nproc|--cpu\b", re.I
)


def _zero_gpus(facts: CheckFacts, asks: list[str]) -> Iterator[RuleHit]:
    """--gres=gpu:0 may be meant; not where the program is told to use a GPU."""
    job = facts.job
    option = job.options[asks[0]]
    if job.geometry.gpus_per_node != 0 and job.geometry.gpus_total != 0:
        return
    for launch in job.work:
        words = " ".join(launch.args)
        if _CUDA_ARGUMENT.search(words) and not _NO_GPU_ARGUMENT.search(words):
            yield RuleHit(
                option.line,
                f"--{asks[0]}={option.value} asks for no GPU, and {launch.program} is told to use one",
                "the program finds no CUDA GPUs, or trains on CPUs without a word",
                "#SBATCH --gres=gpu:1",
                "warning",
            )
            return


@rule("G17", "warning", "more CPUs than the GPUs' share", lower=("hint",))
def cpus_above_gpu_share(facts: CheckFacts) -> Iterator[RuleHit]:
    geometry, options = facts.job.geometry, facts.job.options
    cpus, gpus = geometry.cpus_per_node, geometry.gpus_per_node
    if facts.cluster is None or not cpus or not gpus or "exclusive" in options:
        return
    shares = [kind.cpus * gpus // kind.gpus for kind in facts.node_kinds if kind.gpus >= gpus]
    if shares and cpus > max(shares):
        tasks = geometry.tasks_on_node
        yield RuleHit(
            _option_line(facts, "cpus-per-task"),
            f"{plural(cpus, 'CPU')} for {plural(gpus, 'GPU')} is more than their share of a node, {max(shares)}",
            "other GPUs of the node are left without CPUs, and the job waits longer",
            f"--cpus-per-task={max(1, max(shares) // tasks)}",
            "hint" if cpus <= max(shares) * 1.5 else None,
            (option_edit("cpus-per-task", max(1, max(shares) // tasks)),),
        )
