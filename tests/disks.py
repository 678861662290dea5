"""A small disk of one's own, which can be full without harm."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[Path]:
    """A file system of this size, mounted at the folder as long as the block lasts."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "shoal-test", str(folder)]
    if subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("this machine lets us mount nothing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Fill it up to so many bytes; `empty` makes room again."""
    empty(disk)
    stat = os.statvfs(disk)
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            file.write(b"x" * max(0, stat.f_bavail * stat.f_frsize - leave))
        except OSError as error:  # a job wrote the last block between the look and the write
            if error.errno != errno.ENOSPC:
                raise


def empty(disk: Path) -> None:
    (disk / "ballast").unlink(missing_ok=True)
