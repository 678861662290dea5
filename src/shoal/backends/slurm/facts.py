"""What this Slurm says about itself: its name, partitions, nodes, and the accounts of this user.

Everything here may be absent: no programs, no controller, no accounting. A question without an answer is an empty fact
and a sentence in `ClusterSummary.silent`, never an error. The answers are other people's text, so lines that do not
have the expected form are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from shoal.backends.slurm.commands import run_slurm
from shoal.describe import LOCAL, Draft
from shoal.errors import InputError, SchedulerError
from shoal.units import format_memory, format_slurm_time, parse_slurm_time_s

TIMEOUT_S = 10.0

_CONF_PATHS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
_CLUSTER_NAME = re.compile(r"(?aim)^[ \t]*ClusterName[ \t]*=[ \t]*([A-Z0-9._-]+)")
_MAX_ARRAY = re.compile(r"(?am)^MaxArraySize\s*=\s*(\d+)")
_SLURM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*", re.ASCII)
_GPU = re.compile(r"(?:^|,)gpu(?::([A-Za-z0-9._-]+?))?:(\d+)(?=$|,|\()", re.ASCII)
_NUMBER = re.compile(r"(\d+)\+?", re.ASCII)


class PartitionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One partition; numbers are the smallest over its nodes, so that a request made from them fits on any."""

    name: str
    is_default: bool
    max_time_s: int | None
    cpus_per_node: int
    memory_per_node_mb: int
    gpus_per_node: int = 0
    gpu_types: tuple[str, ...] = ()


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str | None = None
    partitions: tuple[PartitionSummary, ...] = ()
    accounts: tuple[str, ...] = ()
    default_account: str | None = None
    qos: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def cluster_name(environ: Mapping[str, str]) -> str | None:
    """Slurm's ClusterName: from the text of slurm.conf, which costs nothing, else from the controller."""
    asked = environ.get("SLURM_CONF")
    for path in (asked,) if asked else _CONF_PATHS:
        try:
            text = Path(path).read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if (match := _CLUSTER_NAME.search(text)) is not None:
            return match[1]
    answer = query_slurm(["scontrol", "show", "config"], environ, [])
    match = None if answer is None else _CLUSTER_NAME.search(answer)
    return None if match is None else match[1]


def max_array_size(environ: Mapping[str, str]) -> int | None:
    """How many tasks one array may have: MaxArraySize, as the controller says it; None if it does not answer."""
    answer = query_slurm(["scontrol", "show", "config"], environ, [])
    match = None if answer is None else _MAX_ARRAY.search(answer)
    return None if match is None else int(match[1])


def query_summary(environ: Mapping[str, str], user: str) -> ClusterSummary:
    """Ask sinfo, scontrol and sacctmgr, each with a time limit; what does not answer is named in `silent`."""
    silent: list[str] = []
    sinfo = query_slurm(["sinfo", "--noheader", "--exact", "--format=%R|%P|%l|%c|%m|%G"], environ, silent)
    name = cluster_name(environ)
    if name is None:
        silent.append("scontrol: no ClusterName")
    question = ["show", "user", user, "withassoc", "format=Account,DefaultAccount,QOS"]
    sacctmgr = query_slurm(["sacctmgr", "--noheader", "--parsable2", *question], environ, silent)
    accounts, default_account, qos = parse_associations(sacctmgr or "")
    return ClusterSummary(
        cluster=name,
        partitions=parse_sinfo(sinfo or ""),
        accounts=accounts,
        default_account=default_account,
        qos=qos,
        silent=tuple(silent),
    )


def draft_profile(facts: ClusterSummary, host: str) -> Draft | None:
    """A first profile from the facts, or None when there are no partitions. Numbers are kept where all nodes agree."""
    if not facts.partitions:
        return None
    default = next((one for one in facts.partitions if one.is_default), facts.partitions[0])
    with_gpus = [one for one in facts.partitions if one.gpus_per_node]
    spellings = dict.fromkeys(kind for one in (default, *with_gpus) for kind in one.gpu_types)
    portable = {kind.lower(): kind for kind in spellings}
    by_type = {
        name: next(one.name for one in (default, *with_gpus) if kind in one.gpu_types)
        for name, kind in portable.items()
        if name != "default"
    }
    partition = {**by_type, "default": default.name}
    limits_s = [one.max_time_s for one in facts.partitions]
    memory_mb = _common_value([one.memory_per_node_mb for one in with_gpus or [default]], facts, "memory_per_node_mb")
    return Draft(
        # "local" is this machine's own name in shoal.
        name=facts.cluster if facts.cluster and facts.cluster != LOCAL else "mycluster",
        match={"cluster": facts.cluster} if facts.cluster else {"host": host},
        account=facts.default_account,
        partition={"default": default.name} if set(partition.values()) == {default.name} else partition,
        gpu_types={name: kind for name, kind in portable.items() if name != kind},
        gpus_per_node=_common_value([one.gpus_per_node for one in with_gpus], facts, "gpus_per_node"),
        cpus_per_node=_common_value([one.cpus_per_node for one in with_gpus or [default]], facts, "cpus_per_node"),
        memory_per_node=None if not memory_mb else format_memory(memory_mb),
        max_time=None if None in limits_s else format_slurm_time(max(limit for limit in limits_s if limit)),
        comments=_comments(facts),
    )


def _common_value(numbers: list[int], facts: ClusterSummary, field: str) -> int | None:
    """The one number, unless some partition has larger nodes: as a limit it would refuse what those can serve."""
    largest = max(getattr(one, field) for one in facts.partitions)
    return largest if set(numbers) == {largest} else None


def _comments(facts: ClusterSummary) -> tuple[str, ...]:
    lines = [
        f"partition {one.name}: {one.cpus_per_node} CPUs, {format_memory(one.memory_per_node_mb)}"
        + (f", {one.gpus_per_node} GPUs {' '.join(one.gpu_types)}".rstrip() if one.gpus_per_node else "")
        for one in facts.partitions
    ]
    if len(facts.accounts) > 1:
        lines.append(f"accounts of this user: {', '.join(facts.accounts)}")
    if facts.qos:
        lines.append(f"QOS of this user: {', '.join(facts.qos)}")
    return tuple(lines)


def parse_sinfo(text: str) -> tuple[PartitionSummary, ...]:
    """Partitions of `sinfo -h -e -o '%R|%P|%l|%c|%m|%G'`; one line for each kind of node in a partition."""
    found: dict[str, PartitionSummary] = {}
    for line in text.splitlines():
        fields = line.split("|")
        cpus, memory = (_NUMBER.fullmatch(field.strip()) for field in fields[3:5]) if len(fields) == 6 else (None, None)
        if cpus is None or memory is None or not _SLURM_NAME.fullmatch(fields[0].strip()):
            continue
        types, gpus = parse_gres(fields[5].strip())
        one = PartitionSummary(
            name=fields[0].strip(),
            is_default=fields[1].strip().endswith("*"),
            max_time_s=time_s(fields[2].strip()),
            cpus_per_node=int(cpus[1]),
            memory_per_node_mb=int(memory[1]),
            gpus_per_node=gpus,
            gpu_types=types,
        )
        found[one.name] = _merge_partitions(found[one.name], one) if one.name in found else one
    return tuple(found.values())


def parse_gres(text: str) -> tuple[tuple[str, ...], int]:
    """GPU types and count of a node's gres, such as gpu:a100:4(S:0-1),tmpfs:1; a node without GPUs says (null)."""
    pairs = _GPU.findall(text)
    return tuple(dict.fromkeys(kind for kind, _ in pairs if kind)), sum(int(count) for _, count in pairs)


def parse_associations(text: str) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
    """Accounts, default account and QOS of `sacctmgr show user NAME withassoc format=Account,DefaultAccount,QOS`."""
    accounts: dict[str, None] = {}
    qos: dict[str, None] = {}
    default = None
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3 or not _SLURM_NAME.fullmatch(fields[0]):
            continue
        accounts[fields[0]] = None
        if _SLURM_NAME.fullmatch(fields[1]):
            default = fields[1]
        qos.update((name, None) for name in fields[2].split(",") if _SLURM_NAME.fullmatch(name))
    return tuple(accounts), default, tuple(qos)


def _merge_partitions(a: PartitionSummary, b: PartitionSummary) -> PartitionSummary:
    gpus = [kind.gpus_per_node for kind in (a, b) if kind.gpus_per_node]
    return PartitionSummary(
        name=a.name,
        is_default=a.is_default,
        max_time_s=a.max_time_s,
        cpus_per_node=min(a.cpus_per_node, b.cpus_per_node),
        memory_per_node_mb=min(a.memory_per_node_mb, b.memory_per_node_mb),
        gpus_per_node=min(gpus, default=0),
        gpu_types=tuple(dict.fromkeys((*a.gpu_types, *b.gpu_types))),
    )


def time_s(word: str) -> int | None:
    try:
        return parse_slurm_time_s(word)
    except InputError:
        return None


def query_slurm(argv: list[str], environ: Mapping[str, str], silent: list[str]) -> str | None:
    """What a program of Slurm prints, or None; then `silent` gets a sentence about it."""
    """What the program answers; None, and a sentence more in `silent`, where it does not."""
    try:
        answer = run_slurm(argv, TIMEOUT_S, environ=environ)
    except SchedulerError as error:
        silent.append(f"{argv[0]}: {error.message}")
        return None
    if answer.returncode == 0:
        return answer.stdout
    last = (answer.stderr.strip().splitlines() or ["failed"])[-1]
    silent.append(f"{argv[0]}: {last.removeprefix(argv[0] + ': ')}")
    return None
