"""Findings that a reader has already judged: ignore comments in a script, codes on the command line, a baseline file.

    python train.py   # shoal: ignore G21          this line
    # shoal: ignore G16 R09                        the command below, or the directive
    # shoal: ignore-file N01                       the whole script

A baseline file holds the findings of one day. A finding is recognised in it by file, code and the text of its line, so
that it stays known when lines are added above; a second one of the same kind is new.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.doctor.finding import RULES, Finding
from shoal.doctor.script import BatchScript
from shoal.errors import DiskError, InputError

_COMMENT = re.compile(r"#\s*shoal:\s*ignore(?P<whole>-file)?\b[ \t:]*(?P<codes>[A-Z]\d\d(?:[,\s]+[A-Z]\d\d)*)?")
_SCHEMA = 1


class IgnoreComments(NamedTuple):
    """Codes that a script's comments switch off, for all of it and for single lines."""

    everywhere: frozenset[str]
    by_line: dict[int, frozenset[str]]
    unknown: tuple[tuple[int, str], ...]

    def covers(self, finding: Finding) -> bool:
        return finding.code in self.everywhere or finding.code in self.by_line.get(finding.line, ())


def read_ignore_comments(script: BatchScript) -> IgnoreComments:
    """All ignore comments. One that stands alone holds for the next line that is not blank and not another of them."""
    everywhere: set[str] = set()
    by_line: dict[int, frozenset[str]] = {}
    unknown: list[tuple[int, str]] = []
    waiting: frozenset[str] = frozenset()
    for number, line in enumerate(script.text.lines, start=1):
        match = _COMMENT.search(line) if "shoal" in line else None
        codes = frozenset(re.findall(r"[A-Z]\d\d", match["codes"] or "")) if match is not None else frozenset()
        if match is not None:
            unknown += [(number, code or "") for code in sorted(codes - set(RULES)) or ([] if codes else [""])]
        if match is not None and match["whole"]:
            everywhere |= codes
        elif match is not None and not line[: match.start()].strip():
            waiting |= codes
        elif line.strip() and (waiting or codes):
            by_line[number] = waiting | codes
            waiting = frozenset()
    return IgnoreComments(frozenset(everywhere), _over_commands(script, by_line), tuple(unknown))


def _over_commands(script: BatchScript, by_line: dict[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """What holds for one line of a command holds for all its lines: a comment cannot stand behind a backslash."""
    found = dict(by_line)
    for command in script.commands:
        numbers = range(command.line, command.last_line + 1)
        codes = frozenset().union(*(by_line.get(number, frozenset()) for number in numbers))
        if codes:
            found.update({number: found.get(number, frozenset()) | codes for number in numbers})
    return found


class CodeChoice(NamedTuple):
    """--select and --ignore: codes, or beginnings of codes such as G or S0."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def covers(self, finding: Finding) -> bool:
        """The finding is not wanted."""
        chosen = not self.select or finding.code.startswith(self.select)
        return not chosen or (bool(self.ignore) and finding.code.startswith(self.ignore))


def parse_code_choice(select: Sequence[str], ignore: Sequence[str]) -> CodeChoice:
    """InputError for a word with which no code begins."""
    from shoal.doctor import rules

    rules.load_rules()
    parsed = []
    for flag, values in (("--select", select), ("--ignore", ignore)):
        codes = tuple(code.strip().upper() for value in values for code in value.split(",") if code.strip())
        for code in codes:
            if not any(name.startswith(code) for name in RULES):
                raise InputError(f"invalid {flag} {code!r}: expected codes such as G16, or G for all of a kind",
                                 hint="shoal doctor --help   # docs/doctor.md lists all codes")  # fmt: skip
        parsed.append(codes)
    return CodeChoice(*parsed)


class Baseline:
    """Findings that are known; each entry covers one finding."""

    def __init__(self, folder: Path, known: Iterable[tuple[str, str, str]]) -> None:
        self.folder = folder
        self._left = Counter(known)

    def covers(self, finding: Finding, script: BatchScript) -> bool:
        """It was known; asked for each finding once."""
        key = _key(finding, script, self.folder)
        self._left[key] -= 1
        return self._left[key] >= 0


def read_baseline(path: Path) -> Baseline:
    """InputError for a file that is not one of ours, DiskError for one that cannot be read."""
    hint = f"shoal doctor . --write-baseline {path}"
    try:
        document = json.loads(path.read_text())
        known = [(str(one["file"]), str(one["code"]), str(one["text"])) for one in document["findings"]]
        schema = document["schema"]
    except OSError as error:
        raise DiskError(f"cannot read baseline {path}: {error.strerror or error}", hint=hint) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a baseline of shoal doctor", hint=hint) from None
    if schema != _SCHEMA:
        raise InputError(f"baseline {path} has schema {schema}, and this shoal reads {_SCHEMA}", hint=hint)
    return Baseline(path.resolve().parent, known)


def write_baseline(path: Path, findings: Iterable[tuple[Finding, BatchScript]]) -> int:
    """Write all findings as known; returns how many."""
    folder = path.resolve().parent
    keys = sorted(_key(finding, script, folder) for finding, script in findings)
    entries = [{"file": file, "code": code, "text": text} for file, code, text in keys]
    try:
        path.write_text(json.dumps({"schema": _SCHEMA, "findings": entries}, indent=1) + "\n")
    except OSError as error:
        raise DiskError(f"cannot write baseline {path}: {error.strerror or error}") from None
    return len(entries)


def _key(finding: Finding, script: BatchScript, folder: Path) -> tuple[str, str, str]:
    lines = script.text.lines
    text = lines[finding.line - 1].strip() if 0 < finding.line <= len(lines) else ""
    return os.path.relpath(os.path.abspath(finding.file), folder), finding.code, text
