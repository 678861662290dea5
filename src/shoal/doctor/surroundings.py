"""What lies around a script on this machine: folders and small files, asked for by rules."""

from __future__ import annotations

import os
from pathlib import Path

_SMALL = 64 * 1024


class RealFiles:
    """Relative paths begin where the person stands, or beside the script: sbatch is called from either."""

    def __init__(self, script: Path, here: Path | None = None) -> None:
        self.bases = [here or Path.cwd(), script.parent]

    def folder_exists(self, path: str) -> bool | None:
        """None for a path on another machine: nothing of it exists here, not even its first folder."""
        if os.path.isabs(path):
            first = "/" + path.strip("/").split("/")[0]
            return os.path.isdir(path) if os.path.isdir(first) else None
        return any((base / path).is_dir() for base in self.bases)

    def text(self, path: str) -> str | None:
        for base in self.bases:
            try:
                file = base / path
                if file.is_file() and file.stat().st_size <= _SMALL:
                    return file.read_bytes().decode("utf-8", "replace")
            except (OSError, ValueError):
                continue
        return None
