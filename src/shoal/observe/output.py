"""Where a run's numbers are, for the one reader of progress and metrics (kernel/progress)."""

from __future__ import annotations

import os

from shoal.job import fill_all, format_value
from shoal.kernel import RunOutput, layout, list_names, totals_of_command
from shoal.model import RunSpec
from shoal.observe.reading import RunReader
from shoal.observe.records import DamagedRecord
from shoal.observe.run_state import RunView


def find_output(home: str, view: RunView) -> RunOutput:
    """As `run_output`; a damaged spec hides only what it tells."""
    try:
        spec = RunReader(home).spec(view.name)
    except DamagedRecord:
        spec = None
    return run_output(view, spec)


def run_output(view: RunView, spec: RunSpec | None) -> RunOutput:
    """The run's output directory and the logs of its newest attempt, with what its step and its command tell."""
    steps, epochs = totals_of_command(command_words(spec)) if spec is not None else (None, None)
    metrics = spec.metrics if spec is not None else ()
    return RunOutput(view.output_dir or os.devnull, _log_files(view), metrics, steps, epochs)


def command_words(spec: RunSpec) -> list[str]:
    """The command as it is started, with the run's parameters in it."""
    return fill_all([*spec.command, *spec.args], {name: format_value(value) for name, value in spec.params.items()})


def _log_files(view: RunView) -> list[str]:
    """What the run itself printed; beside replicas, which have logs of their own, that may be nothing."""
    if not view.log_dir or not view.attempt:
        return []
    own = layout.log_file(view.log_dir, view.attempt)
    if _file_size(own):
        return [own]
    folder = os.path.join(view.log_dir, f"attempt-{view.attempt}.launch")
    return [os.path.join(folder, name) for name in list_names(folder) if name.startswith("replica-")] or [own]


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
