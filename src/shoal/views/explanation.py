"""What `shoal why` tells about a run, whatever its state, and the words that all states need."""

from __future__ import annotations

import os

import msgspec

from shoal.store.fold import RunView
from shoal.units import format_duration


class Sooner(msgspec.Struct, frozen=True, kw_only=True):
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
    sooner: list[Sooner] = []
    log_lines: list[str] = []
    log_path: str | None = None


def lasted(view: RunView, now: float | None = None) -> str:
    end = view.ended or now
    if view.started is None or end is None:
        return "it never started"
    limit = f" of {format_duration(view.time_limit_s)}" if view.time_limit_s else ""
    return f"attempt {view.attempt}, {format_duration(max(0.0, end - view.started))}{limit} long"


def start_again(home: str, run: str) -> str:
    """The command that submits a run once more: its script, the folder where it comes from a sweep, or retry where
    nothing describes it, as after `shoal pack -- COMMAND`."""
    root = os.path.dirname(home)
    named = [os.path.join("experiments", f"{run}{suffix}") for suffix in (".sh", ".py", ".toml")]
    for path in (*named, os.path.join("experiments", run.split("/")[0])):
        if os.path.exists(os.path.join(root, path)):
            return f"shoal submit {path}"
    return f"shoal retry {run}"
