"""How fast a run goes, from how far it came in which time; and from runs like it, how well more GPUs do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from shoal.doctor import ASSUMED_EFFICIENCY, Alternative, Running, size_ratio
from shoal.errors import InputError
from shoal.kernel import Progress, checkpoints
from shoal.kernel import progress as kernel_progress
from shoal.model import RunSpec, have_same_start
from shoal.observe import (
    START_UP_SHARE,
    RequestedResources,
    RunFiles,
    RunReader,
    RunView,
    observe,
    progress_rate,
    run_names,
    run_output,
    start_fraction,
)
from shoal.units import format_duration, plural

#: Runs of an experiment that are looked at for one that did the same on other GPUs.
_MOST_EARLIER = 200
#: Where progress comes from when a person told it.
TOLD = "as you say"


def progress_of(view: RunView, spec: RunSpec, told: str | None = None) -> Progress:
    """How far it has come, as seen or as told. InputError if neither says."""
    seen = _seen(view, spec)
    if told is not None:
        found = kernel_progress.parse_progress(told, plain=True)
        if found is None or not found.fraction:
            raise InputError(f"{told!r} is no progress", hint="--progress 300/1000, or --progress 30%")
        moment = seen.t if seen is not None else os.stat(view.output_dir or ".").st_mtime
        return Progress(found.step, found.total, found.fraction, TOLD, told, moment)
    if seen is None or not seen.fraction:
        what = f"only {seen.text!r} in its {seen.source}" if seen is not None else "nothing in its log or folder"
        raise InputError(
            f"how far {view.name} is cannot be seen: {what}",
            hint=f"shoal switch {view.name} --gpus N --progress 300/1000   # or let it write $SHOAL_PROGRESS",
        )
    return seen


def _seen(view: RunView, spec: RunSpec) -> Progress | None:
    return kernel_progress.read_progress(run_output(view, spec))


def measured(view: RunView, spec: RunSpec, seen: Progress, now: float) -> Running:
    """The job as it is, and how fast it has been since this attempt began."""
    started = view.started or now
    newest = checkpoints.newest_checkpoint(view.output_dir or "", spec.checkpoint) if spec.checkpoint else None
    pace = progress_rate(view, seen._replace(t=now) if seen.source == TOLD else seen, now)
    return Running(
        **msgspec.structs.asdict(pace),
        gpus=view.gpus or 0,
        checkpoint_age_s=None if newest is None else max(0.0, now - os.stat(newest).st_mtime),
        time_left_s=None if view.time_limit_s is None else max(0.0, started + view.time_limit_s - now),
    )


def efficiency(
    home: str,
    name: str,
    spec: RunSpec,
    running: Running,
    size: tuple[int, int],
    given: float | None,
    environ: Mapping[str, str],
) -> tuple[float, str]:
    """How well so many nodes with so many GPUs do, and from where that is known: given; measured, from runs that do the
    same on so many; or assumed."""
    if given is not None:
        return given, "given"
    has_a_pace = running.fraction - running.since >= START_UP_SHARE
    found = sorted(_like_it(home, name, spec, size, environ), key=lambda one: one[1].rate) if has_a_pace else []
    if not found:
        return ASSUMED_EFFICIENCY, "assumed"
    like, pace = found[len(found) // 2]
    more = f", and {len(found) - 1} more like it" if len(found) > 1 else ""
    part = f"{pace.fraction - pace.since:.0%} in {format_duration(pace.measured_s)}"
    nodes, gpus = size
    words = plural(nodes * gpus, "GPU") if gpus else plural(nodes, "node")
    ratio = size_ratio(running, Alternative(gpus=nodes * gpus, nodes=nodes))
    return pace.rate / running.rate / ratio, f"measured: {like} did {part} on {words}{more}"


def _like_it(
    home: str, name: str, spec: RunSpec, size: tuple[int, int], environ: Mapping[str, str]
) -> Iterator[tuple[str, Running]]:
    """Runs of the experiment that do the same on so many GPUs of the same type, under way or ended, with their pace."""
    reader = RunReader(home)
    kind = _asked(reader, reader.run(name)).gpu_type
    others = [one for one in run_names(home) if one.partition("/")[0] == spec.experiment and one != name]
    specs = {one: reader.spec(one) for one in others[-_MOST_EARLIER:]}
    same = {one: other for one, other in specs.items() if other is not None and _does_the_same(other, spec)}
    views = observe(home, list(same), environ=environ).views if same else {}
    for one, other in same.items():
        files = reader.run(one)
        asked = _asked(reader, files)
        is_as_large = asked.nodes * asked.gpus == size[0] * size[1] and (size[1] or asked.nodes == size[0])
        if is_as_large and asked.gpu_type == kind:
            pace = _pace(files, views[one], other)
            if pace is not None and pace.fraction - pace.since >= START_UP_SHARE:
                yield one, pace


def _does_the_same(one: RunSpec, other: RunSpec) -> bool:
    return one.work() == other.work() and have_same_start([one.starts(), other.starts()])


def _pace(files: RunFiles, view: RunView, spec: RunSpec) -> Running | None:
    """How fast a run is, or was; None if that cannot be told."""
    end = files.end
    if end is not None and end.success:
        whole = end.attempt == 1 and end.stopped_by is None
        return Running(gpus=1, fraction=1.0, measured_s=max(1.0, end.duration_s)) if whole else None
    seen, started = _seen(view, spec), files.start and (files.start.program_t or files.start.t)
    begun_at = start_fraction(view, seen)
    if started is None or begun_at is None or seen is None or not seen.fraction:
        return None
    return Running(gpus=1, fraction=seen.fraction, since=begun_at, measured_s=max(1.0, seen.t - started))


def _asked(reader: RunReader, files: RunFiles) -> RequestedResources:
    """What its newest job asked for; of one that ended well only the end is read."""
    record = files.end if files.claim is None else files.claim
    submission = reader.submission(record.token).submission if record is not None else None
    return (submission.asked if submission else None) or RequestedResources()
