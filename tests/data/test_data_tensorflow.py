"""TensorFlow (`make tensorflow`): each sample once, each rank reads its own bytes, and their number is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shoal.data
from data_sets import SHOAL, make_folder
from shoal.data.shard_plan import ShardSettings
from shoal.errors import InputError

tf: Any = pytest.importorskip("tensorflow", reason="TensorFlow is not installed: make tensorflow")

SAMPLES = 101


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tf")
    make_folder(base / "src", SAMPLES, size=1500)
    for format in ("tar", "tfrecord"):
        settings = ShardSettings(shard_mb=0.03, first_mb=0.008, format=format)
        shoal.data.shard_dataset(str(base / "src"), str(base / format), settings)
    return base


@pytest.mark.parametrize("format", ["tar", "tfrecord"])
def test_tf_data_reads_the_stream_and_knows_its_length(folder: Path, format: str) -> None:
    from shoal.data.for_tensorflow import dataset

    data = shoal.data.open(str(folder / format), fields=("jpg", "cls"))
    every = Counter(data.batch(range(SAMPLES)))
    found = dataset(data, seed=3)
    assert int(found.cardinality()) == SAMPLES and len(found.batch(10)) == 11
    for epoch in range(2):  # Iterating again is the next epoch, as with the other readers.
        samples = [(image.numpy(), int(label)) for image, label in found.batch(7).unbatch()]
        assert samples == list(data.stream(seed=3, epoch=epoch)) and Counter(samples) == every
    assert [int(label) for _, label in found.take(5)] == [label for _, label in data.stream(seed=3, epoch=2)][:5]


@pytest.mark.parametrize("format", ["tar", "tfrecord"])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_split_the_samples(folder: Path, format: str, world: int) -> None:
    from shoal.data.for_tensorflow import dataset

    data = shoal.data.open(str(folder / format), fields=("__key__", "cls"))
    parts = [dataset(data, rank=rank, world=world) for rank in range(world)]
    keys = [[key.numpy().decode() for key, _ in part] for part in parts]
    assert [int(part.cardinality()) for part in parts] == [len(some) for some in keys]
    assert Counter(key for some in keys for key in some) == Counter(key for key, _ in data)
    policy = parts[0].options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF, "TensorFlow would split a second time"


#: Prints how many bytes a process has read for its rank's samples, and what they hold.
READ = """
import json, sys
import shoal.data
from shoal.data.for_tensorflow import dataset

def read():
    return int(open("/proc/self/io").read().split()[1])

found = dataset(shoal.data.open(sys.argv[1], fields=("jpg",)), rank=int(sys.argv[2]), world=4, epoch=1)
before = read()
print(json.dumps([sum(len(image.numpy()) for (image,) in found), read() - before]))
"""


def test_each_rank_reads_its_part_of_the_bytes(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 400, size=20_000)
    shoal.data.shard_dataset(
        str(tmp_path / "src"), str(tmp_path / "data"), ShardSettings(format="tfrecord", shard_mb=1)
    )
    total = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.tfrecord"))
    held = 0
    for rank in range(4):
        argv = [sys.executable, "-c", READ, str(tmp_path / "data"), str(rank)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        mine, read = json.loads(done.stdout)
        held += mine
        assert read < 1.2 * mine + 500_000 and read < total / 2
    assert held == shoal.data.open(str(tmp_path / "data")).manifest.bytes


def test_transforms_and_lists_of_numbers_come_as_tensors(folder: Path, tmp_path: Path) -> None:
    import numpy as np

    from shoal.data.for_tensorflow import dataset

    def decode(sample: tuple[bytes, int]) -> tuple[Any, int]:
        return np.frombuffer(sample[0][:12], dtype=np.uint8).reshape(3, 4), sample[1]

    data = shoal.data.open(str(folder / "tar"), fields=("jpg", "cls"), transform=decode)
    images, labels = next(iter(dataset(data).batch(SAMPLES)))
    assert images.shape == (SAMPLES, 3, 4) and images.dtype == tf.uint8 and labels.dtype == tf.int64
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        for k in range(5):
            box, score = tf.train.Int64List(value=[k, k + 1]), tf.train.FloatList(value=[k / 2])
            features = {"box": tf.train.Feature(int64_list=box), "score": tf.train.Feature(float_list=score)}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    found = dataset(shoal.data.open(str(tmp_path / "x.tfrecord"), fields=("box", "score")), seed=None)
    assert [(box.numpy().tolist(), float(score)) for box, score in found] == [([k, k + 1], k / 2) for k in range(5)]


def test_a_sample_without_the_field_is_an_error_that_names_it(tmp_path: Path) -> None:
    from shoal.data.for_tensorflow import dataset

    shoal.data.shard_samples([{"jpg": b"a"}, {"png": b"b"}], str(tmp_path / "out"), ShardSettings(seed=None))
    data = shoal.data.open(str(tmp_path / "out"), fields=("jpg;png",))
    assert [image.numpy() for (image,) in dataset(data, seed=None)] == [b"a", b"b"]
    with pytest.raises(Exception, match="a sample has no field 'jpg'"):
        list(dataset(shoal.data.open(str(tmp_path / "out"), fields=("jpg",)), seed=None))
    with pytest.raises(InputError, match="needs to know the fields"):
        dataset(shoal.data.open(str(tmp_path / "out")))


#: tf.data as everybody uses it: all shards of a folder.
PLAIN = """
import glob, os
import tensorflow as tf
paths = sorted(glob.glob(os.environ["SHOAL_DATA_TFRECORD"] + "/*.tfrecord"))
print(sum(1 for _ in tf.data.TFRecordDataset(paths)))
"""


def test_plain_tf_data_finds_every_record_of_staged_data(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    env = {**os.environ, "SHOAL_SCRATCH": str(tmp_path / "scratch")}
    argv = [*SHOAL, "data", "stage", str(folder / "tfrecord"), "--threads", "1", "-q"]
    done = subprocess.run(
        [*argv, "--", sys.executable, "-c", PLAIN], env=env, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == SAMPLES
