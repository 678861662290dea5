"""PyTorch: map-style and iterable data sets, and a loader whose position can be saved with the model.

    data = shoal.data.open(path, fields=("jpg", "cls"), transform=decode)
    loader = shoal.data.for_torch.Loader(data, batch_size=256, workers=8, seed=0)
    for epoch in range(loader.epoch, 90):
        for images, labels in loader: ...
    torch.save({"loader": loader.state_dict(), ...})

A plain DataLoader works as well: `MapDataset(data)` with any sampler (DistributedSampler, Lightning's), or
`StreamDataset(data.stream(...), batch_size)` for data that is still being staged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shoal.data import optional_packages
from shoal.data.dataset import Dataset
from shoal.data.streaming import SampleStream, resolve_rank
from shoal.errors import InputError

torch: Any = optional_packages.require("torch", "shoal.data.for_torch", "pip install torch")
torch_data: Any = optional_packages.require("torch.utils.data", "shoal.data.for_torch", "pip install torch")


class MapDataset(torch_data.Dataset):  # type: ignore[misc]
    """Any sample by its number; a DataLoader fetches whole batches with one wait for the disk."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        return self.data[int(number)]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        return self.data.batch(numbers)


class StreamDataset(torch_data.IterableDataset):  # type: ignore[misc]
    """A stream for DataLoader: each worker takes every n-th batch, so all samples come once, and batches in order.

    Give it the batch size of the DataLoader. `set_epoch` before each epoch, as for DistributedSampler; it also reaches
    workers that persist, because where to begin is in memory that they share.
    """

    def __init__(self, stream: SampleStream, batch_size: int) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self._begin = torch.tensor([stream.epoch, stream.position, stream.rank, stream.world]).share_memory_()

    def __len__(self) -> int:
        return len(self.stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamDataset:
        return StreamDataset(copy.deepcopy(self.stream, memo), self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        self.stream.epoch, self.stream.position = epoch, 0
        self.start_position()

    def start_position(self) -> None:
        """Let the next iteration, here or in workers, begin where the stream is now."""
        stream = self.stream
        self._begin.copy_(torch.tensor([stream.epoch, stream.position, stream.rank, stream.world]))

    def __iter__(self) -> Iterator[Any]:
        me = torch_data.get_worker_info()
        worker, workers = (0, 1) if me is None else (me.id, me.num_workers)
        if me is not None:
            stream = self.stream
            stream.epoch, stream.position, stream.rank, stream.world = self._begin.tolist()
        for block in self.stream.blocks(worker, workers, self.batch_size):
            yield from block.samples


class Loader:
    """Batches of one rank, epoch after epoch, with a position that can be saved and restored anywhere in an epoch.

    A loop that was broken off is begun anew by the next one, with the same samples (so a validation over a few batches
    always sees the same), unless a state was loaded in between; a complete one is followed by the next epoch.
    Without `rank` and `world` the process group says, when it is there, else RANK and WORLD_SIZE.
    """

    def __init__(
        self,
        data: Dataset,
        *,
        batch_size: int,
        workers: int = 0,
        seed: int | None = 0,
        rank: int | None = None,
        world: int | None = None,
        remainder: str = "pad",
        window: int | None = None,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"a batch of {batch_size} samples is not possible")
        # Nobody may know yet which rank this is: Lightning's loaders are often made before its processes are joined.
        self._rank_given = rank is not None or world is not None
        rank, world = (rank, world) if self._rank_given else (0, 1)
        self.stream = data.stream(seed=seed, rank=rank, world=world, remainder=remainder, window=window)
        self.batch_size = batch_size
        self._drop_last = drop_last
        self._options = {"num_workers": workers, "drop_last": drop_last, "collate_fn": collate, **options}
        self._loader: Any = None

    @property
    def epoch(self) -> int:
        return self.stream.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop begin at the start of this epoch."""
        self.stream.epoch, self.stream.position = epoch, 0

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        self._restore_position()
        return self._batches(len(self.stream))

    def _batches(self, samples: int) -> int:
        whole, rest = divmod(samples, self.batch_size)
        return whole + (1 if rest and not self._drop_last else 0)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the epoch, or those from a loaded state on; then the next epoch is next."""
        self._restore_position()
        # Lightning counts the batches and never asks for one more.
        self.stream.begin(over=not self._batches(self.stream.left()))
        start, loader = self.stream.position, self._started_loader()
        for number, batch in enumerate(loader, 1):
            # Workers read ahead; what counts is what was handed out here.
            self.stream.position = start + number * self.batch_size * self.stream.world
            yield batch
        self.stream.next_epoch()

    def _started_loader(self) -> Any:
        if self._loader is None:
            data = StreamDataset(self.stream, self.batch_size)
            self._loader = torch_data.DataLoader(data, batch_size=self.batch_size, **self._options)
        self._loader.dataset.start_position()
        return self._loader

    def _restore_position(self) -> None:
        if not self._rank_given:
            self.stream.rank, self.stream.world = _rank_and_world()

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
        self._loader = None  # Workers that persist have the old seed and window.


def _rank_and_world() -> tuple[int, int]:
    """The process group's word, if there is one, else the launcher's."""
    distributed = optional_packages.require("torch.distributed", "shoal.data.for_torch", "pip install torch")
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return resolve_rank(None, None)
