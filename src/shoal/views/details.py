"""What a view shows beyond the state: progress, GPU use, age of the log, and the log's own words about a failure."""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

import msgspec

from shoal.kernel import layout, resumed
from shoal.store import records
from shoal.store.fold import RunView
from shoal.views import usage
from shoal.views.causes import WORDS, Cause, clean, find_cause
from shoal.views.render import BAD_STATES
from shoal.views.tail import last_text, log_age_s

_OF = re.compile(r"(\d+)\s*(?:/|of)\s*(\d+)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
#: Failures whose logs are looked into by one status; beyond that the bare cause has to do.
MOST_LOGS = 3000


class Progress(NamedTuple):
    """The last line that the program wrote to $SHOAL_PROGRESS, and the part of the way that it tells."""

    text: str
    fraction: float | None = None


class Details(NamedTuple):
    progress: Progress | None = None
    log_age_s: float | None = None
    gpu_percent: float | None = None
    gpu_idle_s: float | None = None
    memory_mb: float | None = None
    cause: Cause | None = None
    restart: str | None = None


def details_of(home: str, view: RunView, now: float) -> Details:
    """Details of one run: a running one from its progress, log and samples; a failed one from its log's end."""
    if view.state == "running":
        sample = usage.read(home, view.name, view.attempt)
        idle = sample.idle_node if sample else None
        return Details(
            progress_of(view),
            log_age_s(view.log_dir, view.attempt, now),
            sample.gpu_percent if sample else None,
            idle.gpu_idle_for_s if idle else None,
            sample.memory_mb if sample else None,
            restart=restart_of(home, view),
        )
    if view.state in BAD_STATES and view.log_dir and view.attempt:
        age = log_age_s(view.log_dir, view.attempt, now)
        return Details(cause=cause_in_log(view), log_age_s=age, restart=restart_of(home, view))
    return Details()


def restart_of(home: str, view: RunView) -> str | None:
    """That an attempt started over although it was given a checkpoint, as its log tells; None if it did not."""
    checkpoint = view.resume_from
    if view.state == "done" and view.attempt:  # of which the view tells only the end
        start = records.read_start(layout.run_dir(home, view.name), view.attempt)
        checkpoint = start.resume_from if start is not None else None
    if not checkpoint or not view.log_dir or not view.attempt:
        return None
    began = resumed.beginning(view.log_dir, view.attempt, checkpoint, is_over=view.state != "running")
    return None if began is None or began.continued else began.words(view.attempt, checkpoint)


def cause_in_log(view: RunView) -> Cause | None:
    for stream in ("err", "out"):
        lines = last_text(os.path.join(view.log_dir or "", f"attempt-{view.attempt}.{stream}"), 120, 1 << 15)
        if (cause := find_cause(lines)) is not None:
            return cause
    return None


def with_cause(view: RunView, cause: Cause | None) -> RunView:
    """The view with its cause told in the log's words: "exit code 1: RuntimeError: ..."."""
    if cause is None or view.state != "failed":
        return view
    word = WORDS[cause.kind] if cause.kind not in ("python", "shell", "crash", "import") else ""
    said = f"{word} ({cause.line})" if word and word.lower() not in cause.line.lower() else cause.line
    return msgspec.structs.replace(view, cause=f"{view.cause}: {said}" if view.cause else said)


def progress_of(view: RunView) -> Progress | None:
    """Only running runs have one worth showing."""
    if view.state != "running" or view.output_dir is None:
        return None
    lines = last_text(os.path.join(view.output_dir, "progress"), 5, 4096)
    return next((parse_progress(line) for line in reversed(lines) if line.strip()), None)


def parse_progress(line: str) -> Progress:
    """`120/500`, `step 3 of 9`, `41%`, or a JSON object with step and total; anything else is shown as it is."""
    text = clean(line)
    if text.startswith("{"):
        try:
            return _from_object(json.loads(text), text)
        except ValueError:
            return Progress(text)
    if (match := _OF.search(text)) is not None and int(match[2]) > 0:
        fraction = min(1.0, int(match[1]) / int(match[2]))
        return Progress(text if "%" in text else f"{text} ({fraction:.0%})", fraction)
    if (match := _PERCENT.search(text)) is not None:
        return Progress(text, min(1.0, float(match[1]) / 100))
    return Progress(text)


def _from_object(record: Any, text: str) -> Progress:
    if not isinstance(record, dict):
        return Progress(text)
    step, total = record.get("step"), record.get("total")
    rest = "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in record.items()
        if key not in ("step", "total", "t", "time") and isinstance(value, int | float | str)
    )
    if isinstance(step, int | float) and isinstance(total, int | float) and total > 0:
        fraction = max(0.0, min(1.0, step / total))
        return Progress(f"step {step:g}/{total:g} ({fraction:.0%})" + (f"  {rest}" if rest else ""), fraction)
    return Progress(f"step {step:g}  {rest}".strip() if isinstance(step, int | float) else rest or text)
