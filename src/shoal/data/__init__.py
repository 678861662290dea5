"""Data next to the GPU: few big files instead of many small ones, one copy per node, reading that starts at once.

    pack      a folder, list or iterator -> shards, an index per shard, a manifest          packing, iterating
    format    tar in WebDataset's convention, TFRecord, squashfs: nobody is locked in        tar, tfrecord, squash
    check     verify, info, unpack; shards made elsewhere get their index on demand         checking, foreign
    read      random access and streams, exactly once over ranks and workers, resumable     reading, order, adapters
    stage     node-local copies shared by all jobs of a node: job/staging, because it runs inside jobs
    measure   bench (the storage), advise (the loader against the model)

`open` is the door for programs: `shoal.data.open(os.environ["SHOAL_DATA_IMAGENET"])`. Needs numpy (the extra "data").
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.iterating import pack_samples
    from shoal.data.packing import pack
    from shoal.data.reading import Dataset
    from shoal.data.reading import open_dataset as open

__all__ = ["Dataset", "open", "pack", "pack_samples"]

_WHERE = {
    "Dataset": ("shoal.data.reading", "Dataset"),
    "open": ("shoal.data.reading", "open_dataset"),
    "pack": ("shoal.data.packing", "pack"),
    "pack_samples": ("shoal.data.iterating", "pack_samples"),
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used, so that the command line can say `shoal data --help` without numpy."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)
