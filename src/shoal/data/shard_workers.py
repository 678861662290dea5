"""The processes that write shards: each takes the next shard, reads its files and writes it.

They are forked and receive only shard numbers, so the plan is never copied or pickled, and a script that shards needs
no `if __name__ == "__main__"`. They end with the process that started them. Where opening a file is slow, as on network
storage, each of them reads ahead with threads.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any

from shoal.data.manifest import INDEX_SUFFIX, Shard, open_index
from shoal.data.scan import SourceFile, SourceSample, escape_name
from shoal.data.shard_plan import ShardPlan
from shoal.data.shard_writer import FieldValue, open_writer
from shoal.errors import InputError, ShoalError

_READ_AHEAD_THREADS = 8
#: So many files are read before deciding whether threads are worth their while.
_TIMED_READS = 16
#: A file that takes longer than this to open and read is worth a thread.
_SLOW_READ_S = 0.001
_PR_SET_PDEATHSIG = 1


def write_shards(
    plan: ShardPlan,
    folder: str,
    done: dict[int, Shard],
    workers: int | None,
    progress: Callable[[int, int], None],
) -> tuple[list[Shard], list[str]]:
    """Write the shards that lack. The first error stops everything; finished shards stay for the next attempt."""
    todo = deque(number for number in range(plan.shards) if number not in done)
    sizes = [sum(sample.size for sample in plan.samples(number)) for number in range(plan.shards)]
    total, ready = sum(sizes), sum(sizes[number] for number in done)
    progress(ready, total)
    results = dict(done)
    count = max(1, min(workers or os.cpu_count() or 1, len(todo)))
    if count == 1:
        for number in todo:
            results[number] = write_one(plan, folder, number)
            ready += sizes[number]
            progress(ready, total)
    else:
        for number, shard in _in_processes(plan, folder, todo, count):
            results[number] = shard
            ready += sizes[number]
            progress(ready, total)
    shards = [results[number] for number in range(plan.shards)]
    return shards, _read_left_out(folder, shards)


def write_one(plan: ShardPlan, folder: str, number: int) -> Shard:
    """One shard, from its files. A file that is not what the scan saw stops it, or is left out if so wished."""
    from shoal.data.shard_files import shard_name

    bad: list[str] = []
    with open_writer(plan.settings.format, folder, shard_name(number, plan.settings.format)) as shard:
        for sample, contents in _sample_contents(plan.scan.root, plan.samples(number)):
            if isinstance(contents, str):
                if not plan.settings.skip_bad:
                    raise InputError(f"cannot shard {contents}", hint="--skip-bad leaves such files out and lists them")
                bad.append(contents)
                continue
            values = [
                FieldValue(field, data, os.fsencode(file.path))
                for (field, file), data in zip(sample.files, contents, strict=True)
            ]
            if sample.row is not None and all(value.field != "json" for value in values):
                values.append(FieldValue("json", json.dumps(sample.row).encode()))
            shard.add(sample.key, values, sample.label, sample.files[0][1].mtime_ns // 1_000_000_000)
        return shard.finish({"left_out": bad} if bad else None)


def read_file(root: str, file: SourceFile) -> bytes:
    """The bytes of a file that is still the one the scan saw; OSError or ShoalError otherwise."""
    fd = os.open(os.path.join(root, file.path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        data = os.read(fd, file.size + 1)
        while 0 < len(data) < file.size and (more := os.read(fd, file.size + 1 - len(data))):
            data += more
    finally:
        os.close(fd)
    if len(data) != file.size or status.st_mtime_ns != file.mtime_ns:
        raise ShoalError("it changed while it was sharded")
    return data


def _sample_contents(root: str, samples: list[SourceSample]) -> Iterator[tuple[SourceSample, list[bytes] | str]]:
    """Each sample with its files' bytes, or with what is wrong with one of them."""

    def read(sample: SourceSample) -> list[bytes] | str:
        contents: list[bytes] = []
        file = sample.files[0][1]
        try:
            for _, file in sample.files:
                contents.append(read_file(root, file))
            return contents
        except FileNotFoundError:
            return f"{escape_name(file.path)}: it vanished"
        except OSError as error:
            return f"{escape_name(file.path)}: {(error.strerror or 'unreadable').lower()}"
        except ShoalError as error:
            return f"{escape_name(file.path)}: {error.message}"

    rest = iter(samples)
    took_s = []
    for sample in islice(rest, _TIMED_READS):
        began = time.perf_counter()
        contents = read(sample)
        took_s.append(time.perf_counter() - began)
        yield sample, contents
    # The median: on a busy machine some reads wait for the processor, which threads would not help.
    if took_s and sorted(took_s)[len(took_s) // 2] > _SLOW_READ_S:
        yield from _read_ahead(read, rest)
    else:
        yield from ((sample, read(sample)) for sample in rest)


def _read_ahead(
    read: Callable[[SourceSample], list[bytes] | str], samples: Iterable[SourceSample]
) -> Iterator[tuple[SourceSample, list[bytes] | str]]:
    first = next(iter(samples), None)
    if first is None:
        return
    with ThreadPoolExecutor(_READ_AHEAD_THREADS) as pool:
        waiting: deque[tuple[SourceSample, Future[list[bytes] | str]]] = deque([(first, pool.submit(read, first))])
        for sample in samples:
            waiting.append((sample, pool.submit(read, sample)))
            if len(waiting) > 2 * _READ_AHEAD_THREADS:
                one, future = waiting.popleft()
                yield one, future.result()
        while waiting:
            one, future = waiting.popleft()
            yield one, future.result()


def _in_processes(plan: ShardPlan, folder: str, todo: deque[int], count: int) -> Iterator[tuple[int, Shard]]:
    context = multiprocessing.get_context("fork")
    pipes: dict[Any, Any] = {}
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_worker, args=(plan, folder, theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            pipes[ours] = process
            ours.send(todo.popleft())
        while pipes:
            for pipe in wait(list(pipes)):
                assert isinstance(pipe, Connection)  # noqa: S101 (narrows a type)
                try:
                    answer = pipe.recv()
                except EOFError:
                    raise ShoalError(
                        "a sharding process was killed, perhaps for lack of memory",
                        hint="run the same command again: finished shards are kept (fewer --workers need less memory)",
                    ) from None
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                if todo:
                    pipe.send(todo.popleft())
                else:
                    pipe.send(None)
                    pipes.pop(pipe).join()
    finally:
        for process in pipes.values():
            process.kill()
            process.join()


def _worker(plan: ShardPlan, folder: str, pipe: Connection, parent: int) -> None:
    """In a child: shard after shard until told to stop, or until the parent is gone."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # Not Linux: the end of the pipe ends us too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        return
    while (number := pipe.recv()) is not None:
        try:
            pipe.send((number, write_one(plan, folder, number)))
        except (ShoalError, OSError) as error:
            pipe.send(error if isinstance(error, OSError) else InputError(error.message, hint=error.hint))
            return


def _read_left_out(folder: str, shards: list[Shard]) -> list[str]:
    found: list[str] = []
    for shard in shards:
        found += open_index(os.path.join(folder, shard.name + INDEX_SUFFIX)).shard.get("left_out", [])
    return found
