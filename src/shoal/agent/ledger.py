"""Records of an engine on their way to the disk, and a full disk that is waited for, because they are the results."""

import functools
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..kernel import files
from .pack import claims
from .pack.running import Running
from .writer import Writer

#: Variable that says for how many seconds a full disk is waited for.
_VARIABLE, _PATIENCE_S, _RETRY_S = "SHOAL_DISK_S", 60.0, 2.0
#: So many ends may wait for the disk before no more runs are started.
_MOST_PENDING = 64
#: Called with a run, its end, and whether the end is ours (or somebody had taken us for dead and written another).
Kept = Callable[[Running, Dict[str, Any], bool], None]


class Ledger:
    """Writes starts and ends in the background and tells `kept` of each end that is on disk."""

    def __init__(self, rope: int, say: Callable[[str], None], kept: Kept, environ: Mapping[str, str]) -> None:
        self._writer, self._say, self._kept = Writer(rope), say, kept
        self._patience_s = float(environ.get(_VARIABLE) or _PATIENCE_S)
        self._unwritten: List[Tuple[Running, Dict[str, Any]]] = []
        self._full_since: Optional[float] = None
        self._retry_at = 0.0

    @property
    def is_full(self) -> bool:
        return self._full_since is not None

    @property
    def is_hopeless(self) -> bool:
        return self._full_since is not None and time.monotonic() - self._full_since > self._patience_s

    @property
    def is_settled(self) -> bool:
        """Nothing is on its way."""
        return not self._unwritten and not self._writer.pending

    @property
    def takes_more(self) -> bool:
        """Whether a run may be started as far as the disk is concerned."""
        return time.monotonic() >= self._retry_at and self._writer.pending < _MOST_PENDING

    def due_at(self, now: float) -> List[float]:
        return [max(self._retry_at, now + 0.1)] if self.is_full or self._unwritten else []

    def wait_for_disk(self, error: OSError) -> None:
        """Something could not be written: it is tried again, for a while."""
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
            self._say("cannot write %s: %s; no run is started until there is room" % (error.filename, error.strerror))
        self._retry_at = now + _RETRY_S

    def has_room(self) -> None:
        self._full_since = None

    def begun(self, begun: claims.Begun) -> None:
        self._writer.submit(functools.partial(files.sync_records, [begun.record]))

    def ended(self, running: Running, end: Dict[str, Any]) -> None:
        """Write an end in the background, again and again while the disk is full."""

        def written(ours: Any, error: Optional[OSError]) -> None:
            if error is None:
                self._kept(running, end, bool(ours))
                return
            self.wait_for_disk(error)
            if self.is_hopeless:
                self._say("the end of %s could not be written down: %s" % (running.item.name, error.strerror))
            else:
                self._unwritten.append((running, end))

        self._writer.submit(lambda: running.begun.lease.end(end), written)

    def note_stopping(self, everybody: List[Running], why: str) -> None:
        """From here on this engine may be killed at any moment, and nothing is wrong with its node."""
        for running in everybody:
            self._writer.submit(functools.partial(running.begun.lease.note, {"stopping": why}))

    def collect(self) -> None:
        """Tell of what is written, and try what is not once more."""
        self._writer.collect()
        if self._unwritten and time.monotonic() >= self._retry_at:
            again, self._unwritten = self._unwritten, []
            for running, end in again:
                self.ended(running, end)

    def close(self) -> None:
        self._writer.close()
