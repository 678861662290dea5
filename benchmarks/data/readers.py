"""One reader, one epoch, in a process of its own: python readers.py NAME FOLDER [SAMPLES]; prints one line of JSON.

Runs with the Python that has the rivals. Every reader feeds PyTorch's DataLoader, batch 64, no worker; a batch is
reduced to three numbers, so that the reader is measured and nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 64


def few(batch: list[Any]) -> tuple[int, int, int]:
    """A batch as three numbers; of every page of every sample one byte is looked at, so that all of it is there."""
    images = [sample[0] if isinstance(sample, tuple) else sample["jpg"] for sample in batch]
    return len(images), sum(map(len, images)), sum([bytes(image[::4096])[-1] for image in images])


def shoal_random(folder: str, **options: Any) -> Any:
    import torch

    import shoal.data
    from shoal.data.for_torch import MapDataset

    data = shoal.data.open(folder, fields=("jpg", "cls"), **options)
    return torch.utils.data.DataLoader(MapDataset(data), BATCH, shuffle=True, collate_fn=few)


def shoal_unchecked(folder: str) -> Any:
    return shoal_random(folder, check=False)


def shoal_views(folder: str) -> Any:
    return shoal_random(folder, views=True)


def shoal_stream(folder: str, window: int | None = None, **options: Any) -> Any:
    import shoal.data
    from shoal.data.for_torch import Loader

    data = shoal.data.open(folder, fields=("jpg", "cls"), **options)
    loader = Loader(data, batch_size=BATCH, window=window, collate=few)
    loader.stream.epoch = 1
    return loader


def shoal_stream_full(folder: str) -> Any:
    return shoal_stream(folder, window=1 << 30)


def shoal_stream_views(folder: str) -> Any:
    return shoal_stream(folder, views=True)


def folder_of_files(folder: str) -> Any:
    import torch

    class Files(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.names = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]

        def __len__(self) -> int:
            return len(self.names)

        def __getitem__(self, number: int) -> tuple[bytes, int]:
            return Path(self.names[number]).read_bytes(), 0

    return torch.utils.data.DataLoader(Files(), BATCH, shuffle=True, collate_fn=few)


def webdataset_shards(folder: str) -> Any:
    import torch
    import webdataset

    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".tar"))
    data = webdataset.WebDataset(paths, shardshuffle=len(paths)).shuffle(1000).to_tuple("jpg", "cls")
    return torch.utils.data.DataLoader(data, BATCH, collate_fn=few)


def _spare_torchvision() -> None:
    """MosaicML's package imports torchvision for data sets that are not read here, and not every torch has its own."""
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.VisionDataset, module.to_tensor = object, None  # type: ignore[attr-defined]


def mosaic(folder: str) -> Any:
    import torch

    _spare_torchvision()
    from streaming import StreamingDataset

    data = StreamingDataset(local=folder, shuffle=True, batch_size=BATCH)
    return torch.utils.data.DataLoader(data, BATCH, collate_fn=few)


def litdata(folder: str) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    return StreamingDataLoader(StreamingDataset(folder, shuffle=True), batch_size=BATCH, collate_fn=few)


def at_random(data: Any) -> Any:
    """A rival's data set in fully random order, sample by sample: its own shuffle stays within chunks or blocks."""
    import torch

    class ByNumber(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, number: int) -> Any:
            return data[number]

    return torch.utils.data.DataLoader(ByNumber(), BATCH, shuffle=True, collate_fn=few)


def litdata_random(folder: str) -> Any:
    from litdata import StreamingDataset

    return at_random(StreamingDataset(folder))


def mosaic_random(folder: str) -> Any:
    _spare_torchvision()
    from streaming import StreamingDataset

    return at_random(StreamingDataset(local=folder, batch_size=BATCH))


def write_mosaic(source: str, dest: str) -> None:
    _spare_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=dest, columns={"jpg": "bytes", "cls": "int"}, size_limit=1 << 26, hashes=["xxh64"]) as out:
        for path, label in _files(source):
            out.write({"jpg": Path(path).read_bytes(), "cls": label})


def _one(item: tuple[str, int]) -> dict[str, Any]:
    return {"jpg": Path(item[0]).read_bytes(), "cls": item[1]}


def write_litdata(source: str, dest: str) -> None:
    from litdata import optimize

    optimize(fn=_one, inputs=_files(source), output_dir=dest, chunk_bytes=1 << 26, num_workers=2)


def _files(source: str) -> list[tuple[str, int]]:
    import random

    folders = sorted(os.listdir(source))
    found = [
        (os.path.join(source, f, n), k) for k, f in enumerate(folders) for n in os.listdir(os.path.join(source, f))
    ]
    random.Random(0).shuffle(found)
    return found


READERS = {
    "shoal, random": shoal_random,
    "shoal, random, unchecked": shoal_unchecked,
    "shoal, random, views": shoal_views,
    "shoal, stream": shoal_stream,
    "shoal, stream, fully shuffled": shoal_stream_full,
    "shoal, stream, views": shoal_stream_views,
    "folder of files": folder_of_files,
    "webdataset": webdataset_shards,
    "MosaicML Streaming": mosaic,
    "MosaicML Streaming, random": mosaic_random,
    "LitData": litdata,
    "LitData, random": litdata_random,
}


def main(name: str, folder: str, most: int) -> None:
    loader = READERS[name](folder)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    count = size = 0
    first = 0.0
    for batch in loader:
        count, size = count + batch[0], size + batch[1]
        first = first or time.perf_counter() - began
        if count >= most:
            break
    wall = time.perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime
    print(json.dumps({"samples": count, "bytes": size, "wall_s": wall, "cpu_s": cpu, "first_s": first}))


def resume(folder: str) -> None:
    """From opening to the first sample at 90 % of an epoch, and what the imports before it took."""
    import torch.utils.data  # noqa: F401 (a training has it)

    began = time.perf_counter()
    import shoal.data
    import shoal.data.dataset
    import shoal.data.streaming

    loaded = time.perf_counter()
    data = shoal.data.open(folder, fields=("jpg", "cls"))
    stream = data.stream(rank=0, world=1)
    stream.load_state_dict({**stream.state_dict(), "epoch": 3, "position": int(len(data) * 0.9)})
    next(iter(stream))
    print(json.dumps({"import_ms": 1e3 * (loaded - began), "resume_ms": 1e3 * (time.perf_counter() - loaded)}))


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what.startswith("write_"):
        globals()[what](where, *rest)
    elif what == "resume":
        resume(where)
    else:
        main(what, where, int(rest[0]) if rest else 1 << 62)
