"""A command on a terminal of its own, as a person sees it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from project import SHOAL


def run_in_terminal(
    words: list[str],
    folder: Path,
    *,
    typed: bytes = b"",
    then: tuple[str, bytes] | None = None,
    columns: int = 80,
    deadline_s: float = 300,
    base: Mapping[str, str] = os.environ,
    **env: str,
) -> str:
    """What a command writes to a terminal of this width, when this is typed at its start; `then` is a text, and what
    is typed once it was shown."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(SHOAL, ["shoal", *words], {**base, "COLUMNS": str(columns), "TERM": "xterm-256color", **env})
    data = b""
    end = time.monotonic() + deadline_s
    try:
        os.write(fd, typed)
        while time.monotonic() < end:
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    block = os.read(fd, 65536)
                except OSError:
                    break
                if not block:
                    break
                data += block
                if then is not None and then[0].encode() in data:
                    os.write(fd, then[1])
                    then = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)
    return data.decode()
