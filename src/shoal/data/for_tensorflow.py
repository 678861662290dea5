"""TensorFlow: a tf.data.Dataset of one rank's samples, in the order of the stream, for shards of every format.

data = shoal.data.open(path, fields=("jpg", "cls"))
batches = shoal.data.for_tensorflow.dataset(data, seed=0).batch(256).prefetch(2)

Samples come in blocks from the stream, so a rank reads its own bytes only and Python is called once for many samples;
tf.data knows how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.data import optional_packages
from shoal.data.dataset import Dataset
from shoal.errors import InputError


def dataset(
    data: Dataset,
    *,
    seed: int | None = 0,
    epoch: int = 0,
    rank: int | None = None,
    world: int | None = None,
    remainder: str = "keep",
    window: int | None = None,
) -> Any:
    """A tf.data.Dataset of tuples of the data set's fields, or of what its transform makes of them.

    The first iteration is `epoch`, each complete one is followed by the next. Shards that are still being staged are
    waited for. With several ranks it is split already, so TensorFlow's own sharding is off.
    """
    tf = optional_packages.require("tensorflow", "shoal.data.for_tensorflow", "pip install tensorflow")
    if data.fields is None:
        raise InputError("tf.data needs to know the fields", hint='shoal.data.open(path, fields=("jpg", "cls"))')
    options: dict[str, Any] = {"seed": seed, "remainder": remainder, "window": window}
    stream = data.stream(epoch=epoch, rank=rank, world=world, **options)
    first = next(iter(data.stream(rank=0, world=1, **options).blocks(block=1))).samples[0]
    values = first if isinstance(first, tuple) else (first,)
    flat = all(_is_scalar(value) for value in values)

    def blocks() -> Iterator[Any]:
        left = len(stream)
        for block in data.stream(epoch=stream.epoch, rank=stream.rank, world=stream.world, **options).blocks():
            left -= len(block.samples)
            if not left:
                stream.next_epoch()  # TensorFlow may know the number of samples, and never ask for one more.
            samples = [sample if isinstance(sample, tuple) else (sample,) for sample in block.samples]
            if flat:
                columns = zip(*samples, strict=True)
                yield tuple(_column(column, data.fields, place) for place, column in enumerate(columns))
            else:
                yield from (tuple(map(_unwrap_single, sample)) for sample in samples)

    def spec(value: Any) -> Any:
        array = optional_packages.numpy().asarray(value)
        type_ = tf.string if array.dtype.kind in "SUO" else tf.as_dtype(array.dtype)
        return tf.TensorSpec((None,) if flat else (None,) * array.ndim, type_)

    found = tf.data.Dataset.from_generator(
        blocks, output_signature=tuple(spec(_unwrap_single(value)) for value in values)
    )
    if flat:
        found = found.unbatch()
    found = found.apply(tf.data.experimental.assert_cardinality(len(stream)))
    if stream.world > 1:
        plain = tf.data.Options()
        plain.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        found = found.with_options(plain)
    return found


def _is_scalar(value: Any) -> bool:
    return isinstance(_unwrap_single(value), (bytes, str, int, float, memoryview))


def _unwrap_single(value: Any) -> Any:
    """A TFRecord of others holds lists; one of one number is that number."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _column(values: tuple[Any, ...], fields: Any, place: int) -> Any:
    """One field of many samples as an array."""
    np = optional_packages.numpy()
    plain = [bytes(value) if isinstance(value, memoryview) else _unwrap_single(value) for value in values]
    if None in plain:
        field = fields[place] if place < len(fields) else place
        raise InputError(f"a sample has no field {field!r}", hint="name alternatives: fields=('jpg;jpeg;png', 'cls')")
    return np.array(plain, dtype=object) if isinstance(plain[0], (bytes, str)) else np.array(plain)
