"""What the run view of the page tells beside log and curves: attempts, the command to repeat it, provenance, files.

Files are a listing: names, sizes and times inside the output directory, links not followed; no file is sent.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from shoal.kernel import layout, list_names, read_json
from shoal.model import ACTIVE_STATES, RETRYABLE_STATES, RunSpec
from shoal.observe import DamagedRecord, RunReader, RunView, command_words, read_start, run_files
from shoal.redaction import redact
from shoal.views.terminal import strip_control_sequences

_MAX_FILES = 500
_MAX_ENTRIES = 5000
_MAX_LEVELS = 4
_MAX_DIFF = 200_000


def attempts(home: str, name: str) -> list[dict[str, Any]]:
    """Each attempt, oldest first: where and when it ran, from which checkpoint, and how it ended."""
    folder = layout.run_dir(home, name)
    names = layout.parse_names(list_names(folder))
    found = []
    for number in names.attempts.get("start", []):
        try:
            start, end = read_start(folder, number), run_files.read_end(folder, names, number)
        except DamagedRecord as damage:
            found.append({"attempt": number, "problem": damage.message})
            continue
        if start is None:
            continue
        found.append({
            "attempt": number, "started": start.t, "node": start.place, "job_id": start.job_label or start.job_id,
            "resume_from": start.resume_from, "ended": end.ended if end else None,
            "exit_code": end.exit_code if end else None, "success": end.success if end else None,
            "cause": (end.cause or end.stopped_by) if end else None,
        })  # fmt: skip
    return found


def commands(view: RunView, spec: RunSpec | None) -> dict[str, str]:
    """Lines to copy: the program's own command, and those of shoal that fit the state of the run."""
    name, found = shlex.quote(view.name), {}
    if spec is not None and (spec.command or spec.args):
        place = os.path.join(spec.cwd, spec.subdir) if spec.subdir else spec.cwd
        found["repeat"] = f"cd {shlex.quote(place)} && {shlex.join(command_words(spec))}"
    if view.state == "running" and view.job_id:
        found |= {"attach": f"shoal attach {name}", "forward": f"shoal forward {name} 6006"}
    if view.state in RETRYABLE_STATES:
        found["retry"] = f"shoal retry {name}"
    if view.state in ACTIVE_STATES:
        found["cancel"] = f"shoal cancel {name}"
    return found


def provenance(home: str, view: RunView, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Commit, difference to it, who submitted it and with what, and the packages of its Python, as far as recorded."""
    reader = RunReader(home)
    try:
        files = reader.run(view.name)
        start = files.start
    except DamagedRecord as damage:
        return {"problem": damage.message}
    origin = files.origin.submission if files.origin is not None else None
    found: dict[str, Any] = {}
    if origin is not None:
        about = origin.provenance
        found = {
            "commit": origin.commit, "code": origin.code, "user": origin.user, "submitted": origin.t,
            "cluster": origin.cluster, "shoal": about.shoal if about else None,
            "changed": about.changed if about else None,
        }  # fmt: skip
        if origin.code:
            found["diff"] = _difference(origin.code, secrets)
    python = (start.python or {}) if start is not None else {}
    found |= {"python": python.get("python"), "version": python.get("version")}
    found["packages"] = _packages(home, python.get("packages"))
    return found


def _difference(code: str, secrets: Mapping[str, str]) -> str | None:
    try:
        with open(f"{layout.snapshot_of(code)}.diff", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return redact(strip_control_sequences(file.read(_MAX_DIFF), colour=False), secrets)
    except (OSError, ValueError):
        return None


def _packages(home: str, path: object) -> list[str]:
    """Only from the place where the jobs of this project put them."""
    if not isinstance(path, str) or os.path.dirname(path) != os.path.join(home, "packages"):
        return []
    try:
        found = (read_json(path) or {}).get("packages")
    except ValueError:
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def output_files(folder: str | None) -> dict[str, Any]:
    """Files of an output directory, the newest first; `left_out` counts those beyond the limit, at least."""
    rows: list[tuple[str, int, float]] = []
    left, seen, level = [folder] if folder else [], 0, 0
    while left and level < _MAX_LEVELS and seen < _MAX_ENTRIES:
        deeper: list[str] = []
        for place in left:
            try:
                entries = list(os.scandir(place))
            except OSError:
                continue
            seen += len(entries)
            for entry in entries[:_MAX_ENTRIES]:
                try:
                    about = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        deeper.append(entry.path)
                    else:
                        rows.append((os.path.relpath(entry.path, folder), about.st_size, about.st_mtime))
                except OSError:
                    continue
        left, level = deeper, level + 1
    rows.sort(key=lambda row: (-row[2], row[0]))
    shown = [[_printable(name), size, t] for name, size, t in rows[:_MAX_FILES]]
    return {
        "folder": _printable(folder or ""),
        "files": shown,
        "left_out": len(rows) - len(shown),
        "is_cut": bool(left),
    }


def _printable(text: str) -> str:
    return strip_control_sequences(text.encode("utf-8", "replace").decode(), colour=False)
