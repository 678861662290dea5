"""Where a run's numbers are, for the one reader of progress and metrics (kernel/progress)."""

from __future__ import annotations

import os

from shoal.job import complete, text_of
from shoal.kernel import Output, layout, names_in, totals
from shoal.model import RunSpec
from shoal.observe.reading import Reader
from shoal.observe.records import DamagedRecord
from shoal.observe.run_state import RunView


def find_output(home: str, view: RunView) -> Output:
    """As `output_of`; a damaged spec hides only what it tells."""
    try:
        spec = Reader(home).spec(view.name)
    except DamagedRecord:
        spec = None
    return output_of(view, spec)


def output_of(view: RunView, spec: RunSpec | None) -> Output:
    """The run's output directory and the logs of its newest attempt, with what its step and its command tell."""
    steps, epochs = totals(words_of(spec)) if spec is not None else (None, None)
    metrics = spec.metrics if spec is not None else ()
    return Output(view.output_dir or os.devnull, _logs(view), metrics, steps, epochs)


def words_of(spec: RunSpec) -> list[str]:
    """The command as it is started, with the run's parameters in it."""
    return complete([*spec.command, *spec.args], {name: text_of(value) for name, value in spec.params.items()})


def _logs(view: RunView) -> list[str]:
    """What the run itself printed; beside replicas, which have logs of their own, that may be nothing."""
    if not view.log_dir or not view.attempt:
        return []
    own = layout.log_file(view.log_dir, view.attempt)
    if _size(own):
        return [own]
    folder = os.path.join(view.log_dir, f"attempt-{view.attempt}.launch")
    return [os.path.join(folder, name) for name in names_in(folder) if name.startswith("replica-")] or [own]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
