"""Measures a PyTorch training from inside, without a change to it: Python loads this file first (`shoal data advise`).

Wraps DataLoader when torch is imported: how long the training waits for a batch, how long it works on one, and how
long a worker takes to make one; of each how much was work of the processor, and how much waiting for a processor that
other programs had. After enough batches the process is ended. No dependency, and nothing of shoal.
"""

import builtins
import json
import os
import sys
import threading
import time
from typing import Any

_FOLDER = os.environ.get("SHOAL_PROBE_DIR", "")
_ENOUGH = int(os.environ.get("SHOAL_PROBE_BATCHES") or 40)
_import = builtins.__import__
_lock = threading.Lock()
_state = {"done": False}


def _write(record: Any) -> None:
    with _lock, open(os.path.join(_FOLDER, f"{os.getpid()}.jsonl"), "a") as file:
        file.write(json.dumps(record) + "\n")


def _now() -> float:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # A step on a GPU is over when the GPU says so.
    return time.perf_counter()


def _spent() -> Any:
    """(CPU seconds of this process, seconds in which this thread was ready to run and no processor was free)."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            queued = int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued = 0.0
    return time.process_time(), queued


def _since(before: Any) -> Any:
    """What was spent meanwhile. Take it within the wall time that it is compared with, not around it."""
    cpu, queued = _spent()
    return cpu - before[0], queued - before[1]


def _reads(loader: Any) -> str:
    """What a loader reads, as far as it shows: shards that are staged, or sharded; nothing if it does not show."""
    data = getattr(loader, "dataset", None)
    stream = getattr(data, "stream", None)
    shards: Any = getattr(getattr(stream, "data", None) or getattr(data, "data", None) or data, "shards", None)
    if type(shards).__module__ == "shoal.data.shardset":
        return "staged" if shards.staged is not None else "sharded"
    if type(data).__module__.startswith("webdataset"):
        folders = [path for name, path in os.environ.items() if name.startswith("SHOAL_DATA")]
        return "staged" if any("/objects/" in path and path.endswith("/data") for path in folders) else "sharded"
    return ""


def _wrap_iterator(loader: Any, iterator: Any) -> Any:
    def batches() -> Any:
        behind, before, count = None, (0.0, 0.0), 0
        while True:
            cpu, queued = _since(before)
            asked = _now()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            got = time.perf_counter()
            record = {"kind": "batch", "wait_s": got - asked, "step_s": None if behind is None else asked - behind}
            record["cpu_s"], record["queued_s"] = cpu, queued
            record["workers"], record["size"], record["data"] = loader.num_workers, loader.batch_size, _reads(loader)
            _write(record)
            count += 1
            if count > _ENOUGH:
                _write({"kind": "enough"})
                # Tidy libraries may take long to close down, and nothing of this run is wanted.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
            behind, before = time.perf_counter(), _spent()
            yield batch

    return batches()


def _patch() -> None:
    data = sys.modules.get("torch.utils.data")
    fetch = sys.modules.get("torch.utils.data._utils.fetch")
    if _state["done"] or data is None or fetch is None or not hasattr(data, "DataLoader"):
        return
    _state["done"] = True
    plain = data.DataLoader.__iter__

    def iterate(self: Any) -> Any:
        return _wrap_iterator(self, plain(self))

    data.DataLoader.__iter__ = iterate
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(fetch, name, None)
        if kind is not None:
            kind.fetch = _timed(kind.fetch)


def _timed(fetch: Any) -> Any:
    def timed(self: Any, index: Any) -> Any:
        began, before = time.perf_counter(), _spent()
        try:
            return fetch(self, index)
        finally:
            cpu, queued = _since(before)
            _write({"kind": "prep", "s": time.perf_counter() - began, "cpu_s": cpu, "queued_s": queued})

    return timed


def _watch(name: str, *args: Any, **kwargs: Any) -> Any:
    module = _import(name, *args, **kwargs)
    if not _state["done"] and name.startswith("torch"):
        _patch()
    return module


def _next_customize() -> None:
    """Whatever else is called sitecustomize on the path still runs."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in sys.path:
        path = os.path.join(folder or ".", "sitecustomize.py")
        if os.path.abspath(folder or ".") != here and os.path.isfile(path):
            with open(path) as file:
                exec(compile(file.read(), path, "exec"), {"__name__": "sitecustomize", "__file__": path})  # noqa: S102
            return


if _FOLDER:
    builtins.__import__ = _watch
_next_customize()
