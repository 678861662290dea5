"""A smoke run: the real program for a few steps. It passes when it has done them, or ended well by itself before.

A program that only stays alive has proved nothing, since a hang looks the same: without a step in its time it fails.
"""

import time
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional

from ..kernel import End, progress

if TYPE_CHECKING:
    from .attempt import Attempt

#: Why the agent stopped the program, in its end record.
SMOKE_PASSED, SMOKE_TIMED_OUT = "smoke", "smoke limit"


def smoke_watcher(spec: Mapping[str, Any], output_dir: str, logs: List[str]) -> Optional[Callable[["Attempt"], None]]:
    """What looks at a smoke run now and then; None for any other run."""
    policy = spec.get("smoke")
    if not policy:
        return None
    deadline: List[float] = []  # counts from the first look at the program
    first: List[float] = [] if spec.get("start_from") else [0.0]
    output = progress.RunOutput(output_dir, logs)
    before = progress.read_progress(output)  # of an earlier attempt in the same folder

    def look(attempt: "Attempt") -> None:
        deadline.append(time.monotonic() + float(policy["time_s"]))
        seen = progress.read_progress(output)
        if seen is not None and seen.step is not None and seen != before:
            first.append(seen.step)
            if seen.step - first[0] >= float(policy["steps"]):
                attempt.stop(SMOKE_PASSED)
                return
        if time.monotonic() > deadline[0]:
            attempt.stop(SMOKE_TIMED_OUT)

    return look


def judge_smoke_test(end: End, spec: Mapping[str, Any], last: Optional[progress.Progress]) -> End:
    """Complete the end record of a smoke run: what it passed with, or why it did not."""
    policy = spec["smoke"]
    if end.stopped_by == SMOKE_PASSED:
        seen = last.text if last is not None else "%d steps" % policy["steps"]
        return end._replace(success=True, cause=None, exit_code=0, problem="passed at %s" % seen)
    if end.stopped_by == SMOKE_TIMED_OUT:
        minutes = float(policy["time_s"]) / 60
        seen = "only %s" % last.text if last is not None else "no step to be seen"
        problem = "%s in %g minutes, where %d steps would have passed" % (seen, minutes, policy["steps"])
        return end._replace(stopped_by=None, success=False, cause="failed", problem=problem, exit_code=1)
    return end
