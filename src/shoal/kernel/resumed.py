"""Did an attempt that was given a checkpoint continue from it? Its log tells: where its progress begins.

A program that ignores its checkpoint begins where the first attempt began. Steps in logs and the number in a
checkpoint's name may count different things, so logs are compared with logs first.
"""

import os
from typing import List, NamedTuple, Optional

from . import checkpoints, files, layout, lease
from .progress import lines, tables

#: Progress is looked for in so much of the beginning, and of the end, of a log.
_HEAD_BYTES = 1 << 18
_TAIL_BYTES = 1 << 16
#: The first two steps decide: a bar may be drawn at 0 before it jumps to where the program is.
_MIN_STEPS = 2


class ResumeCheck(NamedTuple):
    """Where an attempt with a checkpoint began; `reached` is what was done before it."""

    continued: bool
    step: float
    reached: float

    def words(self, attempt: int, checkpoint: str) -> str:
        name = os.path.basename(checkpoint)
        if self.continued:
            return "attempt %d continued from %s: its progress begins at step %g" % (attempt, name, self.step)
        return "attempt %d did not continue from %s: its progress begins at step %g, and step %g was reached before" % (
            attempt,
            name,
            self.step,
            self.reached,
        )


class _LoggedSteps(NamedTuple):
    """The first steps that a log tells, no step twice; the last one; and whether they count epochs."""

    first: List[float]
    last: float
    epochs: bool


def check_resume(log_dir: str, attempt: int, checkpoint: str, is_over: bool = False) -> Optional[ResumeCheck]:
    """Where attempt `attempt` began, which was given `checkpoint`; None as long as, or if, its log does not tell.

    Of an attempt that `is_over`, a single line of progress is enough.
    """
    saved = checkpoints.step_of(checkpoint)
    steps = _read_steps(layout.log_file(log_dir, attempt))
    if steps is None or len(steps.first) < (1 if is_over else _MIN_STEPS):
        return None
    before = _earlier_steps(log_dir, attempt)
    if before is not None and before.last > before.first[0]:
        continued = _has_continued(steps, before, saved)
        return None if continued is None else ResumeCheck(continued, steps.first[0], before.last)
    if saved is not None and saved > 1 and not steps.epochs:
        return ResumeCheck(steps.first[-1] >= saved, steps.first[0], float(saved))
    return None


def newest_resumed_attempt(run_dir: str) -> int:
    """The newest attempt that was given a checkpoint and whose log tells, if it continued; 0 if it did not, or none
    tells."""
    names = layout.parse_names(files.list_names(run_dir))
    for number in reversed(names.attempts.get("start", [])):
        attempt = lease.read_attempt(run_dir, names, number)
        if attempt is None or not attempt.start.resume_from:
            continue
        began = check_resume(attempt.start.log_dir, number, attempt.start.resume_from, is_over=True)
        if began is not None:
            return number if began.continued else 0
    return 0


def _has_continued(steps: _LoggedSteps, before: _LoggedSteps, saved: Optional[int]) -> Optional[bool]:
    """Whether the first progress reaches the checkpoint's step, or half of what was done where its name tells none.

    A program that starts over prints its first step a little later or earlier than the first time, and one that prints
    seldom soon passes the half: then nobody knows.
    """
    first, reached = before.first[0], before.last
    target = float(saved) if saved is not None and first < saved <= reached else (first + reached) / 2
    began, then = steps.first[0], steps.first[-1]
    if began >= target:
        return True
    if then >= target:  # a bar at its beginning, and then where the program is; or seldom a line
        jumped = began <= first and then - began > 2 * (before.first[-1] - first)
        return True if jumped else None
    return False if began <= first or began < first + (then - began) else None


def _earlier_steps(log_dir: str, attempt: int) -> Optional[_LoggedSteps]:
    """Where the earliest of the earlier attempts in the same folder began, and the highest step that one reached."""
    earlier = [_read_steps(layout.log_file(log_dir, number)) for number in range(1, attempt)]
    known = [steps for steps in earlier if steps is not None]
    if not known:
        return None
    return min(known, key=lambda steps: steps.first[0])._replace(last=max(steps.last for steps in known))


def _read_steps(path: str) -> Optional[_LoggedSteps]:
    """What a log tells; None if it tells nothing, or counts from the beginning several times, as a bar per epoch."""
    first: List[float] = []
    last, epochs = None, False
    for line in _lines(path):
        parsed = lines.parse_progress(line)
        if parsed is None or parsed[0] is None:
            continue
        if last is not None and parsed[0] < last:
            return None
        if len(first) < _MIN_STEPS and parsed[0] not in first:
            epochs = epochs or "epoch" in line.lower()
            first.append(parsed[0])
        last = parsed[0]
    return None if last is None else _LoggedSteps(first, last, epochs)


def _lines(path: str) -> List[str]:
    """The beginning and the end of a log, and all of one that is short."""
    head = tables.read_start(path, _HEAD_BYTES)
    size = os.path.getsize(path) if len(head) == _HEAD_BYTES else 0
    rest = min(_TAIL_BYTES, size - _HEAD_BYTES)
    return lines.split_lines(head) + (lines.split_lines(tables.read_end(path, rest)) if rest > 0 else [])
