"""What one engine works with: its records, its identity, the node's resources; and runs that share a GPU.

A run that shares a GPU gets a part of its memory and, where NVIDIA's MPS is installed, a part of its compute. Programs
have to keep to their share: variables tell them (JAX, TensorFlow and warm-started torch obey by themselves). Under MPS
the driver enforces it, and kernels of several runs execute concurrently instead of in turns. Each node of an engine has
its own MPS daemon, in private directories, so that other jobs do not see it.
"""

import os
import shutil
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...kernel import Allocation, AssignedResources, layout
from .. import allocation, usage_readers
from ..allocation import VisibleGpus
from .allocator import GPU_PARTS, Assignment

_MPS_CONTROL = "nvidia-cuda-mps-control"
_MAX_ANSWER_S, _MAX_QUIT_S = 20.0, 20.0
_MIB = 1 << 20
#: What a process takes on a GPU beside its tensors: its context, and the libraries' own work space.
_CUDA_CONTEXT_BYTES = 600 * _MIB


def memory_environment(share: int, memory: Optional[int], base: Mapping[str, str]) -> Dict[str, str]:
    """What a run with a share of a GPU of so much memory is told; what somebody has set before stays as it is."""
    part = share / GPU_PARTS
    fraction = 0.9 * part if memory is None else max(0.5 * part, part - _CUDA_CONTEXT_BYTES / memory)
    env = {"SHOAL_GPU_SHARE": "%g" % part, "SHOAL_GPU_MEMORY_FRACTION": "%.4f" % fraction}
    if memory is not None:
        env["SHOAL_GPU_MEMORY_BYTES"] = str(int(fraction * memory))
    theirs = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "%.4f" % fraction, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    env.update((name, value) for name, value in theirs.items() if name not in base)
    return env


class MpsDaemon:
    """One control daemon of MPS for some GPUs, named by UUID: indices would be counted anew by its clients."""

    def __init__(self, uuids: Sequence[str], environ: Mapping[str, str], prefix: Sequence[str], logs: str) -> None:
        """OSError, in words, when it does not come up."""
        self._control = shutil.which(_MPS_CONTROL, path=environ.get("PATH", os.defpath)) or _MPS_CONTROL
        self._pipes = tempfile.mkdtemp(prefix="mps-")  # short: there is a socket in it; 0700: it is ours alone
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": self._pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
        self._env = dict(environ, CUDA_VISIBLE_DEVICES=",".join(uuids), **self.environment)
        os.makedirs(logs, exist_ok=True)
        try:
            self._daemon = subprocess.Popen(
                [*prefix, self._control, "-f"],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            shutil.rmtree(self._pipes, ignore_errors=True)
            raise
        self._wait_for_answer()

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + _MAX_ANSWER_S
        while not self._ask("get_server_list"):
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise OSError("its daemon does not answer; see %s" % self.environment["CUDA_MPS_LOG_DIRECTORY"])
            time.sleep(0.1)

    def _ask(self, words: str) -> bool:
        try:
            done = subprocess.run(
                [self._control],
                input=words.encode("ascii") + b"\n",
                env=self._env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_MAX_QUIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def close(self) -> None:
        """End the daemon and its servers; whatever does not obey is killed."""
        if self._daemon.poll() is None:
            self._ask("quit -t 5")
            try:
                self._daemon.wait(_MAX_QUIT_S)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
        shutil.rmtree(self._pipes, ignore_errors=True)


class GpuSharing(NamedTuple):
    """How the GPUs of a node are shared: their memory where it is known, their UUIDs, and, if MPS is there, how its
    clients find it. `daemon` is MPS itself, for whoever started it.
    """

    memory: Sequence[Optional[int]] = ()
    uuids: Sequence[Optional[str]] = ()
    mps: Optional[Mapping[str, str]] = None
    daemon: Optional[MpsDaemon] = None

    def environment(self, assignment: Assignment, base: Mapping[str, str]) -> Dict[str, str]:
        """What a run that holds a share of one GPU finds; nothing for runs that have GPUs for themselves."""
        if not assignment.gpus or not 0 < assignment.share < GPU_PARTS:
            return {}
        gpu = assignment.gpus[0]
        memory = self.memory[gpu] if gpu < len(self.memory) else None
        env = memory_environment(assignment.share, memory, base)
        if self.mps is not None:
            # Twice its share of the processors: runs rarely need them at the same moment, and the last ones run faster.
            env.update(self.mps)
            env["CUDA_VISIBLE_DEVICES"] = str(self.uuids[gpu])
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "%d" % min(
                100, max(1, round(200 * assignment.share / GPU_PARTS))
            )
            if memory is not None:
                env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=%dM" % (assignment.share * memory // GPU_PARTS // _MIB)
        return env

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.close()


def set_up_gpu_sharing(
    gpus: VisibleGpus,
    environ: Mapping[str, str],
    *,
    mps: bool,
    prefix: Sequence[str],
    logs: str,
    say: Callable[[str], Any],
) -> GpuSharing:
    """Look at GPUs that runs will share, and start MPS if it is wanted, installed, and not there already."""
    known = [usage_readers.gpu_identity(name) if gpus.is_nvidia else None for name in gpus.ids]
    memory: List[Optional[int]] = [one.memory if one else None for one in known]
    uuids = [name if name.startswith("GPU-") else one.uuid if one else None for name, one in zip(gpus.ids, known)]
    alone = GpuSharing(memory, uuids)
    if not mps or not gpus.is_nvidia or "CUDA_MPS_PIPE_DIRECTORY" in environ:
        return alone  # Not wanted, not possible, or somebody has started it for us.
    if shutil.which(_MPS_CONTROL, path=environ.get("PATH", os.defpath)) is None:
        return alone
    why = "MIG instances are parts of a GPU already" if gpus.mig else None
    if why is None and not all(uuids):
        why = "the driver does not tell the UUIDs of the GPUs"
    if why is None:
        try:
            daemon = MpsDaemon([str(uuid) for uuid in uuids], environ, prefix, logs)
            say("runs share GPUs through MPS; its log is in %s" % logs)
            return alone._replace(mps=daemon.environment, daemon=daemon)
        except OSError as error:
            why = str(error)
    say("runs share GPUs without MPS: %s" % why)
    return alone


#: In the submission's folder, when every run is claimed; before that an engine may find runs that are not yet.
CLAIMED_FILE = "claimed"


class RemoteNode(NamedTuple):
    """Another node of which an engine has slots, as a worker there found it."""

    host: str
    gpus: allocation.VisibleGpus
    cpus: List[int]
    sharing: GpuSharing


class EngineNode(NamedTuple):
    """A node as its engine sees it. `ends_at` is when its allocation ends (Unix time), if anything ends it; `code` is
    the copy of the project that runs execute, if one was kept; `host` its name where it is not the engine's own.
    """

    home: str
    token: str
    me: Allocation
    gpus: allocation.VisibleGpus
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

    def environment(self, assignment: Assignment, slots: int) -> Dict[str, str]:
        """What a run finds around it: its GPUs and no others, as many threads as CPUs, its place."""
        env = dict(self.environ)
        if self.gpus.ids:
            env.update(allocation.gpu_environment(self.gpus, assignment.gpus))
        threads = len(assignment.cpus) or max(1, len(self.cpus) // slots)
        env.update(allocation.thread_environment(threads, env))
        env.update(
            SHOAL_SLOT=str(assignment.slot),
            SHOAL_NODES="1",
            SHOAL_GPUS_PER_NODE=str(len(assignment.gpus)),
            SHOAL_CPUS_PER_NODE=str(threads),
        )
        env.update(self.sharing.environment(assignment, env))
        return env

    def held(self, assignment: Assignment) -> AssignedResources:
        """What the timeline is drawn from."""
        gpus = [self.gpus.ids[index] for index in assignment.gpus]
        return AssignedResources(
            assignment.slot, gpus, assignment.share / GPU_PARTS, len(assignment.cpus), self.me.engine, self.host
        )
