"""A rank group: ranks that are started together, as a small file that each of their nodes and ranks reads.

A run is one group; with replicas, every attempt of every replica is one. The file does not hold the user's environment:
that is inherited by the processes, so that no secret is written down.

Also here: do the ranks train together? A script that never reads its rank, Lightning with `devices=1`, a process group
of one: N copies of a training, and the progress of one GPU. Nothing outside the program can tell this from ranks that
need not communicate (an evaluation in parts), but torch can: shoal_watch.py counts the steps of its optimizers, and
after ten of them asks for the size of the process group. It is loaded by torch's own mechanism for extensions (an entry
point that `import torch` calls, 2.5 and later), found in a directory at the end of PYTHONPATH; without that mechanism
nothing is watched.
"""

import json
import os
import time
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence


class RankGroup(NamedTuple):
    """`processes`, `gpus` and `cpus` are per node. `log` begins the name of every file about the group's ranks,
    `out` is the log of the launcher and rank 0, which `host` opens.

    `port` 0 means that the ranks of one node find each other without help, -1 that the group's first node chooses one
    and tells the others through a file. `peers` are the job's nodes if it has several. `slurm`: it runs as a Slurm
    step. `use` begins the name of the file in which a node says what it uses. `watched`: ranks that train alone are
    stopped (`DdpCheck`).
    A container is words `around` the node's launcher (or each task of srun), or `step_flags` of srun; `inner` calls our
    wrapper of a rank in it, and without the paths `needs` it cannot be started.
    """

    mode: str
    nodes: List[str]
    processes: int
    gpus: int
    argv: List[str]
    cwd: str
    log: str
    id: str
    start: List[str]
    wrapper: List[str]
    slurm: bool = False
    peers: Sequence[str] = ()
    cpus: Optional[int] = None
    address: str = "localhost"
    port: int = 0
    max_restarts: int = 0
    interface: Optional[str] = None
    options: Sequence[str] = ()
    env: Mapping[str, str] = MappingProxyType({})
    watched: bool = False
    use: str = ""
    around: Sequence[str] = ()
    step_flags: Sequence[str] = ()
    inner: Sequence[str] = ()
    needs: Sequence[str] = ()
    out: str = ""
    host: str = ""

    @property
    def world(self) -> int:
        return len(self.nodes) * self.processes

    @property
    def path(self) -> str:
        return self.log + "group.json"

    def rank_log(self, rank: int, restart: int = 0) -> str:
        """Where a rank's output goes; rank 0 writes to `out` instead."""
        return "%srank-%d%s.out" % (self.log, rank, ".restart-%d" % restart if restart else "")

    def rank_record(self, rank: int) -> str:
        return "%srank-%d.json" % (self.log, rank)

    def use_file(self, node: str) -> Optional[str]:
        """Where a further node of the job writes what it uses; None on the first, where the attempt itself does."""
        place = list(self.peers).index(node) if node in self.peers else 0
        replica = int(self.env.get("SHOAL_REPLICA") or 0)
        return "%s%d" % (self.use, place + len(self.peers) * replica) if self.use and place else None

    def absent(self) -> Optional[str]:
        """What the container needs and this node does not have, in words."""
        for path in self.needs:
            if not os.path.exists(path):
                from ...kernel import node_name

                return "there is no %s on %s, and the container needs it" % (path, node_name())
        return None

    def save(self) -> str:
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        write_json(self.path, dict(self._asdict(), env=dict(self.env)))
        return self.path


def load_group(path: str) -> RankGroup:
    with open(path) as file:
        return RankGroup(**json.load(file))


def write_json(path: str, record: Dict[str, Any]) -> None:
    """Whole or not at all; never synced, because it only matters while the job lives."""
    temp = "%s.tmp-%d" % (path, os.getpid())
    with open(temp, "w") as file:
        json.dump(record, file, sort_keys=True)
    os.rename(temp, path)


_MODULE = "shoal_watch"
#: Its name in a smoke run, which may start programs that are watched as well.
_SMOKE_MODULE = "shoal_smoke"
_CHECK_EVERY_S = 1.0


def write_watch_module(group: RankGroup) -> None:
    """Write what a rank's Python is to find."""
    _write_torch_extension(_watch_dir(group), _MODULE)


def write_smoke_module(folder: str, steps: int) -> None:
    """Write what the Python of a doctor's smoke run is to find (`shoal doctor --fix --smoke`)."""
    _write_torch_extension(folder, _SMOKE_MODULE)
    with open(os.path.join(folder, "steps"), "w") as file:
        file.write(str(steps))


def _write_torch_extension(folder: str, module: str) -> None:
    """Write shoal_watch.py, whose `begin` torch calls at the end of its import, wherever `folder` is on PYTHONPATH."""
    import pkgutil  # not needed by ranks, which import this too

    about = os.path.join(folder, module + "-1.dist-info")
    os.makedirs(about, exist_ok=True)
    name = module.replace("_", "-")
    for path, data in (
        (os.path.join(folder, module + ".py"), pkgutil.get_data(__name__, _MODULE + ".py") or b""),
        (os.path.join(about, "METADATA"), ("Metadata-Version: 2.1\nName: %s\nVersion: 1\n" % name).encode()),
        (os.path.join(about, "entry_points.txt"), ("[torch.backends]\n%s = %s:begin\n" % (name, module)).encode()),
    ):
        with open(path, "wb") as file:
            file.write(data)


def watch_variables(group: RankGroup, rank: int, env: Mapping[str, str]) -> "dict[str, str]":
    """What makes a rank's torch call us; nothing where there is nobody to train with."""
    folder = _watch_dir(group)
    if not group.watched or not os.path.exists(os.path.join(folder, _MODULE + ".py")):
        return {}
    theirs = env.get("PYTHONPATH")
    return {
        "SHOAL_WATCH": "%d %s" % (group.world, _alone_file(group, rank)),
        "PYTHONPATH": "%s%s%s" % (theirs, os.pathsep, folder) if theirs else folder,
    }


class RanksTrainAlone(Exception):
    """The ranks train, and each for itself; the message says so."""


class DdpCheck:
    """Whether the ranks of a group train alone: called repeatedly while they run, raises RanksTrainAlone."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self._looked = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if self.group.watched and now - self._looked >= _CHECK_EVERY_S:
            self._looked = now
            self._look()

    def _look(self) -> None:
        """Every rank must say it: where one learns and the others play for it, that one is alone, and rightly so."""
        here = set(os.listdir(os.path.dirname(self.group.log)))
        marks = [_alone_file(self.group, rank) for rank in range(self.group.world)]
        if not here.issuperset(os.path.basename(mark) for mark in marks):
            return
        with open(marks[0]) as file:
            size = file.read().strip()
        raise RanksTrainAlone(
            "each of the %d ranks trains alone: the size of its process group is %s and not %d, so the run would be %d "
            "copies of one training; call torch.distributed.init_process_group(), with Lightning leave out devices and "
            'say strategy="ddp", or say independent = true in the launch if they are meant to be apart'
            % (self.group.world, size or "1", self.group.world, self.group.world)
        )


def _watch_dir(group: RankGroup) -> str:
    return os.path.join(os.path.dirname(group.log), "watch")


def _alone_file(group: RankGroup, rank: int) -> str:
    return "%srank-%d.alone" % (group.log, rank)
