"""`shoal doctor --fix`: a corrected copy of a script, checked again, and shown to Slurm.

A rule proposes edits (`ScriptEdit`); this module applies them, reads the result like any other script, and repeats that
while it leads to new edits: a launch that now has four tasks needs other CPUs. The original is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.batch import decode_text, read_directives
from shoal.clusters import ClusterFacts, SbatchCheck, check_with_sbatch
from shoal.doctor.check import ScriptCheck, TrainingInputs, check_script
from shoal.doctor.finding import Finding, ScriptEdit
from shoal.errors import InputError

_MAX_ROUNDS = 4
_MAX_COPIES = 1000


class FixedScript(NamedTuple):
    """A corrected copy: what it corrects, what is left to correct by the reader, and Slurm's answer to it if asked."""

    path: Path
    done: tuple[Finding, ...]
    check: ScriptCheck
    answer: SbatchCheck | None
    directories: tuple[str, ...] = ()

    @property
    def left(self) -> list[Finding]:
        return [finding for finding in self.check.findings if finding.severity != "hint"]


def write_fixed(
    examined: ScriptCheck,
    cluster: ClusterFacts | None,
    environ: Mapping[str, str],
    *,
    inputs: TrainingInputs = TrainingInputs(),  # noqa: B008  (frozen)
    steps: frozenset[str] = frozenset(),
) -> FixedScript | None:
    """Write NAME.fixed.sh beside a script; None when nothing is mechanical.

    It never overwrites: an older fixed file stays, and the new one gets a number. Log directories that are missing are
    made. With a cluster the copy is shown to `sbatch --test-only`.
    """
    script = examined.script
    if script.text.encoding.startswith("utf-16") or not any(finding.edits for finding in examined.findings):
        return None
    path = _new_path(Path(script.path))
    lines, done, directories = list(script.text.lines), list[Finding](), list[str]()
    check = examined
    for _ in range(_MAX_ROUNDS):
        lines, mended = repair(lines, check.findings)
        if not mended:
            break
        lines = "\n".join(lines).split("\n")  # an edit may put several lines in the place of one
        done += mended
        directories += _make_directories(mended)
        data = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
        path.write_bytes(data)
        check = check_script(decode_text(data), path, cluster, environ, inputs=inputs, steps=steps)
    if not done:
        path.unlink()
        return None
    path.chmod(Path(script.path).stat().st_mode & 0o777)
    answer = check_with_sbatch([], environ, str(path)) if cluster is not None else None
    return FixedScript(path, tuple(done), check, answer, tuple(directories))


def _new_path(old: Path) -> Path:
    for number in range(1, _MAX_COPIES):
        path = old.with_name(f"{old.stem}.fixed{'' if number == 1 else f'-{number}'}{old.suffix or '.sh'}")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise InputError(f"cannot write a corrected copy of {old}: {_MAX_COPIES} exist", hint=f"rm {old.stem}.fixed-*")


def _make_directories(findings: Sequence[Finding]) -> list[str]:
    made = []
    for edit in (edit for finding in findings for edit in finding.edits if edit.how == "mkdir"):
        try:
            Path(edit.new).mkdir(parents=True)
        except OSError:
            continue  # it exists by now, or may not be made here; the next check tells
        made.append(edit.new)
    return made


def repair(lines: Sequence[str], findings: Sequence[Finding]) -> tuple[list[str], list[Finding]]:
    """(corrected lines, the findings that this corrects). Edits that no longer find their text are left out."""
    text: list[str | None] = list(lines)
    done: list[Finding] = []
    places: dict[str, list[str]] = {"header": [], "body": [], "end": [], "top": []}
    before: dict[int, list[str]] = {}
    options: dict[str, str] = {}
    for finding in findings:
        if not finding.edits or not all(_is_applicable(edit, text, options) for edit in finding.edits):
            continue
        done.append(finding)
        for edit in finding.edits:
            if edit.how == "drop":
                text[edit.line - 1] = None
            elif edit.how == "replace" and edit.line:
                text[edit.line - 1] = (text[edit.line - 1] or "").replace(edit.old, edit.new, 1)
            elif edit.how == "before":
                before.setdefault(edit.line - 1, []).append(edit.new)
            elif edit.how == "option":
                options[edit.old] = edit.new
            elif edit.how in places and edit.new not in places[edit.how]:
                places[edit.how].append(edit.new)
    return set_options(_apply_edits(text, before, places), options), done


def _is_applicable(edit: ScriptEdit, text: Sequence[str | None], options: Mapping[str, str]) -> bool:
    if edit.how == "option":
        return options.get(edit.old, edit.new) == edit.new
    if edit.how not in ("drop", "replace") or edit.line == 0:
        return True
    if edit.line > len(text):
        return False
    line = text[edit.line - 1]
    return line is not None and (edit.how == "drop" or edit.old in line or edit.old == "\ufeff")


def _apply_edits(
    text: Sequence[str | None], before: Mapping[int, list[str]], places: Mapping[str, list[str]]
) -> list[str]:
    last = 0
    first_command = len(text)
    for index, line in enumerate(text):
        if line is None:
            continue
        if line.startswith("#SBATCH"):
            last = index + 1
        elif line.strip() and not line.lstrip().startswith("#"):
            first_command = index
            break
    if not last:
        # Without directives the header is the shebang and the comments right below it.
        last = 1 if text and (text[0] or "").startswith("#!") else 0
    at_body = max(last, min(first_command, len(text)))
    found: list[str] = list(places["top"])
    for index in range(len(text) + 1):
        if index == last:
            found += places["header"]
        if index == at_body:
            found += places["body"]
        if index < len(text) and (line := text[index]) is not None:
            indent = line[: len(line) - len(line.lstrip())]
            found += [f"{indent}{new}" for new in dict.fromkeys(before.get(index, []))]
            found.append(line)
    return found + places["end"]


def set_options(lines: list[str], options: Mapping[str, str]) -> list[str]:
    """The lines with other values for options of the header; an empty value removes the option."""
    for name, value in options.items():
        lines = _set_option(lines, name, value)
    return lines


def _set_option(lines: list[str], name: str, value: str) -> list[str]:
    directives = read_directives(lines, ())
    new = f"#SBATCH --{name}={value}" if value else ""
    found: list[str] = []
    numbers = {option.line for option in directives.options if option.name == name}
    last = max(directives.lines, default=1 if lines and lines[0].startswith("#!") else 0)
    for number, line in enumerate(lines, start=1):
        if number not in numbers:
            found.append(line)
        else:
            others = [option for option in directives.options if option.line == number and option.name != name]
            words = [f"--{one.name}" + ("" if one.value is None else f"={one.value}") for one in others]
            comment = re.search(r"\s#.*\Z", line[1:])
            if words:
                found.append(f"#SBATCH {' '.join(words)}")
            if new and number == min(numbers):
                found.append(new + (comment[0] if comment and not words else ""))
        if number == last and new and not numbers:
            found.append(new)
    return found if last or not new or numbers else [new, *lines]
