"""What the rules ask about one job: what it asks Slurm for, what it starts, and what its Python programs need.

`read_script` (script.py) fills it from a batch script, `planned_job` (submit_checks.py) from a planned run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.batch import SbatchOption, ShellCommand
from shoal.doctor.geometry import RequestGeometry
from shoal.doctor.launchers import MPI_STARTERS, base_name
from shoal.doctor.launches import ScriptLaunch, SrunStep
from shoal.doctor.python_file import PythonHints, find_program, read_program


class ShellExport(NamedTuple):
    """A variable that the job sets; `raw` is the whole word as written."""

    name: str
    value: str
    raw: str
    line: int
    command: ShellCommand


class LighthouseCall(NamedTuple):
    """A start of torchft's lighthouse. Numbers are None where they are not plain; `needs_all` may be known all the
    same, as in --min_replicas $NUM_REPLICAS."""

    line: int
    replicas: int | None
    min_replicas: int | None
    needs_all: bool


class JobFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # dict: where `work` is kept
    """`kind`: batch (any script for sbatch), experiment (ours), opaque (nothing in it can be read), or plan (no script:
    a run as shoal starts it, whose lines are all 0).

    `header` is what sbatch reads word for word; `options` also holds what a call in an experiment says. `commands` are
    those of the batch shell, of which a plan has one: the run's own.
    """

    path: str
    kind: str
    header: tuple[SbatchOption, ...]
    options: Mapping[str, SbatchOption]
    geometry: RequestGeometry
    commands: tuple[ShellCommand, ...]
    launches: tuple[ScriptLaunch, ...]
    steps: tuple[SrunStep, ...]
    exports: tuple[ShellExport, ...] = ()
    lighthouses: tuple[LighthouseCall, ...] = ()
    values: Mapping[str, str] = {}
    python: Mapping[str, PythonHints] = {}
    is_het: bool = False

    @cached_property
    def work(self) -> list[ScriptLaunch]:
        """The launches that are the job's purpose; helpers beside a distributed, srun or MPI launch are left out."""
        heavy = [one for one in self.launches if one.is_distributed or one.srun is not None or "train" in one.raw]
        by_mpi = [one for one in self.launches if one.by_mpi]
        last = max((one.line for one in self.launches), default=0)
        if not heavy and not by_mpi and any(_is_other_work(one, last) for one in self.commands):
            return []
        return [*heavy, *(one for one in by_mpi if one not in heavy)] or list(self.launches)

    def hints(self, launch: ScriptLaunch) -> PythonHints | None:
        """What the launch's Python file tells, or None when it was not found or not understood."""
        found = self.python.get(launch.program if launch.program else "")
        return None if found is None or found.unread else found


def _is_other_work(command: ShellCommand, last_launch: int) -> bool:
    """Whether a command is the job's purpose although it is no known launch: MPI, or a script behind all launches."""
    words = command.texts[1:] if command.name in ("bash", "sh") else command.texts
    is_script = bool(words) and words[0].endswith(".sh") and command.line > last_launch and not command.nested
    return is_script or base_name(command.name) in MPI_STARTERS


def read_programs(
    launches: Iterable[ScriptLaunch], folders: Sequence[Path], read: Callable[[Path], PythonHints] | None = None
) -> dict[str, PythonHints]:
    """The Python programs of launches, as far as they lie in one of the folders; `read` is a test's own reader."""
    found: dict[str, PythonHints] = {}
    for launch in launches:
        file = find_program(launch.program, launch.option("module"), folders) if launch.program else None
        if file is not None:
            found[launch.program] = read(file) if read else _read_once(str(file.resolve()))
    return found


def _read_once(path: str) -> PythonHints:
    """A notebook lives long, so a file that has changed is read again."""
    try:
        found = os.stat(path)
    except OSError:
        return read_program(Path(path))
    return _read_state(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _read_state(path: str, changed_ns: int, size: int) -> PythonHints:
    return read_program(Path(path))
