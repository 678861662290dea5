"""Geometry: what a launch mode makes of nodes, GPUs and CPUs. Pure; used when a job is planned and again inside it."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional

LAUNCH_MODES = ("process", "torchrun", "srun", "accelerate", "deepspeed", "replicas")
#: One launcher on each node, which starts the ranks of its node.
TORCH_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
#: Slurm, or the launcher of a run on this machine, starts each rank itself.
RANK_MODES = ("process", "srun")

#: What holds when a launch says nothing. Times are torchft's own unless its documentation or our trials advise others.
LAUNCH_DEFAULTS: Dict[str, Any] = {
    "max_restarts": 0,
    "restarts": 3,
    "backoff_s": 0.2,
    "healthy_s": 3600.0,
    "run_restarts": 2,
    "hang_s": 1800.0,
    "quorum_tick_ms": 100,
    "join_timeout_ms": 60000,
    "heartbeat_timeout_ms": 5000,
}


class GeometryError(ValueError):
    """A launch that cannot be laid over the request; `hint` says what would fit."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class LaunchGeometry(NamedTuple):
    """`gpus`, `cpus` and `processes` are per node; `tasks` are Slurm's tasks per node. `replicas` is 0 without them."""

    mode: str
    nodes: int
    gpus: int
    cpus: Optional[int]
    processes: int
    tasks: int
    replicas: int = 0
    replicas_per_node: int = 0
    nodes_per_replica: int = 0
    min_replicas: int = 0

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.nodes * self.processes

    @property
    def cpus_per_task(self) -> Optional[int]:
        return None if self.cpus is None else self.cpus // self.tasks

    @property
    def replica_processes(self) -> int:
        """Ranks of one replica on each of its nodes."""
        return self.processes // self.replicas_per_node

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica on each of its nodes."""
        return self.gpus // self.replicas_per_node


def compute_geometry(
    mode: str, settings: Mapping[str, Any], nodes: int, gpus: int, cpus: Optional[int]
) -> LaunchGeometry:
    """The geometry of a launch over a request; GeometryError if GPUs, nodes, ranks and replicas do not fit together."""
    if mode == "replicas":
        found = _replicas(settings, nodes, gpus, cpus)
    elif mode == "process":
        found = LaunchGeometry(mode, nodes, gpus, cpus, 1, 1)
    elif mode == "srun" or mode in TORCH_LAUNCHERS:
        processes = _processes(settings, gpus, max(1, gpus))
        found = LaunchGeometry(mode, nodes, gpus, cpus, processes, processes if mode == "srun" else 1)
    else:
        raise GeometryError("unknown launch mode %r" % mode, "one of %s" % ", ".join(LAUNCH_MODES))
    if found.cpus is not None and found.cpus < found.tasks:
        raise GeometryError(
            "%d CPUs per node are fewer than its %d tasks" % (found.cpus, found.tasks),
            "--cpus-per-task=%d   # CPUs per node" % found.tasks,
        )
    return found


def _processes(settings: Mapping[str, Any], gpus: int, default: int) -> int:
    processes = int(settings.get("processes") or default)
    if gpus and processes > gpus:
        raise GeometryError(
            "%d processes per node are more than its %d GPU%s" % (processes, gpus, "" if gpus == 1 else "s"),
            "--gpus-per-node=%d, or leave `processes` out: one process per GPU is started" % processes,
        )
    if gpus and gpus % processes:
        raise GeometryError(
            "%d GPUs per node cannot be shared evenly by %d processes" % (gpus, processes),
            "leave `processes` out: one process per GPU is started",
        )
    return processes


def _replicas(settings: Mapping[str, Any], nodes: int, gpus: int, cpus: Optional[int]) -> LaunchGeometry:
    over = int(settings.get("nodes_per_replica") or 1)
    asked = settings.get("replicas_per_node")
    if over > 1 and asked and asked > 1:
        raise GeometryError(
            "a replica is a part of a node or several nodes, not both (%d per node, %d nodes each)" % (asked, over),
            "leave out replicas_per_node or nodes_per_replica",
        )
    per_node = int(asked or (1 if over > 1 or nodes > 1 else max(1, gpus)))
    if nodes % over:
        raise GeometryError(
            "%d nodes cannot be divided into replicas of %d nodes" % (nodes, over),
            "--nodes=%d" % (max(1, nodes // over) * over),
        )
    if gpus % per_node:
        raise GeometryError(
            "%d GPUs per node cannot be divided among %d replicas" % (gpus, per_node),
            "replicas_per_node = %d" % max(count for count in range(1, per_node + 1) if gpus % count == 0),
        )
    processes = _processes(settings, gpus, max(per_node, gpus))
    if processes % per_node:
        raise GeometryError(
            "%d processes per node cannot be divided among %d replicas" % (processes, per_node),
            "processes = %d" % (max(1, processes // per_node) * per_node),
        )
    replicas = nodes // over * per_node
    min_replicas = int(settings.get("min_replicas") or replicas // 2 + 1)
    if min_replicas > replicas:
        raise GeometryError(
            "min_replicas = %d is more than the %d replicas of this request" % (min_replicas, replicas),
            "leave it out: a majority (%d) is the default" % (replicas // 2 + 1),
        )
    wanted = int(settings.get("min_finished") or min_replicas)
    if wanted > replicas:
        raise GeometryError(
            "min_finished = %d is more than the %d replicas of this request" % (wanted, replicas),
            "leave it out: min_replicas is the default",
        )
    return LaunchGeometry("replicas", nodes, gpus, cpus, processes, per_node, replicas, per_node, over, min_replicas)


def fold_to_one_node(geometry: LaunchGeometry) -> LaunchGeometry:
    """The same ranks and replicas on one machine, for trying a launch out without Slurm."""
    processes, replicas = geometry.world, geometry.replicas
    return geometry._replace(
        nodes=1,
        processes=processes,
        gpus=geometry.gpus * geometry.nodes,
        cpus=None,
        tasks=max(1, replicas),
        replicas_per_node=replicas,
        nodes_per_replica=1 if replicas else 0,
    )


def describe_geometry(geometry: LaunchGeometry) -> str:
    """One line for `shoal plan`: processes, GPUs and ports."""
    one = geometry
    if one.mode == "process":
        return "process: one program"
    per_process = " with %s each" % _plural(one.gpus // one.processes, "GPU") if one.gpus else " on CPUs"
    if one.mode == "replicas":
        where = (
            "%s on each node" % _plural(one.replicas_per_node, "replica")
            if one.nodes_per_replica == 1
            else "%d nodes each" % one.nodes_per_replica
        )
        return "replicas: %d (%s), %s per replica%s; %d must be alive; lighthouse and rendezvous on free ports" % (
            one.replicas,
            where,
            _plural(one.replica_processes * one.nodes_per_replica, "process"),
            per_process,
            one.min_replicas,
        )
    ranks = "%s x %s = %s%s" % (
        _plural(one.nodes, "node"),
        _plural(one.processes, "process"),
        _plural(one.world, "rank"),
        per_process,
    )
    if one.mode in TORCH_LAUNCHERS and one.nodes == 1:
        return "%s: %s; rendezvous on a free port of the node" % (one.mode, ranks)
    return "%s: %s; rendezvous on the first node, port from %d-%d by job id" % (
        one.mode,
        ranks,
        PORT_BASE,
        PORT_BASE + PORT_COUNT - 1,
    )


#: Below the usual ephemeral range (32768-60999), where no other connection can sit on them by chance.
PORT_BASE, PORT_COUNT = 20000, 10000


def geometry_record(geometry: LaunchGeometry) -> Dict[str, Any]:
    record: Dict[str, Any] = {name: value for name, value in geometry._asdict().items() if value is not None}
    record["world_size"] = geometry.world
    return record


def slice_gpus(devices: List[str], parts: int) -> List[List[str]]:
    """A node's visible GPUs cut into equal neighbouring parts."""
    size = len(devices) // parts
    return [devices[part * size : (part + 1) * size] for part in range(parts)]


def _plural(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return "%d %s" % (number, noun if number == 1 else plural)
