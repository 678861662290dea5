"""`shoal data bench`: measure a storage with a directory of files, a tar file and shards, by one reader and by several.

All measurements are made by workers that start at the same moment: each reports that it is ready and waits for the
start signal. Locally they are processes; with `--slurm` they are the tasks of a job array, on as many nodes as Slurm
gives them. Each measurement is repeated, and a size is extrapolated only from measurements that are long enough.
"""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.data.shard_files import shard_dataset
from shoal.data.shard_plan import ShardSettings
from shoal.data.shard_writer import disk_errors_at, run_writer, writer_error
from shoal.errors import InputError, SchedulerError, ShoalError
from shoal.kernel import files, slurm

METHODS = {
    "folder": "copy the folder, file by file (cp -r)",
    "tar": "copy one tar, then extract it",
    "shards": "stage shards (shoal data stage)",
}
_POLL_S = 0.02


#: A shorter measurement is mostly start-up and chance; nothing is estimated from it.
MIN_RUNTIME_S = 3.0
#: How long workers may take to start, and then to finish.
_WORKER_TIMEOUT_S = 600.0


class BenchRow(NamedTuple):
    """One method with so many readers at once: the slowest decides, as in a training that waits for all.

    `seconds` and `first_s` have one value for each repeat. `nodes` says how many readers ran where, `cold` whether they
    began without the files in their memory (None: the system cannot say).
    """

    method: str
    readers: int
    seconds: list[float]
    first_s: list[float]
    bytes: int
    nodes: dict[str, int]
    cold: bool | None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.median_s / 1e6

    def estimate_s(self, gigabytes: float) -> list[float] | None:
        """The times of all repeats, for a data set of so many GB with files of this size; None: too short to say."""
        if min(self.seconds) < MIN_RUNTIME_S:
            return None
        return [seconds * gigabytes * 1e9 / self.bytes for seconds in self.seconds]


class BenchResult(NamedTuple):
    storage: str
    scratch: str
    files: int
    bytes: int
    rows: list[BenchRow]

    @property
    def cold(self) -> bool | None:
        """Whether all measurements began cold."""
        return _merge_records([row.cold for row in self.rows])

    @property
    def nodes(self) -> dict[str, int]:
        """The most readers that ran on each node at once."""
        found: dict[str, int] = {}
        for row in self.rows:
            found.update({node: max(count, found.get(node, 0)) for node, count in row.nodes.items()})
        return found

    @property
    def enough_files(self) -> int | None:
        """How many files make every measurement long enough for an estimate; None if these do."""
        shortest = min(min(row.seconds) for row in self.rows)
        if shortest >= MIN_RUNTIME_S:
            return None
        return math.ceil(1.5 * self.files * MIN_RUNTIME_S / shortest / 1000) * 1000


def run_bench(
    storage: str,
    scratch: str,
    *,
    count: int = 1000,
    kilobytes: int = 100,
    readers: Sequence[int] = (1, 4),
    methods: Sequence[str] = tuple(METHODS),
    repeats: int = 3,
    launch: Callable[[str, int], Callable[[], None]] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> BenchResult:
    """Measure every method with every number of readers. Leaves nothing behind on the storage or the scratch."""
    for folder in (storage, scratch):
        if not os.path.isdir(folder):
            raise InputError(f"there is no folder {folder}", hint=f"mkdir -p {folder}")
    unknown = [method for method in methods if method not in METHODS]
    if unknown or min(count, kilobytes, repeats, *readers) < 1:
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
                again = f", {repeats} times" if repeats > 1 else ""
                tell(f"{METHODS[method]}: {number} at once{again}")
                plan = {"home": home, "scratch": scratch, "method": method}
                rows.append(_measure(plan, number, repeats, launch or _start_local_readers))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return BenchResult(storage, scratch, count, total, rows)


def _make_data(home: str, count: int, kilobytes: int) -> int:
    source, generator, total = os.path.join(home, "folder"), random.Random(0), 0  # noqa: S311 (sizes, not secrets)
    for number in range(count):
        folder = os.path.join(source, f"class{number % 10}")
        os.makedirs(folder, exist_ok=True)
        size = int(kilobytes * 1000 * generator.uniform(0.4, 1.6))
        with disk_errors_at(home), open(os.path.join(folder, f"{number:06d}.bin"), "wb") as file:
            file.write(generator.randbytes(size))
        total += size
    run_writer(["tar", "cf", os.path.join(home, "data.tar"), "-C", home, "folder"], os.path.dirname(home))
    shard_dataset(source, os.path.join(home, "shards"), ShardSettings(shard_mb=max(8.0, total / 8e6)))
    return total


def _measure(
    plan: dict[str, str],
    number: int,
    repeats: int,
    launch: Callable[[str, int], Callable[[], None]],
) -> BenchRow:
    repeated = []
    for repeat in range(repeats):
        room = os.path.join(plan["home"], f"run-{plan['method']}-{number}-{repeat}")
        repeated.append(_run_readers(room, plan, number, launch))
    every = [result for results in repeated for result in results]
    return BenchRow(
        plan["method"],
        number,
        [max(float(result["seconds"]) for result in results) for results in repeated],
        [max(float(result["first_s"]) for result in results) for results in repeated],
        int(every[0]["bytes"]),
        dict(Counter(str(result["node"]) for result in repeated[-1])),
        _merge_records([result["cold"] for result in every]),
    )


def _merge_records(records: Sequence[bool | None]) -> bool | None:
    return False if False in records else None if None in records else True


def _run_readers(
    room: str,
    plan: dict[str, str],
    number: int,
    launch: Callable[[str, int], Callable[[], None]],
) -> list[dict[str, Any]]:
    """Let so many readers do it at once; what each of them wrote down."""
    os.makedirs(room)
    files.replace(os.path.join(room, "plan.json"), files.to_json(plan))
    end = launch(room, number)
    try:
        _wait_for(lambda: _count_files(room, "ready-") >= number, "the workers did not all start")
        files.replace(os.path.join(room, "go.json"), files.to_json({"at": time.time() + 0.2}))
        _wait_for(lambda: _count_files(room, "result-") >= number, "the workers did not all finish")
    finally:
        end()
    results = [
        files.read_json(os.path.join(room, name)) or {} for name in os.listdir(room) if name.startswith("result-")
    ]
    for result in results:
        if "error" in result:
            raise writer_error(f"{METHODS[plan['method']]} failed: {result['error']}", plan["scratch"])
    return results


def run_reader(room: str, me: str) -> None:
    """One reader: say ready, wait for the start, copy, write down how long it took."""
    plan = files.read_json(os.path.join(room, "plan.json")) or {}
    mine = os.path.join(str(plan["scratch"]), f"shoal-bench-{os.path.basename(plan['home'])}-{me}")
    cold = _drop_and_check(str(plan["home"]))  # Here: every node has a memory of its own.
    files.replace(os.path.join(room, f"ready-{me}"), b"{}\n")
    while (go := files.read_json(os.path.join(room, "go.json"))) is None:
        time.sleep(_POLL_S)
    time.sleep(max(0.0, float(go["at"]) - time.time()))
    began = time.monotonic()
    try:
        os.makedirs(mine)
        size, first_s = _copy_with_method(plan, mine, began)
        result: dict[str, Any] = {"seconds": time.monotonic() - began, "first_s": first_s, "bytes": size}
        result.update(node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(), cold=cold)
    except (OSError, ShoalError) as error:
        result = {"error": str(error)}
    finally:
        shutil.rmtree(mine, ignore_errors=True)
    files.replace(os.path.join(room, f"result-{me}"), files.to_json(result))


def _copy_with_method(plan: dict[str, Any], mine: str, began: float) -> tuple[int, float]:
    """Do it; returns (bytes of the files, seconds until the first sample could be used)."""
    home, method = str(plan["home"]), plan["method"]
    folder = os.path.join(home, "folder")
    if method == "folder":
        run_writer(["cp", "-r", folder, mine], mine)
        return _folder_bytes(os.path.join(mine, "folder")), 0.0
    if method == "tar":
        run_writer(["cp", os.path.join(home, "data.tar"), mine], mine)
        run_writer(["tar", "xf", os.path.join(mine, "data.tar"), "-C", mine], mine)
        return _folder_bytes(os.path.join(mine, "folder")), time.monotonic() - began
    from shoal.job import Stage

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


def _start_local_readers(room: str, number: int) -> Callable[[], None]:
    argv = [sys.executable, "-m", "shoal.data.bench", room]
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


def _drop_and_check(home: str) -> bool | None:
    """Ask the kernel of this node to forget the files, and say whether it did; None: it does not tell."""
    path = os.path.join(home, "data.tar")
    drop_cache(home)
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(8):  # Another reader that looks has the place read that it looks at.
            place = random.randrange(os.fstat(fd).st_size)  # noqa: S311 (a place, not a secret)
            os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)


def _folder_bytes(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(where, name)) for where, _, names in os.walk(folder) for name in names)


def _count_files(room: str, prefix: str) -> int:
    return sum(name.startswith(prefix) and ".tmp-" not in name for name in os.listdir(room))


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _WORKER_TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise ShoalError(f"{what} within {_WORKER_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    run_reader(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.environ["SLURM_ARRAY_TASK_ID"])


def slurm_launcher(flags: Sequence[str], environ: Mapping[str, str]) -> Callable[[str, int], Callable[[], None]]:
    """How `bench` starts its readers on Slurm; `flags` are sbatch's, such as --partition=..."""

    def launch(room: str, number: int) -> Callable[[], None]:
        script = f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m shoal.data.bench {shlex.quote(room)}\n"
        options = [f"--array=0-{number - 1}", "--job-name=shoal-bench"]
        options += ["--output", os.path.join(room, "slurm-%a.out"), *flags]
        answer = slurm.sbatch(options, script, environ)
        job = answer.job_id
        if answer.kind != "accepted" or job is None:
            raise SchedulerError(f"cannot submit the bench to Slurm: {answer.message}", hint="shoal clusters test")

        def end() -> None:
            slurm.scancel([job], environ)

        return end

    return launch
