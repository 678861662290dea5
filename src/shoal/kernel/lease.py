"""An attempt is one file whose name is its state, and every change of state is a rename of exactly that name.

    attempt.<k>.live.<n>   the attempt runs; renewed n times   (created by link; renewed by its holder, n -> n+1)
    attempt.<k>.end        it ended, the record inside says how                          (renamed by its holder)
    attempt.<k>.lost.<n>   another process closed it            (renamed by a taker, or by the guard of a killed agent)

Of two processes that want to change a state the file server lets one succeed, so a run never has two live attempts, and
a recorded end has no rival. `end` and `lost` are final; attempt k+1 is created only after one of them was seen.
`attempt.<k>.start` is a second, permanent name of the same file: it decides who has number k even where a listing
missed a name that was being changed, and it is what readers open.

Space for the end is allocated at the start, so neither renewing nor ending needs space on a full disk.

Each further node of a run has a lease of its own; until it is removed, processes of the attempt may run on that node:

    attempt.<k>.node<m>            node m may run processes of attempt k   (created by the agent, before any starts)
    attempt.<k>.node<m>.live.<n>   the guard of node m has renewed its lease n times         (renamed by that guard)

Both are further names of the attempt's file, so they take no space. The guard of node m removes them when nothing of
the attempt is left there. Another process may remove them when no lease of the attempt was renewed for so long that
every guard has stopped its processes. The first of the two is never renamed, so no listing misses it. A node's lease is
renewed only while that of the first node is: when the first node is lost, all of them become silent.
"""

import json
import os
import threading
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from . import files, layout, processes, records
from .records import Allocation, End, Start

#: Seconds; the variable scales everything that depends on it, for tests.
_DEFAULT_TAKE_S = 90.0
LEASE_VARIABLE = "SHOAL_LEASE_S"
#: Bytes kept for the end record behind the start record, and what an attempt's file takes in all.
_END_BYTES = 8192
ATTEMPT_BYTES = 2 * _END_BYTES
#: Exit code told for an attempt that somebody else closed: as for a process that was killed.
_EXIT_KILLED = 137


class LeaseTiming(NamedTuple):
    """`beat_s` between renewals; after `hold_s` without one the program is stopped; that takes `stop_s` at most; after
    `take_s` of silence, by the clock of whoever watches, somebody else may close the lease."""

    beat_s: float
    hold_s: float
    stop_s: float
    take_s: float


def timing(environ: Mapping[str, str]) -> LeaseTiming:
    try:
        take_s = float(environ.get(LEASE_VARIABLE) or _DEFAULT_TAKE_S)
    except ValueError:
        take_s = _DEFAULT_TAKE_S
    return _scaled(max(take_s, 1.0) / _DEFAULT_TAKE_S)


def timing_of(start: Optional[Start]) -> LeaseTiming:
    """How the holder of an attempt keeps time, as its start record says: whoever watches goes by that."""
    return timing_for_beat(start.beat_s if start is not None and start.beat_s else 20.0)


def timing_for_beat(beat_s: float) -> LeaseTiming:
    return _scaled(beat_s / 20.0)


def _scaled(part: float) -> LeaseTiming:
    return LeaseTiming(20 * part, 60 * part, 10 * part, _DEFAULT_TAKE_S * part)


def boot_time_s() -> float:
    """Seconds since boot, time asleep included: the only clock by which a lease is judged, each host by its own."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


class Lease:
    """An attempt that this process holds. `held_until` is when its program must stand still unless it was renewed."""

    #: Its place among the nodes of its run; the others have a NodeLease.
    node = 0

    def __init__(self, run_dir: str, number: int, start: Start, room_at: int, since: float, hold_s: float):
        self.run_dir, self.number, self.start = run_dir, number, start
        self.renewals = 0
        self.held_until = since + hold_s
        self._hold_s, self._room_at = hold_s, room_at
        self._lock = threading.RLock()
        self._close_oldest: Optional[str] = None

    @property
    def mark(self) -> str:
        """In the environment of everything that the attempt starts."""
        return str(self.start.mark)

    @property
    def path(self) -> str:
        """Its name now."""
        return self._live(self.renewals)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is known to be closed."""
        return self._close_oldest is not None

    def renew(self) -> str:
        """held, lost (somebody has closed it), over (it has ended) or unknown (the file server did not say)."""
        with self._lock:
            if self._close_oldest is not None:
                return self._close_oldest
            since = boot_time_s()
            try:
                os.rename(self._live(self.renewals), self._live(self.renewals + 1))
            except FileNotFoundError:
                found = self._look()
                # A listing may be old: that the lease is still ours is proved by renewing it once more, if at all.
                return self.renew() if found == "held" else found
            except OSError:
                return "unknown"
            self.renewals += 1
            self.held_until = since + self._hold_s
            return "held"

    def _look(self) -> str:
        """The name was not there: a renewal whose answer was lost ("held", and counted), or a lease that somebody has
        closed."""
        try:
            names = layout.parse_names(os.listdir(self.run_dir))
        except FileNotFoundError:
            names = layout.parse_names(())
        except OSError:
            return "unknown"
        if names.has_attempt(self.number, "live") and not names.has_attempt(self.number, "lost"):
            found = names.renewals[self.number, "live"]
            if found == self.renewals + 1:
                self.renewals = found
                return "held"
            return "unknown"
        if names.has_attempt(self.number, "lost") or not names.has_attempt(self.number, "start"):
            self._close_oldest = "lost"
            return "lost"
        return "unknown"

    def note(self, record: Mapping[str, Any]) -> None:
        """Write last words where the end record will stand; whoever closes this lease later can read them."""
        with self._lock:
            if self._close_oldest is None:
                _write_end_record(
                    self._final("start"), self._room_at, files.to_json(dict(record, note=True)), sync=False
                )

    def end(self, record: End) -> bool:
        """Write the end, then change the name; False if somebody has closed this lease: then the end counts nothing.

        An OSError means that nobody knows yet: try again for as long as this process lives.
        """
        with self._lock:
            if self._close_oldest is not None:
                return self._close_oldest == "over"
            _write_end_record(self._final("start"), self._room_at, records.encode_record(record), sync=True)
            while True:
                try:
                    os.rename(self.path, self._final("end"))
                    break
                except FileNotFoundError:
                    if os.path.exists(self._final("end")):
                        break  # It was ours: the answer to the first request was lost.
                    found = self._look()
                    if found == "lost":
                        return False
                    if found == "unknown":
                        raise
            self._close_oldest = "over"
        _sync_folder(self.run_dir)
        return True

    def _live(self, renewals: int) -> str:
        return os.path.join(self.run_dir, layout.lease_file(self.number, "live", renewals))

    def _final(self, state: str) -> str:
        return os.path.join(self.run_dir, layout.attempt_file(self.number, state))


def create_lease(run_dir: str, number: int, start: Start, times: LeaseTiming, sync: bool = True) -> Optional[Lease]:
    """Begin attempt `number`, whose predecessor is over; None if somebody else has begun it.

    After success both of its names are there, with room for the end; without `sync` they are on disk only after
    `files.sync_records`. After an OSError nothing has begun.
    """
    since = boot_time_s()
    head = records.encode_record(start)
    live = os.path.join(run_dir, layout.lease_file(number, "live", 0))
    permanent = os.path.join(run_dir, layout.attempt_file(number, "start"))
    if number > 1:  # of a run that looks may keep as ended: Slurm, or a person, can requeue a job long after its end
        files.announce_change(run_dir)
    if not files.create_exclusive(live, head + b" " * _END_BYTES, sync_folder=False, sync=sync):
        return None
    try:
        mine = files.link_exclusive(live, permanent)
    except OSError:
        _unlink(live)
        raise
    if not mine:
        # The number was taken; the listing that said otherwise was made in the middle of a rename.
        _unlink(live)
        return None
    if sync:
        _sync_folder(run_dir)
    if number > 1:
        files.announce_change(run_dir)
    return Lease(run_dir, number, start, len(head), since, times.hold_s)


def close_lease(run_dir: str, number: int, renewals: int) -> bool:
    """Close somebody else's lease; False if its holder, or another taker, was faster. The caller knows why it may."""
    live = os.path.join(run_dir, layout.lease_file(number, "live", renewals))
    try:
        os.rename(live, os.path.join(run_dir, layout.lease_file(number, "lost", renewals)))
    except FileNotFoundError:
        return False
    _sync_folder(run_dir)
    return True


def end_unheld_attempt(run_dir: str, names: layout.RunNames, number: int, record: End) -> bool:
    """Write the end of an attempt that nobody holds, because its job is an adopted one; False if another process was
    faster.

    The first rename lets one process in; one that dies before the last is followed by the next that looks. So two may
    write at once, the same and in one piece: the room behind the record stays, because cutting it off could cut the
    other's record.
    """
    renewals = names.renewals.get((number, "live"))
    path = os.path.join(run_dir, layout.attempt_file(number, "start"))
    data = files.read_bytes(path)
    if renewals is None or data is None:
        return False
    taken = os.path.join(run_dir, layout.lease_file(number, "live", renewals + 1))
    try:
        os.rename(os.path.join(run_dir, layout.lease_file(number, "live", renewals)), taken)
    except FileNotFoundError:
        return False
    _write_end_record(path, data.index(b"\n") + 1, records.encode_record(record), sync=True, trim=False)
    try:
        os.rename(taken, os.path.join(run_dir, layout.attempt_file(number, "end")))
    except FileNotFoundError:
        return False  # whoever came after us has taken it over
    _sync_folder(run_dir)
    return True


def ask_for_handover(run_dir: str, number: int, me: Allocation) -> None:
    path = os.path.join(run_dir, layout.attempt_file(number, "handover"))
    files.create_exclusive(path, records.encode_record(me))


class AttemptRecord(NamedTuple):
    """What the file of an attempt says: `state` live, end or lost. `end` is there unless it is live; of one that was
    lost it is what can be concluded."""

    number: int
    state: str
    start: Start
    end: Optional[End] = None
    last_words: Optional[Dict[str, Any]] = None


def read_attempt(run_dir: str, names: layout.RunNames, number: int) -> Optional[AttemptRecord]:
    """One attempt, or None if there is no such (yet); ValueError names a damaged file.

    Only a name that was listed is opened: of one that was not there a node may remember that for a while.
    """
    path = os.path.join(run_dir, layout.attempt_file(number, "start"))
    state = names.state(number)
    parts = read_parts(path) if names.has_attempt(number, "start") else None
    if parts is None:
        return None
    start, second = records.decode_record(parts[0], Start, path), parts[1]
    if state == "live":
        return AttemptRecord(number, state, start, None, second)
    if state == "lost":
        renewals = names.renewals.get((number, "lost"), 0)
        return AttemptRecord(number, state, start, infer_lost_end(start, renewals, second), second)
    if second is None or second.get("note"):
        raise ValueError("%s is damaged: it has ended, and the record of its end is not there" % path)
    return AttemptRecord(number, state, start, records.decode_record(second, End, path))


def read_parts(path: str) -> Optional[Tuple[Dict[str, Any], Optional[Dict[str, Any]]]]:
    """(the start, and what stands behind it if anything does), as they are in the file; None if there is no file."""
    data = files.read_bytes(path)
    if data is None:
        return None
    first, _, rest = data.partition(b"\n")
    return files.from_json(first, path), _parse_end(rest)


def _parse_end(rest: bytes) -> Optional[Dict[str, Any]]:
    """The record behind the start; None while there is none, or only a part of one."""
    try:
        record = json.loads(rest) if rest.strip() else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def infer_lost_end(start: Start, renewals: int, last_words: Optional[Mapping[str, Any]]) -> End:
    """The end of an attempt that somebody else closed, as far as it can be told: it lived until its last renewal."""
    return End.after(start, start.t + renewals * start.beat_s)._replace(
        exit_code=_EXIT_KILLED,
        signal="SIGKILL",
        stopped_by="lost",
        cause="lost",
        problem=(last_words or {}).get("problem"),
    )


def is_holder_alive(start: Start) -> Optional[bool]:
    """Whether the guard or the agent of an attempt lives; None where nobody can tell from here."""
    guard = {"host": start.host, "pid": start.pid, "started": start.started, "uid": start.uid}
    agent = dict(guard, pid=start.agent_pid, started=start.agent_started)
    found = (processes.is_process_alive(guard), processes.is_process_alive(agent))
    return True if True in found else None if None in found else False


def is_holder_dead(start: Optional[Start]) -> bool:
    """Whether death is proved: guard and agent ran on this host in this boot, were ours to see, and are gone, and no
    process of the attempt is left."""
    return start is not None and is_holder_alive(start) is False and not processes.marked_pids(str(start.mark))


def kill_leftovers_of(start: Optional[Start]) -> None:
    """Kill what an attempt left behind whose guard and agent are both gone; nothing where that cannot be known."""
    if start is not None and is_holder_alive(start) is False:
        for pid in processes.marked_pids(str(start.mark)):
            try:
                os.kill(pid, 9)
            except OSError:
                pass


def successful_attempt(run_dir: str, names: layout.RunNames, revision: int) -> Optional[int]:
    """The attempt of this revision that completed, if there is one."""
    for number in reversed(names.attempts.get("end", [])):
        found = read_parts(os.path.join(run_dir, layout.attempt_file(number, "start")))
        end = found[1] if found else None
        if end is not None and end.get("success") and end.get("revision") == revision:
            return number
    return None


def read_ends(run_dir: str, names: layout.RunNames) -> List[End]:
    """The ends of all attempts that are over, oldest first."""
    found = (read_attempt(run_dir, names, number) for number in names.over)
    return [one.end for one in found if one is not None and one.end is not None]


def _write_end_record(path: str, room_at: int, data: bytes, sync: bool, trim: bool = True) -> None:
    """Overwrite the room behind the start record, all of it; with `sync` and `trim`, what was not needed is then given
    back."""
    fd = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        rest, at = memoryview(data.ljust(_END_BYTES)), room_at
        while rest:
            done = os.pwrite(fd, rest, at)
            rest, at = rest[done:], at + done
        if sync:
            os.fsync(fd)
        if sync and trim:
            # After it, not before: ext4 makes a file that is being committed wait here (20 ms each in a pack). If a
            # power cut undoes this, spaces stay behind the record, and say nothing.
            os.ftruncate(fd, room_at + len(data))
    finally:
        os.close(fd)


def _sync_folder(folder: str) -> None:
    try:
        files.sync_dir(folder)
    except OSError:
        pass  # The name has changed for everybody; only a power cut of the server could undo it.


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


class NodeLease:
    """The lease of node `node` of an attempt, as the guard of that node holds it."""

    def __init__(self, run_dir: str, number: int, node: int, mark: str, times: LeaseTiming) -> None:
        self.run_dir, self.number, self.node = run_dir, number, node
        self.mark = mark
        self.renewals, self.held_until = 0, 0.0
        self._times = times
        #: How often the first node has renewed its lease, and when that was first seen.
        self._first: Optional[int] = None
        self._first_seen = boot_time_s()

    def renew(self) -> str:
        """held, over (the attempt has ended or was closed) or unknown (the file server did not say, or the first node
        is silent)."""
        since = boot_time_s()
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


def create_node_leases(held: Lease, nodes: int) -> None:
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
