"""`Run`, the handle of one run, `Runs`, several in order; `shoal.runs`, `shoal.result` and `shoal.as_completed`.

A handle holds a name and a cached state; everything else is read from the run's directory, in any process, at any time
later. Nothing here prints.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from shoal.describe import Project, find_run, project_or_bare
from shoal.errors import InputError, RunFailed
from shoal.functions.results import read_result
from shoal.functions.watcher import WATCHER, RunKey, ended_runs
from shoal.kernel import read_metrics
from shoal.model import ENDED_STATES, STATE_GROUPS, RunSpec
from shoal.observe import QueueCache, RunReader, RunView, observe, run_names, run_output
from shoal.units import shorten_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shoal.functions.calls import FunctionSource

#: States in which nothing more happens by itself.
_SETTLED = ENDED_STATES | {"new"}


class Run:
    """One run. `state` and what else is cached is as old as the last `refresh()`, `wait()` or `result()`."""

    def __init__(
        self,
        home: str,
        name: str,
        project: Project | None = None,
        *,
        code: str | None = None,
        source: FunctionSource | None = None,
        view: RunView | None = None,
    ) -> None:
        self.name, self._home, self._project = name, home, project
        self._code, self._source = code, source
        self._view = view
        self._spec: RunSpec | None = None
        self._lock = threading.Lock()
        self._future: concurrent.futures.Future[Any] | None = None

    def __repr__(self) -> str:
        return f"<shoal.Run {self.name} {self.state}>"

    def _repr_html_(self) -> str:
        from shoal.functions.notebook import run_html

        return run_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (self._home, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self._home, self.name) == (other._home, other.name)

    def __hash__(self) -> int:
        return hash((self._home, self.name))

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def view(self) -> RunView:
        """The run as `shoal status` shows it, at the last look."""
        return self._view if self._view is not None else self.refresh().view

    def refresh(self) -> Run:
        """Look again; Slurm's answer may be that of another watcher, at most 10 s old."""
        self._view = observe(self._home, [self.name], environ=os.environ, ask=QueueCache(self._home)).views[self.name]
        return self

    @property
    def spec(self) -> RunSpec:
        """What was submitted; InputError for a name that never was."""
        if self._spec is None:
            self._spec = RunReader(self._home).spec(self.name)
        if self._spec is None:
            raise InputError(f"no run named {self.name!r}", hint="shoal status")
        return self._spec

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def params(self) -> dict[str, Any]:
        """Its arguments: scalars as they are, all others as text."""
        return self.spec.all_params

    @property
    def seed(self) -> int | None:
        return self.spec.seed

    @property
    def output_dir(self) -> Path | None:
        return Path(self.view.output_dir) if self.view.output_dir else None

    @property
    def attempts(self) -> int:
        return self.view.attempt

    @property
    def code_changed(self) -> bool:
        """Whether the function's code is another now than when this run was submitted; False where it is not known."""
        kept = RunReader(self._home).spec(self.name)
        return self._code is not None and kept is not None and kept.function.get("code") != self._code

    def metrics(self) -> dict[str, float]:
        """The last value of each of its metrics, as `shoal results` reads them."""
        return dict(read_metrics(run_output(self.view, self.spec))) if self.view.output_dir else {}

    # -- waiting -------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether it has ended, by a look now."""
        if self.view.state not in _SETTLED:
            self.refresh()
        return self.view.state in _SETTLED

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until it has ended, however; TimeoutError after `timeout` seconds. Ctrl-C leaves the run alone."""
        if self.name == os.environ.get("SHOAL_RUN"):
            raise InputError(f"{self.name} is this run itself: it would wait for its own end", hint="call the function")
        wait_for([self], timeout)
        return self

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned. A run that failed raises RunFailed, whose `__cause__` is the exception of the
        function; TimeoutError after `timeout` seconds."""
        self.wait(timeout)
        return read_result(self, self.view)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The RunFailed that `result()` would raise, or None."""
        try:
            self.result(timeout)
        except RunFailed as error:
            return error
        return None

    def future(self) -> concurrent.futures.Future[Any]:
        """A Future of the result, for asyncio and `concurrent.futures.wait`; the same one each time."""
        with self._lock:
            if self._future is None:
                future: concurrent.futures.Future[Any] = concurrent.futures.Future()
                self._future = future
                future.set_running_or_notify_cancel()
                WATCHER.tell(self._home, self.name, lambda view: self._settle(future, view))
            return self._future

    def _settle(self, future: concurrent.futures.Future[Any], view: RunView) -> None:
        self._view = view
        try:
            future.set_result(read_result(self, view))
        except BaseException as error:
            future.set_exception(error)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.future()).__await__()

    # -- looking and acting --------------------------------------------------------------------------------------

    def logs(self, tail: int = 50, rank: int = 0) -> str:
        """The last lines that its newest attempt printed; empty before it started. `tail=0`: all."""
        from shoal.views import LogChoice, find_log_sources

        choice = LogChoice(rank=rank or None, strict=bool(rank))
        sources = find_log_sources(self._home, [self.name], choice).sources
        text = "".join(
            Path(path).read_text("utf-8", "replace") for one in sources for path in one.paths if os.path.isfile(path)
        )
        lines = text.splitlines(keepends=True)
        return "".join(lines[-tail:] if tail else lines)

    def why(self) -> str:
        """Why it is in its state: the sentence of `shoal why`, and what it rests on."""
        from shoal.views import explain_run

        explanation = explain_run(self._home, self.name, os.environ)
        return "\n".join([explanation.headline, *(f"  {line}" for line in explanation.evidence)])

    def cancel(self) -> bool:
        """Stop it; False if it had ended already."""
        from shoal.actions import cancel_active

        found = cancel_active(self._home, [self.name], os.environ)
        self._view = None
        return bool(found.runs)

    def retry(self, *, memory: str | None = None, time: str | None = None, fresh: bool = False) -> Run:
        """Start it again if it failed, was cancelled or stopped: from its newest checkpoint, with the code as it is
        now. `memory` and `time` are factors ("x2") or amounts. A run that is active or completed is a InputError."""
        from shoal.functions.actions import retry_run

        retry_run(self, memory=memory, time=time, fresh=fresh)
        with self._lock:
            self._view = self._future = self._spec = None
        return self


class Runs(list[Run]):
    """Runs in the order in which they were described."""

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for run in self:
            counts[run.state] = counts.get(run.state, 0) + 1
        return f"<{len(self)} runs: {', '.join(f'{count} {state}' for state, count in counts.items())}>"

    def _repr_html_(self) -> str:
        from shoal.functions.notebook import runs_html

        return runs_html(self)

    @overload
    def __getitem__(self, at: SupportsIndex) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> Runs: ...
    def __getitem__(self, at: SupportsIndex | slice) -> Run | Runs:
        return Runs(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def refresh(self) -> Runs:
        """Look at all of them with one question to Slurm."""
        for home in {run._home for run in self}:
            ours = [run for run in self if run._home == home]
            views = observe(home, [run.name for run in ours], environ=os.environ, ask=QueueCache(home)).views
            for run in ours:
                run._view = views[run.name]
        return self

    def wait(self, timeout: float | None = None) -> Runs:
        """Wait until all have ended; TimeoutError after `timeout` seconds."""
        wait_for(self, timeout)
        return self

    def results(self, timeout: float | None = None) -> list[Any]:
        """The results in order; waits for all, and raises the RunFailed of the first that failed."""
        self.wait(timeout)
        return [read_result(run, run.view) for run in self]

    def cancel(self) -> int:
        """Stop all that are active; how many those were."""
        return sum(run.cancel() for run in self)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each run: name, state, cause, reason, seed, parameters, metrics and times. Metrics that have the
        name of a parameter or of another column get `metric_` in front."""
        return [_row(run) for run in self]

    def plot(self, metric: str, *, title: str = "") -> Figure:
        """The curves of a metric as a matplotlib Figure, which a notebook shows: for each setting the mean over its
        seeds, with a band of one standard deviation. InputError if no run has such a curve, with those that exist."""
        from shoal.views import plot_metric

        homes = {run._home for run in self}
        if len(homes) != 1:
            problem = "runs of several projects" if homes else "no runs"
            raise InputError(f"cannot plot {problem}", hint='shoal.runs("001_example").plot("loss")')
        experiments = sorted({run.name.partition("/")[0] for run in self})
        self.refresh()
        return plot_metric(homes.pop(), [run.view for run in self], metric, title or shorten_list(experiments, 3))

    def to_pandas(self) -> Any:
        """`rows()` as a pandas.DataFrame."""
        return _need("pandas", "pandas").DataFrame(self.rows())

    def to_polars(self) -> Any:
        """`rows()` as a polars.DataFrame."""
        return _need("polars", "polars").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """`rows()` as a pyarrow.Table."""
        return _need("pyarrow", "pyarrow").table(self._columns())

    def _columns(self) -> dict[str, list[Any]]:
        """Columns of one type each: where a parameter has values of several types, they are text."""
        rows = self.rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: _one_type([row.get(name) for row in rows]) for name in names}


#: Columns of a run itself; a parameter of such a name has `param_` before it.
_OWN_COLUMNS = frozenset(
    {"name", "state", "cause", "reason", "seed", "attempt", "submitted", "started", "ended", "output_dir"}
)


def _row(run: Run) -> dict[str, Any]:
    view = run.view
    row: dict[str, Any] = {
        "name": run.name,
        "state": view.state,
        "cause": view.cause,
        "reason": view.reason,
        "seed": run.seed,
        **{f"param_{name}" if name in _OWN_COLUMNS else name: value for name, value in run.params.items()},
        "attempt": view.attempt,
        "submitted": view.submitted,
        "started": view.started,
        "ended": view.ended,
        "output_dir": view.output_dir,
    }
    for name, value in run.metrics().items():
        row[f"metric_{name}" if name in row else name] = value
    return row


def _one_type(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [float(value) if float in kinds and value is not None else value for value in values]
    return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]


def _need(module: str, package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{package} is not installed", hint=f"pip install {package}") from None


def wait_for(runs: Sequence[Run], timeout: float | None) -> None:
    """Wait until all of these have ended; their views are those of their ends."""
    left = {RunKey(run._home, run.name): run for run in runs if run._view is None or run._view.state not in _SETTLED}
    for home in {home for home, _ in left}:
        names = [name for one, name in left if one == home]
        for key, view in ended_runs(home, names).items():
            left.pop(key)._view = view
    if not left:
        return
    finished = threading.Event()
    lock = threading.Lock()
    listeners: dict[RunKey, Callable[[RunView], None]] = {}

    def settle(key: RunKey, view: RunView) -> None:
        with lock:
            left.pop(key)._view = view
            if not left:
                finished.set()

    try:
        for key in list(left):
            listeners[key] = lambda view, key=key: settle(key, view)  # type: ignore[misc]
            WATCHER.tell(*key, listeners[key])
        if not finished.wait(timeout):
            some = ", ".join(sorted(name for _, name in left)[:3])
            raise TimeoutError(f"{len(left)} of {len(runs)} runs have not ended after {timeout:g} s: {some}")
    finally:
        for key, one in listeners.items():
            WATCHER.forget(*key, one)


class as_completed:
    """Iterate over runs as they end, with `for` or `async for`; TimeoutError after `timeout` seconds in all."""

    def __init__(self, runs: Iterable[Run], timeout: float | None = None) -> None:
        self._runs = list(runs)
        self._timeout = timeout

    def __iter__(self) -> Iterator[Run]:
        futures = {run.future(): run for run in self._runs}
        for future in concurrent.futures.as_completed(futures, self._timeout):
            yield futures[future]

    async def __aiter__(self) -> AsyncIterator[Run]:
        ended: asyncio.Queue[Run] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for run in self._runs:
            run.future().add_done_callback(lambda _, run=run: _put(loop, ended, run))  # type: ignore[misc]
        deadline = None if self._timeout is None else loop.time() + self._timeout
        for _ in self._runs:
            left = None if deadline is None else max(0.0, deadline - loop.time())
            yield await asyncio.wait_for(ended.get(), left)


def _put(loop: asyncio.AbstractEventLoop, ended: asyncio.Queue[Run], run: Run) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(ended.put_nowait, run)


def runs(
    experiment: str | None = None,
    *,
    state: str | None = None,
    where: Mapping[str, Any] | None = None,
    project: str | os.PathLike[str] | None = None,
) -> Runs:
    """The runs of an experiment, or of the whole project, in the order of their names.

    `state` is a state, or one of active, ended and failed; `where` are parameters, with `seed` among them.
    """
    wanted = STATE_GROUPS.get(state or "", frozenset({state}) if state else None)
    if wanted is not None:
        from shoal.describe import parse_states

        parse_states(state)  # an unknown word is an InputError that lists them
    place = project_or_bare(Path(project) if project is not None else Path.cwd(), os.environ)
    home = str(place.home)
    names = [name for name in run_names(home) if experiment in (None, name.partition("/")[0], name)]
    if experiment is not None and not names:
        raise InputError(f"no experiment or run named {experiment!r}", hint="shoal status")
    views = observe(home, names, environ=os.environ, ask=QueueCache(home)).views
    found = Runs(Run(home, name, place, view=views[name]) for name in names if not views[name].refused)
    if where:
        _refuse_unknown_names(where, found)
    return Runs(
        run
        for run in found
        if (wanted is None or run.state in wanted)
        and all(_value_of(run, name) == value for name, value in (where or {}).items())
    )


def _value_of(run: Run, name: str) -> Any:
    return run.seed if name == "seed" and "seed" not in run.params else run.params.get(name)


def _refuse_unknown_names(where: Mapping[str, Any], found: Runs) -> None:
    known = {"seed", *(name for run in found for name in run.params)}
    for name in where if found else ():
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            hint = f"where={{{near[0]!r}: ...}}" if near else f"they have {', '.join(sorted(known))}"
            raise InputError(f"no run has a parameter {name!r}", hint=hint, place="where")


def result(name: str, timeout: float | None = None, *, project: str | os.PathLike[str] | None = None) -> Any:
    """The result of a run by its name, in any process; waits for one that is active."""
    place = project_or_bare(Path(project) if project is not None else Path.cwd(), os.environ)
    return Run(str(place.home), find_run(str(place.home), name, None), place).result(timeout)
