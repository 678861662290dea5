"""`shoal data stage`: copy a dataset to this node and run a command with it, or print where the copy is."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import InputError, ShoalError
from shoal.job import Stage, StageError


def dataset_variable(name: str) -> str:
    """SHOAL_DATA_<NAME> for a data set's name."""
    return "SHOAL_DATA_" + re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def stage_and_run(
    path: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    wait: str = "all",
    threads: int | None = None,
    quiet: bool = False,
) -> tuple[int, dict[str, Any]]:
    """Stage, run the command while the rest is copied, and return its exit code and the record.

    Without a command everything is copied before this returns, and others may remove the data from then on.
    """
    name = os.path.basename(os.path.abspath(path).removesuffix("/manifest.json"))
    say = (lambda text: None) if quiet else (lambda text: print(f"shoal: {text}", file=sys.stderr))
    stage = Stage(name, path, environ, wait=wait if command else "all", threads=threads, say=say)
    try:
        stage.begin()
        place = stage.wait()
        code = _run_command(
            command, {**environ, "SHOAL_DATA": place, dataset_variable(name): place, **_dataset_sources(place, stage)}
        )
        if not command:
            stage.join()
    except StageError as error:
        raise ShoalError(str(error), hint=f"shoal data verify {path}") from None
    finally:
        record = stage.close()
    return code, record


def _dataset_sources(place: str, stage: Stage) -> dict[str, str]:
    return {"SHOAL_DATA_SOURCES": json.dumps({place: stage.source})}


def _run_command(command: Sequence[str], environ: Mapping[str, str]) -> int:
    if not command:
        return 0
    try:
        child = subprocess.Popen(command, env=dict(environ))
    except OSError as error:
        raise InputError(f"cannot start {command[0]}: {(error.strerror or str(error)).lower()}") from None
    before = {}
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        before[number] = signal.signal(number, lambda received, frame: child.send_signal(received))
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def load_function(text: str) -> Callable[[Any], Any]:
    """The function that MODULE:FUNCTION names, looked for in the current folder first."""
    module, colon, name = text.partition(":")
    if not colon or not name:
        raise InputError(f"{text!r} does not name a function", hint="--decode mytraining.data:decode", place="--decode")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise InputError(f"{text!r} cannot be loaded: {error}", place="--decode") from None
    finally:
        sys.path.pop(0)
