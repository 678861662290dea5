"""What surrounded a submission, kept in its record: shoal's version, the shell's Python and its packages.

The Python of the job may be another one; what an attempt was really started with stands in its start record.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal import __version__
from shoal.agent import packages
from shoal.kernel.records import Provenance
from shoal.submit.snapshot import Code


def around(home: Path, code: Code | None, environ: Mapping[str, str]) -> Provenance:
    found = packages.keep(str(home), ["python"], environ, "/") or {}
    changed = code.changed if code else None
    return Provenance(__version__, changed, found.get("version"), found.get("packages"))
