"""A question with yes or no, before something is done that cannot be undone."""

from __future__ import annotations

import os
from collections.abc import Mapping


def agreed(question: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Only a clear yes is one; Ctrl-D is no. Numbers to choose from where the screen is read aloud (ACCESSIBLE=1) or
    the terminal can do nothing but print (TERM=dumb)."""
    numbered = bool(environ.get("ACCESSIBLE")) or environ.get("TERM") == "dumb"
    prompt = f"{question}\n1: yes\n2: no\nAnswer with a number, 2 if empty: " if numbered else f"{question} [y/N] "
    try:
        answer = input(prompt).strip().lower()
    except EOFError:
        print()
        return False
    return answer in (("1",) if numbered else ("y", "yes"))
