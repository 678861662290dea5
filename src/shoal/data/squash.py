"""A folder as one squashfs image, for code that insists on a folder: made, opened and checked by squashfs-tools."""

from __future__ import annotations

import os
import shutil
import subprocess

from shoal.data.disk import writer_error
from shoal.data.manifest import Shard
from shoal.errors import InputError, ShoalError
from shoal.job import crc32

SQUASHFS_NAME = "data.squashfs"
_SQUASHFS_INSTALL = "sudo apt-get install squashfs-tools"


def make_squashfs(source: str, folder: str, workers: int | None) -> Shard:
    """Write the image of a folder, uncompressed: training data rarely shrinks, and reading it costs no CPU then."""
    if not os.path.isdir(source):
        raise InputError("squashfs takes a folder, not a list", hint="--format tar")
    path, temp = os.path.join(folder, SQUASHFS_NAME), os.path.join(folder, f"{SQUASHFS_NAME}.tmp-{os.getpid()}")
    argv = [
        _squashfs_program("mksquashfs"),
        source,
        temp,
        "-noappend",
        "-noI",
        "-noD",
        "-noF",
        "-noX",
        "-no-progress",
        "-quiet",
    ]
    argv += ["-processors", str(workers)] if workers else []
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise _squashfs_error("mksquashfs", done, folder)
        size, checksum = file_checksum(temp)
        os.rename(temp, path)
    finally:
        if os.path.exists(temp):
            os.unlink(temp)
    return Shard(name=SQUASHFS_NAME, size=size, samples=0, crc32=checksum)


def extract_squashfs(image: str, goal: str) -> None:
    """Restore the folder from its image."""
    argv = [_squashfs_program("unsquashfs"), "-no-progress", "-quiet", "-d", goal, image]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _squashfs_error("unsquashfs", done, os.path.dirname(os.path.abspath(goal)))


def _squashfs_error(program: str, done: subprocess.CompletedProcess[str], folder: str) -> ShoalError:
    """The last complaint of a program, which may have said before that the disk below `folder` is full."""
    said = done.stderr + done.stdout
    text = (done.stderr or done.stdout).strip().splitlines()
    last = f"{program} failed: {text[-1] if text else f'exit code {done.returncode}'}"
    full = "no space left" in said.lower() and "no space left" not in last.lower()
    return writer_error(f"{last} (no space left on device)" if full else last, folder)


def file_checksum(path: str) -> tuple[int, str]:
    """(size, crc32) of a whole file."""
    size = value = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 22):
            value = crc32(data, value)
            size += len(data)
    return size, f"{value:08x}"


def _squashfs_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise InputError(f"there is no {name} here, which squashfs needs", hint=_SQUASHFS_INSTALL)
    return path
