"""Send described runs: to Slurm at once, on this machine from a process of their own, so that the caller need not wait.

That process (`python -m shoal.functions.delivery`) does what `shoal pack` does in a terminal. It outlives its parent,
as a Slurm job would; the runs are its children. Parent and process talk in lines of JSON until the runs are claimed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from shoal.actions import (
    CommandOptions,
    SubmitOptions,
    SubmitResult,
    UnattendedListener,
    missing_gpu_notes,
    report_secrets,
    submit_runs,
    submit_target,
)
from shoal.describe import PlannedRun, Project, RequestedRun, load_project
from shoal.errors import InputError, SchedulerError, ShoalError
from shoal.model import RunSpec
from shoal.plan import PackOptions

LOGGER = logging.getLogger("shoal")
#: Imported once for all function runs of a pack, so that a run costs a fork and no start of an interpreter.
_RUNNER_MODULES = ("shoal.job.function_call", "json", "pickle", "traceback")
#: Runs at a time in a pack on Slurm, unless the caller says how many.
_SLURM_SLOTS = 4
LAYOUTS = ("auto", "job", "array", "pack", "pilots")


class SubmitLog(UnattendedListener):
    """Hears of a submission: notes go to the log of "shoal"; questions that only a person can answer are refused."""

    def __init__(self) -> None:
        self.results: list[SubmitResult] = []

    def __call__(self, result: SubmitResult) -> None:
        self.results.append(result)
        LOGGER.debug("%s %s (%s)", result.did, result.name, result.reason or result.state)

    def note(self, text: str) -> None:
        LOGGER.info("%s", text)


def send_runs(
    asked: Sequence[RequestedRun],
    project: Project,
    *,
    on: str | None = None,
    layout: str = "auto",
    slots: int | None = None,
    preload: Sequence[str] = (),
    max_parallel: int | None = None,
) -> list[SubmitResult]:
    """Submit runs without waiting for any of them. After success each is claimed, by us or by another process."""
    if layout not in LAYOUTS:
        raise InputError(f"invalid layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    target = submit_target(project, on, os.environ)
    if target.cluster.is_local:
        for text in missing_gpu_notes([one.run.spec for one in asked], os.environ):
            warnings.warn(text, stacklevel=4)
        return _send_locally(asked, project, slots, preload)
    listener = SubmitLog()
    report_secrets(os.environ, target.cluster, listener)
    is_pack = layout in ("pack", "pilots")
    if slots is not None and not is_pack:
        raise InputError(f"slots={slots} has no effect with layout={layout!r}", hint='use layout="pack"')
    if layout == "pack" and slots is None:
        slots = min(_SLURM_SLOTS, len(asked))
    pack = _pack_options(asked, slots, preload) if is_pack else None
    options = SubmitOptions(layout, max_parallel=max_parallel, pack=pack)
    return submit_runs(asked, target, tell=listener, options=options, command=CommandOptions(follow=False))


def _pack_options(asked: Sequence[RequestedRun], slots: int | None, preload: Sequence[str]) -> PackOptions:
    is_calls = all(one.run.spec.function for one in asked)
    modules = tuple(dict.fromkeys([*(_RUNNER_MODULES if is_calls else ()), *preload]))
    return PackOptions(slots=slots, preload=modules)


def _send_locally(
    asked: Sequence[RequestedRun], project: Project, slots: int | None, preload: Sequence[str]
) -> list[SubmitResult]:
    """Start the process that runs these, and return when it has claimed them; what stops it is raised here."""
    order = {
        "root": str(project.root),
        "slots": slots,
        "preload": list(preload),
        "runs": [
            {
                "spec": msgspec.to_builtins(one.run.spec),
                "resume_in": one.run.resume_in,
                "rerun": one.rerun,
                "by_name": one.by_name,
                "resume": one.resume,
            }
            for one in asked
        ],
    }
    argv = [sys.executable, "-m", "shoal.functions.delivery"]
    env = {**os.environ, "SHOAL_HOME": str(project.home)}
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, start_new_session=True
    )
    # Whoever lives longer than the runs takes leave of their process; without that it would stay as a zombie.
    threading.Thread(target=process.wait, name="shoal-local-runs", daemon=True).start()
    assert process.stdin is not None and process.stdout is not None  # noqa: S101
    with process.stdout as lines:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode())
            process.stdin.close()
        return _hear(lines)


def _hear(lines: IO[bytes]) -> list[SubmitResult]:
    results: list[SubmitResult] = []
    for line in lines:
        message: dict[str, Any] = json.loads(line)
        if "note" in message:
            LOGGER.info("%s", message["note"])
        elif "error" in message:
            raise _rebuild_error(**message["error"])
        elif "result" in message:
            results.append(SubmitResult(**message["result"]))
        elif "claimed" in message:
            return results
    raise SchedulerError("the process that submits runs on this machine ended without a word", hint="shoal status")


def _rebuild_error(exit_code: int, message: str, hint: str | None) -> ShoalError:
    kinds = {one.exit_code: one for one in ShoalError.__subclasses__()}
    kind = kinds.get(exit_code, ShoalError)
    try:
        return kind(message, hint=hint)
    except TypeError:
        return ShoalError(message, hint=hint)


class _PipeListener(SubmitLog):
    """Tells the parent, as long as it listens."""

    def __call__(self, result: SubmitResult) -> None:
        tell_parent(result=result._asdict())

    def note(self, text: str) -> None:
        tell_parent(note=text)


def tell_parent(**message: Any) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        pass


def _claimed() -> None:
    """The parent continues from here, and is told nothing more."""
    tell_parent(claimed=True)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def main() -> int:
    """The process of a submission on this machine: claims the runs, and stays until the last of them ended."""
    order = json.load(sys.stdin)
    project = load_project(Path(order["root"]), os.environ)
    asked = [
        RequestedRun(
            PlannedRun(msgspec.convert(one["spec"], RunSpec), one["resume_in"]),
            rerun=one["rerun"],
            by_name=one["by_name"],
            resume=one["resume"],
        )
        for one in order["runs"]
    ]
    target = submit_target(project, "local", os.environ)
    options = SubmitOptions("pack", pack=_pack_options(asked, order["slots"], order["preload"]))
    command = CommandOptions(follow=False, claimed=_claimed)
    try:
        submit_runs(asked, target, tell=_PipeListener(), options=options, command=command)
    except ShoalError as error:
        tell_parent(error={"exit_code": error.exit_code, "message": error.message, "hint": error.hint})
        return error.exit_code
    except Exception as error:
        tell_parent(error={"exit_code": 1, "message": f"{type(error).__name__}: {error}", "hint": None})
        raise
    _claimed()
    return 0


if __name__ == "__main__":
    sys.exit(main())
