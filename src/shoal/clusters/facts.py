"""The records of what a Slurm cluster has and allows. read.py fills them in; other packages only read them.

A fact that was not asked for, or whose question got no answer, has its default: no limit, empty list.
"""

from __future__ import annotations

from typing import NamedTuple


class Partition(NamedTuple):
    """One partition. What sinfo does not tell (all but the first three) needs `scontrol show partition`."""

    name: str
    is_default: bool = False
    max_time_s: int | None = None
    is_up: bool = True
    default_time_s: int | None = None
    max_nodes: int | None = None
    total_nodes: int = 0
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    def_mem_per_cpu_mb: int | None = None
    max_mem_per_node_mb: int | None = None
    max_cpus_per_node: int | None = None
    preempts: bool = False
    qos: str | None = None


class NodeKind(NamedTuple):
    """Nodes of one partition that are alike; `nodes` is how many there are."""

    partition: str
    cpus: int
    memory_mb: int
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    nodes: int = 1


class Association(NamedTuple):
    """An account as one user has it, or (`user` empty) the account itself, below `parent`.

    `submit_limits` are all that it says about how many jobs may be in Slurm's hands.
    """

    account: str
    user: str = ""
    parent: str = ""
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    submit_limits: tuple[int, ...] = ()


class Qos(NamedTuple):
    """Limits of a QOS. A request above the time or GPU limit is accepted, and never starts."""

    name: str
    max_time_s: int | None = None
    max_gpus: int | None = None
    submit_limits: tuple[int, ...] = ()


class Reservation(NamedTuple):
    """A maintenance window; times in seconds since the epoch."""

    name: str
    start_s: float
    end_s: float
    whole_cluster: bool


class ClusterFacts(NamedTuple):
    """What was asked of one cluster. `silent`: a sentence for each program that did not answer."""

    name: str | None = None
    partitions: tuple[Partition, ...] = ()
    node_kinds: tuple[NodeKind, ...] = ()
    version: tuple[int, int] | None = None
    max_array_size: int | None = None
    kill_wait_s: int | None = None
    kills_invalid_dependencies: bool = False
    enforces_limits: bool = False
    reservations: tuple[Reservation, ...] = ()
    associations: tuple[Association, ...] = ()
    default_account: str | None = None
    parent_accounts: tuple[Association, ...] = ()
    qos_limits: tuple[Qos, ...] = ()
    read_at_s: float = 0.0
    silent: tuple[str, ...] = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts of this user."""
        return tuple(dict.fromkeys(association.account for association in self.associations))

    @property
    def qos(self) -> tuple[str, ...]:
        """The QOS that this user may name, under one account or another."""
        return tuple(dict.fromkeys(name for association in self.associations for name in association.qos))

    def partition(self, name: str) -> Partition | None:
        return next((partition for partition in self.partitions if partition.name == name), None)

    def chosen(self, names: str | None) -> list[Partition]:
        """The partitions that --partition=NAMES means and that exist; without names, the default one."""
        if names:
            return [partition for partition in self.partitions if partition.name in names.split(",")]
        return [partition for partition in self.partitions if partition.is_default]

    def kinds(self, names: str | None) -> list[NodeKind]:
        """The kinds of node in the partitions that --partition=NAMES means."""
        chosen = {partition.name for partition in self.chosen(names)}
        return [kind for kind in self.node_kinds if kind.partition in chosen]

    def total_gpus(self, names: str | None) -> int:
        """All GPUs of a partition that --partition=NAMES means: of the largest, because a job gets one of them."""
        totals: dict[str, int] = {}
        for kind in self.kinds(names):
            totals[kind.partition] = totals.get(kind.partition, 0) + kind.nodes * kind.gpus
        return max(totals.values(), default=0)

    def smallest_node(self, partition: str) -> NodeKind | None:
        """The least of everything over the nodes of a partition, so that a request made from it fits on any of them.

        GPUs are the least over nodes that have some; types and features are those of all.
        """
        kinds = [kind for kind in self.node_kinds if kind.partition == partition]
        if not kinds:
            return None
        return NodeKind(
            partition,
            cpus=min(kind.cpus for kind in kinds),
            memory_mb=min(kind.memory_mb for kind in kinds),
            gpus=min((kind.gpus for kind in kinds if kind.gpus), default=0),
            gpu_types=tuple(dict.fromkeys(name for kind in kinds for name in kind.gpu_types)),
            features=tuple(dict.fromkeys(name for kind in kinds for name in kind.features)),
            nodes=sum(kind.nodes for kind in kinds),
        )


#: Nothing has been asked yet.
UNKNOWN = ClusterFacts()
