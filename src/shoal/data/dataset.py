"""`shoal.data.open`: a dataset as a sequence of samples, in any order and from any position.

A sample is a dict of its fields and its key, or a tuple of the fields that were asked for:

    data = shoal.data.open(os.environ["SHOAL_DATA_IMAGENET"], fields=("jpg", "cls"))
    image, label = data[17]
    for image, label in data.stream(seed=0, epoch=3): ...

`data[i]` reads one sample; `data.batch([...])` reads many with one wait for the disk, which is what PyTorch's
DataLoader uses. Values are the bytes that were sharded; `transform` may decode them. The samples of all shards form one
table of columns, so that finding a batch is a few look-ups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.data import formats, optional_packages
from shoal.data.manifest import BYTES_LIST, FLOAT, INT64, NO_LABEL, Manifest
from shoal.data.shardset import ShardSet, find_shards
from shoal.errors import InputError
from shoal.job import crc32

if TYPE_CHECKING:
    from shoal.data.streaming import SampleStream

KEY = "__key__"
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    INT64: formats.int64_list,
    FLOAT: formats.float_list,
    BYTES_LIST: formats.bytes_list,
}


class SampleTable:
    """The samples of the given shards, in that order. `fields` of the table are all that occur in them."""

    def __init__(self, shards: ShardSet, numbers: Sequence[int]) -> None:
        np = optional_packages.numpy()
        self.shards = shards
        self.numbers = list(numbers)
        self.indexes = [shards.index(number) for number in self.numbers]
        counts = [len(index) for index in self.indexes]
        self.ends = np.cumsum(np.array([0, *counts], dtype=np.int64))
        self.length = int(self.ends[-1])
        self._place = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self._number = np.array(self.numbers, dtype=np.int64)
        self._offset = self._join("offset", np.int64)
        self._size = self._join("size", np.int64)
        self._crc = self._join("crc", np.uint32)
        self._label = self._join("label", np.int64)
        self.kinds: dict[str, str] = {}
        for index in self.indexes:
            self.kinds.update(zip(index.fields, index.kinds, strict=True))
        self._rows: dict[str, Any] = {}

    def _join(self, name: str, dtype: Any) -> Any:
        np = optional_packages.numpy()
        parts = [index.columns[name].astype(dtype) for index in self.indexes]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    def alternatives(self, field: str) -> list[str]:
        """The fields of the table that "jpg;jpeg;png" may mean, as in WebDataset: of each sample the first it has. One
        field may also be called so itself."""
        return [field] if field in self.kinds else [name for name in field.split(";") if name in self.kinds]

    def rows(self, field: str) -> Any:
        """The member that holds a field, for every sample; -1 where a sample has none."""
        if field not in self._rows:
            np = optional_packages.numpy()
            rows = np.full(self.length, -1, dtype=np.int64)
            if field not in self.kinds:
                for name in self.alternatives(field):
                    rows = np.where(rows < 0, self.rows(name), rows)
            members = 0
            for place, index in enumerate(self.indexes):
                first, of = index.columns["first"].astype(np.int64), index.columns["field"]
                if field in index.fields:
                    hits = np.flatnonzero(of == index.fields.index(field))
                    owner = np.searchsorted(first, hits, side="right") - 1
                    rows[int(self.ends[place]) + owner] = hits + members
                members += len(of)
            self._rows[field] = rows
        return self._rows[field]

    def will_read(self, numbers: Sequence[int], fields: Sequence[str], now: bool) -> None:
        """Have the fields of these samples brought to memory, beside the program."""
        np = optional_packages.numpy()
        wanted = np.asarray(numbers, dtype=np.int64)
        for field in fields:
            if self.alternatives(field) and field != "cls":
                rows = self.rows(field)[wanted]
                there = rows >= 0
                self.shards.will_read(*self._places(wanted[there], rows[there]), now=now)

    def in_memory(self, numbers: Sequence[int]) -> list[bool | None]:
        """Whether the largest field of each sample is in the system's memory; None where it does not tell."""
        np = optional_packages.numpy()
        wanted = np.asarray(numbers, dtype=np.int64)
        fields = [field for field in self.kinds if field != "cls"]
        if not fields:
            return []
        rows = np.stack([self.rows(field)[wanted] for field in fields])
        sizes = np.where(rows >= 0, self._size[rows], -1)
        largest = rows[sizes.argmax(axis=0), np.arange(len(wanted))]
        return self.shards.in_memory(*self._places(wanted[largest >= 0], largest[largest >= 0]))

    def _places(self, wanted: Any, rows: Any) -> tuple[list[int], list[int], list[int]]:
        """Shard, offset and size of each member."""
        return self._number[self._place[wanted]].tolist(), self._offset[rows].tolist(), self._size[rows].tolist()

    def columns(self, numbers: Sequence[int], fields: Sequence[str]) -> list[list[Any]]:
        """For each field the values of the samples, in their order. A class number costs no read: the index has it."""
        np = optional_packages.numpy()
        wanted = np.asarray(numbers, dtype=np.int64)
        return [self._column(wanted, field) for field in fields]

    def _column(self, wanted: Any, field: str) -> list[Any]:
        if field == KEY:
            return [self.key(number).decode("utf-8", "surrogateescape") for number in wanted.tolist()]
        if field == "cls":
            labels: list[Any] = self._label[wanted].tolist()
            if NO_LABEL not in labels:
                return labels
        rows = self.rows(field)[wanted]
        if (rows < 0).any():
            return self._with_gaps(wanted, field, rows)
        shards, offsets, sizes = self._places(wanted, rows)
        found: list[Any] = self.shards.read(shards, offsets, sizes)
        if self.shards.checked:
            self._check(found, wanted, rows, shards, offsets)
        kinds = {self.kinds[name] for name in self.alternatives(field)}
        if len(kinds) > 1:
            raise InputError(f"the fields {field!r} hold different kinds of values: {', '.join(sorted(kinds))}")
        decode = _DECODERS.get(kinds.pop())
        return [decode(bytes(data)) for data in found] if decode is not None else found

    def _with_gaps(self, wanted: Any, field: str, rows: Any) -> list[Any]:
        """None for the samples that lack a field; an error if no sample of the data set has it."""
        elsewhere = {field, *field.split(";")} & set(self.shards.manifest.fields)
        if not self.alternatives(field) and not elsewhere and self.length:
            raise InputError(f"no sample has the field {field!r}, only {', '.join(map(repr, self.fields))}")
        there = [place for place, row in enumerate(rows.tolist()) if row >= 0]
        values = self._column(wanted[there], field) if there else []
        column: list[Any] = [None] * len(rows)
        for place, value in zip(there, values, strict=True):
            column[place] = value
        return column

    def _check(self, found: list[Any], wanted: Any, rows: Any, shards: list[int], offsets: list[int]) -> None:
        """Compare values with their checksums; what a copy has damaged is put right from its source, or an error."""
        for place, crc in enumerate(self._crc[rows].tolist()):
            if crc32(found[place]) != crc and not self.shards.index(shards[place]).shard.get("unchecked"):
                key = self.key(int(wanted[place])).decode("utf-8", "backslashreplace")
                size, offset = len(found[place]), offsets[place]
                problem = f"is damaged: sample {key} ({size} bytes at {offset}) has a wrong checksum"
                found[place] = self.shards.read_again(shards[place], offset, size, crc, problem)

    def key(self, number: int) -> bytes:
        place = int(self._place[number])
        return self.indexes[place].key(number - int(self.ends[place]))


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
        """All samples in the order in which they were sharded, shard by shard, so it works while staging goes on."""
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
    shards.mapped, shards.checked = views, check
    return Dataset(shards, fields=fields, transform=transform)
