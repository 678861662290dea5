"""The experiment of the storage's owner, on his own storage: folder, tar, shards; one reader and several at once.

Everything is measured by workers that start in step: each says that it is ready, and begins when told. Here they are
processes; with `--slurm` they are the tasks of a job array, on as many nodes as Slurm gives them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal.data.disk import call, failed, writing
from shoal.data.packing import pack
from shoal.data.planning import Settings
from shoal.errors import InputError, ShoalError
from shoal.kernel import files

METHODS = {
    "folder": "copy the folder, file by file (cp -r)",
    "tar": "copy one tar, then extract it",
    "shards": "stage shards (shoal data stage)",
}
_WAIT_S = 0.02


class Measured(NamedTuple):
    """One method with so many readers at once: the slowest decides, as in a training that waits for all."""

    method: str
    readers: int
    seconds: float
    first_s: float
    bytes: int

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e6


class Bench(NamedTuple):
    storage: str
    scratch: str
    files: int
    bytes: int
    cold: bool | None
    rows: list[Measured]

    def estimate_s(self, row: Measured, gigabytes: float) -> float:
        """How long this method takes for a data set of so many GB with files of this size."""
        return row.seconds * gigabytes * 1e9 / row.bytes


def bench(
    storage: str,
    scratch: str,
    *,
    count: int = 1000,
    kilobytes: int = 100,
    readers: Sequence[int] = (1, 4),
    methods: Sequence[str] = tuple(METHODS),
    launch: Callable[[str, int], Callable[[], None]] | None = None,
    tell: Callable[[str], None] = lambda text: None,
    patience_s: float = 600.0,
) -> Bench:
    """Measure every method with every number of readers. Leaves nothing behind on the storage or the scratch."""
    for folder in (storage, scratch):
        if not os.path.isdir(folder):
            raise InputError(f"there is no folder {folder}", hint=f"mkdir -p {folder}")
    unknown = [method for method in methods if method not in METHODS]
    if unknown or count < 1 or kilobytes < 1 or any(number < 1 for number in readers):
        raise InputError(
            f"cannot measure {unknown[0] if unknown else 'nothing'}", hint=f"--methods {','.join(METHODS)}"
        )
    home = os.path.join(storage, f"shoal-bench-{os.getpid()}")
    os.makedirs(home)
    rows = []
    try:
        tell(f"writing {count} files of about {kilobytes} KB to {storage}")
        total = _make_data(home, count, kilobytes)
        for number in readers:
            for method in methods:
                tell(f"{METHODS[method]}: {number} at once")
                rows.append(_measure(home, scratch, method, number, launch or _here, patience_s))
        cold = _is_dropped(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return Bench(storage, scratch, count, total, cold, rows)


def _make_data(home: str, count: int, kilobytes: int) -> int:
    source, dice, total = os.path.join(home, "folder"), random.Random(0), 0  # noqa: S311 (sizes, not secrets)
    for number in range(count):
        folder = os.path.join(source, f"class{number % 10}")
        os.makedirs(folder, exist_ok=True)
        size = int(kilobytes * 1000 * dice.uniform(0.4, 1.6))
        with writing(home), open(os.path.join(folder, f"{number:06d}.bin"), "wb") as file:
            file.write(dice.randbytes(size))
        total += size
    call(["tar", "cf", os.path.join(home, "data.tar"), "-C", home, "folder"], os.path.dirname(home))
    pack(source, os.path.join(home, "shards"), Settings(shard_mb=max(8.0, total / 8e6)))
    return total


def _measure(
    home: str,
    scratch: str,
    method: str,
    number: int,
    launch: Callable[[str, int], Callable[[], None]],
    patience_s: float,
) -> Measured:
    room = os.path.join(home, f"run-{method}-{number}")
    os.makedirs(room)
    plan = {"home": home, "scratch": scratch, "method": method}
    files.replace(os.path.join(room, "plan.json"), files.to_json(plan))
    drop_cache(home)
    end = launch(room, number)
    try:
        _wait(lambda: _count(room, "ready-") >= number, patience_s, "the workers did not all start")
        files.replace(os.path.join(room, "go.json"), files.to_json({"at": time.time() + 0.2}))
        _wait(lambda: _count(room, "result-") >= number, patience_s, "the workers did not all finish")
    finally:
        end()
    results = [
        files.read_json(os.path.join(room, name)) or {} for name in os.listdir(room) if name.startswith("result-")
    ]
    for result in results:
        if "error" in result:
            raise failed(f"{METHODS[method]} failed: {result['error']}", scratch)
    slowest = max(float(result["seconds"]) for result in results)
    first = max(float(result["first_s"]) for result in results)
    return Measured(method, number, slowest, first, int(results[0]["bytes"]))


def work(room: str, me: str) -> None:
    """One reader: say ready, wait for the start, copy, write down how long it took."""
    plan = files.read_json(os.path.join(room, "plan.json")) or {}
    mine = os.path.join(str(plan["scratch"]), f"shoal-bench-{os.path.basename(plan['home'])}-{me}")
    files.replace(os.path.join(room, f"ready-{me}"), b"{}\n")
    while (go := files.read_json(os.path.join(room, "go.json"))) is None:
        time.sleep(_WAIT_S)
    time.sleep(max(0.0, float(go["at"]) - time.time()))
    began = time.monotonic()
    try:
        os.makedirs(mine)
        size, first_s = _copy(plan, mine, began)
        result: dict[str, Any] = {"seconds": time.monotonic() - began, "first_s": first_s, "bytes": size}
    except (OSError, ShoalError) as error:
        result = {"error": str(error)}
    finally:
        shutil.rmtree(mine, ignore_errors=True)
    files.replace(os.path.join(room, f"result-{me}"), files.to_json(result))


def _copy(plan: dict[str, Any], mine: str, began: float) -> tuple[int, float]:
    """Do it; returns (bytes of the files, seconds until the first sample could be used)."""
    home, method = str(plan["home"]), plan["method"]
    folder = os.path.join(home, "folder")
    if method == "folder":
        call(["cp", "-r", folder, mine], mine)
        return _folder_bytes(os.path.join(mine, "folder")), 0.0
    if method == "tar":
        call(["cp", os.path.join(home, "data.tar"), mine], mine)
        call(["tar", "xf", os.path.join(mine, "data.tar"), "-C", mine], mine)
        return _folder_bytes(os.path.join(mine, "folder")), time.monotonic() - began
    from shoal.agent.staging import Stage

    stage = Stage("bench", os.path.join(home, "shards"), {"SHOAL_SCRATCH": mine}, wait="first")
    try:
        stage.begin()
        stage.wait()
        first_s = time.monotonic() - began
        stage.wait_copied()
        size = int(json.loads(stage.list.manifest or b"{}")["bytes"])
    finally:
        stage.close()
    return size, first_s


def _here(room: str, number: int) -> Callable[[], None]:
    argv = [sys.executable, "-m", "shoal.data.benching", room]
    workers = [subprocess.Popen([*argv, str(k)], stdin=subprocess.DEVNULL) for k in range(number)]

    def end() -> None:
        for worker in workers:
            if worker.poll() is None and not os.path.exists(os.path.join(room, "go.json")):
                worker.kill()
            worker.wait()

    return end


def drop_cache(folder: str) -> None:
    """Ask the kernel to forget what it keeps of these files, so that the storage is measured and not the memory."""
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                fd = os.open(os.path.join(where, name), os.O_RDONLY)
            except OSError:
                continue
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass
            finally:
                os.close(fd)


def _is_dropped(home: str) -> bool | None:
    """Whether the kernel does forget when asked: then measurements began with a cold cache. None: it cannot say."""
    path = os.path.join(home, "data.tar")
    drop_cache(home)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], os.fstat(fd).st_size // 2, os.RWF_NOWAIT)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)


def _folder_bytes(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)


def _count(room: str, prefix: str) -> int:
    return sum(name.startswith(prefix) and ".tmp-" not in name for name in os.listdir(room))


def _wait(condition: Callable[[], bool], patience_s: float, what: str) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise ShoalError(f"{what} within {patience_s:g} s")
        time.sleep(_WAIT_S)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.environ["SLURM_ARRAY_TASK_ID"])
