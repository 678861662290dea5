"""`[steps.NAME.survive]`: what the cluster may do to a run, and how often it goes on after that."""

from __future__ import annotations

import re
from typing import Any

from shoal.describe.document import Table
from shoal.units import parse_duration_s

#: Causes that a retry may answer; the time limit has follow_ups of its own.
CAUSES = ("oom", "cuda_oom", "failed", "bad_result")
_KEYS = ("warn", "tell", "follow_ups", "continue_code", "check", "retry", "memory", "backoff")
_FACTOR = re.compile(r"x(\d+(?:\.\d+)?)", re.ASCII)
_FOLLOW_UPS = 20
#: Slurm delivers the warning up to a minute early, and we stop the program before Slurm kills everything.
_LEAST_WARNING_S = 60


def parse_survival(step: Table) -> dict[str, Any]:
    """The policy as the agent reads it; empty without the table. Every mistake is an InputError with its line."""
    if "survive" not in step:
        return {}
    table = step.table("survive", _KEYS)
    warn, backoff = table.text("warn"), table.text("backoff")
    found: dict[str, Any] = {"tell": table.text("tell", ("signal", "file")) or "signal"}
    if warn is not None:
        found["warn_s"] = parse_duration_s(warn, place=table.place("warn"))
        if found["warn_s"] < _LEAST_WARNING_S:
            raise table.error(("warn",), "a warning comes at least a minute before the time limit", hint='warn = "5m"')
    if backoff is not None:
        found["backoff_s"] = parse_duration_s(backoff, place=table.place("backoff"))
    follow_ups, code = table.integer("follow_ups", 0), table.integer("continue_code", 1)
    if code is not None:
        found["continue_code"] = code
    if follow_ups is not None or warn is not None or code is not None:
        found["follow_ups"] = _FOLLOW_UPS if follow_ups is None else follow_ups
    if "check" in table:
        found["check"] = list(table.words("check") or ())
    retry = table.table("retry", CAUSES)
    times = {cause: retry.integer(cause, 0) for cause in CAUSES if cause in retry}
    if times:
        found["retry"] = times
    memory = table.text("memory")
    if memory is not None:
        factor = _FACTOR.fullmatch(memory)
        if factor is None or not 1 < float(factor[1]) <= 16:
            raise table.error(("memory",), f"{memory!r} does not say how memory grows", hint='memory = "x2"')
        found["memory"] = float(factor[1])
    if times.get("oom") and memory is None:
        raise table.error(("retry",), "a retry after lack of memory needs more of it", hint='memory = "x2"')
    return found
