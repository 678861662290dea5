"""The lease of one further node of a run: until it is gone, processes of the attempt may run on that node.

    attempt.<k>.node<m>            node m may run processes of attempt k   (created by the agent, before any starts)
    attempt.<k>.node<m>.live.<n>   the guard of node m has renewed its lease n times         (renamed by that guard)

Both are further names of the attempt's file, so they take no room. The guard of node m removes them when nothing of the
attempt is left there. Somebody else may remove them when no lease of the attempt was renewed for so long that every
guard has stopped its processes. The first of the two is never renamed, so no listing misses it.

A node's lease is renewed only while that of the first node is: when the first node is gone, all of them become silent.
"""

import os
from typing import List, Optional

from . import files, layout, lease


class NodeLease:
    """The lease of node `node` of an attempt, as the guard of that node holds it."""

    def __init__(self, run_dir: str, number: int, node: int, mark: str, times: lease.LeaseTiming) -> None:
        self.run_dir, self.number, self.node = run_dir, number, node
        self.mark = mark
        self.renewals, self.held_until = 0, 0.0
        self._times = times
        #: How often the first node has renewed its lease, and when that was first seen.
        self._first: Optional[int] = None
        self._first_seen = lease.boot_time_s()

    def renew(self) -> str:
        """held, over (the attempt has ended or was closed) or unknown (the file server did not say, or the first node
        is silent)."""
        since = lease.boot_time_s()
        try:
            names = layout.parse_names(os.listdir(self.run_dir))
        except FileNotFoundError:
            return "over"
        except OSError:
            return "unknown"
        if names.has_attempt(self.number, "end") or names.has_attempt(self.number, "lost"):
            return "over"
        if not names.has_attempt(self.number, "start"):
            return "over"
        first = names.renewals.get((self.number, "live"), self._first)
        if first != self._first:
            self._first, self._first_seen = first, since
        until = self._first_seen + self._times.hold_s  # not later than HOLD from now
        renewals = names.nodes.get(self.number, {}).get(self.node)
        if renewals is None or until <= since:
            return "unknown"
        try:
            os.rename(self._path(renewals), self._path(renewals + 1))
        except OSError:
            return "unknown"  # If it was renamed all the same, the next listing shows that.
        self.renewals, self.held_until = renewals + 1, until
        return "held"

    def _path(self, renewals: int) -> str:
        return os.path.join(self.run_dir, layout.node_file(self.number, self.node, renewals))


def create_node_leases(held: lease.Lease, nodes: int) -> None:
    """Let an attempt have further nodes 1 to `nodes`; call before any process of it starts."""
    start = os.path.join(held.run_dir, layout.attempt_file(held.number, "start"))
    for node in range(1, nodes + 1):
        for renewals in (None, 0):
            files.link_exclusive(start, os.path.join(held.run_dir, layout.node_file(held.number, node, renewals)))
    files.sync_dir(held.run_dir)


def close_node_lease(run_dir: str, number: int, node: int, renewals: Optional[int]) -> bool:
    """Remove the names of a node; False if its guard has renewed its lease. The caller knows why it may."""
    try:
        if renewals is not None:
            os.unlink(os.path.join(run_dir, layout.node_file(number, node, renewals)))
    except FileNotFoundError:
        return False
    try:
        os.unlink(os.path.join(run_dir, layout.node_file(number, node)))
    except FileNotFoundError:
        pass
    return True


def close_node_leases(run_dir: str, number: int, names: layout.RunNames) -> List[int]:
    """Remove the names of all nodes of an attempt as a listing shows them; the nodes that were closed."""
    shown = names.nodes.get(number, {})
    return [node for node, renewals in sorted(shown.items()) if close_node_lease(run_dir, number, node, renewals)]
