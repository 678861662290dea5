"""An image for the tests of containers: a folder of empty mount points, into which this machine's programs are bound.

It is made in a millisecond and holds the very Python, torch and libraries that the tests run with. What a program can
see of it alone is the file /in-image.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

#: The system's libraries, this Python and its environment.
BINDS = ("/usr", sys.base_prefix, sys.prefix)


def make_image(folder: Path, *mount_points: Path | str) -> Path:
    """The image `folder`, in which BINDS and `mount_points` can be bound at their own paths."""
    for name in ("dev", "proc", "sys", "tmp", "run", "etc"):
        (folder / name).mkdir(parents=True)
    for path in (*BINDS, *mount_points):
        (folder / str(path).lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if os.path.islink(f"/{name}"):
            (folder / name).symlink_to(os.readlink(f"/{name}"))
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    (folder / "in-image").touch()
    return folder


def container_of(image: Path | str, runtime: str = "charliecloud", **more: object) -> str:
    """The line of a step that puts it in the image."""
    values = {"runtime": runtime, "image": str(image), "binds": list(BINDS), **more}
    written = ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    return f"container = {{ {written} }}"


@cache
def why_not(*prefix: str) -> str | None:
    """Why a runtime cannot start anything on this machine, as it says itself; None if it can."""
    try:
        tried = subprocess.run(
            prefix, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "USER": "somebody"}
        )
    except FileNotFoundError:
        return f"{prefix[0]} is not installed"
    return None if tried.returncode == 0 else tried.stderr.strip() or f"exit code {tried.returncode}"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image for charliecloud, with a blank in its name."""
    made = make_image(tmp_path / "my image", tmp_path / "project")
    reason = why_not("ch-run", *(f"--bind={path}" for path in BINDS), str(made), "--", sys.executable, "-c", "")
    if reason is not None:
        pytest.skip(f"charliecloud cannot run here: {reason}")
    return made
