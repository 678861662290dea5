"""Measures a PyTorch training from inside, without a change to it: Python loads this file first (`shoal data advise`).

Wraps DataLoader when torch is imported: how long the training waits for a batch, how long it works on one, and how
long a worker takes to make one. After enough batches the process is ended. No dependency, and nothing of shoal.
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


def _wrap_iterator(loader: Any, iterator: Any) -> Any:
    def batches() -> Any:
        behind, count = None, 0
        while True:
            asked = _now()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            got = time.perf_counter()
            record = {"kind": "batch", "wait_s": got - asked, "step_s": None if behind is None else asked - behind}
            record["workers"], record["size"] = loader.num_workers, loader.batch_size
            _write(record)
            count += 1
            if count > _ENOUGH:
                _write({"kind": "enough"})
                # Tidy libraries may take long to close down, and nothing of this run is wanted.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
            yield batch
            behind = got

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
        began = time.perf_counter()
        cpu = time.process_time()
        try:
            return fetch(self, index)
        finally:
            _write({"kind": "prep", "s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu})

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
