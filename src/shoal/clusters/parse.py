"""What Slurm's programs print about a cluster, as records: one parser for each question, and the fields that it asks.

The text is other people's, so what does not have the expected shape is left out, never an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shoal.clusters.facts import Association, NodeKind, Partition, Qos, Reservation
from shoal.errors import InputError
from shoal.kernel import parse_time
from shoal.units import parse_slurm_time_s

#: Of `sinfo --exact`: one line for each kind of node in a partition. Features come last: a site chooses their letters.
SINFO_FORMAT = "%R|%P|%l|%c|%m|%G|%D|%f"
USER_FIELDS = ("Account", "DefaultAccount", "DefaultQOS", "QOS", "MaxSubmitJobs", "GrpSubmitJobs")
ACCOUNT_FIELDS = ("Account", "User", "ParentName", "GrpSubmitJobs")
QOS_FIELDS = (
    "Name", "MaxWall", "MaxTRES", "MaxTRESPerUser", "MaxSubmitJobsPU", "MaxSubmitJobsPA", "GrpSubmitJobs",
)  # fmt: skip

_KEY_VALUE = re.compile(r"([A-Za-z][\w:/()]*)=(\S*)")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*", re.ASCII)
_NUMBER = re.compile(r"(\d{1,18})\+?", re.ASCII)
_GPU = re.compile(r"(?:^|,)gpu(?::([A-Za-z0-9._-]+?))?:(\d+)(?=$|,|\()", re.ASCII)
_GPUS_OF_TRES = re.compile(r"gres/gpu=(\d+)", re.ASCII)
_CLUSTER_NAME = re.compile(r"(?aim)^[ \t]*ClusterName[ \t]*=[ \t]*([A-Z0-9._-]+)")
_LIMITS = re.compile(r"\b(?:limits|safe)\b")


# ---- sinfo


def parse_sinfo(text: str) -> tuple[tuple[Partition, ...], tuple[NodeKind, ...]]:
    """Partitions, as far as sinfo tells about them, and their kinds of node."""
    partitions: dict[str, Partition] = {}
    kinds: list[NodeKind] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 7)]
        if len(fields) != 8 or not _WORD.fullmatch(fields[0]):
            continue
        name, starred, time_limit, cpus, memory, gres, count, features = fields
        cpus_per_node, memory_mb = parse_number(cpus), parse_number(memory)
        if cpus_per_node is None or memory_mb is None:
            continue
        partitions.setdefault(name, Partition(name, starred.endswith("*"), parse_time_limit_s(time_limit)))
        types, gpus = parse_gres(gres)
        words = () if features in ("(null)", "") else tuple(features.split(","))
        kinds.append(NodeKind(name, cpus_per_node, memory_mb, gpus, types, words, parse_number(count) or 1))
    return tuple(partitions.values()), tuple(kinds)


def parse_gres(text: str) -> tuple[tuple[str, ...], int]:
    """GPU types and count of a node's gres, such as gpu:a100:4(S:0-1),tmpfs:1; a node without GPUs says (null)."""
    pairs = _GPU.findall(text)
    return tuple(dict.fromkeys(kind for kind, _ in pairs if kind)), sum(int(count) for _, count in pairs)


def count_gpus(text: str) -> Counter[str]:
    """GPUs by type of a node's gres, also of those in use: gpu:a100:2(IDX:0-1); those without a type are `gpu`."""
    found: Counter[str] = Counter()
    for kind, count in _GPU.findall(text.replace("(null):", "")):
        found[kind or "gpu"] += int(count)
    return found


# ---- scontrol


def parse_cluster_name(text: str) -> str | None:
    """ClusterName in the text of slurm.conf, or of `scontrol show config`."""
    match = _CLUSTER_NAME.search(text)
    return None if match is None else match[1]


def parse_config(text: str) -> dict[str, str]:
    """KEY = VALUE lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_version(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def enforces_limits(settings: Mapping[str, str]) -> bool:
    """Whether limits that accounting records are kept as well."""
    return _LIMITS.search(settings.get("AccountingStorageEnforce", "")) is not None


def parse_partitions(text: str, settings: Mapping[str, str]) -> Iterator[Partition]:
    """Partitions of `scontrol --oneliner show partition`; `settings` are the cluster's own defaults."""
    for line in text.splitlines():
        field = dict(_KEY_VALUE.findall(line))
        if "PartitionName" not in field:
            continue
        def_mem_per_cpu = field.get("DefMemPerCPU", ""), settings.get("DefMemPerCPU", "")
        preempt = field.get("PreemptMode") or settings.get("PreemptMode", "")
        yield Partition(
            name=field["PartitionName"],
            is_default=field.get("Default") == "YES",
            is_up=field.get("State", "UP") == "UP",
            max_time_s=parse_time_limit_s(field.get("MaxTime", "")),
            default_time_s=parse_time_limit_s(field.get("DefaultTime", "")),
            max_nodes=parse_number(field.get("MaxNodes", "")),
            total_nodes=parse_number(field.get("TotalNodes", "")) or 0,
            allow_accounts=_names(field.get("AllowAccounts", "ALL")),
            deny_accounts=_names(field.get("DenyAccounts", "")),
            def_mem_per_cpu_mb=None
            if field.get("DefMemPerNode", "").isdigit()
            else parse_number(def_mem_per_cpu[0]) or parse_number(def_mem_per_cpu[1]),
            max_mem_per_node_mb=parse_number(field.get("MaxMemPerNode", "")),
            max_cpus_per_node=parse_number(field.get("MaxCPUsPerNode", "")),
            preempts="REQUEUE" in preempt
            and "none" not in settings.get("PreemptType", "none")
            and field.get("PriorityTier", "1") in ("0", "1"),
            qos=field["QoS"] if field.get("QoS", "N/A") not in ("N/A", "") else None,
        )


def parse_reservations(text: str) -> Iterator[Reservation]:
    """Maintenance windows of `scontrol --oneliner show reservation`; other reservations do not hold jobs back."""
    for line in text.splitlines():
        field = dict(_KEY_VALUE.findall(line))
        flags = field.get("Flags", "")
        if "ReservationName" not in field or "MAINT" not in flags:
            continue
        start, end = parse_time(field.get("StartTime", "")), parse_time(field.get("EndTime", ""))
        if start is not None and end is not None:
            yield Reservation(field["ReservationName"], start, end, "ALL_NODES" in flags or "SPEC_NODES" not in flags)


# ---- sacctmgr


def parse_user(text: str, user: str) -> tuple[tuple[Association, ...], str | None]:
    """Associations and default account of `sacctmgr show user NAME withassoc` with USER_FIELDS."""
    associations: list[Association] = []
    default_account = None
    for row in _rows(text, USER_FIELDS):
        if not _WORD.fullmatch(row["Account"]):
            continue
        if _WORD.fullmatch(row["DefaultAccount"]):
            default_account = row["DefaultAccount"]
        associations.append(
            Association(
                row["Account"],
                user,
                default_qos=row["DefaultQOS"],
                qos=tuple(name for name in row["QOS"].split(",") if _WORD.fullmatch(name)),
                submit_limits=_limits(row),
            )
        )
    return tuple(associations), default_account


def parse_accounts(text: str) -> tuple[Association, ...]:
    """The accounts themselves, of `sacctmgr show assoc where user=` with ACCOUNT_FIELDS."""
    rows = [row for row in _rows(text, ACCOUNT_FIELDS) if not row["User"]]
    return tuple(Association(row["Account"], parent=row["ParentName"], submit_limits=_limits(row)) for row in rows)


def parse_qos(text: str) -> tuple[Qos, ...]:
    """QOS of `sacctmgr show qos` with QOS_FIELDS; GPU limits of a job and of a user count alike."""
    found = []
    for row in _rows(text, QOS_FIELDS):
        gpus = [int(number) for name in ("MaxTRES", "MaxTRESPerUser") for number in _GPUS_OF_TRES.findall(row[name])]
        if row["Name"]:
            limits = _limits(row)
            found.append(Qos(row["Name"], parse_time_limit_s(row["MaxWall"]), min(gpus, default=None), limits))
    return tuple(found)


def _rows(text: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    """Lines of a program that was asked for these fields, with a bar between them; other lines are left out."""
    for line in text.splitlines():
        values = [value.strip() for value in line.split("|")]
        if len(values) == len(fields):
            yield dict(zip(fields, values, strict=True))


def _limits(row: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(
        int(value)
        for name, value in row.items()
        if "SubmitJobs" in name and value.isascii() and value.isdigit() and len(value) < 19
    )


# ---- values


def parse_number(text: str) -> int | None:
    """A whole number; sinfo writes 8+ where nodes have more."""
    match = _NUMBER.fullmatch(text.strip())
    return int(match[1]) if match else None


def parse_time_limit_s(text: str) -> int | None:
    """Seconds of a time limit; None for UNLIMITED and for what is no time."""
    try:
        return parse_slurm_time_s(text)
    except InputError:
        return None


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("ALL", "", "(null)", "N/A") else tuple(text.split(","))
