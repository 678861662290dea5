"""`sbatch --test-only`: would Slurm take this request, and when would it start? Nothing is submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.clusters.commands import QUESTION_TIMEOUT_S, run
from shoal.errors import InputError, SchedulerError, ShoalError
from shoal.kernel import is_controller_silent, parse_time

_STARTS = re.compile(r"to start at (\S+)")
_EMPTY_SCRIPT = "#!/bin/bash\ntrue\n"


class SbatchCheck(NamedTuple):
    """What sbatch said. `accepted` is None when Slurm did not answer; `problem`, when it could not be asked."""

    accepted: bool | None
    text: str
    problem: ShoalError | None = None

    @property
    def objection(self) -> str:
        """Why the request is refused, in one line."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        said = [line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("fatal: ") for line in lines]
        last = next((line for line in reversed(said) if line.startswith("allocation failure")), (*said, "refused")[0])
        return last.removeprefix("allocation failure: ").strip()

    @property
    def start(self) -> float | None:
        """When a job like this would start (Unix time), if Slurm says so."""
        match = _STARTS.search(self.text)
        return None if match is None else parse_time(match[1])


def check_with_sbatch(
    options: Sequence[str],
    environ: Mapping[str, str],
    script: str | None = None,
    timeout_s: float = QUESTION_TIMEOUT_S,
) -> SbatchCheck:
    """Ask about the batch script at the path `script`, or about an empty one, with `options` on top."""
    argv = ["sbatch", "--test-only", *options, *([script] if script is not None else [])]
    try:
        done = run(argv, timeout_s, environ=environ, stdin=_EMPTY_SCRIPT if script is None else None)
    except (SchedulerError, InputError) as error:
        return SbatchCheck(None, error.message, error)
    text = done.stderr or done.stdout
    return SbatchCheck(True if done.ok else None if is_controller_silent(text) else False, text)
