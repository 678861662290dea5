"""Since when this host has seen the same thing about a run, kept from one command to the next.

A lease is judged by the clock of whoever watches it: the same name for so many seconds of this host's own boot time. So
what a command saw has to be there for the next one. The file can be deleted at any time; then watching begins anew.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from shoal.kernel import files, lease, process


class ObservationHistory:
    """What is doubtful now, and since when. `save` keeps what this command saw, and forgets the rest."""

    def __init__(self, home: str) -> None:
        self._path = os.path.join(home, "cache", f"watch-{socket.gethostname()}-{os.getuid()}.json")
        self._boot = (process.process_start_time(os.getpid()) or "").partition(":")[0]
        self._kept: dict[str, Any] | None = None
        self._looked_at: set[str] = set()
        self._seen: dict[str, Any] = {}

    def since(self, name: str, what: str) -> float:
        """For how many seconds `what` has been seen about the run, this look included."""
        known = self._before().get(name)
        if not isinstance(known, list) or known[0] != what:
            known = [what, lease.boot_time_s()]
        self._seen[name] = known
        return float(lease.boot_time_s() - known[1])

    def note_checked(self, name: str) -> None:
        self._looked_at.add(name)

    def save(self) -> None:
        """Doubts about runs that were looked at and are clear now are gone; others stay."""
        if not self._seen and self._kept is None and not os.path.exists(self._path):
            return
        before = self._before()
        after = {**{name: known for name, known in before.items() if name not in self._looked_at}, **self._seen}
        if after != before:
            with contextlib.suppress(OSError):
                files.make_dir(os.path.dirname(self._path))
                record = {"schema": 1, "boot": self._boot, "seen": after}
                files.replace(self._path, files.to_json(record), sync=False)

    def _before(self) -> dict[str, Any]:
        if self._kept is None:
            try:
                record = files.read_json(self._path) or {}
            except (OSError, ValueError):
                record = {}
            seen = record.get("seen")
            self._kept = seen if record.get("boot") == self._boot and isinstance(seen, dict) else {}
        return self._kept
