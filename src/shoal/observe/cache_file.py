"""What a look keeps for the next one below `.shoal/cache/`: one file per user, kind and experiment.

Such a file is no record: it can be deleted at any time, and one that is damaged, of another user or of another version
reads as nothing.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
from typing import Any, TypeVar

import msgspec

from shoal.kernel import make_dir, replace

T = TypeVar("T")


def _path(home: str, kind: str, experiment: str) -> str:
    digest = hashlib.sha256(experiment.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(home, "cache", f"{kind}-{os.getuid()}", f"{digest}.msgpack")


def read_cache(home: str, kind: str, experiment: str, record: type[T]) -> T | None:
    """What was written last; None if that is nothing that we can trust."""
    found = read_dated_cache(home, kind, experiment, record)
    return None if found is None else found[0]


def read_dated_cache(home: str, kind: str, experiment: str, record: type[T]) -> tuple[T, int] | None:
    """The same, and when it was written, in nanoseconds of the file server's clock."""
    try:
        with open(_path(home, kind, experiment), "rb") as file:  # noqa: PTH123
            found = os.fstat(file.fileno())
            if found.st_uid == os.getuid():
                return _decode(file.read(), record), found.st_mtime_ns
    except (OSError, ValueError, RecursionError):
        pass
    return None


def _decode(data: bytes, record: type[T]) -> T:
    """Thousands of objects that all stay: looking for garbage in between takes as long as reading them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return msgspec.msgpack.decode(data, type=record)
    finally:
        if was_enabled:
            gc.enable()


def write_cache(home: str, kind: str, experiment: str, record: Any) -> None:
    """Keep a record with a dict `runs`. A directory that we may not write in, a full disk or a value that cannot be
    kept costs time and nothing else."""
    if not os.path.isdir(home):
        return
    path = _path(home, kind, experiment)
    with contextlib.suppress(OSError):
        make_dir(os.path.dirname(path))
        replace(path, _encode(record), sync=False)


def _encode(record: Any) -> bytes:
    """Runs with a value that has no such form (an integer of 70 bits, text that is no UTF-8) are left out."""
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        return msgspec.msgpack.encode(record)
    runs = {}
    for name, run in record.runs.items():
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            msgspec.msgpack.encode({name: run})
            runs[name] = run
    return msgspec.msgpack.encode(msgspec.structs.replace(record, runs=runs))
