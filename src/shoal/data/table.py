"""Samples of several shards as one table: a number in, bytes out, with columns so that a batch is a few look-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.data import needs, tfrecord
from shoal.data.index import BYTES_LIST, FLOAT, INT64, NO_LABEL
from shoal.data.shardset import ShardSet
from shoal.errors import InputError
from shoal.job import crc32

KEY = "__key__"
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    INT64: tfrecord.int64_list,
    FLOAT: tfrecord.float_list,
    BYTES_LIST: tfrecord.bytes_list,
}


class SampleTable:
    """The samples of the given shards, in that order. `fields` of the table are all that occur in them."""

    def __init__(self, shards: ShardSet, numbers: Sequence[int]) -> None:
        np = needs.numpy()
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
        np = needs.numpy()
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
            np = needs.numpy()
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
        np = needs.numpy()
        wanted = np.asarray(numbers, dtype=np.int64)
        for field in fields:
            if self.alternatives(field) and field != "cls":
                rows = self.rows(field)[wanted]
                there = rows >= 0
                self.shards.will_read(*self._places(wanted[there], rows[there]), now=now)

    def in_memory(self, numbers: Sequence[int]) -> list[bool | None]:
        """Whether the largest field of each sample is in the system's memory; None where it does not tell."""
        np = needs.numpy()
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
        np = needs.numpy()
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
        if self.shards.validate:
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
