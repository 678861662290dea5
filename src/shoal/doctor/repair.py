"""Apply the mechanical fixes of findings to a script's lines. Pure; writing is the caller's."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.doctor.finding import Edit, Finding


def repair(lines: Sequence[str], findings: Sequence[Finding]) -> tuple[list[str], list[Finding]]:
    """(corrected lines, the findings that this corrects). Edits that no longer find their text are left out."""
    text: list[str | None] = list(lines)
    done: list[Finding] = []
    header: list[str] = []
    body: list[str] = []
    end: list[str] = []
    top: list[str] = []
    for finding in findings:
        if not finding.edits or not all(_possible(edit, text) for edit in finding.edits):
            continue
        done.append(finding)
        for edit in finding.edits:
            if edit.how == "drop":
                text[edit.line - 1] = None
            elif edit.how == "replace" and edit.line:
                text[edit.line - 1] = (text[edit.line - 1] or "").replace(edit.old, edit.new, 1)
            else:
                place = {"header": header, "body": body, "end": end, "top": top}.get(edit.how, [])
                if edit.new not in place:
                    place.append(edit.new)
    return _together(text, header, body, end, top), done


def _possible(edit: Edit, text: Sequence[str | None]) -> bool:
    if edit.how not in ("drop", "replace") or edit.line == 0:
        return True
    if edit.line > len(text):
        return False
    line = text[edit.line - 1]
    return line is not None and (edit.how == "drop" or edit.old in line or edit.old == "\ufeff")


def _together(
    text: Sequence[str | None], header: list[str], body: list[str], end: list[str], top: list[str]
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
    found: list[str] = list(top)
    for index in range(len(text) + 1):
        if index == last:
            found += header
        if index == at_body:
            found += body
        if index < len(text) and (line := text[index]) is not None:
            found.append(line)
    return found + end
