"""Reading: at random, in streams, exactly once over ranks and workers, resumed anywhere; PyTorch and TensorFlow."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import pickle
import shutil
import threading
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.data
from data_sets import make_folder
from shoal.data import prefetch
from shoal.data.bench import drop_cache
from shoal.data.dataset import Dataset
from shoal.data.shard_plan import ShardSettings
from shoal.errors import InputError, ShoalError
from waiting import wait_until

SMALL = ShardSettings(shard_mb=0.03, first_mb=0.008)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 101 samples (a prime, so that nothing divides by chance) in several shards."""
    base = tmp_path_factory.mktemp("read")
    make_folder(base / "src", 101, size=1500)
    shoal.data.shard_dataset(str(base / "src"), str(base / "out"), SMALL)
    return base


@pytest.fixture
def data(folder: Path) -> Dataset:
    return shoal.data.open(str(folder / "out"), fields=("__key__", "jpg"))


def keys(samples: Any) -> list[str]:
    return [sample[0] for sample in samples]


def test_any_sample_is_read_by_its_number(folder: Path, data: Dataset) -> None:
    assert len(data) == 101
    assert len(data.shards) > 4
    for number in (0, 1, 50, 100, -1):
        key, image = data[number]
        assert image == (folder / "src" / f"{key}.jpg").read_bytes()
    assert data.batch([3, 99, 3]) == [data[3], data[99], data[3]]
    assert data.batch([]) == []
    with pytest.raises(IndexError):
        data[101]


def test_a_sample_is_a_dict_of_all_fields_or_a_tuple_of_some(folder: Path) -> None:
    sample = shoal.data.open(str(folder / "out"))[7]
    assert set(sample) == {"jpg", "cls", "__key__"}
    assert shoal.data.open(str(folder / "out"), fields=("cls",))[7] == (sample["cls"],)
    doubled = shoal.data.open(str(folder / "out"), fields=("cls",), transform=lambda s: s[0] * 2)
    assert doubled[7] == sample["cls"] * 2
    with pytest.raises(InputError, match="no sample has the field 'png', only 'jpg', 'cls'"):
        shoal.data.open(str(folder / "out"), fields=("png",))[7]


def test_samples_that_lack_a_field_give_none_in_tuples_and_no_entry_in_dicts(tmp_path: Path) -> None:
    samples = [{"__key__": str(k), "txt": "t"} | ({"json": {"k": k}} if k % 2 else {}) for k in range(6)]
    shoal.data.shard_samples(samples, str(tmp_path / "out"), ShardSettings(seed=None))
    assert [s[0] for s in shoal.data.open(str(tmp_path / "out"), fields=("json",))] == [
        None, b'{"k": 1}', None, b'{"k": 3}', None, b'{"k": 5}'
    ]  # fmt: skip
    assert [set(s) for s in shoal.data.open(str(tmp_path / "out"))][:2] == [
        {"__key__", "txt"}, {"__key__", "txt", "json"}
    ]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(
    world=st.integers(1, 9),
    workers=st.integers(1, 5),
    block=st.integers(1, 20),
    seed=st.one_of(st.none(), st.integers(0, 1000)),
    epoch=st.integers(0, 5),
    window=st.one_of(st.none(), st.integers(1, 20)),
)
def test_ranks_and_workers_see_every_sample_exactly_once(
    folder: Path, world: int, workers: int, block: int, seed: int | None, epoch: int, window: int | None
) -> None:
    data = shoal.data.open(str(folder / "out"), fields=("__key__",))
    seen: Counter[str] = Counter()
    for rank in range(world):
        stream = data.stream(seed=seed, epoch=epoch, rank=rank, world=world, window=window)
        mine = [k for worker in range(workers) for b in stream.blocks(worker, workers, block) for k in keys(b.samples)]
        assert len(mine) == len(stream)
        seen.update(mine)
    assert set(seen.values()) == {1} and len(seen) == 101


@settings(max_examples=30)
@given(world=st.integers(1, 9), remainder=st.sampled_from(["drop", "pad"]), epoch=st.integers(0, 2))
def test_ranks_can_be_made_equally_long(folder: Path, world: int, remainder: str, epoch: int) -> None:
    data = shoal.data.open(str(folder / "out"), fields=("__key__",))
    shares = [keys(data.stream(epoch=epoch, rank=r, world=world, remainder=remainder)) for r in range(world)]
    assert len({len(share) for share in shares}) == 1
    seen = Counter(key for share in shares for key in share)
    if remainder == "drop":
        assert max(seen.values()) == 1 and len(seen) == 101 - 101 % world
    else:
        assert len(seen) == 101 and sum(seen.values()) == 101 + -101 % world


@pytest.mark.slow
@settings(max_examples=40)
@given(stop=st.integers(0, 100), world=st.integers(1, 4), later=st.integers(1, 4), epoch=st.integers(0, 3))
def test_a_stream_resumes_anywhere_with_any_number_of_ranks(
    folder: Path, stop: int, world: int, later: int, epoch: int
) -> None:
    data = shoal.data.open(str(folder / "out"), fields=("__key__",))
    whole = keys(data.stream(seed=5, epoch=epoch, rank=0, world=1))
    each = stop // world
    states, before = [], []
    for rank in range(world):
        stream = data.stream(seed=5, epoch=epoch, rank=rank, world=world)
        before += keys(islice(stream, each))
        states.append(stream.state_dict())
    assert all(state == states[0] for state in states)
    after: list[str] = []
    for rank in range(later):
        stream = data.stream(seed=99, rank=rank, world=later)
        stream.load_state_dict(pickle.loads(pickle.dumps(states[0])))
        after += keys(stream)
    assert sorted(before + after) == sorted(whole)
    assert set(before) == set(whole[: each * world])


def test_epochs_differ_and_are_the_same_again_from_the_same_seed(data: Dataset) -> None:
    stream = data.stream(seed=3)
    epochs = [keys(stream) for _ in range(4)]
    assert stream.epoch == 4
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert [keys(data.stream(seed=3, epoch=e)) for e in range(4)] == epochs
    assert keys(data.stream(seed=4)) != epochs[0]
    assert keys(data.stream(seed=None)) == keys(data) == [data.key(k) for k in range(101)]


def test_a_state_of_another_data_set_is_refused(tmp_path: Path, data: Dataset) -> None:
    make_folder(tmp_path / "src", 5)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"))
    other = shoal.data.open(str(tmp_path / "out")).stream()
    with pytest.raises(InputError, match="the state belongs to data set"):
        other.load_state_dict(data.stream().state_dict())


def test_impossible_ranks_and_remainders_are_refused(data: Dataset) -> None:
    with pytest.raises(InputError, match="rank 2 of 2"):
        data.stream(rank=2, world=2)
    with pytest.raises(InputError, match="kept, dropped or padded"):
        data.stream(remainder="ignore")


def test_rank_and_world_come_from_the_launcher(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    stream = data.stream()
    assert (stream.rank, stream.world, len(stream)) == (2, 3, 33)


def test_threads_and_few_open_files_do_not_mix_up_shards(folder: Path) -> None:
    data = shoal.data.open(str(folder / "out"), fields=("__key__", "jpg"), check=True)
    data.shards._most_files = 2
    wrong: list[str] = []

    def read() -> None:
        for _ in range(5):
            for key, image in data.batch(range(0, 101, 3)):
                if image != (folder / "src" / f"{key}.jpg").read_bytes():
                    wrong.append(key)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("views", [False, True])
def test_a_cold_page_cache_gives_the_same_bytes(folder: Path, views: bool) -> None:
    data = shoal.data.open(str(folder / "out"), fields=("__key__", "jpg"), check=True, views=views)
    orders = (lambda: data.batch(range(101)), lambda: data.stream(seed=1, epoch=1), lambda: data.stream(window=100))
    for samples in orders:
        drop_cache(str(folder / "out"))
        found = list(samples())
        assert len(found) == 101
        for key, image in found:
            assert image == (folder / "src" / f"{key}.jpg").read_bytes()


def in_memory(path: Path) -> float:
    """How much of a file the kernel has in memory, without a read that would bring it there (mincore(2))."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        found = (ctypes.c_ubyte * (len(pages) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(pages)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), len(pages), found) == 0
        del first
        return sum(one & 1 for one in found) / len(found)


def test_what_is_read_soon_is_brought_to_memory_beside_the_program(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(5 << 20))

    def is_cold() -> bool:
        """Nothing of it is left: a part whose first byte is in memory is taken for read."""
        drop_cache(str(tmp_path))
        return in_memory(path) == 0

    if not any(is_cold() for _ in range(10)):
        pytest.skip("this file system does not forget what it has in memory")
    with path.open("rb") as file:
        prefetch.prefetch_ranges([(file.fileno(), part, 1 << 18) for part in range(0, 5 << 20, 1 << 18)])
        wait_until(lambda: in_memory(path) > 0.9, 60, "the places are in memory")
    wait_until(is_cold, 60, "the file is forgotten")
    prefetch.prefetch_files([str(tmp_path / "gone"), str(path)])
    wait_until(lambda: in_memory(path) > 0.9, 60, "the file is in memory")


def test_the_disk_is_told_until_everything_was_in_memory_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, places = prefetch.CacheMonitor(), [(0, 0, 1)] * 64
    monkeypatch.setattr(prefetch, "is_cached", lambda fd, offset: True)
    told = [watch.misses(places[watch.sample_ranges()]) for _ in range(30)]
    assert told[0] and not told[-1] and told == sorted(told, reverse=True)
    assert len(places[watch.sample_ranges()]) == 8
    monkeypatch.setattr(prefetch, "is_cached", lambda fd, offset: False)
    assert watch.misses(places[watch.sample_ranges()])
    assert len(places[watch.sample_ranges()]) == 1
    monkeypatch.setattr(prefetch, "is_cached", lambda fd, offset: None)
    assert not watch.misses(places[watch.sample_ranges()])


def test_what_is_brought_to_memory_leaves_half_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < prefetch.prefetch_budget() <= total / 2
    brought: list[list[str]] = []
    monkeypatch.setattr(prefetch, "prefetch_files", brought.append)
    shards = shoal.data.open(str(folder / "out")).shards
    shards.prefetch_shards(range(len(shards)))
    monkeypatch.setattr(prefetch, "prefetch_budget", lambda: 100)
    shards.prefetch_shards(range(len(shards)))
    assert [len(paths) for paths in brought] == [len(shards)]


def test_files_are_closed_with_the_data_set(folder: Path, tmp_path: Path) -> None:
    """In a folder of its own: threads that bring files of other tests' data sets to memory open and close some, too."""
    shutil.copytree(folder / "out", tmp_path / "own")
    data = shoal.data.open(str(tmp_path / "own"))
    data.batch(range(101))
    assert len(open_files(tmp_path)) >= len(data.shards)
    del data
    gc.collect()
    wait_until(lambda: not open_files(tmp_path), 30, "no file is open")


def open_files(folder: Path) -> list[str]:
    """Those that this process has open there."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_a_shard_that_shrinks_while_it_is_read_is_an_error_and_not_garbage(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 20)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"))
    data = shoal.data.open(str(tmp_path / "out"))
    assert len(data[0]["jpg"]) > 0
    os.truncate(tmp_path / "out" / "shard-000000.tar", 4000)
    with pytest.raises(ShoalError, match="is cut off"):
        data.batch(range(20))


@pytest.mark.parametrize("format", ["tar", "tfrecord"])
def test_views_are_the_same_bytes_without_a_copy(folder: Path, tmp_path: Path, format: str) -> None:
    shoal.data.shard_dataset(str(folder / "src"), str(tmp_path / "out"), SMALL._replace(format=format))
    copied, viewed = (
        shoal.data.open(str(tmp_path / "out"), fields=("jpg", "cls"), views=views) for views in (False, True)
    )
    assert viewed.batch(range(101)) == copied.batch(range(101))
    assert {type(image) for image, _ in viewed.stream(seed=1)} == {memoryview}
    assert pickle.loads(pickle.dumps(viewed))[7] == copied[7]
    os.truncate(tmp_path / "out" / copied.manifest.shards[0].name, 4000)
    with pytest.raises(ShoalError, match="is cut off"):
        shoal.data.open(str(tmp_path / "out"), fields=("jpg",), views=True).batch(range(101))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 20)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "out"))
    (tmp_path / "out" / "shard-000000.tar").unlink()
    with pytest.raises(ShoalError, match=r"shard-000000\.tar is missing"):
        shoal.data.open(str(tmp_path / "out"))[0]


def test_a_data_set_travels_to_spawned_processes(data: Dataset) -> None:
    data[0]
    copy = pickle.loads(pickle.dumps(data))
    assert copy.batch([5, 50]) == data.batch([5, 50])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_plain_dataloader_with_a_distributed_sampler_reads_everything_once(
    folder: Path, workers: int, start: str
) -> None:
    from torch.utils.data import DataLoader, DistributedSampler

    from shoal.data.for_torch import MapDataset

    data = MapDataset(shoal.data.open(str(folder / "out"), fields=("__key__", "cls")))
    seen: Counter[str] = Counter()
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(
            data, num_replicas=2, rank=rank, shuffle=True, drop_last=False
        )
        context = start if workers else None
        for names, _ in DataLoader(data, 16, sampler=sampler, num_workers=workers, multiprocessing_context=context):
            seen.update(names)
    assert len(seen) == 101 and sum(seen.values()) == 102


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_loader_gives_the_same_batches_for_any_number_of_workers_and_resumes(folder: Path, workers: int) -> None:
    from shoal.data.for_torch import Loader

    data = shoal.data.open(str(folder / "out"), fields=("__key__", "cls"))
    reference = [list(names) for names, _ in Loader(data, batch_size=8, seed=1)]
    assert sorted(name for batch in reference for name in batch) == sorted(keys(data))
    loader = Loader(data, batch_size=8, seed=1, workers=workers)
    assert len(loader) == len(reference) == 13
    found = []
    for number, (names, _) in enumerate(loader):
        found.append(list(names))
        if number == 4:
            state = loader.state_dict()
            break
    resumed = Loader(data, batch_size=8, workers=2 if workers == 0 else workers - 1)
    resumed.load_state_dict(state)
    found += [list(names) for names, _ in resumed]
    assert found == reference
    assert resumed.epoch == 1
    assert [list(names) for names, _ in resumed] != reference


@pytest.mark.parametrize("drop_last", [False, True])
def test_whoever_took_the_last_batch_gets_the_next_epoch(folder: Path, drop_last: bool) -> None:
    from shoal.data.for_torch import Loader

    data = shoal.data.open(str(folder / "out"), fields=("__key__", "cls"))
    loader, other = (Loader(data, batch_size=8, seed=1, drop_last=drop_last) for _ in range(2))
    whole = [[list(names) for names, _ in other] for _ in range(2)]
    assert [len(batches) for batches in whole] == [len(loader)] * 2
    assert [[list(names) for names, _ in islice(loader, len(loader))] for _ in range(2)] == whole
    stream, again = (data.stream(seed=2, rank=0, world=1) for _ in range(2))
    assert [keys(islice(stream, 101)) for _ in range(2)] == [keys(again), keys(again)]
