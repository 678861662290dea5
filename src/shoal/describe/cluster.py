"""Cluster profiles: how a portable request becomes one cluster's words.

A profile is kept as flat values, each with the place where it was written ("partition.a100" from shoal.toml:12), so
that two files merge key by key and `shoal clusters show` can tell where everything came from. The typed fields are read
from them once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.describe.containers import KEYS as CONTAINER_KEYS
from shoal.describe.containers import parse_container
from shoal.describe.document import Table
from shoal.describe.networks import NETWORKS
from shoal.model import ContainerSettings
from shoal.units import format_memory, format_slurm_time, parse_duration_s, parse_memory_mb

LOCAL = "local"
UNNAMED = "slurm"
DEFAULT_GRES = "gpu:{type}:{count}"
DEFAULT_LOGS = "logs/%j"

_SCALARS = (
    "account", "partition", "constraint", "gres", "cpus_per_node", "memory_per_node", "gpus_per_node", "time",
    "max_time", "mail_user", "mail_type",
)  # fmt: skip
CLUSTER_KEYS = (
    "match", *_SCALARS, "qos", "debug", "gpu_types", "scratch", "logs", "setup", "env", "network", "flags",
    "container",
)  # fmt: skip
_DEBUG_KEYS = ("partition", "qos", "account")
_GRES = re.compile(r"(?:[A-Za-z0-9_]+:)(?:\{type\}:)?\{count\}", re.ASCII)


class Sourced(msgspec.Struct, frozen=True):
    """A value and where it came from: "shoal.toml:12", "~/.config/shoal/config.toml:3", "default", "detected"."""

    value: Any
    origin: str


Values = dict[str, Sourced]


class Layer(msgspec.Struct, frozen=True):
    """What one file says about a cluster: its values, and those that differ under a QOS."""

    values: Values = {}
    qos: dict[str, Values] = {}

    def over(self, lower: Layer) -> Layer:
        """This layer on top of another, key by key."""
        names = dict.fromkeys((*lower.qos, *self.qos))
        qos = {name: _merge(lower.qos.get(name, {}), self.qos.get(name, {})) for name in names}
        return Layer(_merge(lower.values, self.values), qos)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """One profile, merged. `partition` is by GPU type, with "default" for the rest; an empty one leaves it to Slurm.

    `debug` is where smoke runs go: its partition, qos and account, as far as they are others.
    """

    name: str
    layer: Layer = Layer()
    match_cluster: str | None = None
    match_host: str | None = None
    account: str | None = None
    partition: dict[str, str] = {}
    qos: str | None = None
    gres: str = DEFAULT_GRES
    gpu_types: dict[str, str] = {}
    constraint: str | None = None
    cpus_per_node: int | None = None
    memory_per_node: str | None = None
    gpus_per_node: int | None = None
    time: str | None = None
    max_time: str | None = None
    mail_user: str | None = None
    mail_type: str | None = None
    scratch: str | None = None
    logs: str = DEFAULT_LOGS
    setup: tuple[str, ...] = ()
    network: str | None = None
    env: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    debug: dict[str, str] = {}
    container: ContainerSettings = ContainerSettings()

    @property
    def is_local(self) -> bool:
        return self.name == LOCAL

    def origin(self, key: str) -> str:
        """Where a value came from; a key of a table is written with a dot, such as "partition.a100"."""
        found = self.layer.values.get(key)
        return "default" if found is None else found.origin

    def under(self, qos: str | None) -> Cluster:
        """This profile as it is under a QOS: what [clusters.NAME.qos.QOS] says wins."""
        changes = self.layer.qos.get(qos or "")
        return build_cluster(self.name, Layer(changes, {}).over(self.layer)) if changes else self

    def environment(self) -> dict[str, str]:
        """What a job exports: where scratch is, the network preset, then the profile's own table over both."""
        scratch = {"SHOAL_SCRATCH": self.scratch} if self.scratch else {}
        return {**scratch, **(NETWORKS[self.network].env if self.network else {}), **self.env}

    def prepends(self) -> dict[str, str]:
        """Search paths that get a folder in front, unless `env` sets them outright."""
        preset = NETWORKS[self.network].prepend if self.network else {}
        return {name: value for name, value in preset.items() if name not in self.env}


def parse_cluster(values: Table) -> Layer:
    """One [clusters.NAME] table; every mistake is an InputError with its line."""
    table = Table(values.document, values.key, values.values, CLUSTER_KEYS)
    found = _scalars(table)
    match = table.table("match", ("cluster", "host"))
    _add(found, match, "match.cluster", "cluster", match.text("cluster"))
    _add(found, match, "match.host", "host", match.text("host"))
    default_qos, qos = _qos(table)
    if default_qos is not None:
        found["qos"] = default_qos
    debug = table.table("debug", _DEBUG_KEYS)
    for name in debug.values:
        _add(found, debug, f"debug.{name}", name, debug.text(name))
    types = table.table("gpu_types")
    for name in types.values:
        _add(found, types, f"gpu_types.{name}", name, types.text(name))
    for name in ("scratch", "logs"):
        _add(found, table, name, name, table.text(name))
    if "logs" in found:
        _check_logs(table, found["logs"].value)
    _add(found, table, "setup", "setup", table.lines("setup"))
    _add(found, table, "network", "network", table.text("network", NETWORKS))
    for name, value in table.environment("env").items():
        found[f"env.{name}"] = Sourced(value, table.place("env", name))
    _add(found, table, "flags", "flags", table.strings("flags"))
    written = isinstance(table.values.get("container"), dict)
    for name, value in parse_container(table).record().items():
        found[f"container.{name}"] = Sourced(value, table.place(*("container", name) if written else ("container",)))
    return Layer(found, qos)


def build_cluster(name: str, layer: Layer) -> Cluster:
    """The typed profile of merged values."""
    values = layer.values

    def one(key: str) -> Any:
        return values[key].value if key in values else None

    def group(prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value.value for key, value in values.items() if key.startswith(prefix)}

    partition = {"default": one("partition")} if "partition" in values else group("partition.")
    plain = {key: one(key) for key in (*_SCALARS, "scratch", "logs", "setup", "network", "flags") if key in values}
    plain.pop("partition", None)
    return Cluster(
        name=name,
        layer=layer,
        match_cluster=one("match.cluster"),
        match_host=one("match.host"),
        partition=partition,
        qos=one("qos"),
        gpu_types=group("gpu_types."),
        env=group("env."),
        debug=group("debug."),
        container=ContainerSettings(
            **{key: one(f"container.{key}") for key in CONTAINER_KEYS if f"container.{key}" in values}
        ),
        **plain,
    )


def _scalars(table: Table) -> Values:
    """What a profile and each of its QOS tables have in common."""
    found: Values = {}
    for name in ("account", "constraint", "mail_user", "mail_type"):
        _add(found, table, name, name, table.text(name))
    if isinstance(table.values.get("partition"), dict):
        types = table.table("partition")
        for gpu_type in types.values:
            _add(found, types, f"partition.{gpu_type}", gpu_type, types.text(gpu_type))
    else:
        _add(found, table, "partition", "partition", table.text("partition"))
    gres = table.text("gres")
    if gres is not None and gres != "gpus-per-node" and not _GRES.fullmatch(gres):
        raise table.error(
            ("gres",), f"{gres!r} does not spell a GPU request", hint=f'gres = "{DEFAULT_GRES}" or "gpus-per-node"'
        )
    _add(found, table, "gres", "gres", gres)
    for name, least in (("cpus_per_node", 1), ("gpus_per_node", 0)):
        _add(found, table, name, name, table.integer(name, least))
    if (memory := table.text("memory_per_node")) is not None:
        size_mb = parse_memory_mb(memory, place=table.place("memory_per_node"))
        _add(found, table, "memory_per_node", "memory_per_node", format_memory(size_mb))
    for name in ("time", "max_time"):
        if (time := table.text(name)) is not None:
            _add(found, table, name, name, format_slurm_time(parse_duration_s(time, place=table.place(name))))
    return found


def _qos(table: Table) -> tuple[Sourced | None, dict[str, Values]]:
    """`qos = "high"`, or a table: `default = "high"`, and one table for each QOS under which something differs."""
    if not isinstance(table.values.get("qos"), dict):
        name = table.text("qos")
        return (None if name is None else Sourced(name, table.place("qos"))), {}
    outer = table.table("qos")
    default, found = None, {}
    for name, value in outer.values.items():
        if name == "default" and not isinstance(value, dict):
            default = Sourced(outer.text("default"), outer.place("default"))
        else:
            found[name] = _scalars(outer.table(name, _SCALARS))
    return default, found


def _merge(lower: Mapping[str, Sourced], upper: Mapping[str, Sourced]) -> Values:
    """A partition written as one string replaces a whole table of them; a table over a string keeps it as default."""
    kept = dict(lower)
    if "partition" in upper:
        kept = {key: value for key, value in kept.items() if not key.startswith("partition.")}
    elif "partition" in kept and any(key.startswith("partition.") for key in upper):
        kept["partition.default"] = kept.pop("partition")
    return {**kept, **upper}


def _add(found: Values, table: Table, key: str, name: str, value: Any) -> None:
    if value is not None:
        found[key] = Sourced(value, table.place(name))


def _check_logs(table: Table, logs: str) -> None:
    # Slurm expands neither; the job would die at its start without any log (misconfigurations D05, D06).
    if logs.startswith("~") or "$" in logs or "\\" in logs:
        raise table.error(("logs",), f"{logs!r} has ~, $ or a backslash, which Slurm does not expand in log paths")
