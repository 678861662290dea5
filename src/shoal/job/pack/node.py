"""What one engine works with: where the records are, who it is, what the node has, what surrounds it."""

import os
from typing import Dict, List, Mapping, NamedTuple, Optional

from ...kernel import Allocation, AssignedResources, layout
from . import machine
from .books import GPU_PARTS, Assignment
from .sharing import GpuSharing

#: In the submission's folder, when every run is claimed; before that an engine may find runs that are not yet.
CLAIMED_FILE = "claimed"


class RemoteNode(NamedTuple):
    """Another node of which an engine has slots, as a worker there found it."""

    host: str
    gpus: machine.VisibleGpus
    cpus: List[int]
    sharing: GpuSharing


class EngineNode(NamedTuple):
    """A node as its engine sees it. `ends_at` is when its allocation ends (Unix time), if anything ends it; `code` is
    the copy of the project that runs execute, if one was kept; `host` its name where it is not the engine's own.
    """

    home: str
    token: str
    me: Allocation
    gpus: machine.VisibleGpus
    cpus: List[int]
    environ: Mapping[str, str]
    ends_at: Optional[float]
    sharing: GpuSharing = GpuSharing()
    code: Optional[str] = None
    host: Optional[str] = None

    def at(self, place: RemoteNode) -> "EngineNode":
        return self._replace(host=place.host, gpus=place.gpus, cpus=place.cpus, sharing=place.sharing)

    @property
    def folder(self) -> str:
        """That of the submission."""
        return layout.submission_dir(self.home, self.token)

    def all_claimed(self) -> bool:
        """Whether every run of the queue is claimed that will be. On this machine that still goes on when we begin."""
        if self.environ.get("SHOAL_CLAIMING") != "1":
            return True
        return os.path.exists(os.path.join(self.folder, CLAIMED_FILE))

    def environment(self, holding: Assignment, slots: int) -> Dict[str, str]:
        """What a run finds around it: its GPUs and no others, as many threads as CPUs, its place."""
        env = dict(self.environ)
        if self.gpus.ids:
            env.update(machine.gpu_environment(self.gpus, holding.gpus))
        threads = len(holding.cpus) or max(1, len(self.cpus) // slots)
        env.update(machine.thread_environment(threads, env))
        env.update(
            SHOAL_SLOT=str(holding.slot),
            SHOAL_NODES="1",
            SHOAL_GPUS_PER_NODE=str(len(holding.gpus)),
            SHOAL_CPUS_PER_NODE=str(threads),
        )
        env.update(self.sharing.environment(holding, env))
        return env

    def held(self, holding: Assignment) -> AssignedResources:
        """What the timeline is drawn from."""
        gpus = [self.gpus.ids[index] for index in holding.gpus]
        return AssignedResources(
            holding.slot, gpus, holding.share / GPU_PARTS, len(holding.cpus), self.me.engine, self.host
        )
