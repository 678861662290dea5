"""`shoal.context()`: what a run knows about itself, for the code inside it.

ctx = shoal.context()
for step in range(start, 1000):
    ctx.progress(step, 1000)
    ctx.log(step=step, loss=loss)
    if ctx.should_stop():
        save(ctx.output_dir / f"model_{step}.pt")
        break
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from shoal.errors import InputError


class RunContext:
    """The run that this process belongs to. `resume_from` is the checkpoint to continue from, None at first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.name = environ["SHOAL_RUN"]
        self.experiment = environ["SHOAL_EXPERIMENT"]
        self.seed = int(environ["SHOAL_SEED"]) if environ.get("SHOAL_SEED") else None
        self.attempt = int(environ["SHOAL_ATTEMPT"])
        self.output_dir = Path(environ["SHOAL_OUTPUT_DIR"])
        self.resume_from = Path(environ["SHOAL_RESUME_FROM"]) if environ.get("SHOAL_RESUME_FROM") else None
        self.params: dict[str, Any] = json.loads(environ.get("SHOAL_PARAMS") or "{}")
        self._stop_file = environ.get("SHOAL_STOP_FILE", "")
        self._progress_file = environ["SHOAL_PROGRESS"]
        self._asked = threading.Event()
        # Without a handler the signal would end the process (job/recovery.py:warn_program).
        is_main = threading.current_thread() is threading.main_thread()
        if environ.get("SHOAL_WARN_WITH") == "signal" and is_main:
            self._before = signal.signal(signal.SIGUSR1, self._on_warning)

    def _on_warning(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()
        if callable(self._before):  # of a callable with a checkpoint method
            self._before(number, frame)

    def __repr__(self) -> str:
        return f"<shoal.context {self.name} attempt {self.attempt}>"

    def should_stop(self) -> bool:
        """Whether the time is nearly up: save, and return. Needs `warn_before` of the step's `recovery`."""
        return self._asked.is_set() or (bool(self._stop_file) and os.path.exists(self._stop_file))

    def progress(self, done: float, total: float | None = None) -> None:
        """How far it is; `shoal status` shows it, with the time that is left."""
        with open(self._progress_file, "a") as file:  # noqa: PTH123
            file.write(f"{done:g}\n" if total is None else f"{done:g}/{total:g}\n")

    def log(self, **values: float) -> None:
        """Append metrics to metrics.jsonl; `step` or `epoch` among them is the axis of their curves."""
        line = json.dumps({name: value.item() if hasattr(value, "item") else value for name, value in values.items()})
        with open(self.output_dir / "metrics.jsonl", "a") as file:  # noqa: PTH123
            file.write(line + "\n")


_context: RunContext | None = None


def context() -> RunContext:
    """The run of this process; InputError outside of one."""
    global _context
    if "SHOAL_RUN" not in os.environ:
        raise InputError(
            "no run in this process: shoal.context() works inside a run", hint="call it in a function of shoal.submit()"
        )
    if _context is None or (_context.name, _context.attempt) != (
        os.environ["SHOAL_RUN"],
        int(os.environ["SHOAL_ATTEMPT"]),
    ):
        _context = RunContext(os.environ)
    return _context
