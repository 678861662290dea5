"""A wheel of shoal in a fresh environment of every Python that is here: installs it, runs `shoal demo`, prints a table.

    make pythons

Pythons are found on the PATH and among those of pyenv. Exit code 1 if one of them fails.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def find_python(version: str) -> str | None:
    """A Python of this version that starts; pyenv's shims are there for versions that are not chosen too."""
    candidates = [*glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}"))]
    on_path = shutil.which(f"python{version}")
    for candidate in [*candidates, *([on_path] if on_path else [])]:
        if subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def build_wheel(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    return next(folder.glob("shoal-*.whl"))


def try_wheel(python: str, wheel: Path, folder: Path) -> str:
    """ "ok", or the step that failed with its last line."""
    environ = {**os.environ, "HOME": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    shoal = str(folder / "env/bin/shoal")
    steps = {
        "venv": [python, "-m", "venv", str(folder / "env")],
        "install": [str(folder / "env/bin/pip"), "install", "-q", str(wheel)],
        "help": [shoal, "--help"],
        "demo": [shoal, "demo"],
    }
    for step, argv in steps.items():
        done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{step} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
    return "ok"


def main() -> int:
    print("| Python | wheel | seconds |\n|---|---|---|")
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        for version in VERSIONS:
            python = find_python(version)
            if python is None:
                print(f"| {version} | not here | |")
                continue
            folder, begin = Path(scratch, version), time.monotonic()
            folder.mkdir()
            results.append(try_wheel(python, wheel, folder))
            print(f"| {version} | {results[-1]} | {time.monotonic() - begin:.0f} |", flush=True)
    return 0 if results and all(result == "ok" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
