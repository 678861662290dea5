"""`shoal why RUN`: for a waiting run the reason, evidence and estimate; for one that ended, why it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import msgspec

from shoal.job import job_constraints, replacements_of
from shoal.kernel import layout
from shoal.model import ACTIVE_STATES, ENDED_STATES, QUEUED_STATES, state_verb
from shoal.observe import Observation, RequestedResources, RunReader, RunView, observe, usage
from shoal.units import format_duration, format_memory_short, format_slurm_time, plural
from shoal.views import pending
from shoal.views.details import ignored_checkpoint, run_details
from shoal.views.explanation import (
    Explanation,
    SmallerRequest,
    earlier_attempts,
    elapsed_text,
    explain_failure,
    resubmit_command,
)
from shoal.views.pending import explain_reason
from shoal.views.render import print_json, safe_line, wrap_line
from shoal.views.terminal import Screen, strip_control_sequences


def explain_run(home: str, run: str, environ: Mapping[str, str], clock: Callable[[], float] = time.time) -> Explanation:
    found = observe(home, [run], environ=environ, clock=clock)
    explanation = _explain_view(home, found, run, environ, clock)
    bad = job_constraints.failed_nodes(layout.run_dir(home, run), job_constraints.ask_slurm(environ))
    failed = [f"{', '.join(bad)} failed under it; jobs that follow avoid it where they can"] if bad else []
    restart = ignored_checkpoint(home, found.views[run])
    earlier = earlier_attempts(home, found.views[run])
    adopted = found.views[run].adopted
    earlier = [*([f"adopted: shoal did not submit job {found.views[run].job_id}"] if adopted else []), *earlier]
    more = [*earlier, *failed, *([restart] if restart else []), *_file_evidence(home, run, explanation.headline)]
    return msgspec.structs.replace(explanation, evidence=[*explanation.evidence, *more], adopted=adopted)


def about_job(explanation: Explanation, name: str, label: str) -> Explanation:
    """The explanation of a job that is not a run: it is called by its id, and commands that act on a run are replaced
    by the one that adopts the job."""

    def by_id(text: str) -> str:
        return text.replace(name, label)

    looking = ("shoal logs", "shoal why", "scontrol")
    looks = [by_id(command) for command in explanation.next if command.startswith(looking)]
    acts = len(looks) < len(explanation.next) or not looks
    return msgspec.structs.replace(
        explanation,
        run=f"job {label}",
        headline=by_id(explanation.headline),
        evidence=[by_id(line) for line in explanation.evidence if not line.startswith("adopted: ")],
        adopted=False,
        next=[*looks, *([f"shoal adopt {label}"] if acts else [])],
    )


def _file_evidence(home: str, run: str, headline: str) -> list[str]:
    """Where the program's relative paths lead, and what it changed that is not its own."""
    files = RunReader(home).run(run)
    if files.end is None:
        return []
    notes = [safe_line(note) for note in files.end.notes if note not in headline]
    own = layout.written_dirs(files.end.output_dir)[1:]
    return [*notes, *(f"what it wrote by relative path is in {safe_line(place)}" for place in own)]


def _explain_view(
    home: str, found: Observation, run: str, environ: Mapping[str, str], clock: Callable[[], float]
) -> Explanation:
    view, now = found.views[run], clock()
    before = _unmet_dependencies(home, run, environ, clock) if view.started is None else []
    if before and (view.state in ACTIVE_STATES or any(one.state in ENDED_STATES for one in before)):
        return _explain_blocked(home, view, before)
    if view.state in QUEUED_STATES:
        return _explain_pending(home, view, found.slurm_problem, environ, now)
    reader = RunReader(home)
    spec = reader.spec(run)
    if view.state == "running":
        return _explain_running(home, view, environ, now)
    if view.state == "completed":
        evidence = [elapsed_text(view)] if view.started else []
        return Explanation(run=run, state="completed", headline=view.reason or "exit code 0", evidence=evidence)
    if view.state not in ENDED_STATES:
        return Explanation(
            run=run,
            state=view.state,
            headline=f"Slurm refused it: {view.reason}"
            if view.refused
            else view.reason or "it has not been submitted yet",
            next=[resubmit_command(home, run)] if view.state == "new" else [f"shoal status {run}"],
        )
    return explain_failure(home, view, spec, _requested_resources(home, reader, run))


def _unmet_dependencies(home: str, run: str, environ: Mapping[str, str], clock: Callable[[], float]) -> list[RunView]:
    """The runs that must complete before this one starts, as far as they have not."""
    origin = RunReader(home).run(run).origin
    needs = origin.submission.needs if origin and origin.submission else []
    views = observe(home, needs, environ=environ, clock=clock).views if needs else {}
    return [view for view in views.values() if view.state != "completed"]


def _explain_blocked(home: str, view: RunView, before: list[RunView]) -> Explanation:
    """A run that waits for others, or never started because one of them failed."""
    bad = next((one for one in before if one.state in ENDED_STATES), None)
    evidence = [f"{one.name} {state_verb(one.state)}{f': {one.reason}' if one.reason else ''}" for one in before]
    if bad is None:
        names = ", ".join(one.name for one in before)
        headline = f"it waits until {names} {'has' if len(before) == 1 else 'have'} completed"
        return Explanation(
            run=view.name, state=view.state, headline=headline, evidence=evidence, next=[f"shoal why {before[0].name}"]
        )
    explanation = explain_failure(home, bad, RunReader(home).spec(bad.name), None)
    smoke = " --smoke" if bad.name.endswith("_smoke") else ""
    what = "its smoke run" if smoke else "what it builds on,"
    return Explanation(
        run=view.name,
        state=view.state,
        headline=f"it never started, because {what} {bad.name} {state_verb(bad.state)}",
        evidence=[*evidence, explanation.headline],
        next=[f"shoal why {bad.name}", f"{resubmit_command(home, view.name)}{smoke}   # once it is fixed"],
    )


def _explain_pending(
    home: str, view: RunView, problem: str | None, environ: Mapping[str, str], now: float
) -> Explanation:
    if problem is not None or view.job_id is None:
        headline = "it waits in Slurm's queue, and Slurm does not answer now"
        return Explanation(
            run=view.name, state=view.state, headline=headline, evidence=[problem or ""], next=["scontrol ping"]
        )
    waiting = pending.query_pending_job(view.job_id, environ)
    word = waiting.reason if waiting else (view.reason or "").rpartition("; ")[2] or None
    reason = explain_reason(word)
    partition = waiting.partition if waiting else view.partition or "?"
    waited = format_duration(max(0.0, now - ((waiting.submitted if waiting else None) or view.submitted or now)))
    evidence = [f"waiting for {waited} in partition {safe_line(partition)} as job {view.job_id}"]
    evidence += _queue_evidence(view.job_id, waiting, reason.moves, environ) if waiting else []
    start, note = None, None
    better: list[pending.EarlierStart] = []
    if waiting is not None and reason.moves:
        script, header = _saved_script(home, view.name)
        if reason.smaller and script is not None:
            start, better = pending.find_earlier_starts(script, header, waiting, environ, now)
        else:
            start = waiting.start
        note = None if start is not None else "Slurm gives no estimate of its start"
    action = reason.action.format(run=view.name, job=view.job_id, partition=partition) if reason.action else None
    return Explanation(
        run=view.name,
        state=view.state,
        headline=reason.sentence,
        evidence=evidence,
        next=[action] if action else [],
        kind=None,
        slurm_reason=word,
        start_estimate=start,
        estimate_note=note,
        sooner=[SmallerRequest(what=one.what, flag=one.flag, start=one.start) for one in better],
    )


def _queue_evidence(job: str, waiting: pending.PendingJob, moves: bool, environ: Mapping[str, str]) -> list[str]:
    asked = [f"{waiting.nodes} node(s)", f"{waiting.cpus} CPUs", f"{waiting.memory} memory"]
    asked += [waiting.tres.replace("gres/", "").replace("gres:", "")] if waiting.tres not in ("N/A", "") else []
    lines = [
        f"it asks for {', '.join(asked)}"
        + (f", {format_slurm_time(waiting.time_limit_s)}" if waiting.time_limit_s else "")
    ]
    if waiting.dependency:
        lines.append(f"it depends on {safe_line(waiting.dependency)}")
    if not moves:
        return lines
    before = pending.queue_position(job, waiting, environ)
    if before is not None:
        own = f", {before.own_tasks} of them tasks of its array" if before.own_tasks else ""
        is_one = before.jobs == 1
        lines.append(
            f"{plural(before.jobs, 'pending job')} of the partition {'is' if is_one else 'are'} before it{own}"
        )
    nodes = pending.partition_nodes(waiting.partition, environ)
    if nodes is not None and nodes.total:
        states = ", ".join(f"{number} {safe_line(state)}" for state, number in sorted(nodes.by_state.items()))
        lines.append(f"nodes of {safe_line(waiting.partition)}: {states}")
    return lines


def _explain_running(home: str, view: RunView, environ: Mapping[str, str], now: float) -> Explanation:
    details = run_details(home, view, now)
    evidence = [elapsed_text(view, now)]
    replacements = replacements_of(home, view.name)
    for other in observe(home, replacements, environ=environ).views.values() if replacements else ():
        if other.state in ACTIVE_STATES:
            evidence.append(f"{other.name} is {other.state}, and takes it over when it is healthy (shoal switch)")
    evidence += [f"progress {details.progress.words}"] if details.progress else []
    if details.log_age_s is not None:
        evidence.append(f"it last printed something {format_duration(details.log_age_s)} ago")
    sample = usage.read_usage(home, view.name, view.attempt)
    if sample is not None:
        evidence += [f"on {safe_line(node.host or view.node or '?')}: {_usage_sentence(node)}" for node in sample.nodes]
    if view.gpus and details.gpu_percent is None:
        evidence.append(
            "GPU use: no data, because nothing of shoal runs in the job"
            if view.adopted
            else f"GPU use: no data{f' ({safe_line(sample.gpu_problem)})' if sample and sample.gpu_problem else ''}"
        )
    headline = "it is running"
    if details.gpu_idle_s:
        headline = f"it runs, but its GPUs have done nothing for {format_duration(details.gpu_idle_s)}"
    elif sample is not None and sample.never_used:
        headline = f"it runs, but {sample.never_used} of its {len(sample.gpus)} GPUs have done nothing so far"
    elif details.log_age_s is not None and details.log_age_s > 1800:
        headline = "it runs, but has printed nothing for a while"
    return Explanation(
        run=view.name, state=view.state, headline=headline, evidence=evidence, next=[f"shoal logs {view.name} -f"]
    )


def _usage_sentence(node: usage.NodeUsage) -> str:
    """What a node of a run uses now: CPUs, memory, GPUs."""
    if not node.points:
        return "no samples yet"
    _, cpus, memory_mb, gpu, _ = node.points[-1]
    words = f"{cpus:.1f} CPUs busy, {format_memory_short(memory_mb)} of memory"
    return words if gpu is None else f"{words}, {len(node.gpus)} GPU{'s' * (len(node.gpus) != 1)} at {gpu:.0f}%"


def _requested_resources(home: str, reader: RunReader, run: str) -> RequestedResources | None:
    origin = reader.run(run).origin
    return origin.submission.asked if origin and origin.submission else None


def _saved_script(home: str, run: str) -> tuple[str | None, str]:
    claim = RunReader(home).run(run).claim
    if claim is None:
        return None, ""
    path = os.path.join(layout.submission_dir(home, claim.token), "script.sh")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return path, file.read(1 << 16)
    except OSError:
        return None, ""


def show_explanation(
    explanation: Explanation, screen: Screen, *, as_json: bool = False, quiet: bool = False, now: float | None = None
) -> int:
    """Print it. Exit code 5 only when Slurm was needed and silent."""
    if as_json:
        print_json(msgspec.to_builtins(explanation))
        return 0
    if quiet:
        print(safe_line(explanation.headline))
        return 0
    moment = time.time() if now is None else now
    reason = "" if explanation.headline == f"it is {explanation.state}" else f": {safe_line(explanation.headline)}"
    sentences = [f"{screen.paint(safe_line(explanation.run), '1')} {state_verb(explanation.state)}{reason}"]
    sentences += [f"  {safe_line(line)}" for line in explanation.evidence]
    if explanation.start_estimate is not None:
        sentences.append(f"Slurm estimates its start at {_clock_time(explanation.start_estimate, moment)}")
    elif explanation.estimate_note:
        sentences.append(explanation.estimate_note)
    sentences += [
        f"with {one.what} it could start at {_clock_time(one.start, moment)}: {one.flag}" for one in explanation.sooner
    ]
    for sentence in sentences:
        print("\n".join(wrap_line(sentence, screen)))
    if explanation.log_lines:
        print(f"from {safe_line(explanation.log_path or 'its log')}:")
        for line in explanation.log_lines:
            print(f"    {strip_control_sequences(line, colour=False)}")
    for command in explanation.next:
        print(f"hint: {command}")
    return 0


def _clock_time(moment: float, now: float) -> str:
    away = moment - now
    span = f"in {format_duration(away)}" if away > 0 else "now"
    return f"{time.strftime('%a %H:%M' if away > 72000 else '%H:%M', time.localtime(moment))} ({span})"
