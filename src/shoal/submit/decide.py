"""(the run asked for, the run that is there) -> start it, leave it alone, or refuse. Pure."""

from __future__ import annotations

from typing import NamedTuple

from shoal.errors import InputError
from shoal.model import ACTIVE_STATES, ATTENTION_STATES, RunSpec
from shoal.observe import RunView


class StartDecision(NamedTuple):
    """`start` with the revision to record, or a reason to leave the run alone."""

    start: bool
    revision: int
    reason: str


def decide_start(
    spec: RunSpec, kept: RunSpec | None, view: RunView, *, again: bool, by_name: bool = False
) -> StartDecision:
    """What to do with a run that is asked for. `kept` is what was recorded under its name before, if anything.

    The same run asked for twice is one run: in flight or done, it is left alone. One that failed starts again. Other
    settings under the same name start a new revision, but never silently beside or over a result of the old ones.
    What a search has stopped stays so, unless a person names that run (`by_name`: retry, resume).
    """
    if kept is not None and kept.title != spec.title:
        raise InputError(
            f"{spec.title or spec.name!r} and {kept.title or kept.name!r} would both be called {spec.name}",
            hint="rename one of the two scripts",
        )
    revision = kept.revision if kept else 0
    changed = [] if kept is None else spec_differences(kept, spec)
    if view.state in ACTIVE_STATES:
        if again or changed:
            what = "with other settings: " + "; ".join(changed) if changed else "already"
            raise InputError(f"{spec.name} is {view.state} {what}", hint=f"shoal cancel {spec.name}")
        job = f" as job {view.job_id}" if view.job_id else ""
        why = f": {view.cause}" if view.state in ATTENTION_STATES and view.cause else ""
        return StartDecision(False, revision, f"{view.state} already{job}{why}")
    if again:
        return StartDecision(True, revision + 1, "started over")
    if view.state == "done":
        if changed:
            raise InputError(
                f"{spec.name} is done with other settings: {'; '.join(changed)}",
                hint="add --again to start it over (the old results stay), or give the script a new number",
            )
        return StartDecision(False, revision, f"done already (attempt {view.attempt})")
    if kept is None:
        return StartDecision(True, 1, "new")
    if changed:
        return StartDecision(True, revision + 1, f"{view.state} before, settings changed")
    if view.state == "stopped" and not by_name:
        return StartDecision(False, revision, view.cause or "stopped by search")
    return StartDecision(True, revision, "new" if view.state == "new" else f"{view.state} before")


def spec_differences(old: RunSpec, new: RunSpec) -> list[str]:
    """What differs between two descriptions of one run, a phrase each, values cut short."""
    before, after = old.identity(), new.identity()
    found = []
    for key in {**before, **after}:
        was, now = before.get(key), after.get(key)
        if was == now:
            continue
        if isinstance(was, dict) or isinstance(now, dict):
            was, now = was or {}, now or {}
            pairs = [(name, was.get(name), now.get(name)) for name in sorted({*was, *now})]
        else:
            pairs = [(key, was, now)]
        found += [f"{name} was {_short_value(a)}, now {_short_value(b)}" for name, a, b in pairs if a != b]
    return found


def _short_value(value: object) -> str:
    if value is None:
        return "not set"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
