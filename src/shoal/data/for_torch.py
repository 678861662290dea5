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

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shoal.data import needs
from shoal.data.reading import Dataset
from shoal.data.streaming import Stream
from shoal.errors import InputError

torch_data: Any = needs.need("torch.utils.data", "shoal.data.for_torch", "pip install torch")


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

    Give it the batch size of the DataLoader. `set_epoch` before each epoch, as for DistributedSampler.
    """

    def __init__(self, stream: Stream, batch_size: int) -> None:
        self.stream = stream
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        self.stream.epoch, self.stream.position = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        me = torch_data.get_worker_info()
        worker, workers = (0, 1) if me is None else (me.id, me.num_workers)
        for block in self.stream.blocks(worker, workers, self.batch_size):
            yield from block.samples


class Loader:
    """Batches of one rank, epoch after epoch, with a position that can be saved and restored anywhere in an epoch."""

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
        if options.get("persistent_workers"):
            raise InputError("persistent workers would repeat the first epoch's order", hint="persistent_workers=False")
        rank, world = _place(rank, world)
        self.stream = data.stream(seed=seed, rank=rank, world=world, remainder=remainder, window=window)
        self.batch_size = batch_size
        self._drop_last = drop_last
        self._loader = torch_data.DataLoader(
            StreamDataset(self.stream, batch_size),
            batch_size=batch_size,
            num_workers=workers,
            drop_last=drop_last,
            collate_fn=collate,
            **options,
        )

    @property
    def epoch(self) -> int:
        return self.stream.epoch

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return self._batches(len(self.stream))

    def _batches(self, samples: int) -> int:
        whole, rest = divmod(samples, self.batch_size)
        return whole + (1 if rest and not self._drop_last else 0)

    def __iter__(self) -> Iterator[Any]:
        """The batches from here to the end of the epoch; then the next epoch is next."""
        if self.stream.position and not self._batches(self.stream.left()):
            self.stream.next_epoch()  # Lightning counts the batches and never asks for one more.
        start = self.stream.position
        for number, batch in enumerate(self._loader, 1):
            # Workers read ahead; what counts is what was handed out here.
            self.stream.position = start + number * self.batch_size * self.stream.world
            yield batch
        self.stream.next_epoch()

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


def _place(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """The process group's word, if there is one and nothing was said."""
    if rank is None and world is None:
        distributed = needs.need("torch.distributed", "shoal.data.for_torch", "pip install torch")
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return rank, world
