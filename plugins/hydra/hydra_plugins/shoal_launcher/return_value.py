"""In a run: what the program's function returned, as JSON in the output directory, for sweepers and `shoal results`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

FILE_NAME = "return.json"
_METRICS_FILE = "metrics.json"


class KeepReturnValue(Callback):
    """Hydra calls it at the end of the program's function; only the first rank writes."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        folder = os.environ.get("SHOAL_OUTPUT_DIR")
        if job_return.status != JobStatus.COMPLETED or not folder or os.environ.get("RANK", "0") != "0":
            return
        write_return_value(Path(folder), job_return.return_value)


def write_return_value(folder: Path, value: Any) -> None:
    """A value that is not JSON is described by its type. A number is a metric too, unless the program has its own."""
    plain = _plain_value(value)
    try:
        record: dict[str, Any] = {"schema": 1, "value": plain}
        text = json.dumps(record)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps({"schema": 1, "type": f"{type(value).__module__}.{type(value).__qualname__}"})
    unfinished = folder / f".{FILE_NAME}.{os.getpid()}"
    unfinished.write_text(text)
    unfinished.replace(folder / FILE_NAME)
    metrics = folder / _METRICS_FILE
    if isinstance(plain, int | float) and not isinstance(plain, bool) and not metrics.exists():
        metrics.write_text(json.dumps({"return_value": plain}))


def _plain_value(value: Any) -> Any:
    """Numbers of NumPy and torch as Python's; other values as they are."""
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    if hasattr(value, "item") and not isinstance(value, dict):
        try:
            return value.item()
        except (TypeError, ValueError, RuntimeError):
            return value
    return value
