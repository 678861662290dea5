"""A unit: one group of ranks that is started together, as a small file that each of its nodes and ranks reads.

A run is one unit; with replicas, every try of every replica is one. The file holds no environment of the user: that
comes through the processes themselves, so that nothing secret is written down.
"""

import json
import os
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence


class RankGroup(NamedTuple):
    """`processes`, `gpus` and `cpus` are per node. `log` begins the name of every file about the unit's ranks,
    `out` is the log of the launcher and rank 0, which `host` opens.

    `port` 0 means that the ranks of one node find each other without help, -1 that the unit's first node chooses one
    and tells the others through a file. `peers` are the job's nodes if it has several. `slurm`: it runs as a Slurm
    step. `use` begins the name of the file in which a node says what it uses. `watched`: ranks that train alone are
    stopped (watch.py).
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
        return self.log + "unit.json"

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
