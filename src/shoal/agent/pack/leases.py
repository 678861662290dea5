"""Signs of life of engines: ours for the others, and theirs, watched by our own clock because clocks differ."""

import os
import time
from typing import Any, Dict, Tuple

from .. import files, layout
from . import claims

_BEAT_S, _LEASE_S = 15.0, 90.0


class Leases:
    """The lease of this engine, renewed when due, and what is known about the leases of others."""

    def __init__(self, home: str, token: str, me: Dict[str, Any]) -> None:
        self._folder, self._me = layout.submission_dir(home, token), me
        self._seen: Dict[str, Tuple[Any, float]] = {}
        self.due_at = 0.0

    def renew(self, now: float) -> None:
        if now >= self.due_at:
            self.due_at = now + _BEAT_S
            try:
                files.replace(self._path(self._me["engine"]), files.to_json(dict(self._me, t=time.time())), sync=False)
            except OSError:
                pass

    def is_gone(self, start: Dict[str, Any]) -> bool:
        """Whether the engine of an attempt is gone; for one on another host its lease is watched over time."""
        engine, now = str(start.get("engine")), time.monotonic()
        lease = files.read_json(self._path(engine))
        seen, since = self._seen.setdefault(engine, (lease, now))
        if seen != lease:
            since = now
            self._seen[engine] = (lease, since)
        return claims.is_gone(start, self._me, now - since, _LEASE_S)

    def _path(self, engine: str) -> str:
        return os.path.join(self._folder, "engine.%s.lease" % engine)
