"""What surrounded a submission, kept beside its script: the code's state, the shell's Python and its packages.

The Python of the job may be another one; what an attempt was really started with stands in its start record.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from shoal import __version__
from shoal.agent import packages
from shoal.kernel import files
from shoal.submit.snapshot import Code


def keep(folder: str, home: Path, code: Code | None, environ: Mapping[str, str]) -> None:
    """Write provenance.json into a submission's folder; a disk that does not take it loses only this record."""
    around = packages.keep(str(home), ["python"], environ, "/") or {}
    record = {
        "schema": 1,
        "shoal": __version__,
        "host": platform.node(),
        "commit": code.commit if code else None,
        "changed": code.changed if code else None,
        "snapshot": code.root if code else None,
        "python": around.get("version"),
        "packages": around.get("packages"),
    }
    files.create_exclusive(os.path.join(folder, "provenance.json"), files.to_json(record))
