"""What a cluster is doing at this moment: free GPUs by type, how long its queue is and why, this user's fair share.

Three questions, each answered or not: `scontrol show node`, `squeue` of everybody, `sshare`. Where Slurm hides the jobs
of others (PrivateData), the queue holds one's own jobs alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from shoal.clusters.parse import count_gpus
from shoal.clusters.queries import ask

_FIELD = re.compile(r"(?:^|\s)([A-Za-z/]+)=(\S*)")
#: Flags and states of a node that takes no new jobs.
_CLOSED = ("DOWN", "DRAIN", "FAIL", "MAINT", "RESERVED", "POWER", "NOT_RESPONDING", "UNKNOWN", "REBOOT", "PLANNED")
SQUEUE_FORMAT = "%P|%T|%r|%D"
SSHARE_FIELDS = ("Account", "User", "NormShares", "EffectvUsage", "FairShare")


class GpuLoad(NamedTuple):
    """GPUs of one type in a partition. `closed` are on nodes that take no jobs now; `whole_nodes` have all of theirs
    free."""

    partition: str
    kind: str
    total: int
    free: int
    closed: int
    nodes: int
    whole_nodes: int


class QueueLength(NamedTuple):
    """Jobs of one partition: running ones, and waiting ones by Slurm's reason, the most frequent first."""

    partition: str
    running: int
    pending: int
    reasons: tuple[tuple[str, int], ...]


class FairShare(NamedTuple):
    """`factor`: 1 is all of one's share still unused, 0.5 as much used as due, 0 far beyond it."""

    account: str
    shares: float | None
    usage: float | None
    factor: float | None


class ClusterLoad(NamedTuple):
    """`silent`: a sentence for each program that did not answer."""

    gpus: tuple[GpuLoad, ...] = ()
    queue: tuple[QueueLength, ...] = ()
    fair_shares: tuple[FairShare, ...] = ()
    silent: tuple[str, ...] = ()


def read_load(environ: Mapping[str, str], user: str) -> ClusterLoad:
    silent: list[str] = []
    nodes = ask(["scontrol", "--details", "--oneliner", "show", "node"], environ, silent=silent) or ""
    queue = ask(["squeue", "-h", "-r", "-t", "PD,R", "-o", SQUEUE_FORMAT], environ, silent=silent) or ""
    words = ["sshare", "-n", "-P", "-U", "-u", user, "-o", ",".join(SSHARE_FIELDS)]
    shares = ask(words, environ, silent=silent) or ""
    return ClusterLoad(parse_nodes(nodes), parse_queue(queue), parse_shares(shares, user), tuple(silent))


def parse_nodes(text: str) -> tuple[GpuLoad, ...]:
    """GPUs of each partition and type, from `scontrol -d -o show node`; nodes without GPUs are left out."""
    found: dict[tuple[str, str], GpuLoad] = {}
    for line in text.splitlines():
        field = dict(_FIELD.findall(line))
        has, used = count_gpus(field.get("Gres", "")), count_gpus(field.get("GresUsed", ""))
        is_closed = any(word in field.get("State", "").upper() for word in _CLOSED)
        for partition in filter(None, field.get("Partitions", "").split(",")):
            for kind, total in has.items():
                free = 0 if is_closed else max(0, total - used[kind])
                before = found.get((partition, kind), GpuLoad(partition, kind, 0, 0, 0, 0, 0))
                found[partition, kind] = GpuLoad(
                    partition, kind, before.total + total, before.free + free,
                    before.closed + (total - min(total, used[kind]) if is_closed else 0), before.nodes + 1,
                    before.whole_nodes + (free == total),
                )  # fmt: skip
    return tuple(found[key] for key in sorted(found))


def parse_queue(text: str) -> tuple[QueueLength, ...]:
    """Jobs of everybody that wait and run, by partition; one that may go to several counts in each."""
    running: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < 4:
            continue
        for partition in parts[0].split(","):
            reasons.setdefault(partition, Counter())
            if parts[1] == "PENDING":
                reasons[partition][parts[2].strip("()")] += 1
            else:
                running[partition] += 1
    return tuple(
        QueueLength(name, running[name], sum(waiting.values()), tuple(waiting.most_common(6)))
        for name, waiting in sorted(reasons.items())
    )


def parse_shares(text: str, user: str) -> tuple[FairShare, ...]:
    rows = [dict(zip(SSHARE_FIELDS, line.split("|"), strict=False)) for line in text.splitlines()]
    return tuple(
        FairShare(row["Account"].strip(), *(_number(row.get(name, "")) for name in SSHARE_FIELDS[2:]))
        for row in rows
        if row.get("User", "").strip() == user
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
