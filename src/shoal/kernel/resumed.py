"""Did an attempt that was given a checkpoint continue from it? Its log tells: where its progress begins.

A program that ignores its checkpoint begins where the first attempt began. Steps in logs and the number in a
checkpoint's name may count different things, so logs are compared with logs first.
"""

import os
from typing import List, NamedTuple, Optional, Tuple

from . import checkpoints, layout
from .progress import lines, tables

#: Progress is looked for in so much of the beginning, and of the end, of a log.
_HEAD_BYTES = 1 << 18
_TAIL_BYTES = 1 << 16
#: The first two steps decide: a bar may be drawn at 0 before it jumps to where the program is.
_STEPS = 2


class Beginning(NamedTuple):
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


class _Steps(NamedTuple):
    """The first steps that a log tells, no step twice; the last one; and whether they count epochs."""

    first: List[float]
    last: float
    epochs: bool


def beginning(log_dir: str, attempt: int, checkpoint: str, is_over: bool = False) -> Optional[Beginning]:
    """Where attempt `attempt` began, which was given `checkpoint`; None as long as its log does not tell.

    Of an attempt that `is_over`, a single line of progress is enough.
    """
    saved = checkpoints.step_of(checkpoint)
    steps = _read(layout.log_file(log_dir, attempt))
    if steps is None or len(steps.first) < (1 if is_over else _STEPS):
        return None
    first, reached = _before(log_dir, attempt)
    if first is not None and reached is not None and reached > first:
        target = float(saved) if saved is not None and first < saved <= reached else (first + reached) / 2
        continued = steps.first[0] > first or steps.first[-1] >= target
        return Beginning(continued, steps.first[0], reached)
    if saved is not None and saved > 1 and not steps.epochs:
        return Beginning(steps.first[-1] >= saved, steps.first[0], float(saved))
    return None


def _before(log_dir: str, attempt: int) -> Tuple[Optional[float], Optional[float]]:
    """The lowest step at which an earlier attempt in the same folder began, and the highest that one reached."""
    earlier = [_read(layout.log_file(log_dir, number)) for number in range(1, attempt)]
    known = [steps for steps in earlier if steps is not None]
    began, reached = [steps.first[0] for steps in known], [steps.last for steps in known]
    return min(began, default=None), max(reached, default=None)


def _read(path: str) -> Optional[_Steps]:
    """What a log tells; None if it tells nothing, or counts from the beginning several times, as a bar per epoch."""
    first: List[float] = []
    last, epochs = None, False
    for line in _lines(path):
        parsed = lines.parse(line)
        if parsed is None or parsed[0] is None:
            continue
        if last is not None and parsed[0] < last:
            return None
        if len(first) < _STEPS and parsed[0] not in first:
            epochs = epochs or "epoch" in line.lower()
            first.append(parsed[0])
        last = parsed[0]
    return None if last is None else _Steps(first, last, epochs)


def _lines(path: str) -> List[str]:
    """The beginning and the end of a log, and all of one that is short."""
    head = tables.read_start(path, _HEAD_BYTES)
    size = os.path.getsize(path) if len(head) == _HEAD_BYTES else 0
    rest = min(_TAIL_BYTES, size - _HEAD_BYTES)
    return lines.split(head) + (lines.split(tables.read_end(path, rest)) if rest > 0 else [])
