"""What `shoal why` tells about a run, whatever its state, and the words that all states need."""

from __future__ import annotations

import os

import msgspec

from shoal.kernel import layout
from shoal.model import ACTIVE_STATES
from shoal.observe import End, RunFiles, RunReader, RunView, Verdict, derive_attempt_state, records
from shoal.units import format_duration
from shoal.views.faults import error_sentence, find_error

_MAX_ATTEMPTS = 5


class SmallerRequest(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    flag: str
    start: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is as it is. `headline` is one sentence, `evidence` what it rests on, `next` commands to paste."""

    run: str
    state: str
    headline: str
    evidence: list[str] = []
    next: list[str] = []
    kind: str | None = None
    slurm_reason: str | None = None
    start_estimate: float | None = None
    estimate_note: str | None = None
    sooner: list[SmallerRequest] = []
    log_lines: list[str] = []
    log_path: str | None = None


def elapsed_text(view: RunView, now: float | None = None) -> str:
    end = view.ended or now
    if view.started is None or end is None:
        return "it never started"
    limit = f" of {format_duration(view.time_limit_s)}" if view.time_limit_s else ""
    return f"attempt {view.attempt}, {format_duration(max(0.0, end - view.started))}{limit} long"


def earlier_attempts(home: str, view: RunView) -> list[str]:
    """How the attempts before this one ended, oldest first: one that was preempted or lost with its node is explained
    although the run goes on."""
    reader, folder = RunReader(home), layout.run_dir(home, view.name)
    files = reader.run(view.name)
    names = files.names
    numbers = [
        number
        for number in names.attempts.get("start", [])
        if not names.is_live(number) and (number < view.attempt or view.state in ACTIVE_STATES)
    ]
    found = []
    for number in numbers[-_MAX_ATTEMPTS:]:
        try:
            end = records.read_end(folder, names, number)
        except records.DamagedRecord:
            end = None
        if end is not None:
            found.append(_attempt_sentence(home, files, end, _attempt_verdict(folder, names, end)))
    left = len(numbers) - _MAX_ATTEMPTS
    return [f"{left} earlier attempts are not listed; shoal logs {view.name} --all shows them"] * (left > 0) + found


def _attempt_sentence(home: str, files: RunFiles, end: End, verdict: Verdict | None) -> str:
    one = derive_attempt_state(files, end, verdict)
    following = records.read_start(layout.run_dir(home, files.name), end.attempt + 1)
    came_again = following is not None and end.job_id is not None and following.job_id == end.job_id
    bad_nodes = ", ".join(following.failed_nodes) if following is not None else ""
    if bad_nodes:
        how = f"lost with node {bad_nodes}, which failed"
    elif came_again or (verdict is None and one.state == "cancelled" and end.stopped_by != "cancelled"):
        signal = end.stopped_by or "no signal"
        how = f"Slurm stopped it ({signal}) and put its job into the queue again: preempted or requeued"
    elif one.state == "failed":
        how = error_sentence(one, find_error(home, one))
    else:
        how = one.cause or one.state
    span = format_duration(max(0.0, end.ended - end.began))
    return f"attempt {end.attempt} on {one.node}, {span} long: {how}"


def _attempt_verdict(folder: str, names: layout.RunNames, end: End) -> Verdict | None:
    kind = layout.verdict_kind(end.attempt)
    if not names.has_submit(end.generation, kind):
        return None
    return records.read_checked(os.path.join(folder, layout.submit_file(end.generation, kind)), Verdict)


def resubmit_command(home: str, run: str) -> str:
    """The command that submits a run once more: its script, the folder where it comes from a sweep, or retry where
    nothing describes it, as after `shoal pack -- COMMAND`."""
    root = os.path.dirname(home)
    named = [os.path.join("experiments", f"{run}{suffix}") for suffix in (".sh", ".py", ".toml")]
    for path in (*named, os.path.join("experiments", run.split("/")[0])):
        if os.path.exists(os.path.join(root, path)):
            return f"shoal submit {path}"
    return f"shoal retry {run}"
