"""`shoal.data.open`: a data set as a sequence of samples, in any order and from any place.

A sample is a dict of its fields and its key, or a tuple of the fields that were asked for:

    data = shoal.data.open(os.environ["SHOAL_DATA_IMAGENET"], fields=("jpg", "cls"))
    image, label = data[17]
    for image, label in data.stream(seed=0, epoch=3): ...

`data[i]` reads one sample; `data.batch([...])` reads many with one wait for the disk, which is what PyTorch's
DataLoader uses. Values are the bytes that were packed; `transform` may decode them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.data.manifest import Manifest
from shoal.data.shardset import ShardSet, find_shards
from shoal.data.table import KEY, SampleTable

if TYPE_CHECKING:
    from shoal.data.streaming import SampleStream


class Dataset:
    """Samples by number. Also what PyTorch calls a map-style data set, with `__getitems__` for whole batches."""

    def __init__(
        self,
        shards: ShardSet,
        *,
        fields: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.shards = shards
        self.fields = None if fields is None else tuple(fields)
        self.transform = transform

    @property
    def manifest(self) -> Manifest:
        return self.shards.manifest

    @property
    def classes(self) -> list[str]:
        return self.manifest.classes

    @cached_property
    def identity(self) -> str:
        """What tells this data set from others: the manifest's id; of shards made elsewhere their names and sizes."""
        shards = [(shard.name, shard.size) for shard in self.manifest.shards]
        return self.manifest.id or hashlib.sha256(repr(shards).encode()).hexdigest()[:24]

    @cached_property
    def counts(self) -> list[int]:
        """Samples per shard; of shards made elsewhere only their indexes know."""
        listed = [shard.samples for shard in self.manifest.shards]
        if self.manifest.id:
            return listed
        return [len(self.shards.index(number)) for number in range(len(self.shards))]

    @cached_property
    def table(self) -> SampleTable:
        return SampleTable(self.shards, range(len(self.shards)))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "table"}

    def __len__(self) -> int:
        return sum(self.counts)

    def __getitem__(self, number: int) -> Any:
        length = len(self)
        if not -length <= number < length:
            raise IndexError(f"sample {number} of {length}")
        return self.batch([number % length])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        return self.batch(numbers)

    def __iter__(self) -> Iterator[Any]:
        """All samples in the order in which they were packed, shard by shard, so it works while staging goes on."""
        return iter(self.stream(seed=None))

    def batch(self, numbers: Sequence[int]) -> list[Any]:
        """The samples with these numbers, read together."""
        self.will_read(self.table, numbers, now=True)
        return self.samples(self.table, numbers)

    def will_read(self, table: SampleTable, numbers: Sequence[int], now: bool = False) -> None:
        """These samples are read soon, or now: the disk may begin."""
        table.will_read(numbers, table.fields if self.fields is None else self.fields, now)

    def samples(self, table: SampleTable, numbers: Sequence[int]) -> list[Any]:
        fields = self.fields if self.fields is not None else (*table.fields, KEY)
        columns = table.columns(numbers, fields)
        found: list[Any]
        if self.fields is None:
            found = [
                {field: value for field, value in zip(fields, values, strict=True) if value is not None}
                for values in zip(*columns, strict=True)
            ]
        else:
            found = list(zip(*columns, strict=True))
        return found if self.transform is None else [self.transform(sample) for sample in found]

    def key(self, number: int) -> str:
        return self.table.key(number).decode("utf-8", "surrogateescape")

    def stream(self, **options: Any) -> SampleStream:
        """Samples one after the other, shuffled, split and resumable: see `shoal.data.streaming.SampleStream`."""
        from shoal.data.streaming import SampleStream

        return SampleStream(self, **options)


def open(
    path: str,
    *,
    fields: Sequence[str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    check: bool = True,
    views: bool = False,
) -> Dataset:
    """Open a data set: its folder or manifest, a staged folder, or tar or TFRecord shards made elsewhere.

    Every index and value is compared with its checksum while reading, unless `check` is False; what a staged copy has
    damaged is read from its source, with a warning. With `views` values are memoryviews of the mapped
    shards instead of bytes: nothing is copied, but they cannot be sent to another process, so decode them where they
    are read. Opening reads the manifest only.
    """
    shards = find_shards(path)
    shards.mapped, shards.validate = views, check
    return Dataset(shards, fields=fields, transform=transform)
