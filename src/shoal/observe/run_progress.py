"""How fast a running run is, from its progress over time; how long earlier attempts took; where logs and metrics are.

`status` and `switch` use the same speed. The files themselves are read by kernel/progress.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from shoal.job import fill_all, format_value
from shoal.kernel import Progress, RunOutput, checkpoints, files, layout, list_names, totals_of_command
from shoal.model import RunSpec
from shoal.observe.run_code import declared_metrics
from shoal.observe.run_files import DamagedRecord, RunReader, read_end
from shoal.observe.run_state import RunView

#: Less of the way than this tells mostly how long a start takes.
_START_UP = 0.02


class ProgressRate(msgspec.Struct, frozen=True, kw_only=True):
    """`since` is the part of the way at which this attempt began, `measured_s` how long it took from there to
    `fraction`, which was seen `age_s` ago."""

    fraction: float
    since: float = 0.0
    measured_s: float
    age_s: float = 0.0

    @property
    def rate(self) -> float:
        """Part of the way per second."""
        return max(1e-12, (self.fraction - self.since) / max(1.0, self.measured_s))

    @property
    def is_start_up(self) -> bool:
        """Whether it has come so little of the way that its rate cannot be told yet."""
        return self.fraction - self.since < _START_UP

    @property
    def now(self) -> float:
        return min(1.0, self.fraction + self.rate * self.age_s)

    @property
    def left_s(self) -> float:
        return (1.0 - self.now) / self.rate


def progress_rate(view: RunView, seen: Progress, now: float) -> ProgressRate:
    """The pace since this attempt's program began."""
    moment = min(now, seen.t)
    return ProgressRate(
        fraction=seen.fraction or 0.0,
        since=_since(view, seen) or 0.0,
        measured_s=max(1.0, moment - (view.program_started or now)),
        age_s=max(0.0, now - moment),
    )


def known_pace(view: RunView, seen: Progress | None, now: float) -> ProgressRate | None:
    """The pace of an attempt that is past its start-up; None where that cannot be told."""
    if seen is None or seen.fraction is None or _since(view, seen) is None or view.program_started is None:
        return None
    pace = progress_rate(view, seen, now)
    return None if pace.is_start_up else pace


def remaining_s(view: RunView, seen: Progress | None, now: float) -> float | None:
    """How much longer a running run takes at its own pace; None where that cannot be told."""
    pace = known_pace(view, seen, now)
    return pace.left_s if pace is not None else None


def _since(view: RunView, seen: Progress | None) -> float | None:
    """The part of the way at which the attempt began; None if that cannot be told."""
    if not view.resume_from:
        return 0.0
    step = checkpoints.step_of(view.resume_from)
    if step is None or seen is None or not seen.total or step > (seen.step or 0):
        return None
    return step / seen.total


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
    metrics: tuple[str, ...] = ()
    if spec is not None:
        metrics = tuple(dict.fromkeys([*spec.metrics, *declared_metrics(spec.cwd, spec.step_kind)]))
    return RunOutput(view.output_dir or os.devnull, _log_files(view), metrics, steps, epochs)


def command_words(spec: RunSpec) -> list[str]:
    """The command as it is started, with the run's parameters in it."""
    return fill_all([*spec.command, *spec.args], {name: format_value(value) for name, value in spec.params.items()})


def _log_files(view: RunView) -> list[str]:
    """What the run itself printed; beside replicas, which have logs of their own, that may be nothing."""
    if not view.log_dir or not view.attempt:
        return []
    own, *errors = layout.log_files(view.log_dir, view.attempt)
    if files.size_of(own) or errors:
        return [own, *errors]
    folder = os.path.join(view.log_dir, f"attempt-{view.attempt}.launch")
    return [os.path.join(folder, name) for name in list_names(folder) if name.startswith("replica-")] or [own]


def past_durations(home: str, names: Sequence[str]) -> dict[int, float]:
    """Place in `names` -> seconds of the newest attempt that completed, or was a probe, for the runs that have one."""
    found = {}
    for place, name in enumerate(names):
        folder = layout.run_dir(home, name)
        names_there = layout.parse_names(list_names(folder))
        for number in reversed(names_there.attempts.get("end", [])):
            try:
                end = read_end(folder, names_there, number)
            except DamagedRecord:
                continue
            duration_s = None if end is None else end.duration_s if end.success else end.expect_s
            if duration_s is not None:
                found[place] = duration_s
                break
    return found
