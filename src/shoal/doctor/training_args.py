"""What the words of a command say about a training: batch size, accumulation, learning rate, workers, model size. Pure.

Only names that mean the same in most programs are read, each with the word it was read from; the rest stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.units import format_memory

_GLOBAL_BATCH = frozenset({"global_batch_size", "total_batch_size", "train_batch_size_total", "effective_batch_size"})
_PROCESS_BATCH = frozenset(
    {"batch_size", "bs", "train_batch_size", "per_device_train_batch_size", "per_gpu_train_batch_size",
     "micro_batch_size", "batch_size_per_gpu", "per_device_batch_size", "train_bs", "b"}
)  # fmt: skip
_ACCUMULATION = frozenset(
    {"gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "accum_steps", "grad_accumulation_steps",
     "accum_iter", "accum_freq", "gradient_accumulation"}
)  # fmt: skip
_RATE = frozenset({"lr", "learning_rate", "base_lr", "peak_lr", "max_lr"})
_WORKERS = frozenset({"num_workers", "workers", "dataloader_num_workers", "n_workers", "nworkers", "j"})
_MODEL = frozenset({"model", "model_name", "model_name_or_path", "model_id", "pretrained_model_name_or_path", "arch"})
#: 7b, 1.5B and 350m as a word of a model's name.
_SIZE = re.compile(r"(?:^|[-_/. ])(\d+(?:\.\d+)?)([bm])(?:[-_/. ]|$)", re.IGNORECASE)
_SHARDED = re.compile(r"fsdp|zero[-_]?(?:stage)?[-_=]?3|zero3|deepspeed_stage_3|full_shard", re.IGNORECASE)
_FEW_TRAINED = re.compile(r"lora|peft|adapter", re.IGNORECASE)
#: Adam with mixed or full precision: weights, gradients, a copy in 32 bits where mixed, two moments.
_TRAINED_BYTES = 16
_FROZEN_BYTES = 2
_MB = 1024 * 1024


class TrainingArgs(NamedTuple):
    """Numbers of one command; None where it does not say. `sources` are the words that they were read from."""

    batch_size: int | None = None
    is_global_batch: bool = False
    accumulation: int | None = None
    learning_rate: float | None = None
    workers: int | None = None
    parameters: int | None = None
    is_sharded: bool = False
    trains_few: bool = False
    sources: tuple[str, ...] = ()

    def gpu_memory_mb(self, world: int) -> int | None:
        """Weights, gradients and Adam's state on each GPU, without activations; None where the size is unknown."""
        if self.parameters is None:
            return None
        each = _FROZEN_BYTES if self.trains_few else _TRAINED_BYTES
        return self.parameters * each // (max(1, world) if self.is_sharded else 1) // _MB

    def gpu_memory_text(self, world: int) -> str | None:
        memory = self.gpu_memory_mb(world)
        if memory is None or self.parameters is None:
            return None
        each = _FROZEN_BYTES if self.trains_few else _TRAINED_BYTES
        shared = f" over {world} processes" if self.is_sharded else ""
        size = f"{self.parameters / 1e9:.3g}e9 parameters x {each} bytes"
        return f"about {format_memory(memory)} on each GPU: {size}{shared}, and activations on top"


def read_training_args(words: Sequence[str]) -> TrainingArgs:
    """Options such as --batch-size 22, --lr=1e-4 and dataloader.params.batch_size=22; the last one counts."""
    found: dict[str, tuple[float, str]] = {}
    layers = hidden = parameters = None
    for name, value, written in _pairs(words):
        for kind, names in _NUMBERS.items():
            if name in names and (number := _number(value)) is not None:
                found[kind] = (number, written)
        if name in ("num_layers", "n_layer", "n_layers"):
            layers = _number(value)
        elif name in ("hidden_size", "n_embd", "d_model"):
            hidden = _number(value)
        elif name in _MODEL and (match := _SIZE.search(value)) is not None:
            parameters = int(float(match[1]) * (1e9 if match[2].lower() == "b" else 1e6))
            found["model"] = (parameters, written)
    if parameters is None and layers and hidden:
        parameters = int(12 * layers * hidden * hidden)  # attention and MLP of a transformer, without embeddings
    text = " ".join(words)
    batch = found.get("global") or found.get("batch")
    accumulation, rate, workers = found.get("accumulation"), found.get("rate"), found.get("workers")
    return TrainingArgs(
        batch_size=int(batch[0]) if batch else None,
        is_global_batch="global" in found,
        accumulation=int(accumulation[0]) if accumulation else None,
        learning_rate=rate[0] if rate else None,
        workers=int(workers[0]) if workers else None,
        parameters=parameters,
        is_sharded=bool(_SHARDED.search(text)),
        trains_few=bool(_FEW_TRAINED.search(text)),
        sources=tuple(written for _, written in found.values()),
    )


_NUMBERS = {
    "global": _GLOBAL_BATCH,
    "batch": _PROCESS_BATCH,
    "accumulation": _ACCUMULATION,
    "rate": _RATE,
    "workers": _WORKERS,
}


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(last part of the name with underscores, value, as written)."""
    for index, word in enumerate(words):
        key, equals, value = word.partition("=")
        if not equals:
            following = words[index + 1] if index + 1 < len(words) else ""
            if not word.startswith("-") or not following or following.startswith("--"):
                continue
            value = following
        elif not word.startswith(("-", "+")) and not key.replace(".", "").replace("_", "").isalnum():
            continue
        yield key.lstrip("+-").rsplit(".", 1)[-1].replace("-", "_").lower(), value, f"{key}={value}"


def _number(text: str) -> float | None:
    try:
        number = float(text.strip("\"'"))
    except ValueError:
        return None
    return number if 0 < number < 1e9 else None
