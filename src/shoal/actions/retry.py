"""Start runs again: those that failed (`retry`), or one from its checkpoint (`resume`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.actions.idempotency import UserCommand, find_command
from shoal.actions.prepare import SubmitOptions, SubmitResult, SubmitTarget
from shoal.actions.submit import CommandOptions, SubmitListener, submit_runs, submit_target
from shoal.describe import (
    PlannedRun,
    Project,
    RequestedRun,
    parse_causes,
    parse_states,
    resumed_run,
    select_runs,
    unselected_sentence,
    with_current_step,
)
from shoal.errors import InputError
from shoal.kernel import submission
from shoal.model import FAILED_STATES, RETRYABLE_STATES
from shoal.observe import RunReader, RunView, observe
from shoal.units import format_memory, format_slurm_time, parse_duration_s, parse_memory_mb

_FACTOR_PATTERN = re.compile(r"x(\d+(?:\.\d+)?)", re.ASCII)


class RetryChange(NamedTuple):
    """What the next attempt asks for: memory and time as a factor (x2) or an amount, and whether to avoid the node."""

    memory: str | None = None
    time: str | None = None
    exclude_nodes: bool = False
    fresh: bool = False


class RetrySelection(NamedTuple):
    """Which runs start again: words for runs (none: all), and states and causes, separated by commas. Without states,
    those that failed."""

    which: Sequence[str] = ()
    states: str | None = None
    causes: str | None = None


def retry_runs(
    selection: RetrySelection,
    change: RetryChange,
    project: Project,
    environ: Mapping[str, str],
    *,
    tell: SubmitListener,
    on: str | None = None,
    command: CommandOptions,
) -> list[SubmitResult]:
    """Start the selected runs again, or what is left to do of the same command, if that was given before."""
    home = str(project.home)
    names = select_runs(home, selection.which)
    user_command = None
    if not command.dry_run:
        meaning = (change, selection.states, selection.causes, on)
        user_command = find_command(home, "retry", names, meaning, command.command_id, environ)
    if user_command is not None and user_command.record is not None:
        views = unstarted_runs(home, user_command, environ)
    else:
        views = _choose_failed(home, names, selection, environ, tell)
        if not views:
            tell.note("no run to retry")
            return []
    target = submit_target(project, on, environ)
    asked = retried_runs(target, views, change)
    return submit_runs(asked, target, tell=tell, command=command, user_command=user_command)


def resume_run(
    run: str,
    flags: Sequence[str],
    project: Project,
    environ: Mapping[str, str],
    *,
    tell: SubmitListener,
    sure: bool = False,
    on: str | None = None,
    command: CommandOptions,
) -> list[SubmitResult]:
    """Continue a run, named or by its output directory, in its own directory, with more sbatch `flags`."""
    asked = resumed_run(run, project, flags)
    names = [asked.run.spec.name]
    user_command = find_command(str(project.home), "resume", names, (on, flags), command.command_id, environ)
    return submit_runs(
        [asked],
        submit_target(project, on, environ),
        tell=tell,
        options=SubmitOptions(sure=sure),
        command=command,
        user_command=None if command.dry_run else user_command,
    )


def _choose_failed(
    home: str, names: Sequence[str], selection: RetrySelection, environ: Mapping[str, str], tell: SubmitListener
) -> list[RunView]:
    """The runs to start again; what is left out is told."""
    states, causes = parse_states(selection.states), parse_causes(selection.causes)
    views = find_failed(home, names, states, causes, environ)
    left_out = skipped_sentence(home, names, views, environ)
    for note in [*unselected_sentence(home, names), *([left_out] if left_out else [])]:
        tell.note(note)
    if not selection.which and any(view.adopted for view in views):
        views = [view for view in views if not view.adopted]
        tell.note("adopted runs are started again only when they are named")
    return views


def _refuse_slurm_changes(change: RetryChange) -> None:
    """On this machine nothing would come of them."""
    for flag, given in (("--exclude-nodes", change.exclude_nodes), ("--mem", change.memory is not None)):
        if given:
            raise InputError(f"{flag} has no effect on this machine", hint=f"remove {flag}")


def find_failed(
    home: str,
    names: Sequence[str],
    states: frozenset[str] | None,
    causes: frozenset[str] | None,
    environ: Mapping[str, str],
) -> list[RunView]:
    """The failed runs that match; `states` may also name cancelled and stopped ones."""
    wanted = RETRYABLE_STATES & (states if states is not None else FAILED_STATES)
    views = observe(home, names, environ=environ).views.values()
    return [view for view in views if view.state in wanted and (causes is None or view.cause in causes)]


def skipped_sentence(
    home: str, names: Sequence[str], chosen: Sequence[RunView], environ: Mapping[str, str]
) -> str | None:
    """The other runs that could be started again, in words; None if all were chosen."""
    taken = {view.name for view in chosen}
    rest = [one for one in observe(home, names, environ=environ).views.values() if one.state in RETRYABLE_STATES]
    counts: dict[str, int] = {}
    for view in rest:
        if view.name not in taken:
            counts[view.state] = counts.get(view.state, 0) + 1
    if not counts:
        return None
    left_out = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    return f"left out: {left_out}; --state {','.join(counts)} starts them"


def unstarted_runs(home: str, user_command: UserCommand, environ: Mapping[str, str]) -> list[RunView]:
    """The runs that an unfinished command was about and has not started yet, whatever ends they have come to since."""
    runs = user_command.record.runs if user_command.record is not None and not user_command.is_done else {}
    names = [name for name in runs if name not in user_command.submitted and name not in user_command.others]
    return list(observe(home, names, environ=environ).views.values()) if names else []


def retried_runs(target: SubmitTarget, views: Sequence[RunView], change: RetryChange) -> list[RequestedRun]:
    """The same runs once more: from their checkpoints, as `actions/decide.py` decides, or from the beginning."""
    project, home = target.project, target.home
    if target.cluster.is_local:
        _refuse_slurm_changes(change)
    reader = RunReader(home)
    asked = []
    for view in views:
        spec = reader.spec(view.name)
        if spec is None:
            raise InputError(f"{view.name} was never described")
        if spec.adopted and not spec.command:
            raise InputError(
                f"the script of {view.name} is not known: Slurm had forgotten it when the job was adopted",
                hint="shoal submit SCRIPT",
            )
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
        found.append(_memory_flag(home, view, change.memory))
    if change.time is not None:
        found.append(f"--time={_time_flag(home, view, change.time)}")
    return found


def _memory_flag(home: str, view: RunView, change: str) -> str:
    """An amount is for the node; a factor is of what the run had, in the way in which it was asked for."""
    factor = _FACTOR_PATTERN.fullmatch(change)
    if factor is None:
        return f"--mem={format_memory(parse_memory_mb(change, place='--mem'))}"
    asked = (word.partition("=") for word in _last_options(home, view))
    flag, _, had = next((one for one in asked if one[0] in ("--mem", "--mem-per-cpu", "--mem-per-gpu")), ("", "", ""))
    if not had:
        raise InputError(f"nothing says how much memory {view.name} had", hint="--mem 64G", place="--mem")
    return f"{flag}={format_memory(max(1, round(parse_memory_mb(had, bare_is_mb=True) * float(factor[1]))))}"


def _time_flag(home: str, view: RunView, change: str) -> str:
    factor = _FACTOR_PATTERN.fullmatch(change)
    if factor is None:
        return format_slurm_time(parse_duration_s(change, place="--time"))
    had = RunReader(home).run(view.name)
    intent = had.origin.submission if had.origin else None
    if intent is None or intent.time_limit_s is None:
        raise InputError(f"nothing says what time limit {view.name} had", hint="--time 2h", place="--time")
    return format_slurm_time(round(intent.time_limit_s * float(factor[1])))


def _last_options(home: str, view: RunView) -> list[str]:
    """How the run's newest job was asked for; follow-ups and retries may have raised it already."""
    claim = RunReader(home).newest_claim(view.name)
    record = submission.last_send(home, claim.token) if claim is not None else None
    return list(record.argv) if record is not None else []
