"""Findings and geometry, as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.clusters import ClusterFacts
from shoal.doctor import SEVERITY_ORDER, Finding, LaunchNumbers, ScriptCheck, as_record, explain_rows
from shoal.views.render import print_json, safe_line

_COLOUR = {"error": "31", "warning": "33", "hint": "36"}


def show_findings(
    examined: Sequence[ScriptCheck], *, quiet: bool, fixed: Sequence[tuple[Path, list[Finding]]] = ()
) -> None:
    """file:line: severity CODE sentence; below it what will happen and what to do. Quiet: only the first line."""
    for one in examined:
        for finding in one.findings:
            place = f"{finding.file}:{finding.line}"
            print(f"{place}: {_paint(finding.severity)} {finding.code} {safe_line(finding.message)}")
            if not quiet:
                print(f"    then  {safe_line(finding.effect)}\n    fix   {safe_line(finding.fix)}")
    for path, done in fixed:
        print(f"wrote {path} ({', '.join(dict.fromkeys(finding.code for finding in done))})")
    if not quiet:
        print(_summary(examined, fixed))


def findings_document(
    examined: Sequence[ScriptCheck],
    cluster: ClusterFacts | None,
    explained: Sequence[tuple[str, LaunchNumbers]] = (),
    fixed: Sequence[tuple[Path, list[Finding]]] = (),
) -> dict[str, Any]:
    """What --json prints: all findings of all files, and per file what could be read."""
    found = [as_record(finding) for one in examined for finding in one.findings]
    files = [
        {"file": one.script.path, "kind": one.script.kind, "language": one.script.language, "worst": one.worst,
         "nearest": one.facts.nearest}
        for one in examined
    ]  # fmt: skip
    result: dict[str, Any] = {"findings": found, "files": files, "cluster": cluster is not None}
    if explained:
        result["geometry"] = [{"file": file, **msgspec.to_builtins(one)} for file, one in explained]
    if fixed:
        result["fixed"] = [{"file": str(path), "codes": [finding.code for finding in done]} for path, done in fixed]
    return result


def show_document(value: dict[str, Any]) -> None:
    print_json(value)


def show_geometry(explained: Sequence[tuple[str, LaunchNumbers]]) -> None:
    """One block of names and values for each launch."""
    for file, one in explained:
        print(f"{file}:{one.line}" if one.line else file)
        for name, value in explain_rows(one):
            print(f"  {name:<20} {safe_line(value)}")
        for line in one.header:
            print(f"  {line}")
        if one.command:
            print(f"  {one.command}")
        for note in one.notes:
            print(f"  note: {safe_line(note)}")


def _summary(examined: Sequence[ScriptCheck], fixed: Sequence[tuple[Path, list[Finding]]]) -> str:
    counts = dict.fromkeys(SEVERITY_ORDER, 0)
    for one in examined:
        for finding in one.findings:
            counts[finding.severity] += 1
    files = f"{len(examined)} script{'s' if len(examined) != 1 else ''}"
    if not any(counts.values()):
        return f"{files}: nothing found"
    said = ", ".join(f"{number} {word}{'s' if number != 1 else ''}" for word, number in counts.items() if number)
    mechanical = any(finding.edits for one in examined for finding in one.findings) and not fixed
    return f"{files}: {said}" + ("; --fix writes corrected copies" if mechanical else "")


def _paint(severity: str) -> str:
    import os

    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return severity if plain else f"\x1b[{_COLOUR[severity]}m{severity}\x1b[0m"
