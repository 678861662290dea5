"""A question, before something is done that cannot be undone: yes or no, or one of several words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence


def confirm(question: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Only a clear yes is one; Ctrl-D is no."""
    return _answer(question, ("yes", "no"), "y/N", environ) == "yes"


def choose_word(question: str, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """One of the words, by its first letter or whole; the last one for anything else, and for Ctrl-D."""
    return _answer(question, words, "/".join(words), environ)


def _answer(question: str, words: Sequence[str], choices: str, environ: Mapping[str, str]) -> str:
    """Numbers to choose from where the screen is read aloud (ACCESSIBLE=1) or the terminal can do nothing but print
    (TERM=dumb)."""
    numbered = bool(environ.get("ACCESSIBLE")) or environ.get("TERM") == "dumb"
    keys = {str(at): word for at, word in enumerate(words, 1)}
    if numbered:
        lines = "\n".join(f"{key}: {word}" for key, word in keys.items())
        prompt = f"{question}\n{lines}\nAnswer with a number, {len(words)} if empty: "
    else:
        keys = {key: word for word in reversed(words) for key in (word, word[0])}
        prompt = f"{question} [{choices}] "
    try:
        answer = input(prompt).strip().lower()
    except EOFError:
        print()
        return words[-1]
    return keys.get(answer, words[-1])
