"""What the live Slurm says that a request must fit: partitions, kinds of node, limits, accounts, maintenance.

Every question has a time limit, and everything may be missing; what does not answer is named in `silent`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from shoal.backends.slurm.commands import run_slurm
from shoal.backends.slurm.facts import TIMEOUT_S, parse_associations, parse_gres, query_slurm, time_s
from shoal.batch import SbatchOption
from shoal.errors import InputError, SchedulerError
from shoal.kernel import is_controller_silent

_FIELD = re.compile(r"([A-Za-z][\w:/()]*)=(\S*)")
_NUMBER = re.compile(r"(\d+)\+?", re.ASCII)


class NodeKind(NamedTuple):
    """One kind of node in one partition."""

    partition: str
    cpus: int
    memory_mb: int
    gpus: int
    gpu_types: tuple[str, ...]
    features: tuple[str, ...]
    nodes: int


class PartitionLimits(NamedTuple):
    name: str
    is_default: bool = False
    is_up: bool = True
    max_time_s: int | None = None
    default_time_s: int | None = None
    max_nodes: int | None = None
    total_nodes: int = 0
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    def_mem_per_cpu_mb: int | None = None
    max_mem_per_node_mb: int | None = None
    max_cpus_per_node: int | None = None
    preempts: bool = False


class QosLimits(NamedTuple):
    """Limits of a QOS. A request above them is accepted, and waits for ever."""

    name: str
    max_time_s: int | None = None
    max_gpus: int | None = None


class TestOnlyResult(NamedTuple):
    """What `sbatch --test-only` said; `accepted` is None when Slurm did not answer."""

    accepted: bool | None
    said: str = ""


class Reservation(NamedTuple):
    """A maintenance window; times in seconds since the epoch."""

    name: str
    start_s: float
    end_s: float
    whole_cluster: bool


class ClusterLimits(NamedTuple):
    version: tuple[int, int] | None = None
    partitions: tuple[PartitionLimits, ...] = ()
    all_kinds: tuple[NodeKind, ...] = ()
    max_array_size: int | None = None
    kill_wait_s: int | None = None
    kills_invalid_dependencies: bool = False
    accounts: tuple[str, ...] = ()
    default_account: str | None = None
    qos: tuple[str, ...] = ()
    qos_limits: tuple[QosLimits, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    now_s: float = 0.0
    silent: tuple[str, ...] = ()

    def partition(self, name: str) -> PartitionLimits | None:
        return next((one for one in self.partitions if one.name == name), None)

    def chosen(self, options: Mapping[str, SbatchOption]) -> list[PartitionLimits]:
        """The partitions that a request names and that exist, or the default one."""
        asked = options.get("partition")
        if asked is not None and asked.value:
            names = asked.value.split(",")
            return [one for one in self.partitions if one.name in names]
        return [one for one in self.partitions if one.is_default]

    def kinds(self, options: Mapping[str, SbatchOption]) -> list[NodeKind]:
        names = {one.name for one in self.chosen(options)}
        return [kind for kind in self.all_kinds if kind.partition in names]


def query_cluster(environ: Mapping[str, str], user: str, *, clock: float | None = None) -> ClusterLimits | None:
    """The facts of the cluster that answers here; None when there is no Slurm."""
    silent: list[str] = []
    sinfo = query_slurm(["sinfo", "--noheader", "--exact", "--format=%R|%c|%m|%G|%f|%D"], environ, silent)
    partitions = query_slurm(["scontrol", "--oneliner", "show", "partition"], environ, silent)
    if not sinfo or not partitions:
        return None
    config = query_slurm(["scontrol", "show", "config"], environ, silent) or ""
    reservations = query_slurm(["scontrol", "--oneliner", "show", "reservation"], environ, silent) or ""
    question = ["show", "user", user, "withassoc", "format=Account,DefaultAccount,QOS"]
    told = query_slurm(["sacctmgr", "--noheader", "--parsable2", *question], environ, silent) or ""
    accounts, default_account, qos = parse_associations(told)
    question = ["show", "qos", "format=Name,MaxWall,MaxTRES,MaxTRESPerUser"]
    limits = (query_slurm(["sacctmgr", "--noheader", "--parsable2", *question], environ, silent) or "") if qos else ""
    settings = parse_config(config)
    return ClusterLimits(
        version=_version(settings.get("SLURM_VERSION", "")),
        partitions=tuple(parse_partitions(partitions, settings)),
        all_kinds=tuple(parse_kinds(sinfo)),
        max_array_size=_integer_value(settings.get("MaxArraySize", "")),
        kill_wait_s=_integer_value(settings.get("KillWait", "").split(" ")[0]),
        kills_invalid_dependencies="kill_invalid_depend" in settings.get("DependencyParameters", ""),
        accounts=accounts,
        default_account=default_account,
        qos=qos,
        qos_limits=tuple(parse_qos_limits(limits)),
        reservations=tuple(parse_reservations(reservations)),
        now_s=time.time() if clock is None else clock,
        silent=tuple(silent),
    )


def test_only(path: str, flags: list[str], environ: Mapping[str, str]) -> TestOnlyResult:
    """Whether sbatch would accept a script with these flags, and what it objects to, in one line."""
    try:
        answer = run_slurm(["sbatch", "--test-only", *flags, path], TIMEOUT_S, environ=environ)
    except (SchedulerError, InputError) as error:
        return TestOnlyResult(None, error.message)
    if answer.returncode == 0:
        return TestOnlyResult(True)
    lines = [line for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    said = [line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("fatal: ") for line in lines]
    last = next(
        (line for line in reversed(said) if line.startswith("allocation failure")), said[0] if said else "refused"
    )
    if is_controller_silent(last):
        return TestOnlyResult(None, last)
    return TestOnlyResult(False, last.removeprefix("allocation failure: ").strip())


def parse_qos_limits(text: str) -> Iterator[QosLimits]:
    """Limits of `sacctmgr show qos format=Name,MaxWall,MaxTRES,MaxTRESPerUser`; those of a job and of a user alike."""
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 4 and fields[0]:
            gpus = [int(number) for field in fields[2:] for number in re.findall(r"gres/gpu=(\d+)", field)]
            yield QosLimits(fields[0], time_s(fields[1]), min(gpus, default=None))


def parse_config(text: str) -> dict[str, str]:
    """KEY = VALUE lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_partitions(text: str, settings: Mapping[str, str]) -> Iterator[PartitionLimits]:
    """Partitions of `scontrol --oneliner show partition`; `settings` are the cluster's own defaults."""
    for line in text.splitlines():
        field = dict(_FIELD.findall(line))
        if "PartitionName" not in field:
            continue
        each = _integer_value(field.get("DefMemPerCPU", "")) or _integer_value(settings.get("DefMemPerCPU", ""))
        preempt = field.get("PreemptMode") or settings.get("PreemptMode", "")
        lowest = field.get("PriorityTier", "1")
        yield PartitionLimits(
            name=field["PartitionName"],
            is_default=field.get("Default") == "YES",
            is_up=field.get("State", "UP") == "UP",
            max_time_s=time_s(field.get("MaxTime", "")),
            default_time_s=time_s(field.get("DefaultTime", "")),
            max_nodes=_integer_value(field.get("MaxNodes", "")),
            total_nodes=_integer_value(field.get("TotalNodes", "")) or 0,
            allow_accounts=_comma_list(field.get("AllowAccounts", "ALL")),
            deny_accounts=_comma_list(field.get("DenyAccounts", "")),
            def_mem_per_cpu_mb=None if "DefMemPerNode" in field and field["DefMemPerNode"].isdigit() else each,
            max_mem_per_node_mb=_integer_value(field.get("MaxMemPerNode", "")),
            max_cpus_per_node=_integer_value(field.get("MaxCPUsPerNode", "")),
            preempts="REQUEUE" in preempt
            and "none" not in settings.get("PreemptType", "none")
            and lowest in ("0", "1"),
        )


def parse_kinds(text: str) -> Iterator[NodeKind]:
    """Kinds of node of `sinfo -h -e -o '%R|%c|%m|%G|%f|%D'`."""
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 6:
            continue
        cpus, memory, nodes = _integer_value(fields[1]), _integer_value(fields[2]), _integer_value(fields[5])
        if cpus is None or memory is None:
            continue
        types, gpus = parse_gres(fields[3])
        features = () if fields[4] in ("(null)", "") else tuple(fields[4].split(","))
        yield NodeKind(fields[0], cpus, memory, gpus, types, features, nodes or 1)


def parse_reservations(text: str) -> Iterator[Reservation]:
    """Maintenance windows of `scontrol --oneliner show reservation`; other reservations do not hold jobs back."""
    for line in text.splitlines():
        field = dict(_FIELD.findall(line))
        flags = field.get("Flags", "")
        if "ReservationName" not in field or "MAINT" not in flags:
            continue
        start, end = _timestamp(field.get("StartTime", "")), _timestamp(field.get("EndTime", ""))
        if start is not None and end is not None:
            yield Reservation(field["ReservationName"], start, end, "ALL_NODES" in flags or "SPEC_NODES" not in flags)


def _timestamp(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _integer_value(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    return int(match[1]) if match else None


def _comma_list(text: str) -> tuple[str, ...]:
    return () if text in ("ALL", "", "(null)", "N/A") else tuple(text.split(","))
