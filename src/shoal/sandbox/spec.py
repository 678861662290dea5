"""What a sandbox should look like: the record, its spelling on the command line, and what is refused."""

from __future__ import annotations

import os
import re
from typing import Literal

import msgspec

from shoal.errors import InputError
from shoal.units import parse_duration_s

SLURM_VARIABLE = "SHOAL_SANDBOX_SLURM"
CgroupChoice = Literal["auto", "on", "off"]

_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*", re.ASCII)
_MAX_NAME_LENGTH = 24
_DEFAULT_MAX_TIME_S = 3 * 86400
_MAX_NODES = 64
_MAX_GPUS = 16

RESERVED_KEYS = frozenset(
    {
        "accountingstoragehost",
        "accountingstoragepass",
        "accountingstorageport",
        "accountingstoragetype",
        "authinfo",
        "authtype",
        "clustername",
        "nodename",
        "partitionname",
        "slurmctldhost",
        "slurmctldlogfile",
        "slurmctldpidfile",
        "slurmctldport",
        "slurmdlogfile",
        "slurmdpidfile",
        "slurmdspooldir",
        "slurmduser",
        "slurmuser",
        "statesavelocation",
        "include",
    }
)
"""slurm.conf keys that hold the sandbox together (folders, ports, identity); `--set` may not touch them."""


class PartitionSpec(msgspec.Struct, frozen=True):
    """A partition over all nodes; spelled NAME or NAME:MAXTIME."""

    name: str
    max_time_s: int = _DEFAULT_MAX_TIME_S

    def __post_init__(self) -> None:
        if not _WORD.fullmatch(self.name) or self.name.upper() in ("ALL", "DEFAULT"):
            raise InputError(
                f"{self.name!r} is not a name for a partition",
                hint="use letters, digits, - and _, as in --partitions main:3d,low:12h",
            )


def default_slurm() -> str:
    """The release that is used where none is named; empty: the Slurm that is installed here."""
    return os.environ.get(SLURM_VARIABLE, "")


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what `up` starts; two equal specs are the same cluster.

    The first partition is the default one. Without accounting a partition preempts (requeues) the ones after it; with
    accounting QOS `high` preempts `normal` and partitions are equal. `settings` are slurm.conf keys that replace or
    join the rendered ones.
    """

    name: str = "sandbox"
    nodes: int = 4
    gpus: int = 4
    gpu_type: str = "fake"
    cpus: int = 16
    memory_mb: int = 4000
    partitions: tuple[PartitionSpec, ...] = (PartitionSpec("main"), PartitionSpec("low", 12 * 3600))
    accounting: bool = False
    hosts: bool = False
    cgroups: CgroupChoice = "auto"
    settings: tuple[tuple[str, str], ...] = ()
    slurm: str = msgspec.field(default_factory=default_slurm)

    def __post_init__(self) -> None:
        check_sandbox_name(self.name)
        _check_count("--nodes", self.nodes, 1, _MAX_NODES)
        _check_count("--gpus", self.gpus, 0, _MAX_GPUS)
        _check_count("--cpus", self.cpus, 1, 1024)
        _check_count("--memory", self.memory_mb, 100, 1 << 24)
        if not _WORD.fullmatch(self.gpu_type):
            raise InputError(f"{self.gpu_type!r} is not a GPU type", hint="for example: --gpu-type a100")
        if not self.partitions:
            raise InputError("a cluster needs a partition", hint="for example: --partitions main,low")
        names = [partition.name.lower() for partition in self.partitions]
        if len(set(names)) < len(names):
            raise InputError("two partitions have the same name", hint="for example: --partitions main,low")
        for key, value in self.settings:
            _check_setting(key, value)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Node names carry the sandbox's name: Slurm names a node's cgroup after it, so they must differ."""
        return tuple(f"{self.name}-n{i}" for i in range(1, self.nodes + 1))


def check_sandbox_name(name: str) -> None:
    """Refuse a name that could not be a folder, a host name and a Slurm cluster name at once."""
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
        raise InputError(
            f"{name!r} is not a name for a sandbox",
            hint=f"use at most {_MAX_NAME_LENGTH} of a-z, 0-9 and -, beginning with a letter, as in --name my-cluster",
        )


def parse_partitions(text: str) -> tuple[PartitionSpec, ...]:
    """Partitions of "main:3d,low:12h"; a missing time means three days."""
    partitions = []
    for word in text.split(","):
        name, colon, max_time = word.strip().partition(":")
        if colon:
            partitions.append(PartitionSpec(name, parse_duration_s(max_time, place="--partitions")))
        else:
            partitions.append(PartitionSpec(name))
    return tuple(partitions)


def parse_setting(text: str) -> tuple[str, str]:
    """One slurm.conf key and value of "KEY=VALUE"."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r} is not KEY=VALUE", hint="for example: --set MinJobAge=2", place="--set")
    return key.strip(), value.strip()


def _check_count(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{value} is outside {low} to {high}", place=flag)


def _check_setting(key: str, value: str) -> None:
    if not _KEY.fullmatch(key):
        raise InputError(f"{key!r} is not a slurm.conf key", hint="for example: --set MinJobAge=2", place="--set")
    if key.lower() in RESERVED_KEYS:
        raise InputError(f"{key} belongs to the sandbox and cannot be set", place="--set")
    if any(ord(char) < 32 or char == "#" for char in value):
        raise InputError(f"the value of {key} contains a control character or #", place="--set")
