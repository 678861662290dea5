"""What a sandbox is doing now, as one record for the table and for --json."""

from __future__ import annotations

import msgspec

from shoal.sandbox import process
from shoal.sandbox.daemons import Daemons
from shoal.sandbox.layout import SandboxPaths, SandboxState


class DaemonStatus(msgspec.Struct, frozen=True):
    name: str
    state: str  # running, frozen or dead
    pid: int | None


class NodeStatus(msgspec.Struct, frozen=True):
    name: str
    state: str  # Slurm's word; "unknown" when the controller does not answer


class SandboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is up, degraded (a daemon is dead or frozen), half-started (run down, or up again) or dead."""

    name: str
    state: str
    folder: str
    slurm_conf: str
    partitions: list[str]
    gpus_per_node: int
    gpu_type: str
    accounting: bool
    hosts: bool
    cgroups: bool
    daemons: list[DaemonStatus]
    nodes: list[NodeStatus]


def sandbox_status(state: SandboxState, layout: SandboxPaths) -> SandboxStatus:
    """Look at every process and ask Slurm about every node; takes at most the ten seconds that sinfo is given."""
    daemons = Daemons(state, layout)
    found = [_daemon_status(daemons, name) for name in daemons.names]
    frozen = any(daemon.name == "slurmctld" and daemon.state == "frozen" for daemon in found)
    known = {} if frozen else daemons.node_states()
    spec = state.spec
    return SandboxStatus(
        name=spec.name,
        state=_overall_state(state, found),
        folder=str(layout.folder),
        slurm_conf=str(layout.conf),
        partitions=[partition.name for partition in spec.partitions],
        gpus_per_node=spec.gpus,
        gpu_type=spec.gpu_type,
        accounting=spec.accounting,
        hosts=spec.hosts,
        cgroups=state.cgroups,
        daemons=found,
        nodes=[NodeStatus(node, known.get(node, "unknown")) for node in spec.node_names],
    )


def _daemon_status(daemons: Daemons, name: str) -> DaemonStatus:
    found = daemons.find(name)
    if found is None:
        return DaemonStatus(name, "dead", None)
    return DaemonStatus(name, "frozen" if process.is_frozen(found) else "running", found.pid)


def _overall_state(state: SandboxState, daemons: list[DaemonStatus]) -> str:
    states = {daemon.state for daemon in daemons}
    if not state.is_up:
        return "half-started"
    if states == {"dead"}:
        return "dead"
    return "up" if states == {"running"} else "degraded"
