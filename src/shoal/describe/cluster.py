"""Cluster profiles: how a portable request becomes the options of one cluster.

A profile is kept as flat values, each with the place where it was written ("partition.a100" from shoal.toml:12), so
that two files merge key by key and `shoal clusters show` can print where each value came from. The typed fields are
read from them once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import field

from shoal.describe import tables
from shoal.describe.document import Table
from shoal.describe.launches import Container
from shoal.describe.tables import (
    BadValue,
    Count,
    CountOrZero,
    Plain,
    SettingsTable,
    Strings,
    Text,
    convert,
    one_of,
    read_by,
    rule,
)
from shoal.errors import InputError
from shoal.model import ContainerSettings

LOCAL = "local"
UNNAMED = "slurm"
DEFAULT_GRES = "gpu:{type}:{count}"
DEFAULT_LOGS = "logs/%j"
_GRES = re.compile(r"(?:[A-Za-z0-9_]+:)(?:\{type\}:)?\{count\}", re.ASCII)


class Network(msgspec.Struct, frozen=True):
    """A preset of network variables for collective communication, which `network = "aws-efa"` names; the profile's own
    `env` wins over it.

    `env` is exported as it is; `prepend` goes before what a search path already holds."""

    meaning: str
    env: dict[str, str]
    prepend: dict[str, str] = {}


#: The variables that the documentation of NCCL, libfabric and AWS's EFA name for each kind of network.
NETWORKS: dict[str, Network] = {
    "aws-efa": Network(
        "AWS Elastic Fabric Adapter through libfabric",
        {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_IB_DISABLE": "1"},
        {"LD_LIBRARY_PATH": "/opt/amazon/efa/lib"},
    ),
    "infiniband": Network(
        "InfiniBand or RoCE verbs; a job without them fails instead of falling back to slow sockets",
        {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"},
    ),
    "ethernet": Network(
        "plain TCP sockets",
        {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
    ),
}


def _read_partition(value: Any) -> dict[str, str]:
    """One name for all, or a name for each GPU type."""
    return convert(value, dict[str, Text]) if isinstance(value, dict) else {"default": convert(value, Text)}


def _read_qos(value: Any) -> str | None:
    """`qos = "high"`, or a table: `default = "high"`, and one table for each QOS under which something differs."""
    if not isinstance(value, dict):
        return convert(value, Text)
    default = {name: inner for name, inner in value.items() if _is_default(name, inner)}
    convert({name: inner for name, inner in value.items() if name not in default}, dict[str, QosTable])
    return convert(default, dict[str, Text]).get("default")


def _read_lines(value: Any) -> tuple[str, ...]:
    """Shell lines: one string, which may have several lines, or a list of strings."""
    lines = convert(value, Plain | list[Plain])  # type: ignore[arg-type]
    return tuple(lines.strip("\n").split("\n") if isinstance(lines, str) else lines)


def _is_default(name: str, value: Any) -> bool:
    return name == "default" and not isinstance(value, dict)


def _spells_gpus(gres: str) -> bool:
    return gres == "gpus-per-node" or _GRES.fullmatch(gres) is not None


def _stays_as_it_is(path: str) -> bool:
    # Slurm expands neither; the job would die at its start without any log (misconfigurations D05, D06).
    return not (path.startswith("~") or "$" in path or "\\" in path)


if TYPE_CHECKING:
    Partition = dict[str, str]
    Qos = str | None
    Lines = tuple[str, ...]
else:
    Partition, Qos, Lines = read_by(_read_partition), read_by(_read_qos), read_by(_read_lines)


Gres = Annotated[Text, rule(_spells_gpus, "a GPU request", f'gres = "{DEFAULT_GRES}" or gres = "gpus-per-node"')]
Logs = Annotated[Text, rule(_stays_as_it_is, "no ~, $ or backslash, which Slurm does not expand in log paths")]


class MatchTable(SettingsTable, frozen=True, omit_defaults=True):
    """`match = { ... }`: Slurm's ClusterName, or a pattern of host names."""

    cluster: Text | None = None
    host: Text | None = None


def _is_price(value: float) -> bool:
    return 0 < value < 1e9  # neither nan nor inf, which TOML can write


Price = Annotated[float, rule(_is_price, "a price per hour greater than 0", 'price = { gpu = 1.2, currency = "EUR" }')]
Currency = Annotated[
    Text, rule(re.compile(r"[A-Za-z€$£¥]{1,12}").fullmatch, "a currency of up to 12 letters", 'currency = "EUR"')
]


class PriceTable(SettingsTable, frozen=True, omit_defaults=True):
    """`price = { ... }`: what an hour costs of one GPU, CPU or GB of memory, or of one unit of Slurm's billing."""

    gpu: Price = 0.0
    cpu: Price = 0.0
    memory_gb: Price = 0.0
    billing: Price = 0.0
    currency: Currency = ""

    def __post_init__(self) -> None:
        parts = (self.gpu, self.cpu, self.memory_gb)
        if (any(parts) or bool(self.billing)) != bool(self.currency):
            missing = "currency" if not self.currency else "gpu, cpu, memory_gb or billing"
            raise BadValue(f"{missing} is missing", hint='price = { gpu = 1.2, currency = "EUR" }')
        if self.billing and any(parts):
            raise BadValue(
                "billing units count GPUs, CPUs and memory already",
                key=("billing",),
                hint='price = { billing = 0.01, currency = "EUR" }',
            )


def _is_ssh_host(host: str) -> bool:
    # A leading dash would be an option of ssh; anything else that is odd belongs into the user's ssh configuration.
    return (
        re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9_\[][A-Za-z0-9._:%\]-]*", host, re.ASCII) is not None
    )


def _is_directory_there(path: str) -> bool:
    inside = path.removeprefix("~/")
    return not ("$" in path or "\\" in path or inside.startswith("~") or ".." in inside.split("/")) and bool(
        inside.strip("/. ")
    )


SshHost = Annotated[Text, rule(_is_ssh_host, "a Host of your ssh configuration", 'host = "galvani"')]
SshDirectory = Annotated[
    Text, rule(_is_directory_there, "an absolute path or one below ~/, without $ and ..", 'directory = "~/lead"')
]


class SshTable(SettingsTable, frozen=True, omit_defaults=True):
    """[clusters.NAME.ssh]: the login node as a Host of the user's ssh configuration, and the project's directory there.
    `python` is the interpreter that shoal uses there, where the ones on PATH are too old."""

    host: SshHost | None = None
    directory: SshDirectory | None = None
    python: Text | None = None


class QosTable(SettingsTable, frozen=True):
    """What [clusters.NAME] and each of its [clusters.NAME.qos.QOS] may say. `partition` is by GPU type, with "default"
    for the rest; an empty one leaves it to Slurm."""

    account: Text | None = None
    partition: Partition = field(default_factory=dict)
    constraint: Text | None = None
    gres: Annotated[Text, rule(_spells_gpus, "a GPU request", f'gres = "{DEFAULT_GRES}" or gres = "gpus-per-node"')] = (
        DEFAULT_GRES
    )
    cpus_per_node: Count | None = None
    memory_per_node: tables.Memory | None = None
    gpus_per_node: CountOrZero | None = None
    time: tables.SlurmTime | None = None
    max_time: tables.SlurmTime | None = None
    mail_user: Text | None = None
    mail_type: Text | None = None


class ClusterTable(QosTable, frozen=True):
    """[clusters.NAME]; `qos` is the default QOS, whose tables `parse_cluster` reads."""

    match: MatchTable = MatchTable()
    qos: Qos | None = None
    debug: dict[Literal["partition", "qos", "account"], Text] = field(default_factory=dict)
    gpu_types: dict[str, Text] = field(default_factory=dict)
    scratch: Text | None = None
    logs: Logs = DEFAULT_LOGS
    setup: Lines = ()
    env: tables.Environment = field(default_factory=dict)
    network: Annotated[str, one_of(NETWORKS)] | None = None
    flags: Strings = ()
    container: Container = ContainerSettings()
    price: PriceTable = PriceTable()
    ssh: SshTable = SshTable()


CLUSTER_KEYS = ("match", *(name for name in ClusterTable.__struct_fields__ if name != "match"))


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


class Cluster(ClusterTable, frozen=True, kw_only=True):
    """One profile, merged."""

    name: str
    layer: Layer = Layer()

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


def parse_cluster(table: Table, checked: ClusterTable) -> Layer:
    """What one [clusters.NAME] table says, as flat values."""
    tables = table.table("qos") if isinstance(table.values.get("qos"), dict) else None
    found = _flat(table, checked)
    if tables is None:
        return Layer(found)
    if checked.qos is not None:
        found["qos"] = Sourced(checked.qos, tables.place("default"))
    names = [name for name, value in tables.values.items() if not _is_default(name, value)]
    return Layer(found, {name: _flat(tables.table(name), tables.table(name).read(QosTable)) for name in names})


def _flat(table: Table, checked: QosTable) -> Values:
    found: Values = {}
    for key, raw in table.values.items():
        value = getattr(checked, key)
        if key == "partition" and not isinstance(raw, dict):
            found[key] = Sourced(value["default"], table.place(key))
        elif isinstance(value, dict | MatchTable | PriceTable | SshTable | ContainerSettings):
            for name, inner in (value if isinstance(value, dict) else msgspec.to_builtins(value)).items():
                found[f"{key}.{name}"] = Sourced(inner, table.place(key, name))
        elif not isinstance(raw, dict):
            found[key] = Sourced(value, table.place(key))
    return found


def build_cluster(name: str, layer: Layer) -> Cluster:
    """The typed profile of merged values."""
    fields: dict[str, Any] = {}
    for key, sourced in layer.values.items():
        outer, dot, inner = key.partition(".")
        if dot:
            fields.setdefault(outer, {})[inner] = sourced.value
        else:
            fields[key] = {"default": sourced.value} if key == "partition" else sourced.value
    fields["match"] = MatchTable(**fields.get("match", {}))
    fields["price"] = PriceTable(**fields.get("price", {}))
    if name in (LOCAL, UNNAMED) and (here := [key for key in layer.values if key.startswith("ssh.")]):
        raise InputError(
            f"{name} is this machine, so [clusters.{name}.ssh] has no effect",
            hint='[clusters.galvani.ssh] host = "galvani"   # a profile with a name of its own',
            place=layer.values[here[0]].origin,
        )
    fields["ssh"] = SshTable(**fields.get("ssh", {}))
    fields["container"] = ContainerSettings(**fields.get("container", {}))
    return Cluster(name=name, layer=layer, **fields)


def _merge(lower: Mapping[str, Sourced], upper: Mapping[str, Sourced]) -> Values:
    """A partition written as one string replaces a whole table of them; a table over a string keeps it as default. A
    price replaces a whole price."""
    kept = dict(lower)
    if any(key.startswith("price.") for key in upper):
        kept = {key: value for key, value in kept.items() if not key.startswith("price.")}
    if "partition" in upper:
        kept = {key: value for key, value in kept.items() if not key.startswith("partition.")}
    elif "partition" in kept and any(key.startswith("partition.") for key in upper):
        kept["partition.default"] = kept.pop("partition")
    return {**kept, **upper}
