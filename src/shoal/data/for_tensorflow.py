"""TensorFlow: TFRecord shards are read by tf.data itself, in the order of the stream; tar shards through a generator.

data = shoal.data.open(path, fields=("jpg", "cls"))
batches = shoal.data.for_tensorflow.dataset(data, seed=0, epoch=0).batch(256).prefetch(2)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.data import needs
from shoal.data.index import FLOAT, INT64
from shoal.data.reading import Dataset
from shoal.errors import InputError


def dataset(
    data: Dataset, *, seed: int | None = 0, epoch: int = 0, rank: int | None = None, world: int | None = None
) -> Any:
    """A tf.data.Dataset of tuples of the data set's fields. Shards that are still being staged are waited for."""
    tf = needs.need("tensorflow", "shoal.data.for_tensorflow", "pip install tensorflow")
    if data.fields is None:
        raise InputError("tf.data needs to know the fields", hint='shoal.data.open(path, fields=("jpg", "cls"))')
    fields = data.fields
    stream = data.stream(seed=seed, epoch=epoch, rank=rank, world=world)
    kinds = data.shards.index(stream.windows()[0].shards[0])
    kind = dict(zip(kinds.fields, kinds.kinds, strict=True))
    types = [tf.int64 if kind.get(field) == INT64 or field == "cls" else tf.string for field in fields]
    if data.manifest.format != "tfrecord" or data.transform is not None:
        spec = tuple(tf.TensorSpec((), type_) for type_ in types)
        return tf.data.Dataset.from_generator(lambda: iter(stream), output_signature=spec)
    if any(kind.get(field) == FLOAT for field in fields):
        types = [tf.float32 if kind.get(field) == FLOAT else type_ for field, type_ in zip(fields, types, strict=True)]

    def paths() -> Iterator[str]:
        for window in stream.windows():
            for shard in window.shards:
                yield data.shards.path(shard)

    features = {field: tf.io.FixedLenFeature((), type_) for field, type_ in zip(fields, types, strict=True)}
    names = tf.data.Dataset.from_generator(paths, output_signature=tf.TensorSpec((), tf.string))
    records = names.flat_map(tf.data.TFRecordDataset).shard(stream.world, stream.rank)
    if seed is not None:
        records = records.shuffle(1024, seed=seed + epoch)

    def parse(record: Any) -> Any:
        found = tf.io.parse_single_example(record, features)
        return tuple(found[field] for field in fields)

    return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
