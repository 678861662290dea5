"""A sample is never lost, doubled or mislabelled: over ranks, workers, resumes, and nodes whose staging is broken."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal.data
from data_sets import contents, make_folder
from shoal.data.shard_plan import ShardSettings
from shoal.data.stage import stage_and_run
from shoal.errors import InputError, ShoalError
from shoal.job import dataset_copy, file_copy
from shoal.job.staging import Stage
from staging_cases import Gate, make_scratch, stage_all

SAMPLES = 101
SMALL = ShardSettings(shard_mb=0.03, first_mb=0.008)
#: What may have become of a data set on a node.
NODES = ("copied", "source", "partial", "no room", "damaged", "lost", "index damaged")


class Cluster:
    """A sharded data set and the folder that SHOAL_DATA_<NAME> is on nodes of each kind."""

    def __init__(self, base: Path) -> None:
        make_folder(base / "src", SAMPLES, classes=7, size=1500)
        shoal.data.shard_dataset(str(base / "src"), str(base / "out"), SMALL)
        self.base, self.source = base, base / "out"
        self.keys = {f"class{number % 7}/img_{number:05d}": number % 7 for number in range(SAMPLES)}
        self.images = {key: (base / "src" / f"{key}.jpg").read_bytes() for key in self.keys}
        self.staged = Path(stage_all(self.source, make_scratch(base))[0])

    def path(self, kind: str, number: int, dice: random.Random) -> Path:
        """Where rank `number` finds the data: its node is in that state, and what is broken is drawn at random."""
        if kind == "source":
            return self.source
        scratch = self.base / f"scratch-{number}"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(self.base / "scratch", scratch)
        place = scratch / self.staged.relative_to(self.base / "scratch")
        shards = sorted(place.glob("*.tar"))
        for victim in dice.sample(shards, dice.randint(1, len(shards) - 1)):
            index = victim.with_name(victim.name + ".index")
            if kind in ("partial", "no room"):  # The job that copied was killed, and nobody went on; or it made links.
                for path in (victim, index):
                    path.unlink()
                    if kind == "no room":
                        path.symlink_to(self.source / path.name)
                (place.parent / dataset_copy.COMPLETE_FILE).unlink(missing_ok=True)
            elif kind == "lost":
                (victim if dice.random() < 0.5 else index).unlink()
            elif kind in ("damaged", "index damaged"):
                target = victim if kind == "damaged" else index
                text = bytearray(target.read_bytes())
                for _ in range(20):
                    text[dice.randrange(len(text))] ^= 1 << dice.randrange(8)
                target.write_bytes(text)
                if dice.random() < 0.3:
                    os.truncate(target, dice.randrange(len(text)))
        return place


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("cluster"))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=st.lists(st.sampled_from(NODES), min_size=1, max_size=4),
    later=st.lists(st.sampled_from(NODES), min_size=1, max_size=3),
    stop=st.integers(0, SAMPLES),
    workers=st.integers(1, 3),
    block=st.integers(1, 20),
    seed=st.one_of(st.none(), st.integers(0, 1000)),
    epoch=st.integers(0, 2),
    window=st.one_of(st.none(), st.integers(1, 5)),
    fate=st.integers(0, 1 << 30),
)
def test_every_sample_comes_once_with_its_label_whatever_became_of_the_data_on_the_nodes(
    cluster: Cluster,
    nodes: list[str],
    later: list[str],
    stop: int,
    workers: int,
    block: int,
    seed: int | None,
    epoch: int,
    window: int | None,
    fate: int,
) -> None:
    """Ranks on nodes in any state read to `stop`; then other nodes, and another number of them, go on from there."""
    dice, seen, states = random.Random(fate), Counter[str](), []

    def streams(kinds: list[str], **options: Any) -> Iterator[Any]:
        for rank, kind in enumerate(kinds):
            data = shoal.data.open(str(cluster.path(kind, rank, dice)), fields=("__key__", "jpg", "cls"))
            yield data.stream(rank=rank, world=len(kinds), **options)

    def take(samples: Any) -> None:
        for key, image, label in samples:
            assert (label, image) == (cluster.keys[key], cluster.images[key])
            seen[key] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for stream in streams(nodes, seed=seed, epoch=epoch, window=window):
            take(islice(stream, stop // len(nodes)))
            states.append(json.dumps(stream.state_dict()))
        assert len(set(states)) == 1
        for stream in streams(later):
            stream.load_state_dict(json.loads(states[0]))
            if stop // len(nodes):
                stream.begin(over=not stream.left())
            for worker in range(workers if stream.epoch == epoch else 0):
                for one in stream.blocks(worker, workers, block):
                    take(one.samples)
    assert set(seen) == set(cluster.keys) and set(seen.values()) == {1}


def test_the_order_is_the_same_on_every_node_and_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two nodes without scratch used to give half of its samples twice and the other half never."""
    orders = set()
    for node, kind in (("n1", "copied"), ("n2", "source"), ("n3", "partial"), ("n4", "no room")):
        monkeypatch.setenv("SLURMD_NODENAME", node)
        monkeypatch.setenv("SLURM_JOB_ID", node)
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
        data = shoal.data.open(str(cluster.path(kind, 0, random.Random(1))), fields=("__key__",))
        orders.add(tuple(key for epoch in range(2) for (key,) in data.stream(seed=5, epoch=epoch)))
    assert len(orders) == 1
    nodes = ("n1", "n2", "n3", "n4")
    rotations = [dataset_copy.node_rotation({"SLURMD_NODENAME": node}, "") for node in nodes]
    starts = {dataset_copy.node_order([(str(k),) for k in range(9)], rotation)[1] for rotation in rotations}
    assert len(starts) > 1, "copying does begin in different places"


def test_a_state_brings_its_window_and_shards_made_elsewhere_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    data = shoal.data.open(str(cluster.source), fields=("__key__",))
    stream = data.stream(seed=1, epoch=1, window=2)
    whole = list(data.stream(seed=1, epoch=1, window=2))
    begin = list(islice(stream, 40))
    resumed = data.stream()
    resumed.load_state_dict(stream.state_dict())
    assert begin + list(resumed) == whole
    states = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with tarfile.open(tmp_path / name / f"{name}.tar", "w") as file:
            file.add(cluster.base / "src" / "class0" / "img_00000.jpg", "x.jpg")
        states.append(shoal.data.open(str(tmp_path / name)).stream())
    with pytest.raises(InputError, match="the state belongs to data set"):
        states[0].load_state_dict(states[1].state_dict())


def test_half_a_place_among_the_ranks_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    data = shoal.data.open(str(cluster.source))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="WORLD_SIZE is 2 and RANK is not set"):
        data.stream()
    with pytest.raises(InputError, match="belong together"):
        data.stream(rank=1)


def test_damage_on_scratch_is_named_put_right_from_the_source_and_copied_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    scratch = make_scratch(tmp_path)
    place = Path(stage_all(cluster.source, scratch)[0])
    data = shoal.data.open(str(place), fields=("__key__", "jpg", "cls"))
    index = data.shards.index(2)
    member = next(one for one in index.sample(1).members if one.field == "jpg")
    victim = place / "shard-000002.tar"
    text = bytearray(victim.read_bytes())
    text[member.offset + 5] ^= 4
    victim.write_bytes(text)
    key = index.sample(1).key.decode()
    with pytest.warns(RuntimeWarning, match=rf"shard-000002\.tar is damaged: sample {key} .* wrong checksum"):
        found = {key: (image, label) for key, image, label in data}
    assert found == {key: (cluster.images[key], cluster.keys[key]) for key in cluster.keys}
    said: list[str] = []
    again, record = stage_all(cluster.source, scratch, say=said.append)
    assert record["damaged"] == ["shard-000002.tar"] and any("shard-000002.tar" in line for line in said)
    assert contents(Path(again)) == contents(cluster.source)
    assert record["copied_bytes"] == victim.stat().st_size
    (place / "shard-000001.tar").unlink()
    os.truncate(place / "shard-000003.tar.index", 100)
    assert stage_all(cluster.source, scratch)[1]["damaged"] == ["shard-000001.tar", "shard-000003.tar.index"]
    assert contents(Path(again)) == contents(cluster.source)
    assert "damaged" not in stage_all(cluster.source, scratch)[1]


def test_damage_without_a_source_is_an_error_that_names_the_sample(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(cluster.source, tmp_path / "out")
    victim = tmp_path / "out" / "shard-000001.tar"
    text = bytearray(victim.read_bytes())
    text[600] ^= 1
    victim.write_bytes(text)
    with pytest.raises(ShoalError, match=r"/out/shard-000001\.tar is damaged: sample class\d/img_\d+ "):
        list(shoal.data.open(str(tmp_path / "out")))
    assert len(list(shoal.data.open(str(tmp_path / "out"), check=False))) == SAMPLES
    index = tmp_path / "out" / "shard-000002.tar.index"
    text = bytearray(index.read_bytes())
    at = text.index(b"class")  # A key; labels lie in columns like it.
    text[at] ^= 1
    index.write_bytes(text)
    with pytest.raises(ShoalError, match=r"shard-000002\.tar\.index is damaged"):
        list(shoal.data.open(str(tmp_path / "out"), fields=("cls",)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_over_the_loader_that_was_broken_off_begins_anew(cluster: Cluster, workers: int) -> None:
    """Lightning's sanity check takes two batches of the validation, which must not lack them afterwards."""
    from shoal.data.for_torch import Loader

    data = shoal.data.open(str(cluster.source), fields=("__key__", "cls"))

    def names(batches: Any) -> list[str]:
        return [name for batch, _ in batches for name in batch]

    loader = Loader(data, batch_size=8, workers=workers)
    sanity = names(islice(loader, 2))
    limited = [names(islice(loader, 3)) for _ in range(3)]
    assert limited[0][:16] == sanity and limited == [limited[0]] * 3
    whole = names(loader)
    assert sorted(whole) == sorted(cluster.keys) and whole[:24] == limited[0]
    assert loader.epoch == 1 and names(islice(loader, 3)) != limited[0]
    state = loader.state_dict()
    resumed = Loader(data, batch_size=8, workers=workers)
    resumed.load_state_dict(state)
    rest = names(resumed)
    loader.set_epoch(1)
    assert names(loader) == names(islice(_epoch_1(data), 3)) + rest
    resumed.load_state_dict(state)
    assert names(islice(resumed, 2)) == rest[:16]
    assert names(islice(resumed, 2)) == names(islice(_epoch_1(data), 2)), "a state counts once"


def _epoch_1(data: Any) -> Any:
    from shoal.data.for_torch import Loader

    loader = Loader(data, batch_size=8)
    loader.set_epoch(1)
    return loader


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_that_persist_follow_the_epochs(cluster: Cluster, start: str) -> None:
    from torch.utils.data import DataLoader

    from shoal.data.for_torch import Loader, StreamDataset

    data = shoal.data.open(str(cluster.source), fields=("__key__", "cls"))
    expected = [[key for key, _ in data.stream(seed=4, epoch=epoch)] for epoch in range(3)]
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": start}
    stream = copy.deepcopy(StreamDataset(data.stream(seed=4), 8))
    plain: DataLoader[Any] = DataLoader(stream, 8, num_workers=2, **options)
    for epoch in (0, 1, 2, 1):
        stream.set_epoch(epoch)
        assert [name for names, _ in plain for name in names] == expected[epoch]
    loader = Loader(data, batch_size=8, workers=2, seed=4, **options)
    next(iter(loader))
    for epoch in range(3):
        assert [name for names, _ in loader for name in names] == expected[epoch]


def test_the_next_epoch_is_not_mixed_into_one_that_is_being_read(cluster: Cluster) -> None:
    from shoal.data.for_torch import StreamDataset

    data = shoal.data.open(str(cluster.source), fields=("__key__",))
    dataset = StreamDataset(data.stream(seed=4, epoch=1, window=1), 4)
    samples = iter(dataset)
    begin = list(islice(samples, 10))
    dataset.set_epoch(2)
    assert sorted(begin + list(samples)) == sorted((key,) for key in cluster.keys)


#: A reader that knows nothing of shoal: prints how many samples it finds in the folder.
WEBDATASET = """
import glob, os, sys
paths = sorted(glob.glob(os.environ["SHOAL_DATA_OUT"] + "/*.tar"))
import webdataset
found = {sample["__key__"] for sample in webdataset.WebDataset(paths, shardshuffle=False)}
open(sys.argv[1], "w").write(str(len(found)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["", "100K"])
def test_webdataset_finds_every_sample_of_staged_data_by_default(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """It used to start at the first shard, and read what was there: some thousand of 20,000 samples, exit code 0."""
    plain = file_copy._PartialFile.copy

    def slow(*args: Any) -> int:
        time.sleep(0.05)  # A link on which all of it takes longer than the start of a program.
        return plain(*args)

    monkeypatch.setattr(file_copy._PartialFile, "copy", slow)
    env = {**os.environ, **make_scratch(tmp_path), "SHOAL_SCRATCH_LIMIT": limit}
    argv = [sys.executable, "-c", WEBDATASET, str(tmp_path / "found")]
    code, record = stage_and_run(str(cluster.source), argv, env, threads=1, quiet=True)
    assert code == 0 and record["how"] in ("staged", "source")
    assert int((tmp_path / "found").read_text()) == SAMPLES


def test_a_run_starts_when_all_is_there_unless_it_asks_for_the_first_shard(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.job.staging import StageError

    gate, scratch = Gate(monkeypatch), make_scratch(tmp_path)
    first, every = (Stage("x", str(cluster.source), scratch, threads=1, wait=wait) for wait in ("first", "all"))
    first.begin()
    gate.let(2)
    place = Path(first.wait())
    assert len(list(place.glob("*.tar"))) == 1
    every.begin()
    with pytest.raises(StageError, match="was not staged within"):
        every.wait(0.3)
    gate.open()
    assert contents(Path(every.wait())) == contents(cluster.source)
    for stage in (first, every):
        stage.join()
        stage.close()


#: Prints how many bytes a process reads for one of four ranks, and how many these samples hold.
READ = """
import json, sys
import numpy
import shoal.data

def read():
    return int(open("/proc/self/io").read().split()[1])

stream = shoal.data.open(sys.argv[1], fields=("jpg",)).stream(rank=1, world=4, epoch=1)
before = read()
print(json.dumps([sum(len(image) for (image,) in stream), read() - before]))
"""


@pytest.mark.parametrize("format", ["tar", "tfrecord"])
def test_a_rank_on_a_node_of_its_own_reads_its_part_of_the_bytes(tmp_path: Path, format: str) -> None:
    make_folder(tmp_path / "src", 400, size=20_000)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "data"), ShardSettings(format=format, shard_mb=1))
    env = {name: value for name, value in os.environ.items() if name != "LOCAL_WORLD_SIZE"}
    argv = [sys.executable, "-c", READ, str(tmp_path / "data")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    mine, read = json.loads(done.stdout)
    total = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    assert total / 5 < mine < read < 1.2 * mine + 500_000 < total / 2


#: Brings data for a job of two nodes as the agent does, and prints what the run would find; `stage` is the helper.
TWO_NODES = """
import json, os, sys
from shoal.job import run_data

if sys.argv[1] == "stage":
    sys.exit(run_data.main(sys.argv[2:]))
said = []
spec = {"data": {"images": {"path": sys.argv[1], "wait": sys.argv[2]}}}
brought = run_data.AttemptData(spec, dict(os.environ), sys.argv[3], said.append)
problem = brought.bring()
print(json.dumps([problem, brought.variables().get("SHOAL_DATA_IMAGES"), said]))
brought.close()
"""
#: Starts a helper on "both nodes"; on the second one scratch is another folder.
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
SLURM_NODEID=0 SLURMD_NODENAME=a "$@" &
SLURM_NODEID=1 SLURMD_NODENAME=b SHOAL_SCRATCH="$SCRATCH_OF_B" "$@" &
wait
"""


@pytest.mark.parametrize(
    ("wait", "scratch_of_b", "found"),
    [
        ("all", "scratch", "copy"),
        ("all", "nowhere", "source"),
        ("all", "other", "source"),
        ("first", "nowhere", "copy"),
    ],
)
def test_all_nodes_of_a_job_get_one_path_with_everything_in_it(
    cluster: Cluster, tmp_path: Path, wait: str, scratch_of_b: str, found: str
) -> None:
    """A node that has no copy there reads the source, and with it all others: a program lists what is in the folder."""
    scratch = make_scratch(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "job.py").write_text(TWO_NODES)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SCRATCH_OF_B": str(tmp_path / scratch_of_b)}
    env = {**os.environ, **scratch, **job, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    argv = [sys.executable, tmp_path / "job.py", cluster.source, wait, tmp_path / "told"]
    done = subprocess.run([str(word) for word in argv], env=env, capture_output=True, text=True, check=True)
    problem, path, said = json.loads(done.stdout)
    assert problem is None
    assert (path == str(cluster.source)) == (found == "source")
    if found == "source":
        assert any("images is read from the source on all nodes" in line and "b has none" in line for line in said)
    elif wait == "all":
        assert contents(Path(path)) == contents(cluster.source)


def test_a_node_that_cannot_read_the_source_stops_the_run_before_it_starts(cluster: Cluster, tmp_path: Path) -> None:
    shutil.copytree(cluster.source, tmp_path / "data")
    scratch = make_scratch(tmp_path)
    (tmp_path / "bin").mkdir()
    # The source is gone when the second node looks, and the first one has its copy already.
    stage_all(tmp_path / "data", scratch)
    text = SRUN.replace("SLURM_NODEID=1", 'mv "$DATA" "$DATA.gone"\nSLURM_NODEID=1')
    (tmp_path / "bin" / "srun").write_text(text)
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "job.py").write_text(TWO_NODES)
    (tmp_path / "empty").mkdir()
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SCRATCH_OF_B": str(tmp_path / "empty")}
    env = {**os.environ, **scratch, **job, "DATA": str(tmp_path / "data"), "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    argv = [sys.executable, tmp_path / "job.py", tmp_path / "data", "all", tmp_path / "told"]
    done = subprocess.run([str(word) for word in argv], env=env, capture_output=True, text=True, check=False)
    problem = json.loads(done.stdout)[0]
    assert problem is not None and problem.startswith("the data cannot be used") and "cannot be read" in problem
