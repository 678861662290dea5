"""argparse, with mistakes told as shoal tells all others: one sentence and a command that helps."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    def __init__(self, prog: str, description: str | None = None, **more: Any) -> None:
        # A width of our own: to find the terminal's, argparse would import shutil and what that needs.
        def formatter(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, width=100)

        more = {"formatter_class": formatter, "allow_abbrev": False, **more}
        super().__init__(prog=prog, description=description, **more)

    def error(self, message: str) -> NoReturn:
        from shoal.errors import InputError

        raise InputError(f"{self.prog}: {message}", hint=f"{self.prog} --help")
