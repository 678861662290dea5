"""Signs of life of engines: a file that each renews. How old one is, is told by the file server's clock alone."""

import os
import time
from typing import Any, Dict, Mapping

from ...kernel import files, layout
from . import claims

#: Variable that shortens everything here, for tests.
_VARIABLE = "SHOAL_LEASE_S"
_LEASE_S = 90.0


class Leases:
    """The lease of this engine, renewed when due, and the age of the leases of others."""

    def __init__(self, home: str, token: str, me: Dict[str, Any], environ: Mapping[str, str]) -> None:
        self._folder, self._me = layout.submission_dir(home, token), me
        self._lease_s = float(environ.get(_VARIABLE) or _LEASE_S)
        self.beat_s = self._lease_s / 6
        self.due_at = 0.0

    def renew(self, now: float) -> None:
        if now >= self.due_at:
            self.due_at = now + self.beat_s
            self._write()

    def say_stopping(self, why: str) -> None:
        """From here on this engine may be killed at any moment, and nothing is wrong with its node."""
        self._me = dict(self._me, stopping=why)
        self._write()

    def was_stopping(self, start: Mapping[str, Any]) -> bool:
        try:
            return "stopping" in (files.read_json(self._path(str(start.get("engine")))) or {})
        except (OSError, ValueError):  # Its node died while it was written.
            return False

    def is_gone(self, start: Dict[str, Any]) -> bool:
        """Whether the engine that began an attempt is gone: its process on this host, else its lease is old."""
        return claims.is_gone(start, self._me, self._age_s(start), self._lease_s)

    def is_doubtful(self, start: Dict[str, Any]) -> bool:
        """Whether an engine elsewhere has missed two renewals, and may be gone soon."""
        return self._age_s(start) > 2.5 * self.beat_s

    def _age_s(self, start: Mapping[str, Any]) -> float:
        """How much older its lease is than ours of this moment, in the file server's time."""
        self._write()
        try:
            mine = os.stat(self._path(self._me["engine"])).st_mtime
            return mine - os.stat(self._path(str(start.get("engine")))).st_mtime
        except OSError:
            return time.time() - float(start.get("t") or 0)

    def _write(self) -> None:
        try:
            record = dict(self._me, t=time.time())
            files.replace(self._path(self._me["engine"]), files.to_json(record), sync=False)
        except OSError:
            pass  # A full disk must not end an engine.

    def _path(self, engine: str) -> str:
        return os.path.join(self._folder, "engine.%s.lease" % engine)
