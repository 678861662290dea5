"""One question to Slurm for all who watch: the last answer is in a file, and one watcher at a time renews it.

Ten people (or ten windows) that follow the same project cost the controller what one does. The file is written whole by
rename; the process that creates `asking` asks, the others show what is there, with its age. A controller that does not
answer is asked less and less often, by all of them together. Where the file cannot be written, each asks for itself, at
the same interval.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

import msgspec

from shoal.clusters import QueueState, by_token, squeue
from shoal.kernel import QUERY_TIMEOUT_S, JobRow, make_dir, replace

#: Seconds between two questions to the controller by all watchers together, and the most after failures.
INTERVAL_S = 10.0
_MAX_INTERVAL_S = 120.0
#: Whoever asks has the answer by then, or was killed.
_ASK_TIMEOUT_S = QUERY_TIMEOUT_S + 10
_POLL_S = 0.1
#: An answer is only used for a run that was claimed this long before it: sbatch may take a moment to return.
_CLAIM_MARGIN_S = 2.0


class CachedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """The file: rows, when Slurm was asked, and how often in a row it has not answered since."""

    t: float
    tried: float
    conf: str
    rows: list[JobRow]
    problem: str | None = None
    failures: int = 0
    schema: int = 1


#: Learnt here and not by the first of several threads, which would crash Python.
_CACHED_QUEUE = msgspec.json.Decoder(CachedQueue)


class QueueCache:
    """`ask` for observe(): the queue's state, no older than `interval_s`, or the last one with what is wrong."""

    def __init__(
        self,
        home: str,
        interval_s: float | None = None,
        *,
        query: Callable[[Mapping[str, str]], QueueState] = squeue,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.interval_s = interval_s if interval_s is not None else poll_interval(os.environ)
        self._folder = os.path.join(home, "cache")
        self._path = os.path.join(self._folder, f"squeue-{os.getuid()}.json")
        self._mark = f"{self._path}.asking"
        self._query, self._clock, self._sleep = query, clock, sleep
        self._own: CachedQueue | None = None

    def __call__(self, environ: Mapping[str, str], newer_than: float) -> QueueState:
        known = self._read(environ)
        for _ in range(int(_ASK_TIMEOUT_S / _POLL_S)):
            if known is not None and not self._is_due(known, newer_than):
                return _as_queue_state(known)
            if self._begin_asking():
                try:
                    # Somebody may have asked between our look and our turn.
                    known = self._read(environ)
                    due = known is None or self._is_due(known, newer_than)
                    return _as_queue_state(self._renew(environ, known) if known is None or due else known)
                finally:
                    self._end_asking()
            # Somebody else is asking at this moment, which on a busy cluster takes its time.
            if known is not None and known.t > newer_than + _CLAIM_MARGIN_S:
                return _as_queue_state(known)
            self._sleep(_POLL_S)
            known = self._read(environ)
        return _as_queue_state(self._renew(environ, known))

    def _is_due(self, known: CachedQueue, newer_than: float) -> bool:
        pause = min(self.interval_s * 2**known.failures, max(_MAX_INTERVAL_S, self.interval_s))
        if self._clock() - known.tried >= pause or known.tried > self._clock() + 60:
            return True
        return known.problem is None and known.t <= newer_than + _CLAIM_MARGIN_S

    def _renew(self, environ: Mapping[str, str], known: CachedQueue | None) -> CachedQueue:
        now = self._clock()
        queue_state = self._query(environ)
        if queue_state.problem is None:
            fresh = CachedQueue(
                t=queue_state.t or now,
                tried=now,
                conf=_slurm_conf(environ),
                rows=[row for rows in queue_state.rows.values() for row in rows],
            )
        else:
            fresh = CachedQueue(
                t=known.t if known else 0.0,
                tried=now,
                conf=_slurm_conf(environ),
                rows=known.rows if known else [],
                problem=queue_state.problem,
                failures=min(8, known.failures + 1) if known else 1,
            )
        self._own = fresh
        with contextlib.suppress(OSError):
            replace(self._path, msgspec.json.encode(fresh), sync=False)
        return fresh

    def _read(self, environ: Mapping[str, str]) -> CachedQueue | None:
        """The shared answer, or our own where that is newer; None if there is none about this cluster."""
        found = None
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123
                if os.fstat(file.fileno()).st_uid == os.getuid():
                    found = _CACHED_QUEUE.decode(file.read())
        except (OSError, msgspec.MsgspecError):
            found = None
        best = max((one for one in (found, self._own) if one is not None), key=lambda one: one.tried, default=None)
        return best if best is not None and best.conf == _slurm_conf(environ) and best.schema == 1 else None

    def _begin_asking(self) -> bool:
        """Win the right to ask; a mark older than Slurm's longest answer was left by somebody who was killed."""
        try:
            if not os.path.isdir(os.path.dirname(self._folder)):
                return True  # Nothing was submitted yet, and it is not for a view to make the state folder.
            make_dir(self._folder)
        except OSError:
            return True  # A folder that is not ours to write in: ask for ourselves.
        for _ in range(2):
            try:
                os.close(
                    os.open(self._mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o600)
                )
                return True
            except FileExistsError:
                with contextlib.suppress(OSError):
                    if abs(time.time() - os.stat(self._mark).st_mtime) < _ASK_TIMEOUT_S:
                        return False
                    os.unlink(self._mark)
            except OSError:
                return True
        return False

    def _end_asking(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._mark)


def poll_interval(environ: Mapping[str, str]) -> float:
    """Seconds between questions: SHOAL_POLL_S, or ten; less than one is refused by taking one."""
    try:
        return max(1.0, float(environ.get("SHOAL_POLL_S") or INTERVAL_S))
    except ValueError:
        return INTERVAL_S


def _as_queue_state(answer: CachedQueue) -> QueueState:
    return QueueState(by_token(answer.rows), answer.problem, answer.t or None)


def _slurm_conf(environ: Mapping[str, str]) -> str:
    """Which Slurm the answer is about."""
    return environ.get("SLURM_CONF", "")
