"""What the tests of staging share: a data set of many small shards, a scratch folder, and a copy that waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import shoal.data
from data_sets import make_folder
from shoal.data import prefetch
from shoal.data.shard_plan import ShardSettings
from shoal.job import cache, file_copy
from shoal.job.cache import find_root
from shoal.job.staging import Stage

#: Stages argv[1] to the scratch folder argv[2] and prints the record.
STAGE = """
import sys, json
from shoal.job.staging import Stage
stage = Stage("x", sys.argv[1], {"SHOAL_SCRATCH": sys.argv[2]})
stage.begin()
stage.wait()
stage.join()
print(json.dumps(stage.close()))
"""


def make_shards(folder: Path) -> Path:
    """A data set of about 40 shards of 50 KB."""
    make_folder(folder / "src", 300, size=5000)
    shoal.data.shard_dataset(str(folder / "src"), str(folder / "data"), ShardSettings(shard_mb=0.05, first_mb=0.01))
    return folder / "data"


def make_scratch(folder: Path) -> dict[str, str]:
    (folder / "scratch").mkdir()
    return {"SHOAL_SCRATCH": str(folder / "scratch")}


def stage_all(path: Path, environ: dict[str, str], **options: Any) -> tuple[str, dict[str, Any]]:
    stage = Stage("test", str(path), environ, **options)
    stage.begin()
    place = stage.wait()
    stage.join()
    return place, stage.close()


def node_root(environ: dict[str, str]) -> cache.CacheRoot:
    root, _ = find_root(environ)
    assert root is not None
    return root


class Gate:
    """Lets a counted number of ranges through, so that a test decides how far a copy has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allowed = threading.Semaphore(0)
        self._open = False
        plain = file_copy._PartialFile.copy

        def copy(part: Any, number: int, buffer: memoryview) -> int:
            if not self._open:
                assert self._allowed.acquire(timeout=300)
            return plain(part, number, buffer)

        monkeypatch.setattr(file_copy._PartialFile, "copy", copy)

    def let(self, count: int) -> None:
        self._allowed.release(count)

    def open(self) -> None:
        self._open = True
        self._allowed.release(1000)


def busy_threads() -> int:
    """Threads that a test may have left behind; those that read ahead stay as long as the process."""
    return sum(thread.name != prefetch.THREAD_NAME for thread in threading.enumerate())
