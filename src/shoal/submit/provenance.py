"""What surrounded a submission, kept beside its script: the code's state, the shell's Python and its packages."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.agent import files
from shoal.submit.snapshot import Code

_LIST = (
    "import importlib.metadata as m, json, sys;"
    "print(json.dumps([sys.version.split()[0], sorted({d.metadata['Name'] + '==' + d.version for d in m.distributions()"
    " if d.metadata['Name']})]))"
)
_TIMEOUT_S = 60


def keep(folder: str, home: Path, code: Code | None, environ: Mapping[str, str]) -> None:
    """Write provenance.json into a submission's folder; a disk that does not take it loses only this record."""
    python, packages = _packages(home, environ)
    record = {
        "schema": 1,
        "shoal": __version__,
        "host": platform.node(),
        "commit": code.commit if code else None,
        "changed": code.changed if code else None,
        "snapshot": code.root if code else None,
        "python": python,
        "packages": packages,
    }
    files.create_exclusive(os.path.join(folder, "provenance.json"), files.to_json(record))


def _packages(home: Path, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Version of the shell's own python, and the file that lists its packages; asked once while they stay the same."""
    python = shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH"))
    if python is None:
        return None, None
    folder = home / "packages"
    stamp = _stamp(python)
    path = folder / f"{stamp}.json"
    known: dict[str, Any] | None = files.read_json(str(path))
    if known is None:
        try:
            done = subprocess.run([python, "-c", _LIST], capture_output=True, timeout=_TIMEOUT_S, check=True)
            version, packages = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None, None
        known = {"schema": 1, "python": python, "version": version, "packages": packages}
        folder.mkdir(exist_ok=True)
        files.create_exclusive(str(path), files.to_json(known))
    return str(known["version"]), str(path)


def _stamp(python: str) -> str:
    """Changes when something is installed: the interpreter, and when its folders of packages were last written."""
    import hashlib

    prefix = Path(python).parent.parent
    found = [python, str(sys.version_info[:2])]
    for site in sorted(prefix.glob("lib/python3*/site-packages")):
        found.append(f"{site}:{site.stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
