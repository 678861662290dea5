"""`shoal.Executor`: a `concurrent.futures.Executor` whose calls are runs, in packs.

Calls that are made within a moment are submitted together: one pack for all of them, not one job for each. A call is
always a new run (`900_executor/<function>_<session>-<n>`), because an executor promises to call; for "once" use
`shoal.submit`. joblib takes it through `joblib_backend.py`.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shoal.errors import InputError, add_note
from shoal.functions.call_runs import Call, CallOptions, submit_calls
from shoal.functions.run_handle import Run
from shoal.kernel import new_token
from shoal.model import Request

#: Calls that come within this time of each other are one submission.
_GATHER_S = 0.1
_MAX_GATHER_S = 1.0
LAYOUTS = ("pack", "pilots")


class _QueuedCall(NamedTuple):
    function: Callable[..., Any]
    call: Call
    future: concurrent.futures.Future[Any]


class Executor(concurrent.futures.Executor):
    """Calls as runs of packs. `max_workers` is how many run at a time in one pack (default: one for each CPU here, and
    four on Slurm)."""

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        request: Request | Mapping[str, Any] | None = None,
        layout: str = "pack",
        on: str | None = None,
        experiment: str = "900_executor",
        project: str | os.PathLike[str] | None = None,
    ) -> None:
        if layout not in LAYOUTS:
            raise InputError(
                f"invalid layout {layout!r} of an Executor: expected pack or pilots, because a Slurm job for each call "
                "costs about a second",
                hint="shoal.map(function, points, layout='array')   # submits one job or task for each call",
            )
        self._options = CallOptions(
            request=request, experiment=experiment, layout=layout, slots=max_workers, on=on, project=project
        )
        self._session, self._count = new_token()[:6], itertools.count()
        self._lock = threading.Condition()
        self._queued: list[_QueuedCall] = []
        self._runs: dict[concurrent.futures.Future[Any], Run] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot submit after shutdown")
            self._queued.append(_QueuedCall(fn, Call(args, kwargs), future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="shoal-executor", daemon=True)
                self._thread.start()
            self._lock.notify_all()
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """As in concurrent.futures; `chunksize` calls share a run."""
        if chunksize < 1:
            raise ValueError(f"chunksize must be at least 1 (got {chunksize})")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        rows = list(zip(*iterables, strict=False))
        chunks = [rows[at : at + chunksize] for at in range(0, len(rows), chunksize)]
        found = super().map(call_each, itertools.repeat(fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(found)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            if cancel_futures:
                for queued in self._queued:
                    queued.future.cancel()
                self._queued = [one for one in self._queued if not one.future.cancelled()]
            self._lock.notify_all()
        if wait:
            if self._thread is not None:
                self._thread.join()
            concurrent.futures.wait(list(self._runs))

    def run_of(self, future: concurrent.futures.Future[Any]) -> Run | None:
        """The run of a call; None before it is submitted."""
        return self._runs.get(future)

    def _send_all(self) -> None:
        while True:
            calls = self._gather()
            if calls is None:
                return
            for group in _by_function(calls):
                self._send(group)

    def _gather(self) -> list[_QueuedCall] | None:
        """The next calls, when for a moment no more came; None when all is done."""
        with self._lock:
            self._lock.wait_for(lambda: self._queued or self._closed)
            if not self._queued:
                return None
            for _ in range(int(_MAX_GATHER_S / _GATHER_S)):
                before = len(self._queued)
                self._lock.wait(_GATHER_S)
                if self._closed or len(self._queued) == before:
                    break
            calls, self._queued = self._queued, []
        return [one for one in calls if one.future.set_running_or_notify_cancel()]

    def _send(self, calls: list[_QueuedCall]) -> None:
        """Submit calls of one function; what stops that is the exception of each of their futures."""
        try:
            serials = [f"{self._session}-{next(self._count)}" for _ in calls]
            runs = submit_calls(calls[0].function, [one.call for one in calls], self._options, serials)
        except BaseException as error:
            for one in calls:
                one.future.set_exception(error)
            return
        for one, run in zip(calls, runs, strict=True):
            self._runs[one.future] = run
            run.future().add_done_callback(lambda done, future=one.future: _copy(done, future))  # type: ignore[misc]


def _copy(done: concurrent.futures.Future[Any], future: concurrent.futures.Future[Any]) -> None:
    """Hand the end of a run on: the function's own exception where there is one, as a local pool raises it."""
    error = done.exception()
    if error is None:
        future.set_result(done.result())
        return
    original = error.__cause__
    if original is not None:
        original.__cause__ = None
        for note in getattr(error, "__notes__", ()):
            add_note(original, note)
    future.set_exception(original or error)


def _by_function(calls: list[_QueuedCall]) -> list[list[_QueuedCall]]:
    found: dict[int, list[_QueuedCall]] = {}
    for one in calls:
        found.setdefault(id(one.function), []).append(one)
    return list(found.values())


def call_each(function: Callable[..., Any], rows: list[tuple[Any, ...]]) -> list[Any]:
    """Several calls in one run."""
    return [function(*row) for row in rows]
