"""The slow store as a context: built from slowfs.c, mounted, and gone at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from benchmarks.data.measure import HOME

#: Latency per operation in microseconds, and the link in MB/s: the seed's storage, and a busy parallel file system.
SEED, BUSY = (250, 180), (1000, 500)


def missing() -> str | None:
    """Why there can be no slow store here, or None."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    if shutil.which("cc") is None or shutil.which("fusermount3") is None:
        return "needs a C compiler and fuse3: apt-get install gcc fuse3 libfuse3-dev pkg-config"
    flags = subprocess.run(["pkg-config", "--exists", "fuse3"], check=False).returncode
    return "needs libfuse3-dev and pkg-config" if flags else None


@contextmanager
def slow(source: Path, latency_us: int, mb_per_s: float) -> Iterator[Path]:
    """`source` behind the slow link, with nothing of it in the kernel's cache."""
    program = _build()
    with tempfile.TemporaryDirectory(prefix="slowfs-") as folder:
        mount = Path(folder) / "mnt"
        mount.mkdir()
        server = subprocess.Popen([str(program), str(source), str(mount), str(latency_us), str(mb_per_s)])
        try:
            end = time.monotonic() + 10
            while not os.path.ismount(mount):
                if time.monotonic() > end or server.poll() is not None:
                    raise RuntimeError("the slow store did not start")
                time.sleep(0.01)
            # The kernel reads a network file system ahead by megabytes; FUSE by 128 KB unless told otherwise.
            device = os.stat(mount).st_dev
            ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            if os.access(ahead, os.W_OK):
                ahead.write_text("4096")
            yield mount
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(mount)], check=False)
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:  # Somebody still has a file open.
                server.kill()
                server.wait()


@cache
def _build() -> Path:
    program = HOME / "slowfs"
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True)
    code = str(Path(__file__).with_name("slowfs.c"))
    subprocess.run(["cc", "-O2", code, "-o", str(program), *flags.stdout.split(), "-lpthread"], check=True)
    return program
