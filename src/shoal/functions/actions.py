"""Start a run again: `Run.retry`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.actions import RetryChange, retried_runs, submit_target
from shoal.describe import RequestedRun, load_project
from shoal.errors import InputError
from shoal.functions import objects
from shoal.functions.delivery import send_runs
from shoal.model import RETRYABLE_STATES
from shoal.observe import RunReader

if TYPE_CHECKING:
    from shoal.functions.run_handle import Run


def retry_run(run: Run, *, memory: str | None, time: str | None, fresh: bool) -> None:
    """Submit a run once more that has not completed; InputError for one that is active or completed.

    The code of now is executed. If the function itself has changed, the run starts over as a new revision, so that the
    record of its code stays true.
    """
    view = run.refresh().view
    if view.state not in RETRYABLE_STATES and view.state != "new":
        what = "completed" if view.state == "completed" else f"is {view.state}"
        hint = "shoal.submit(..., rerun=True) runs it again" if view.state == "completed" else "run.cancel()"
        raise InputError(f"cannot retry {run.name}: it {what}", hint=hint)
    project = run._project or load_project(Path(run.spec.cwd), os.environ)
    on = "local" if _ran_locally(run) else None
    target = submit_target(project, on, os.environ)
    asked = retried_runs(target, [view], RetryChange(memory, time, exclude_nodes=False, fresh=fresh))
    if run.code_changed:
        asked = [_with_new_code(run, one) for one in asked]
    send_runs(asked, project, on=on)


def _with_new_code(run: Run, asked: RequestedRun) -> RequestedRun:
    """The run with the function as it is in this process."""
    spec, source = asked.run.spec, run._source
    assert source is not None  # noqa: S101 (a run whose code is known to have changed was submitted by this process)
    record = json.loads(Path(spec.command[-1]).read_text("utf-8"))
    record.update(code=source.code, source=source.source)
    if source.how == "value":
        record["function"] = objects.store_function(run._home, source)
    command = [*spec.command[:-1], objects.store_record(run._home, record)]
    changed = msgspec.structs.replace(spec, command=command, function={**spec.function, "code": source.code})
    return asked._replace(rerun=True, run=asked.run._replace(spec=changed))


def _ran_locally(run: Run) -> bool:
    reader = RunReader(run._home)
    claim = reader.newest_claim(run.name)
    submission = reader.submission(claim.token).submission if claim is not None else None
    return submission is not None and submission.backend == "local"
