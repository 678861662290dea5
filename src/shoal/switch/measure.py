"""What the running job has: its progress and speed; and, from similar runs, how well more GPUs scale."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from shoal.errors import InputError
from shoal.kernel import Progress, checkpoints
from shoal.kernel import progress as kernel_progress
from shoal.model import RunSpec, have_same_start
from shoal.observe import (
    ProgressRate,
    RequestedResources,
    RunFiles,
    RunReader,
    RunView,
    known_pace,
    observe,
    progress_rate,
    run_names,
    run_output,
)
from shoal.switch.advice import ASSUMED_EFFICIENCY, Replacement, RunningJob, size_ratio
from shoal.units import format_duration, plural

#: Runs of an experiment that are looked at for one that did the same on other GPUs.
_MAX_EARLIER = 200
#: Where progress comes from when a person told it.
GIVEN_BY_USER = "as you say"
_SHOW_PROGRESS = "next time let it write $SHOAL_PROGRESS, or set TTY_COMPATIBLE=1 for a rich bar"


def progress_of(view: RunView, spec: RunSpec, given: str | None = None) -> Progress:
    """How far the run has come, as read or as given. InputError if neither tells."""
    seen = kernel_progress.read_progress(run_output(view, spec))
    if given is not None:
        count = kernel_progress.parse_progress(given, plain=True)
        if count is None or not count.fraction:
            raise InputError(f"invalid --progress {given!r}: expected 300/1000 or 30%", hint="use --progress 30%")
        moment = seen.t if seen is not None else os.stat(view.output_dir or ".").st_mtime
        return Progress(count.step, count.total, count.fraction, GIVEN_BY_USER, given, moment)
    if seen is None or not seen.fraction:
        what = f"only {seen.text!r} in its {seen.source}" if seen is not None else "none in its log or output directory"
        raise InputError(
            f"cannot read the progress of {view.name}: {what}",
            hint=f"shoal switch {view.name} --gpus N --progress 300/1000   # {_SHOW_PROGRESS}",
        )
    return seen


def measure(view: RunView, spec: RunSpec, nodes: int, seen: Progress, now: float) -> RunningJob:
    """The job as it is, and how fast it has been since this attempt began."""
    started = view.started or now
    newest = checkpoints.newest_checkpoint(view.output_dir or "", spec.checkpoint) if spec.checkpoint else None
    pace = progress_rate(view, seen._replace(t=now) if seen.source == GIVEN_BY_USER else seen, now)
    return RunningJob(
        **msgspec.structs.asdict(pace),
        gpus=view.gpus or 0,
        nodes=nodes,
        checkpoint_age_s=None if newest is None else max(0.0, now - os.stat(newest).st_mtime),
        time_left_s=None if view.time_limit_s is None else max(0.0, started + view.time_limit_s - now),
    )


def efficiency(
    home: str,
    spec: RunSpec,
    running: RunningJob,
    size: tuple[int, int],
    given: float | None,
    environ: Mapping[str, str],
    now: float,
) -> tuple[float, str]:
    """How well so many nodes with so many GPUs do, and from where that is known: given; measured, from runs that do the
    same on so many; or assumed."""
    if given is not None:
        return given, "given"
    paces = [] if running.is_start_up else list(_similar_runs(home, spec, size, environ, now))
    if not paces:
        return ASSUMED_EFFICIENCY, "assumed"
    paces.sort(key=lambda item: item[1].rate)
    name, pace = paces[len(paces) // 2]
    more = f", and {len(paces) - 1} more like it" if len(paces) > 1 else ""
    part = f"{pace.fraction - pace.since:.0%} in {format_duration(pace.measured_s)}"
    nodes, gpus = size
    amount = plural(nodes * gpus, "GPU") if gpus else plural(nodes, "node")
    ratio = size_ratio(running, Replacement(gpus=nodes * gpus, nodes=nodes))
    return pace.rate / running.rate / ratio, f"measured: {name} did {part} on {amount}{more}"


def _similar_runs(
    home: str, spec: RunSpec, size: tuple[int, int], environ: Mapping[str, str], now: float
) -> Iterator[tuple[str, ProgressRate]]:
    """Runs of the experiment that do the same on so many GPUs of the same type, under way or ended, with their pace."""
    reader = RunReader(home)
    gpu_type = _asked(reader, reader.run(spec.name)).gpu_type
    names = [name for name in run_names(home) if name.partition("/")[0] == spec.experiment and name != spec.name]
    specs = {name: reader.spec(name) for name in names[-_MAX_EARLIER:]}
    same = {name: other for name, other in specs.items() if other is not None and _does_the_same(other, spec)}
    views = observe(home, list(same), environ=environ).views if same else {}
    for name, other in same.items():
        files = reader.run(name)
        asked = _asked(reader, files)
        is_as_large = asked.nodes * asked.gpus == size[0] * size[1] and (size[1] or asked.nodes == size[0])
        if is_as_large and asked.gpu_type == gpu_type:
            pace = _pace(files, views[name], other, now)
            if pace is not None:
                yield name, pace


def _does_the_same(one: RunSpec, other: RunSpec) -> bool:
    return one.work() == other.work() and have_same_start([one.starts(), other.starts()])


def _pace(files: RunFiles, view: RunView, spec: RunSpec, now: float) -> ProgressRate | None:
    """How fast a run is, or was: a completed one by its duration, if one attempt did all of it. None if not known."""
    end = files.end
    if end is None or not end.success:
        return known_pace(view, kernel_progress.read_progress(run_output(view, spec)), now)
    is_whole = end.attempt == 1 and end.stopped_by is None
    return ProgressRate(fraction=1.0, measured_s=max(1.0, end.duration_s)) if is_whole else None


def _asked(reader: RunReader, files: RunFiles) -> RequestedResources:
    """What its newest job asked for; of one that completed only the end is read."""
    record = files.end if files.claim is None else files.claim
    submission = reader.submission(record.token).submission if record is not None else None
    return (submission.asked if submission else None) or RequestedResources()
