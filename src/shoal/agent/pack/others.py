"""What a queue depends on outside of its engine: runs that other engines have, and runs that others build on."""

from typing import Dict, List, Optional, Set

from .. import nodes, stages
from . import claims
from .leases import Leases
from .node import Node
from .queue import Item, Queue
from .running import INTERRUPTED
from .tally import Tally


class Others:
    """Runs of the queue that another engine works on are left to it, and taken back when it will not finish them."""

    def __init__(self, node: Node, queue: Queue, tally: Tally, leases: Leases) -> None:
        self._node, self._queue, self._tally, self._leases = node, queue, tally, leases
        self._left: List[Item] = []
        self._done: Set[str] = set()
        #: Engine that is gone -> nodes that failed with it.
        self._lost_with: Dict[Optional[str], List[str]] = {}

    def leave(self, item: Item) -> None:
        self._left.append(item)
        self._tally.count("elsewhere")

    def write_off(self, standing: claims.Standing) -> None:
        """End the attempt of an engine that is gone, and find out whether its node has failed."""
        claims.write_lost(standing)
        start = standing.start or {}
        if start.get("engine") not in self._lost_with:
            told, ask = self._leases.was_stopping(start), nodes.ask_slurm(self._node.environ)
            self._lost_with[start.get("engine")] = [] if told else nodes.lost_with(start, self._node.me, ask)

    def failed_with(self, standing: claims.Standing) -> List[str]:
        """Nodes that failed under the last attempt of a run, as far as this engine has found out."""
        is_lost = (standing.end or {}).get("stopped_by") == "lost"
        return self._lost_with.get((standing.start or {}).get("engine"), []) if is_lost else []

    @property
    def failed_nodes(self) -> List[str]:
        return sorted({node for found in self._lost_with.values() for node in found})

    def look(self) -> bool:
        """Take back what engines that are gone, or out of time, had. True if a run was, or may be soon."""
        doubtful = False
        for item in list(self._left):
            standing = claims.look(self._node.home, item.name, self._node.token)
            start, end = standing.start or {}, standing.end or {}
            gone = standing.word == "taken" and self._leases.is_gone(start)
            if gone or (standing.word == "ended" and end.get("stopped_by") in INTERRUPTED):
                self._left.remove(item)
                self._tally.count("elsewhere", -1)
                self._queue.put_back(item, last=True)
            elif standing.word == "done":
                self.is_done(item.name)
            elif standing.word == "taken":
                doubtful = doubtful or self._leases.is_doubtful(start)
        return doubtful or bool(self._queue.waiting)

    def is_done(self, name: str) -> None:
        """Runs that wait for this one may start."""
        self._done.add(name)
        self._queue.unblock(self._done)

    def look_for_parents(self) -> None:
        """Runs that others build on may be done by another engine, or by a job of their own."""
        for name in {name for item in self._queue.blocked for name in item.needs} - self._done:
            if stages.parent(self._node.home, name).done:
                self.is_done(name)

    @property
    def orphans(self) -> List[Item]:
        """Runs that wait for one that will not be done, as far as this engine can know."""
        left = {item.name for item in self._left}
        return [item for item in self._queue.blocked if not left.intersection(item.needs)]
