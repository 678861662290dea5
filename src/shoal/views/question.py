"""A question, before something is done that cannot be undone: yes or no, or one of several words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence


def confirm(question: str, environ: Mapping[str, str] = os.environ) -> bool:
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


def choose_word(question: str, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """One of the words, by its first letter or whole; the last one for anything else, and for Ctrl-D."""
    numbered = bool(environ.get("ACCESSIBLE")) or environ.get("TERM") == "dumb"
    if numbered:
        lines = "\n".join(f"{number}: {word}" for number, word in enumerate(words, 1))
        prompt = f"{question}\n{lines}\nAnswer with a number, {len(words)} if empty: "
    else:
        prompt = f"{question} [{'/'.join(words)}] "
    try:
        answer = input(prompt).strip().lower()
    except EOFError:
        print()
        return words[-1]
    if numbered:
        return words[int(answer) - 1] if answer.isdigit() and 0 < int(answer) <= len(words) else words[-1]
    return next((word for word in words if answer in (word, word[0])), words[-1])
