"""Request, flags and cluster profile become the options of sbatch. Nothing is read and nothing is asked here.

Precedence, from the weakest: the profile, its values for the chosen QOS, the step's request, the flags that a person
wrote. A flag that is passed on unchanged also suppresses what the profile would add beside it: after --mem-per-cpu
there is no --mem.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.batch import SbatchFlags, option_name, parse_flags
from shoal.describe import UNNAMED, Cluster
from shoal.errors import InputError
from shoal.job import GeometryError, LaunchGeometry, compute_geometry, describe_geometry
from shoal.model import LaunchSettings, Request
from shoal.units import format_duration, format_memory, format_slurm_time, parse_duration_s, parse_memory_mb

#: A verbatim flag on the left makes the options on the right wrong or doubtful.
_OVERRIDES = {
    "mem": {"mem"},
    "mem-per-cpu": {"mem"},
    "mem-per-gpu": {"mem"},
    "cpus-per-gpu": {"cpus-per-task"},
    "exclusive": {"cpus-per-task derived", "mem derived"},
    "gpus": {"gpus"},
    "gpus-per-task": {"gpus"},
    "gpus-per-socket": {"gpus"},
    "tres-per-task": {"gpus", "cpus-per-task"},
    "nodes": {"nodes"},
    "ntasks": {"ntasks-per-node"},
    "ntasks-per-node": {"ntasks-per-node"},
    "ntasks-per-gpu": {"ntasks-per-node"},
    "time": {"time"},
    "mail-user": {"mail-user"},
    "mail-type": {"mail-type"},
}


class ResolvedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`options` in the order in which they are shown; `notes` say what was derived or translated, one sentence each."""

    cluster: Cluster
    request: Request
    options: tuple[tuple[str, str | None], ...]
    geometry: LaunchGeometry
    requeue: bool | None = None
    notes: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """The options as arguments; always --name=value, so that no value can pass for a flag."""
        return [f"--{name}" if value is None else f"--{name}={value}" for name, value in self.options]

    def get(self, name: str) -> str | None:
        return dict(self.options).get(name)


def resolve_request(
    request: Request,
    flags: SbatchFlags,
    cluster: Cluster,
    profiles: Mapping[str, Cluster],
    *,
    whole_nodes: bool = False,
    launch: str = "process",
    settings: LaunchSettings | None = None,
    as_written: bool = False,
) -> ResolvedRequest:
    """The options for one submission; InputError when the profile knows that they cannot be served.

    Tasks and their CPUs follow from the launch; a flag that says otherwise about them is refused.
    `profiles` are all known clusters: a partition that another of them names is translated. `whole_nodes` takes the
    node's CPUs and memory where the profile does not say how many GPUs share them. `as_written` is for batch scripts:
    nodes, tasks, CPUs and memory that they do not ask for are left to Slurm, as with sbatch.
    """
    flags = flags.over(_profile_flags(cluster))
    qos = flags.qos or cluster.qos
    cluster = cluster.under(qos)
    notes: list[str] = []
    silenced = set().union(*(_OVERRIDES.get(option_name(flag), set()) for flag in flags.other))
    wanted = _portable_type(flags.request.over(request), cluster, profiles)
    partition, wanted = _partition(flags.partition, wanted, cluster, profiles, notes)
    wanted = _fill_defaults(wanted, cluster, silenced, whole_nodes, notes, as_written)
    _check_limits(wanted, cluster, qos)
    geometry = _geometry(launch, settings or LaunchSettings(), wanted, flags)
    if launch != "process":
        notes.append(describe_geometry(geometry))
    cpus = geometry.cpus_per_task
    options: list[tuple[str, str | None]] = [
        ("partition", partition),
        ("account", _account(flags.account, cluster, profiles, notes)),
        ("qos", qos),
        ("nodes", None if wanted.nodes is None else str(wanted.nodes)),
        ("ntasks-per-node", None if as_written else str(geometry.tasks)),
        ("cpus-per-task", None if cpus is None else str(cpus)),
        ("mem", wanted.memory),
        *_gpu_options(wanted, flags, cluster, silenced, notes),
        ("time", wanted.time),
        ("constraint", flags.constraint or cluster.constraint),
        ("mail-user", cluster.mail_user),
        ("mail-type", cluster.mail_type),
    ]
    kept = [pair for pair in options if pair[1] is not None and pair[0] not in silenced]
    if geometry.replicas and geometry.nodes > 1 and not any(option_name(flag) == "no-kill" for flag in flags.other):
        kept.append(("no-kill", None))  # replicas outlive a node: without this Slurm ends the whole job with it
    verbatim = [_split_flag(flag) for flag in flags.other if option_name(flag) != "gres"]
    return ResolvedRequest(
        cluster=cluster,
        request=wanted,
        geometry=geometry,
        options=tuple(kept + verbatim),
        requeue=flags.requeue,
        notes=tuple(notes),
    )


def _geometry(launch: str, settings: LaunchSettings, wanted: Request, flags: SbatchFlags) -> LaunchGeometry:
    """Tasks, ranks and replicas over the complete request; refuse flags that would give the launch another shape."""
    try:
        found = compute_geometry(launch, settings.record(), wanted.nodes or 1, wanted.gpus or 0, wanted.cpus)
    except GeometryError as error:
        raise InputError(error.message, hint=error.hint, place=f"launch {launch}") from None
    if launch == "process":
        return found
    right = {"ntasks": found.tasks * found.nodes, "ntasks-per-node": found.tasks}
    for flag in flags.other:
        name, value = _split_flag(flag)
        if name in right and value != str(right[name]):
            raise InputError(
                f"{flag} contradicts launch {launch}, which has {found.tasks} task{'s' if found.tasks > 1 else ''} on "
                f"each of {found.nodes} node{'s' if found.nodes > 1 else ''}",
                hint=f"leave --{name} out: shoal computes it",
            )
        if name in _TASK_FLAGS or (name == "nodes" and value is not None):
            raise InputError(
                f"{flag} leaves open what launch {launch} must know: nodes, and GPUs and tasks on each of them",
                hint="--nodes=N --gpus-per-node=G",
            )
    return found


#: Flags that spread tasks or GPUs in a way that no longer says how many each node has.
_TASK_FLAGS = frozenset(
    {"gpus", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket",
     "cpus-per-gpu", "tres-per-task", "gpu-bind", "overcommit"}
)  # fmt: skip


def _profile_flags(cluster: Cluster) -> SbatchFlags:
    try:
        return parse_flags(cluster.flags)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=cluster.origin("flags")) from None


def _split_flag(flag: str) -> tuple[str, str | None]:
    name, equals, value = flag.removeprefix("--").partition("=")
    return name, value if equals else None


def _portable_type(request: Request, cluster: Cluster, profiles: Mapping[str, Cluster]) -> Request:
    """A GPU type in any known cluster's spelling, as the name that the profiles share."""
    kind = request.gpu_type
    if kind is None or kind in cluster.gpu_types:
        return request
    for profile in (cluster, *profiles.values()):
        for portable, spelling in profile.gpu_types.items():
            if spelling == kind:
                return msgspec.structs.replace(request, gpu_type=portable)
    return request


def _partition(
    asked: str | None, request: Request, cluster: Cluster, profiles: Mapping[str, Cluster], notes: list[str]
) -> tuple[str | None, Request]:
    """The partition: as asked, translated, by GPU type, or the default. This machine has none, whatever is asked."""
    if cluster.is_local:
        return asked, request
    if asked is not None:
        chosen = []
        for name in asked.split(","):
            translated, request = _translate(name, request, cluster, profiles, notes)
            chosen.append(translated)
        return ",".join(dict.fromkeys(name for name in chosen if name is not None)) or None, request
    by_type = cluster.partition.get(request.gpu_type) if request.gpu_type else None
    if request.gpu_type and by_type is None and cluster.partition and "default" not in cluster.partition:
        known = ", ".join(cluster.partition)
        raise InputError(
            f"cluster {cluster.name} names no partition for GPU type {request.gpu_type}; it has {known}",
            hint=f'partition = {{ {request.gpu_type} = "..." }}  # in [clusters.{cluster.name}]',
        )
    return by_type or cluster.partition.get("default"), request


def _translate(
    name: str, request: Request, cluster: Cluster, profiles: Mapping[str, Cluster], notes: list[str]
) -> tuple[str | None, Request]:
    """One partition name, in this cluster's words. A name that no profile knows is passed on."""
    if cluster.name == UNNAMED and not cluster.partition:
        return name, request
    if name in _all_partitions(cluster):
        return name, request
    for other in profiles.values():
        if other.name == cluster.name or (kind := _all_partitions(other).get(name)) is None:
            continue
        if kind in cluster.partition:
            notes.append(f"partition {name} of {other.name} is {cluster.partition[kind]} here ({kind})")
            return cluster.partition[kind], request
        if kind == "default":
            notes.append(f"partition {name} is the default of {other.name}; Slurm's default partition is used here")
            return None, request
        if kind in cluster.gpu_types:
            default = cluster.partition.get("default")
            notes.append(f"partition {name} of {other.name} is GPU type {kind} here, in {default or 'the default one'}")
            return default, msgspec.structs.replace(request, gpu_type=request.gpu_type or kind)
        raise InputError(
            f"partition {name} belongs to cluster {other.name} ({kind}), and cluster {cluster.name} names no partition "
            f"for {kind}",
            hint=f'partition = {{ {kind} = "..." }}  # in [clusters.{cluster.name}]',
            place="--partition",
        )
    return name, request


def _all_partitions(cluster: Cluster) -> dict[str, str]:
    """Partition name -> the GPU type under which the profile lists it, those of its QOS tables included."""
    found: dict[str, str] = {}
    for values in (cluster.layer.values, *cluster.layer.qos.values()):
        for key, sourced in values.items():
            if key == "partition" or key.startswith("partition."):
                kind = key.partition(".")[2] or "default"
                for name in str(sourced.value).split(","):
                    # A GPU type says more than "default", whatever comes first in the file.
                    if found.get(name, "default") == "default":
                        found[name] = kind
    return found


def _account(asked: str | None, cluster: Cluster, profiles: Mapping[str, Cluster], notes: list[str]) -> str | None:
    """The account: as asked, or this cluster's where another profile has the one that was asked for."""
    if asked is None or cluster.account is None or asked == cluster.account:
        return asked or cluster.account
    other = next((one.name for one in profiles.values() if one.name != cluster.name and one.account == asked), None)
    if other is None:
        return asked
    notes.append(f"account {asked} of {other} is {cluster.account} here")
    return cluster.account


def _fill_defaults(
    request: Request, cluster: Cluster, silenced: set[str], whole_nodes: bool, notes: list[str], as_written: bool
) -> Request:
    """Fill in what the profile knows: one node, its share of CPUs and memory, the default time."""
    changes: dict[str, int | str] = {} if as_written else {"nodes": request.nodes or 1}
    share = None if as_written else _node_share(request, cluster, whole_nodes)
    if share is not None:
        part, of = share
        words = "the whole node" if part == of else f"{part} of the node's {of} GPUs"
        if request.cpus is None and cluster.cpus_per_node and not {"cpus-per-task", "cpus-per-task derived"} & silenced:
            changes["cpus"] = max(1, cluster.cpus_per_node * part // of)
            notes.append(f"{changes['cpus']} CPUs per node, for {words}")
        if request.memory is None and cluster.memory_per_node and not {"mem", "mem derived"} & silenced:
            whole_mb = parse_memory_mb(cluster.memory_per_node)
            changes["memory"] = format_memory(_round_down(whole_mb * part // of))
            notes.append(f"{changes['memory']} of memory per node, for {words}")
    if request.time is None and cluster.time is not None and "time" not in silenced:
        changes["time"] = cluster.time
        notes.append(f"time {cluster.time}: the default of {cluster.name}")
    return msgspec.structs.replace(request, **changes)


def _node_share(request: Request, cluster: Cluster, whole_nodes: bool) -> tuple[int, int] | None:
    if request.gpus and cluster.gpus_per_node:
        return min(request.gpus, cluster.gpus_per_node), cluster.gpus_per_node
    return (1, 1) if whole_nodes else None


def _round_down(size_mb: int) -> int:
    """Whole gigabytes where that loses little: people read 125G more easily than 128034M."""
    return size_mb // 1024 * 1024 if size_mb >= 16 * 1024 else size_mb


def _check_limits(request: Request, cluster: Cluster, qos: str | None) -> None:
    """Refuse what the profile knows to be impossible, with the nearest that is possible."""
    _check_limit(
        cluster, qos, "gpus_per_node", request.gpus, cluster.gpus_per_node, "{} GPUs per node", "gpus-per-node"
    )
    _check_limit(
        cluster, qos, "cpus_per_node", request.cpus, cluster.cpus_per_node, "{} CPUs per node", "cpus-per-task"
    )
    if request.memory_mb is not None and cluster.memory_per_node is not None:
        most_mb = parse_memory_mb(cluster.memory_per_node)
        _check_limit(cluster, qos, "memory_per_node", request.memory_mb, most_mb, "{} of memory per node", "mem")
    if request.time_limit_s is not None and cluster.max_time is not None:
        _check_limit(
            cluster, qos, "max_time", request.time_limit_s, parse_duration_s(cluster.max_time), "{} of time", "time"
        )


def _check_limit(
    cluster: Cluster, qos: str | None, key: str, asked: int | None, maximum: int | None, words: str, flag: str
) -> None:
    if asked is None or maximum is None or asked <= maximum:
        return
    spell = {"mem": format_memory, "time": format_duration}.get(flag, str)
    nearest = {"mem": format_memory, "time": format_slurm_time}.get(flag, str)(maximum)
    raise InputError(
        f"{words.format(spell(asked))} is more than cluster {cluster.name} has"
        f"{f' under QOS {qos}' if qos else ''}: {spell(maximum)} ({cluster.origin(key)})",
        hint=f"--{flag}={nearest} is the most that is possible",
    )


def _gpu_options(
    request: Request, flags: SbatchFlags, cluster: Cluster, silenced: set[str], notes: list[str]
) -> list[tuple[str, str | None]]:
    """The GPU request in this cluster's spelling, together with other gres that a flag asked for."""
    other = next((flag.partition("=")[2] for flag in flags.other if option_name(flag) == "gres"), None)
    # A gres list with several kinds of GPU was left as it is; a GPU request beside it would contradict it.
    names_gpus = other is not None and any(item.split(":")[0] == "gpu" for item in other.split(","))
    if not request.gpus or "gpus" in silenced or names_gpus:
        return [("gres", other)] if other else []
    kind = None if request.gpu_type is None else cluster.gpu_types.get(request.gpu_type, request.gpu_type)
    if kind is not None and kind != request.gpu_type:
        notes.append(f"GPU type {request.gpu_type} is spelled {kind} here")
    if cluster.gres == "gpus-per-node":
        count = str(request.gpus) if kind is None else f"{kind}:{request.gpus}"
        return [("gpus-per-node", count), *([("gres", other)] if other else [])]
    template = cluster.gres if kind else cluster.gres.replace("{type}:", "")
    spelled = template.replace("{type}", kind or "").replace("{count}", str(request.gpus))
    return [("gres", f"{spelled},{other}" if other else spelled)]
