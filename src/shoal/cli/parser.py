"""argparse with shoal's errors: one sentence and a hint."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    def __init__(self, prog: str, description: str | None = None, **more: Any) -> None:
        # A width of our own: to find the terminal's, argparse would import shutil and what that needs.
        def formatter(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, width=100)

        more = {"formatter_class": formatter, "allow_abbrev": False, **more}
        super().__init__(prog=prog, description=description, **more)
        self._words: list[str] = []

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, except that `flags` or `command` are what stands behind `--`, even if options stand
        before it."""
        words = self._words = list(args)
        behind = self._behind_dashes()
        if "--" not in words or behind is None:
            return super().parse_args(words, namespace)
        end = words.index("--")
        found = super().parse_args(words[:end], namespace)
        setattr(found, behind, words[end + 1 :])
        return found

    def _behind_dashes(self) -> str | None:
        positional = (action.dest for action in self._actions if not action.option_strings)
        return next((name for name in positional if name in ("flags", "command")), None)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; `given` on the result are the flags that were written, which a default does not tell."""
        found, rest = super().parse_known_args(args, namespace)
        words = list(args or ())
        given: set[str] = set(getattr(found, "given", ()))
        for word in words[: words.index("--")] if "--" in words else words:
            # --keep=3 and -n3
            spelt = word.partition("=")[0] if word.startswith("--") else word[:2]
            if (action := self._option_string_actions.get(spelt)) is not None:
                given.add(action.option_strings[-1])
        found.given = frozenset(given)
        return found, rest

    def error(self, message: str) -> NoReturn:
        from shoal.errors import InputError

        if "unrecognized arguments" in message and (line := self._line_with_dashes()):
            raise InputError(f"{self.prog}: {message}; a command begins after --", hint=line)
        raise InputError(f"{self.prog}: {message}{self._nearest_flag(message)}", hint=f"{self.prog} --help")

    def _line_with_dashes(self) -> str | None:
        """`shoal run --gpus 1 -- python train.py --lr 0.1` for somebody who left the dashes out."""
        import os
        import shlex
        import shutil

        if self._behind_dashes() != "command" or "--" in self._words:
            return None
        for index, word in enumerate(self._words):
            if not word.startswith("-") and not os.path.exists(word) and shutil.which(word):
                return shlex.join([*self.prog.split(), *self._words[:index], "--", *self._words[index:]])
        return None

    def _nearest_flag(self, message: str) -> str:
        """For a flag that is misspelt: the one that was meant."""
        from difflib import get_close_matches

        _, colon, words = message.partition("unrecognized arguments: ")
        wrong = next((word.partition("=")[0] for word in words.split() if word.startswith("-")), "")
        known = [flag for action in self._actions if action.help != argparse.SUPPRESS for flag in action.option_strings]
        near = get_close_matches(wrong, known, n=1) if colon and wrong.startswith("--") else []
        return f"; did you mean {near[0]}?" if near else ""
