"""`shoal.Experiment`: describe runs in a loop, or a whole sweep at once, and submit them.

import shoal
exp = shoal.Experiment("003_muon")
for lr in (0.03125, 0.015625):
    exp.add("train", params={"lr": lr}, seeds=range(3), request=shoal.Request(gpus=8, time="24h"))
exp.submit()                       # python experiments/003_muon/sweep.py, or: shoal submit that file
exp.wait()
exp.results()                      # a row for each point, over seeds
exp.plot("val_loss")

It never prints: remarks go to the log "shoal". Functions as runs are in functions/.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.describe import COLLECT_VARIABLE, BlockRecord, Given, append_block, group_sweeps, parse_sweep, run_file_name
from shoal.errors import InputError, ShoalError
from shoal.model import Request, RunSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shoal.describe import Project
    from shoal.functions import Runs


class Experiment:
    """Runs under one experiment's name. Nothing happens before `submit`, and submitting twice submits nothing twice.

    The project is that of the working directory; in a directory outside of projects, that of the file that adds runs.
    """

    def __init__(self, name: str) -> None:
        if COLLECT_VARIABLE in os.environ:
            sys.excepthook = _report_input_error
        run_file_name(name, "x")
        self.name = name
        self._added: list[BlockRecord] = []

    def __repr__(self) -> str:
        return f"<shoal.Experiment {self.name}: {len(self._added)} descriptions>"

    def add(
        self,
        step: str,
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        seeds: Sequence[int] | str | int | None = None,
        request: Request | Mapping[str, Any] | None = None,
        launch: str | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Add the run, or the runs, of a step; a mistake is an InputError that names this line.

        `name` begins the names of the runs; unless given it is the file's if that is 000_STEP.py, else the step's.
        `more` takes what a sweep file takes as well: command, args, env, container, sweep, zip, points, num_samples,
        sample_seed, defaults, exclude, tables, derived, require, requests, cost, metric, early_stopping, start_from,
        after.
        """
        caller = sys._getframe(1)
        given = {
            "step": step,
            "name": name,
            "params": params,
            "seeds": seeds,
            "request": request,
            "launch": launch,
            **more,
        }
        values = {key: _plain_value(value) for key, value in given.items() if value is not None}
        place = f"{_display_path(caller.f_code.co_filename)}:{caller.f_lineno}"
        parse_sweep(Given(place, values))
        self._added.append({"experiment": self.name, "place": place, "values": values})

    def runs(self, start: str | Path | None = None) -> list[RunSpec]:
        """Every run that was added so far, as it would be submitted from a project around `start`."""
        from shoal.describe import find_project, read_sweeps

        project = self._project() if start is None else find_project(Path(start), os.environ)
        return [one.run.spec for one in read_sweeps(group_sweeps(self._added), project).asked]

    def submit(self, *, on: str | None = None, smoke: bool = False) -> Runs:
        """Submit what is missing; the runs in the order in which they were added. Under `shoal submit FILE` it only
        describes, and returns none.

        On this machine (`on="local"`) the runs are executed here, one after another, before it returns. With `smoke`, a
        few steps must pass first; under `shoal submit FILE` that is its own flag --smoke.
        """
        from shoal.functions import Run, Runs

        if not self._added:
            raise InputError(f"nothing was added to {self.name}", hint='exp.add("train", params={"lr": 0.1})')
        if COLLECT_VARIABLE in os.environ:
            append_block(os.environ[COLLECT_VARIABLE], self._added)
            return Runs()
        from shoal.actions import CommandOptions, SubmitOptions, report_secrets, submit_runs, submit_target
        from shoal.describe import read_sweeps
        from shoal.functions import SubmitLog

        project, listener = self._project(), SubmitLog()
        target = submit_target(project, on, os.environ)
        asked, grown = read_sweeps(group_sweeps(self._added), project)
        report_secrets(os.environ, target.cluster, listener)
        options, command = SubmitOptions(smoke="there" if smoke else None), CommandOptions(follow=False)
        submit_runs(asked, target, tell=listener, options=options, command=command, grown=grown)
        return Runs(Run(target.home, one.run.spec.name, project) for one in asked)

    def wait(self, timeout: float | None = None) -> Runs:
        """Wait until all runs that were added have ended; TimeoutError after `timeout` seconds."""
        return self._submitted().wait(timeout)

    def results(self, *metrics: str) -> list[dict[str, Any]]:
        """A dict for each point, over its seeds, as in `shoal results`: name, parameters, the mean of each metric, and
        its standard deviation under the metric's name with `_std`. `seeds` counts the runs that have numbers."""
        from shoal.observe import tabulate
        from shoal.views import results

        home = str(self._project().home)
        found, defaults, _ = results.gather_results(home, [self.name], os.environ, partial=False)
        table = tabulate(found, metrics=metrics, defaults=defaults)
        rows: list[dict[str, Any]] = []
        for group in table.groups:
            row: dict[str, Any] = {"name": group.name, **{name: group.params.get(name) for name in table.params}}
            row["seeds"] = len(group.runs) - len(group.missing)
            for metric, number in group.metrics.items():
                row.update({metric: number.mean, f"{metric}_std": number.std})
            rows.append(row)
        return rows

    def plot(self, metric: str) -> Figure:
        """The curves of a metric as a matplotlib Figure: for each setting the mean over its seeds, with a band of one
        standard deviation; needs `shoal[plots]`."""
        return self._submitted().plot(metric, title=self.name)

    def _submitted(self) -> Runs:
        from shoal.functions import Run, Runs

        project = self._project()
        return Runs(Run(str(project.home), spec.name, project) for spec in self.runs())

    def _project(self) -> Project:
        from shoal.describe import find_project

        try:
            return find_project(Path.cwd(), os.environ)
        except InputError:
            if not self._added:
                raise
            return find_project(Path(self._added[0]["place"].rpartition(":")[0]).absolute().parent, os.environ)


def _report_input_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Under `shoal submit FILE` a mistake in the description is told by that command, without a traceback."""
    if isinstance(error, ShoalError):
        append_block(os.environ[COLLECT_VARIABLE], [{"error": error.message, "hint": error.hint}])
    else:
        sys.__excepthook__(kind, error, trace)


def _plain_value(value: Any) -> Any:
    """What sweep files and flags give: tables with text keys, lists, and a request as a table."""
    if isinstance(value, Request):
        found_request: dict[str, Any] = msgspec.to_builtins(value)
        share = found_request.pop("gpu_share", None)
        return {**found_request, "gpus": share} if share else found_request
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, inner in value.items():
            at = found
            *outer, last = key if isinstance(key, tuple) else (key,)
            for part in outer:
                at = at.setdefault(str(part), {})
            at[str(last)] = _plain_value(inner)
        return found
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, Sequence):
        return [_plain_value(inner) for inner in value]
    # NumPy's numbers and the like: their own value is what is meant.
    return value.item() if hasattr(value, "item") and not isinstance(value, int | float) else value


def _display_path(path: str) -> str:
    shown = os.path.relpath(path)
    return path if shown.startswith("..") else shown
