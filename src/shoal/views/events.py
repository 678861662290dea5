"""What happened to a run, from the times of the small files in its folder."""

from __future__ import annotations

import os
from typing import Any

from shoal.kernel import layout, list_names
from shoal.observe import DamagedRecord, read_start


def run_events(home: str, name: str) -> list[dict[str, Any]]:
    """What happened to a run, oldest first: the small files of its folder, by the time they were written."""
    words = {
        "claim": "submitted",
        "cancel": "cancel asked for",
        "start": "attempt {n} started",
        "end": "attempt {n} ended",
        "lost": "attempt {n} was lost",
        "handover": "another job asked attempt {n} to end",
        "verdict": "Slurm's word kept",
    }
    folder = layout.run_dir(home, name)
    found = []
    for file in list_names(folder):
        parts = file.split(".")
        if len(parts) not in (3, 4) or parts[0] not in ("submit", "attempt"):
            continue
        text = words.get(parts[2].rstrip("0123456789"), "")
        if text:
            try:
                moment = _start_time(folder, int(parts[1])) if parts[2] == "start" else None
                moment = moment or os.stat(os.path.join(folder, file)).st_mtime
            except (OSError, ValueError):
                continue
            found.append({"t": moment, "what": text.format(n=parts[1]), "file": file})
    return sorted(found, key=lambda event: (event["t"], event["file"]))


def _start_time(folder: str, attempt: int) -> float | None:
    """As the record says: its file is the one that the end is written to."""
    try:
        start = read_start(folder, attempt)
    except DamagedRecord:
        return None
    return start.t if start is not None else None
