"""Staging: one copy per node however many jobs, usable from the first shard on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal.data
from data_sets import SHOAL, contents, make_folder
from shoal.job import dataset_copy, file_copy
from shoal.job.staging import Stage
from staging_cases import STAGE, Gate, busy_threads, make_scratch, make_shards, stage_all
from waiting import wait_until

#: The oldest Python that the agent promises to run on, if this machine has it.
OLD_PYTHON = next(
    (path for path in map(os.path.expanduser, ["~/.pyenv/versions/3.8.18/bin/python"]) if os.path.exists(path)),
    shutil.which("python3.8"),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_shards(tmp_path)


@pytest.fixture
def scratch(tmp_path: Path) -> dict[str, str]:
    return make_scratch(tmp_path)


def test_everything_arrives_whole_and_the_second_job_copies_nothing(data: Path, scratch: dict[str, str]) -> None:
    place, record = stage_all(data, scratch)
    assert contents(Path(place)) == contents(data)
    assert record["how"] == "staged"
    assert (
        record["copied_bytes"]
        == record["bytes"]
        == sum(len(text) for text in contents(data).values()) - len((data / "manifest.json").read_bytes())
    )
    again, second = stage_all(data, scratch)
    assert again == place
    assert (second["how"], second["copied_bytes"]) == ("shared", 0)


def test_a_folder_and_a_single_file_are_staged_too_and_look_as_they_did(
    tmp_path: Path, scratch: dict[str, str]
) -> None:
    source = make_folder(tmp_path / "src", 40)
    (source / "empty.txt").write_bytes(b"")
    place, record = stage_all(source, scratch)
    assert contents(Path(place)) == contents(source)
    assert record["files"] == 41
    (tmp_path / "one.bin").write_bytes(os.urandom(100_000))
    place, _ = stage_all(tmp_path / "one.bin", scratch)
    assert Path(place).read_bytes() == (tmp_path / "one.bin").read_bytes()


def test_files_larger_than_a_range_are_put_together_from_several_threads(
    tmp_path: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_copy, "RANGE_BYTES", 1000)
    make_folder(tmp_path / "src", 30)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "data"))
    place, _ = stage_all(tmp_path / "data", scratch, threads=7)
    assert contents(Path(place)) == contents(tmp_path / "data")


def test_the_next_file_is_opened_before_the_last_range_of_the_one_before_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, items = _copier_of_files("ab", tmp_path, monkeypatch, threads=2)
    copier._next = lambda: items.pop(0) if items else None
    taken = [copier._take() for _ in range(8)]
    assert [task[1].item.name for task in taken if task] == ["a"] * 8
    assert [part.item.name for part in copier._open.values()] == ["a", "b"]
    for part in copier._open.values():
        part.close()


def test_nobody_leaves_while_another_thread_opens_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier, items = _copier_of_files("a", tmp_path, monkeypatch, threads=2)
    asked, may_open, plain_open = threading.Semaphore(0), threading.Event(), file_copy._PartialFile.__init__

    def next_item() -> file_copy.CopyItem | None:
        asked.release()
        return items.pop(0) if items else None

    def slow_open(part: file_copy._PartialFile, source: str, dest: str, parts: str, item: file_copy.CopyItem) -> None:
        may_open.wait(60)
        plain_open(part, source, dest, parts, item)

    monkeypatch.setattr(file_copy._PartialFile, "__init__", slow_open)
    copier._next = next_item
    taken: list[Any] = []
    threads = [threading.Thread(target=lambda: taken.append(copier._take())) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert asked.acquire(timeout=300)
    may_open.set()
    for thread in threads:
        thread.join()
    assert sorted(task[2] for task in taken) == [0, 1]
    taken[0][1].close()


def _copier_of_files(
    names: str, folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> tuple[file_copy.Copier, list[file_copy.CopyItem]]:
    """A copier whose ranges have 1,000 bytes, and files of nine ranges."""
    monkeypatch.setattr(file_copy, "RANGE_BYTES", 1000)
    for name in ("source", "dest", "parts"):
        (folder / name).mkdir()
    for name in names:
        (folder / "source" / name).write_bytes(os.urandom(8500))
    source, dest, parts = (str(folder / name) for name in ("source", "dest", "parts"))
    return file_copy.Copier(source, dest, parts, threads, lambda item: None), [
        file_copy.CopyItem(name, 8500) for name in names
    ]


def test_the_first_shard_comes_first_and_nodes_begin_in_different_places() -> None:
    units: list[tuple[str, ...]] = [(f"s{number}",) for number in range(20)]
    orders = {
        node: dataset_copy.node_order(units, dataset_copy.node_rotation({"SLURMD_NODENAME": node}, "host"))
        for node in ("n1", "n2", "n3", "n4", "n5")
    }
    assert all(order[0] == units[0] and sorted(order) == sorted(units) for order in orders.values())
    assert len({order[1] for order in orders.values()}) > 2
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "77"}
    assert dataset_copy.node_rotation({**job, "SLURMD_NODENAME": "a"}, "x") == dataset_copy.node_rotation(
        {**job, "SLURMD_NODENAME": "b"}, "y"
    )


def test_a_run_may_start_at_the_first_shard_and_what_a_reader_wants_comes_next(
    data: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    stage = Stage("test", str(data), scratch, threads=1, wait="first")
    stage.begin()
    gate.let(2)
    place = stage.wait()
    assert sorted(name for name in os.listdir(place) if name.endswith(".tar")) == ["shard-000000.tar"]
    reader = shoal.data.open(place, fields=("__key__", "jpg"))
    last = len(reader) - 1
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(reader[last]))
    thread.start()
    wanted = Path(place).parent / dataset_copy.REQUESTS_DIR
    wait_until(lambda: os.listdir(wanted), 10, "the reader asks for its shard")
    name = os.listdir(wanted)[0]
    gate.let(4)  # the range that waits, its shard, and the wanted pair
    wait_until(lambda: not thread.is_alive(), 10, "the reader has its shard")
    assert got == [shoal.data.open(str(data), fields=("__key__", "jpg"))[last]]
    assert name in os.listdir(place) and len(os.listdir(place)) < 10
    wait_until(lambda: os.listdir(wanted) == [], 10, "nothing is asked for any more")
    gate.open()
    stage.join()
    stage.close()
    assert contents(Path(place)) == contents(data)


def test_an_epoch_is_read_while_it_is_staged_in_the_order_of_the_source(data: Path, scratch: dict[str, str]) -> None:
    stage = Stage("test", str(data), scratch, threads=1, wait="first")
    stage.begin()
    place = stage.wait()
    seen = [key for (key,) in shoal.data.open(place, fields=("__key__",)).stream(seed=3)]
    stage.join()
    stage.close()
    source = shoal.data.open(str(data), fields=("__key__",))
    assert seen == [key for (key,) in source.stream(seed=3)]
    assert sorted(seen) == sorted(key for (key,) in source)


def test_what_a_stream_needs_next_is_copied_next_in_its_order(
    data: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    stage = Stage("test", str(data), scratch, threads=1, wait="first")
    stage.begin()
    gate.let(2)
    place = stage.wait()
    stream = shoal.data.open(place, fields=("__key__",)).stream(seed=3)
    order = [f"shard-{window.shards[0]:06d}.tar" for window in stream.windows()]
    blocks = stream.blocks(block=1)
    next(blocks)  # It has the first shard, and asks for the next two.
    wait_until(
        lambda: sorted(os.listdir(Path(place).parent / dataset_copy.REQUESTS_DIR)) == sorted(order[1:3]), 10, "it asks"
    )
    gate.let(2 + 4)  # The pair that was begun before, then the wanted ones.
    wait_until(lambda: set(order[:3]) <= set(os.listdir(place)), 10, "the next two have come before the others")
    assert len([name for name in os.listdir(place) if name.endswith(".tar")]) <= 4
    gate.open()
    stage.join()
    stage.close()


@pytest.mark.slow
def test_many_jobs_at_once_move_the_bytes_once(data: Path, scratch: dict[str, str]) -> None:
    argv = [*SHOAL, "data", "stage", str(data), "--json"]
    env = {**os.environ, **scratch}
    jobs = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    answers = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 8, answers
    records = [json.loads(out) for out, _ in answers]
    assert sum(record["copied_bytes"] for record in records) == records[0]["bytes"]
    assert len({record["path"] for record in records}) == 1
    assert contents(Path(records[0]["path"])) == contents(data)


def test_the_command_sees_the_folder_and_gives_its_exit_code(data: Path, scratch: dict[str, str]) -> None:
    argv = [*SHOAL, "data", "stage", str(data), "--", "sh", "-c", 'ls "$SHOAL_DATA_DATA"/shard-000000.tar; exit 7']
    done = subprocess.run(argv, env={**os.environ, **scratch}, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout.splitlines()[0].endswith("/data/shard-000000.tar")


@pytest.mark.skipif(OLD_PYTHON is None, reason="there is no Python 3.8 here to try the agent on")
def test_the_shipped_agent_stages_on_the_oldest_python(data: Path, scratch: dict[str, str], tmp_path: Path) -> None:
    from shoal.job.zipapp import build_agent_zip

    (tmp_path / "agent.pyz").write_bytes(build_agent_zip())
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'agent.pyz')!r})" + STAGE.replace(
        "shoal.job", "shoal_agent.job"
    )
    argv = [str(OLD_PYTHON), "-c", code, str(data), scratch["SHOAL_SCRATCH"]]
    record = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert record["how"] == "staged" and contents(Path(record["path"])) == contents(data)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test that leaves a copying thread behind would disturb the next one."""
    before = busy_threads()
    yield
    wait_until(lambda: busy_threads() <= before, 10, "all threads of the test have ended")
