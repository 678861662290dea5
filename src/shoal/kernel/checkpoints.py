"""Which checkpoint is the newest: by the numbers in its name, because clocks and copies disagree about times."""

import glob
import os
import re
from typing import List, Optional, Tuple, Union

_DIGITS = re.compile(r"(\d+)")


def newest(folder: str, pattern: str) -> Optional[str]:
    """The newest complete checkpoint in `folder` that matches the pattern, or None.

    "Newest" is the highest by version order (model_10 after model_9). Empty files and names that end like temporary
    ones are half-written and passed over.
    """
    candidates = [path for path in glob.glob(os.path.join(glob.escape(folder), pattern)) if _is_complete(path)]
    return max(candidates, key=_version) if candidates else None


def before(folder: str, pattern: str, checkpoint: str) -> Optional[str]:
    """The newest complete checkpoint that is older than this one, or None."""
    matching = glob.glob(os.path.join(glob.escape(folder), pattern))
    older = [path for path in matching if _is_complete(path) and _version(path)[0] < _version(checkpoint)[0]]
    return max(older, key=_version) if older else None


def step_of(checkpoint: str) -> Optional[int]:
    """The step or epoch that a checkpoint's name carries: the last number in it."""
    numbers = _DIGITS.findall(os.path.basename(checkpoint))
    return int(numbers[-1]) if numbers else None


def _is_complete(path: str) -> bool:
    if path.endswith((".tmp", ".part", ".incomplete")):
        return False
    try:
        return os.path.isdir(path) or os.path.getsize(path) > 0
    except OSError:
        return False


def _version(path: str) -> Tuple[List[Union[Tuple[int, int], Tuple[int, str]]], str]:
    words = _DIGITS.split(os.path.basename(path))
    return [(1, int(word)) if word.isdigit() else (0, word) for word in words], path
