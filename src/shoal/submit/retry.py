"""Failed runs, to be started again: which ones, with what changed, and from which checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.describe import STEP_RETRY_CAUSES, PlannedRun, Project, RequestedRun, with_current_step
from shoal.errors import InputError
from shoal.kernel import files, layout, submission
from shoal.model import FAILED_STATES, RETRYABLE_STATES
from shoal.observe import RunReader, RunView, observe, run_files
from shoal.submit.idempotency import IdempotentOrder
from shoal.units import format_memory, format_slurm_time, parse_duration_s, parse_memory_mb

#: What went wrong, as people may ask for it. The agent's end record tells oom, cuda_oom and bad_result apart.
RETRY_CAUSES = tuple(dict.fromkeys((*STEP_RETRY_CAUSES, *sorted(RETRYABLE_STATES))))
_FACTOR_PATTERN = re.compile(r"x(\d+(?:\.\d+)?)", re.ASCII)


class RetryChange(NamedTuple):
    """What the next attempt asks for: memory and time as a factor (x2) or an amount, and whether to avoid the node."""

    memory: str | None = None
    time: str | None = None
    exclude_nodes: bool = False
    fresh: bool = False


def find_failed(
    home: str, names: Sequence[str], states: frozenset[str] | None, causes: Sequence[str], environ: Mapping[str, str]
) -> list[tuple[RunView, str]]:
    """The runs that ended badly and match, each with its cause."""
    for cause in causes:
        if cause not in RETRY_CAUSES:
            raise InputError(
                f"there is no cause {cause!r}", hint=f"--cause one of {', '.join(RETRY_CAUSES)}", place="--cause"
            )
    wanted = states if states is not None else (RETRYABLE_STATES if causes else FAILED_STATES)
    found = []
    for view in observe(home, names, environ=environ).views.values():
        if view.state not in RETRYABLE_STATES & wanted:
            continue
        cause = cause_of(home, view)
        if not causes or cause in causes or (cause == "cuda_oom" and "oom" in causes):
            found.append((view, cause))
    return found


def skipped_sentence(
    home: str, names: Sequence[str], chosen: Sequence[RunView], environ: Mapping[str, str]
) -> str | None:
    """The runs that ended badly and are not started again, in words; None if there are none."""
    taken = {view.name for view in chosen}
    rest = [one for one in observe(home, names, environ=environ).views.values() if one.state in RETRYABLE_STATES]
    counts: dict[str, int] = {}
    for view in rest:
        if view.name not in taken:
            counts[view.state] = counts.get(view.state, 0) + 1
    if not counts:
        return None
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    return f"left out: {told}; --state {','.join(counts)} starts them"


def unstarted_runs(home: str, given: IdempotentOrder, environ: Mapping[str, str]) -> list[RunView]:
    """The runs that an unfinished order was about and has not started yet, whatever ends they have come to since."""
    runs = given.record.runs if given.record is not None and not given.is_done else {}
    names = [name for name in runs if name not in given.submitted and name not in given.others]
    return list(observe(home, names, environ=environ).views.values()) if names else []


def cause_of(home: str, view: RunView) -> str:
    """The state's word, except where the agent saw more: a failed program may have run out of GPU memory."""
    if view.state != "failed":
        return view.state
    folder = layout.run_dir(home, view.name)
    end = (
        run_files.read_end(folder, layout.parse_names(files.list_names(folder)), view.attempt) if view.attempt else None
    )
    return end.cause if end is not None and end.cause and end.cause in RETRY_CAUSES else "failed"


def retried_runs(project: Project, views: Sequence[RunView], change: RetryChange) -> list[RequestedRun]:
    """The same runs once more: from their checkpoints, as `submit/decide.py` decides, or from the beginning."""
    home = str(project.home)
    reader = RunReader(home)
    asked = []
    for view in views:
        spec = reader.spec(view.name)
        if spec is None:
            raise InputError(f"{view.name} was never described")
        flags = [*reader.flags(spec), *_changed_flags(home, view, change)]
        avoid = (view.node,) if change.exclude_nodes and view.node else ()
        spec = msgspec.structs.replace(with_current_step(spec, project), flags=flags)
        planned = PlannedRun(spec, avoid=avoid)
        asked.append(RequestedRun(planned, by_name=True, resume=False if change.fresh else None))
    return asked


def _changed_flags(home: str, view: RunView, change: RetryChange) -> list[str]:
    """sbatch flags that win over those of before."""
    found = []
    if change.memory is not None:
        found.append(f"--mem={_memory_flag(home, view, change.memory)}")
    if change.time is not None:
        found.append(f"--time={_time_flag(home, view, change.time)}")
    return found


def _memory_flag(home: str, view: RunView, wish: str) -> str:
    factor = _FACTOR_PATTERN.fullmatch(wish)
    if factor is None:
        return format_memory(parse_memory_mb(wish, place="--mem"))
    had = next((word[6:] for word in _last_options(home, view) if word.startswith("--mem=")), None)
    if had is None:
        raise InputError(f"nothing says how much memory {view.name} had", hint="--mem 64G", place="--mem")
    return format_memory(max(1, round(parse_memory_mb(had, bare_is_mb=True) * float(factor[1]))))


def _time_flag(home: str, view: RunView, wish: str) -> str:
    factor = _FACTOR_PATTERN.fullmatch(wish)
    if factor is None:
        return format_slurm_time(parse_duration_s(wish, place="--time"))
    had = RunReader(home).run(view.name)
    intent = had.origin.submission if had.origin else None
    if intent is None or intent.time_limit_s is None:
        raise InputError(f"nothing says what time limit {view.name} had", hint="--time 2h", place="--time")
    return format_slurm_time(round(intent.time_limit_s * float(factor[1])))


def _last_options(home: str, view: RunView) -> list[str]:
    """How the run's newest job was asked for; follow-ups and retries may have raised it already."""
    claim = RunReader(home).newest_claim(view.name)
    order = submission.last_send(home, claim.token) if claim is not None else None
    return list(order.argv) if order is not None else []
