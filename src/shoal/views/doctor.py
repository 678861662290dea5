"""Findings and geometry, as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.clusters import ClusterFacts
from shoal.doctor import (
    SEVERITY_ORDER,
    FixedScript,
    LaunchNumbers,
    ScriptCheck,
    SmokeResult,
    as_record,
    explain_rows,
)
from shoal.views.render import print_json, safe_line

#: Corrected copies, each with what its smoke run showed.
FixedScripts = Sequence[tuple[FixedScript, SmokeResult | None]]
_COLOUR = {"error": "31", "warning": "33", "hint": "36"}


def show_findings(examined: Sequence[ScriptCheck], *, quiet: bool, fixed: FixedScripts = ()) -> None:
    """file:line: severity CODE sentence; below it what will happen and what to do. Quiet: only the first line."""
    for one in examined:
        for finding in one.findings:
            place = f"{finding.file}:{finding.line}"
            print(f"{place}: {_paint(finding.severity)} {finding.code} {safe_line(finding.message)}")
            if not quiet:
                print(f"    then  {safe_line(finding.effect)}\n    fix   {safe_line(finding.fix)}")
    for copy, smoke in fixed:
        _show_fixed(copy, smoke)
    if not quiet:
        print(_summary(examined, fixed))


def _show_fixed(copy: FixedScript, smoke: SmokeResult | None) -> None:
    print(f"wrote {copy.path} ({', '.join(dict.fromkeys(finding.code for finding in copy.done))})")
    for directory in dict.fromkeys(copy.directories):
        print(f"  made directory {directory}")
    for finding in copy.left:
        print(f"  left: line {finding.line}: {_paint(finding.severity)} {finding.code} {safe_line(finding.message)}")
    if copy.answer is not None:
        verdict = "accepts it" if copy.answer.accepted else f"refuses it: {copy.answer.objection}"
        print(f"  sbatch --test-only {safe_line(verdict)}")
    if smoke is not None:
        print(f"  smoke run (job {smoke.job_id}) {'passed' if smoke.passed else 'failed'}: {smoke.sentence}")
        for line in smoke.log_tail.splitlines():
            print(f"    {safe_line(line)}")


def _fixed_record(copy: FixedScript, smoke: SmokeResult | None) -> dict[str, Any]:
    answer = copy.answer
    return {
        "file": str(copy.path),
        "codes": [finding.code for finding in copy.done],
        "left": [as_record(finding) for finding in copy.left],
        "directories": list(copy.directories),
        "accepted": None if answer is None else answer.accepted,
        "objection": None if answer is None or answer.accepted else answer.objection,
        "smoke": None if smoke is None else {**smoke._asdict()},
    }


def findings_document(
    examined: Sequence[ScriptCheck],
    cluster: ClusterFacts | None,
    explained: Sequence[tuple[str, LaunchNumbers]] = (),
    fixed: FixedScripts = (),
) -> dict[str, Any]:
    """What --json prints: all findings of all files, and per file what could be read."""
    found = [as_record(finding) for one in examined for finding in one.findings]
    files = [
        {"file": one.script.path, "kind": one.script.kind, "language": one.script.language, "worst": one.worst,
         "nearest": one.facts.nearest, "ignored": one.ignored}
        for one in examined
    ]  # fmt: skip
    result: dict[str, Any] = {"findings": found, "files": files, "cluster": cluster is not None}
    if explained:
        result["geometry"] = [{"file": file, **msgspec.to_builtins(one)} for file, one in explained]
    if fixed:
        result["fixed"] = [_fixed_record(copy, smoke) for copy, smoke in fixed]
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
        for line in one.command.splitlines():
            print(f"  {line}")
        for note in one.notes:
            print(f"  note: {safe_line(note)}")


def _summary(examined: Sequence[ScriptCheck], fixed: FixedScripts) -> str:
    counts = dict.fromkeys(SEVERITY_ORDER, 0)
    for one in examined:
        for finding in one.findings:
            counts[finding.severity] += 1
    files = f"{len(examined)} script{'s' if len(examined) != 1 else ''}"
    ignored = sum(one.ignored for one in examined)
    also = f" ({ignored} ignored)" if ignored else ""
    if not any(counts.values()):
        return f"{files}: nothing found{also}"
    totals = ", ".join(f"{number} {word}{'s' if number != 1 else ''}" for word, number in counts.items() if number)
    mechanical = any(finding.edits for one in examined for finding in one.findings) and not fixed
    return f"{files}: {totals}{also}" + ("; --fix writes corrected copies" if mechanical else "")


def _paint(severity: str) -> str:
    import os

    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return severity if plain else f"\x1b[{_COLOUR[severity]}m{severity}\x1b[0m"
