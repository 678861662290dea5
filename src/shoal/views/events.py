"""What happened to a run, from the times of the small files in its folder."""

from __future__ import annotations

import os
from typing import Any

from shoal.kernel import layout
from shoal.kernel.files import names_in


def events(home: str, name: str) -> list[dict[str, Any]]:
    """What happened to a run, oldest first: the small files of its folder, by the time they were written."""
    words = {
        "claim": "submitted",
        "cancel": "cancel asked for",
        "owner": "job began",
        "missing": "Slurm lost sight of it",
    }
    words |= {
        "start": "attempt {n} started",
        "end": "attempt {n} ended",
        "use": "",
        "beat": "",
        "verdict": "Slurm's word kept",
    }
    folder = layout.run_dir(home, name)
    found = []
    for file in names_in(folder):
        parts = file.split(".")
        if len(parts) != 3 or parts[0] not in ("submit", "attempt"):
            continue
        text = words.get(parts[2].rstrip("0123456789"), "")
        if text:
            try:
                moment = os.stat(os.path.join(folder, file)).st_mtime
            except OSError:
                continue
            found.append({"t": moment, "what": text.format(n=parts[1]), "file": file})
    return sorted(found, key=lambda event: (event["t"], event["file"]))
