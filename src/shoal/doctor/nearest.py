"""Where a request does not fit this cluster, and the nearest one that does. Pure: the caller asks Slurm to confirm.

A request is nearest when the fewest options change; another partition that takes it as it is counts as one change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shoal.batch import SbatchOption, partitions_asked
from shoal.clusters import ClusterFacts, NodeKind, Partition
from shoal.doctor.geometry import RequestGeometry
from shoal.units import format_memory, format_slurm_time

Changes = dict[str, str]


class RequestMismatch(NamedTuple):
    """One thing that a partition cannot give. `about`: time, gpus, type, cpus, memory, nodes, feature, partition ..."""

    about: str
    option: str
    asked: str
    nearest: str


def find_mismatches(
    geometry: RequestGeometry, options: Mapping[str, SbatchOption], partition: Partition, kind: NodeKind
) -> list[RequestMismatch]:
    """What is too much for this kind of node in this partition."""
    found: list[RequestMismatch] = []
    time_s, most_s = geometry.time_s, partition.max_time_s
    if time_s and most_s and time_s > most_s:
        found.append(RequestMismatch("time", "time", format_slurm_time(time_s), format_slurm_time(most_s)))
    nodes = min(partition.max_nodes or partition.total_nodes, partition.total_nodes or 1)
    if nodes and geometry.n > nodes:
        found.append(RequestMismatch("nodes", "nodes", str(geometry.n), str(nodes)))
    found += _gpu_mismatches(geometry, options, kind)
    cpus, most_cpus = geometry.cpus_per_node, min(kind.cpus, partition.max_cpus_per_node or kind.cpus)
    tasks = geometry.tasks_on_node
    if (cpus or tasks) > most_cpus:
        if tasks > most_cpus:
            name = "ntasks-per-node" if geometry.tasks_per_node else "ntasks"
            found.append(RequestMismatch("tasks", name, str(tasks), str(most_cpus)))
        if cpus:
            found.append(
                RequestMismatch("cpus", "cpus-per-task", str(geometry.cpus_per_task), str(max(1, most_cpus // tasks)))
            )
    memory, most_mb = geometry.memory_per_node_mb, min(kind.memory_mb, partition.max_mem_per_node_mb or kind.memory_mb)
    if memory and memory > most_mb:
        found.append(RequestMismatch("memory", *_memory_option(geometry, options, most_mb)))
    wanted = _features(options)
    missing = [feature for feature in wanted if feature not in kind.features]
    if missing:
        found.append(RequestMismatch("feature", "constraint", missing[0], ",".join(kind.features)))
    return found


def _gpu_mismatches(
    geometry: RequestGeometry, options: Mapping[str, SbatchOption], kind: NodeKind
) -> list[RequestMismatch]:
    count = geometry.gpus_per_node
    if not count:
        return []
    spelled = geometry.gpu_type
    if spelled and spelled not in kind.gpu_types and kind.gpus:
        right = next((one for one in kind.gpu_types if one.lower() == spelled.lower()), None)
        most = f"{right or (kind.gpu_types[0] if kind.gpu_types else '')}"
        return [RequestMismatch("type", _gpu_option(options), spelled, most)] + (
            [RequestMismatch("gpus", _gpu_option(options), str(count), str(kind.gpus))] if count > kind.gpus else []
        )
    return [RequestMismatch("gpus", _gpu_option(options), str(count), str(kind.gpus))] if count > kind.gpus else []


def _gpu_option(options: Mapping[str, SbatchOption]) -> str:
    return next((name for name in ("gres", "gpus-per-node", "gpus", "gpus-per-task") if name in options), "gres")


def _memory_option(
    geometry: RequestGeometry, options: Mapping[str, SbatchOption], most_mb: int
) -> tuple[str, str, str]:
    memory = geometry.memory_per_node_mb or 0
    for name, share in (("mem-per-cpu", geometry.cpus_per_node or 1), ("mem-per-gpu", geometry.gpus_per_node or 1)):
        if name in options:
            return name, format_memory(memory), f"{most_mb // share}M"
    return "mem", format_memory(memory), format_memory(most_mb)


def _features(options: Mapping[str, SbatchOption]) -> list[str]:
    """Features that all nodes must have; alternatives (|, counts) are left to Slurm."""
    value = (options["constraint"].value if "constraint" in options else "") or ""
    if not value or any(letter in value for letter in "|*[]()"):
        return []
    return [part.strip() for part in value.replace(",", "&").split("&") if part.strip()]


def qos_mismatches(
    geometry: RequestGeometry, options: Mapping[str, SbatchOption], cluster: ClusterFacts
) -> list[RequestMismatch]:
    """What is too much for the QOS that a request names."""
    asked = options["qos"].value if "qos" in options else None
    limits = next((one for one in cluster.qos_limits if one.name == asked), None)
    found: list[RequestMismatch] = []
    if limits is None:
        return found
    if geometry.time_s and limits.max_time_s and geometry.time_s > limits.max_time_s:
        most = format_slurm_time(limits.max_time_s)
        found.append(RequestMismatch("time", "time", format_slurm_time(geometry.time_s), most))
    if geometry.gpus_total and limits.max_gpus is not None and geometry.gpus_total > limits.max_gpus:
        found.append(RequestMismatch("gpus", _gpu_option(options), str(geometry.gpus_total), str(limits.max_gpus)))
    return found


def _other_qos(geometry: RequestGeometry, options: Mapping[str, SbatchOption], cluster: ClusterFacts) -> list[Changes]:
    """Ways out of a QOS that is too small: less time, or another of the user's."""
    found = qos_mismatches(geometry, options, cluster)
    if not found:
        return [{}]
    ways: list[Changes] = [{"time": found[0].nearest}] if [one.about for one in found] == ["time"] else []
    for name in cluster.qos:
        if not qos_mismatches(geometry, {**options, "qos": SbatchOption("qos", name, 0, "")}, cluster):
            ways.append({"qos": name})
    return ways


def closest_node_kind(
    geometry: RequestGeometry, options: Mapping[str, SbatchOption], cluster: ClusterFacts
) -> tuple[NodeKind, list[RequestMismatch]] | None:
    """The kind of node, among those asked for, that the request misses by least."""
    best: tuple[NodeKind, list[RequestMismatch]] | None = None
    for kind in cluster.kinds(partitions_asked(options)):
        partition = cluster.partition(kind.partition)
        if partition is None:
            continue
        found = find_mismatches(geometry, options, partition, kind)
        if best is None or len(found) < len(best[1]):
            best = (kind, found)
    return best


def propose_changes(
    geometry: RequestGeometry, options: Mapping[str, SbatchOption], cluster: ClusterFacts
) -> list[Changes]:
    """Changes that make the request fit, the smallest first; each still needs Slurm's own word."""
    found: list[Changes] = []
    bases = [{**_identity(options, cluster), **way} for way in _other_qos(geometry, options, cluster)]
    known = {one.name for one in cluster.chosen(partitions_asked(options))}
    for kind in sorted(cluster.node_kinds, key=lambda kind: kind.partition not in known):
        partition = cluster.partition(kind.partition)
        if partition is None or not partition.is_up:
            continue
        for base in bases:
            changes = dict(base)
            if kind.partition not in known:
                changes["partition"] = kind.partition
            changes |= _changes(find_mismatches(geometry, options, partition, kind), geometry, options, kind)
            if not _is_allowed_in(partition, changes, options, cluster):
                continue
            if (size := geometry.array_last) is not None and cluster.max_array_size and size >= cluster.max_array_size:
                changes["array"] = f"0-{cluster.max_array_size - 1}"
            if changes and changes not in found:
                found.append(changes)
    # A smaller request in the partition that was asked for comes before an equal number of changes elsewhere.
    return sorted(found, key=lambda changes: (len(changes), "partition" in changes))[:8]


def _changes(
    found: list[RequestMismatch], geometry: RequestGeometry, options: Mapping[str, SbatchOption], kind: NodeKind
) -> Changes:
    changes: Changes = {}
    about = {misfit.about: misfit for misfit in found}
    if "gpus" in about or "type" in about:
        count = min(geometry.gpus_per_node or 1, kind.gpus) or 0
        name = about["type"].nearest if "type" in about else (geometry.gpu_type or "")
        changes |= _gpu_changes(count, name if name in kind.gpu_types else "", geometry, options)
    for misfit in found:
        if misfit.about == "feature":
            changes["constraint"] = ""
        elif misfit.about not in ("gpus", "type"):
            changes[misfit.option] = misfit.nearest
    if "tasks" in about and "cpus" not in about and (geometry.cpus_per_task or 1) > 1:
        changes["cpus-per-task"] = "1"
    return changes


def _gpu_changes(count: int, kind: str, geometry: RequestGeometry, options: Mapping[str, SbatchOption]) -> Changes:
    typed = f"{kind}:{count}" if kind else str(count)
    option = _gpu_option(options)
    if option == "gres":
        others = [
            item
            for item in ((options["gres"].value or "") if "gres" in options else "").split(",")
            if "gpu" not in item
        ]
        items = ([f"gpu:{typed}"] if count else []) + [item for item in others if item]
        return {"gres": ",".join(items) or "none"}
    if option == "gpus-per-task":
        return {"gpus-per-task": f"{kind}:1" if kind else "1", "ntasks-per-node": str(max(1, count))}
    return {option: typed if option != "gpus" or geometry.n == 1 else str(count * geometry.n)}


def _identity(options: Mapping[str, SbatchOption], cluster: ClusterFacts) -> Changes:
    """Account and QOS that this user has."""
    changes: Changes = {}
    account = options.get("account")
    if account is not None and cluster.accounts and account.value not in cluster.accounts:
        changes["account"] = cluster.default_account or cluster.accounts[0]
    qos = options.get("qos")
    if qos is not None and cluster.qos and qos.value not in cluster.qos:
        changes["qos"] = cluster.qos[0]
    return changes


def _is_allowed_in(
    partition: Partition, changes: Changes, options: Mapping[str, SbatchOption], cluster: ClusterFacts
) -> bool:
    account = changes.get("account") or (options["account"].value if "account" in options else cluster.default_account)
    if partition.allow_accounts and account and account not in partition.allow_accounts:
        return False
    return not (partition.deny_accounts and account in partition.deny_accounts)


def as_flags(changes: Changes) -> list[str]:
    """Flags for sbatch; what must go is set to its neutral value."""
    return [f"--{name}={value}" for name, value in changes.items()]


def apply_changes(options: Mapping[str, SbatchOption], changes: Changes) -> dict[str, SbatchOption]:
    """The options with changes on top, as if they had been given on the command line."""
    kept = {name: option for name, option in options.items() if changes.get(name) != ""}
    new = {name: SbatchOption(name, value, 0, "") for name, value in changes.items() if value}
    return {**kept, **new}
