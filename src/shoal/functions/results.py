"""The result of a run that has ended, or the error that says why it has none."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from shoal.errors import (
    RemoteError,
    ResultNotKept,
    RunCancelled,
    RunFailed,
    RunLost,
    RunOOM,
    RunStopped,
    RunTimeout,
    add_note,
)
from shoal.functions import objects
from shoal.job import function_call

if TYPE_CHECKING:
    from shoal.functions.run_handle import Run
    from shoal.observe import RunView

_ERRORS: dict[str, type[RunFailed]] = {
    "oom": RunOOM,
    "timeout": RunTimeout,
    "cancelled": RunCancelled,
    "stopped": RunStopped,
    "lost": RunLost,
    "node_fail": RunLost,
    "preempted": RunLost,
    "new": RunLost,
}


def read_result(run: Run, view: RunView) -> Any:
    """What the function returned; RunFailed, or the child of it that fits, if there is nothing."""
    if view.state != "completed":
        raise _failure(run, view)
    if not run.spec.function:
        return None  # a command has no result
    path = os.path.join(view.output_dir or "", function_call.RESULT_FILE)
    try:
        return objects.load(path, view.attempt)
    except FileNotFoundError:
        record = _error_record(view)
        why = record["message"] if record else f"{path} is missing"
        raise ResultNotKept(run, f"{run.name} completed without a result: {why}") from None
    except function_call.CallError as error:
        raise ResultNotKept(run, f"cannot load the result of {run.name}: {error}") from None
    except Exception as error:
        raise ResultNotKept(
            run, f"cannot load the result of {run.name}: {type(error).__name__}: {error}", hint=f"ls -l {path}"
        ) from error


def _failure(run: Run, view: RunView) -> RunFailed:
    record = _error_record(view)
    kind = ResultNotKept if record and record["kind"] == "result" else _ERRORS.get(view.state, RunFailed)
    error = kind(run, _message(view, record), hint=f"shoal logs {run.name}")
    if record and view.state == "failed" and record["kind"] == "exception":
        error.__cause__ = _original(view, record)
    if record and record["traceback"]:
        add_note(error, f"in the run:\n{record['traceback'].rstrip()}")
    return error


def _message(view: RunView, record: dict[str, Any] | None) -> str:
    reason = view.reason or view.state
    if record is None or view.state != "failed":
        return f"{view.name} {'is' if view.state == 'new' else 'ended:'} {view.state}: {reason}"
    what = f"{record['type']}: {record['message']}" if record["kind"] == "exception" else record["message"]
    return f"{view.name} failed: {what}"


def _error_record(view: RunView) -> dict[str, Any] | None:
    """What the newest attempt wrote down about its error; of an earlier attempt it does not count."""
    try:
        with open(os.path.join(view.output_dir or "", function_call.ERROR_FILE), encoding="utf-8") as file:  # noqa: PTH123
            record: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return record if record.get("attempt") == view.attempt else None


def _original(view: RunView, record: dict[str, Any]) -> BaseException:
    """The exception itself where it survived the round trip in the job and can be loaded here."""
    if record.get("pickled"):
        # Another Python, or a module that is gone: the text is left.
        with contextlib.suppress(Exception):
            found = objects.load(os.path.join(view.output_dir or "", function_call.EXCEPTION_FILE), view.attempt)
            if isinstance(found, BaseException):
                return found
    return RemoteError(record["type"], record["message"], record["traceback"])
