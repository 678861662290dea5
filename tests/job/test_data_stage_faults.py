"""Staging from a source that is damaged or changes, after a kill, after a crash of the node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal.data
from data_sets import contents, make_folder
from shoal.data.shard_plan import ShardSettings
from shoal.job import dataset_copy, file_copy
from shoal.job.file_copy import Copier, CopyItem
from shoal.job.staging import Stage, StageError
from staging_cases import Gate, busy_threads, make_scratch, make_shards, node_root, stage_all
from waiting import wait_until


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_shards(tmp_path)


@pytest.fixture
def scratch(tmp_path: Path) -> dict[str, str]:
    return make_scratch(tmp_path)


def test_a_killed_copier_is_replaced_at_once_and_nothing_is_fetched_twice(data: Path, scratch: dict[str, str]) -> None:
    copier = _start_slow_copier(data, scratch)
    root = node_root(scratch)
    objects = Path(root.folder("objects"))
    wait_until(lambda: len(list(objects.glob("*/data/shard-*"))) == 8, 20, "four shards and their indexes are there")
    waiter = Stage("test", str(data), scratch, wait="first")
    waiter.begin()
    waiter.wait()
    here = {path.name for path in objects.glob("*/data/shard-*")}
    os.kill(copier.pid, signal.SIGKILL)
    copier.wait()
    waiter.join()
    record = waiter.close()
    place = Path(record["path"])
    assert contents(place) == contents(data)
    missing = [item for name, item in waiter.list.items.items() if name not in here]
    assert len(here) == 8
    assert record["copied_bytes"] == sum(item.size for item in missing)
    assert record["how"] == "staged"
    assert os.listdir(place.parent / "parts") == []


def test_a_part_that_a_kill_left_is_checked_and_continued(
    tmp_path: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_copy, "RANGE_BYTES", 1000)
    monkeypatch.setattr(file_copy, "_CHUNK_BYTES", 300)
    source, dest, parts = (tmp_path / name for name in ("from", "to", "parts"))
    for folder in (source, dest, parts):
        folder.mkdir()
    text = os.urandom(10_500)
    (source / "big").write_bytes(text)
    (parts / "big").write_bytes(text[:3000] + b"?" * 1000 + text[4000:5000])
    crcs = [zlib.crc32(text[k * 1000 : k * 1000 + 1000]) for k in range(5)]
    (parts / "big.done").write_text("".join(f"{k} {crc:08x}\n" for k, crc in enumerate(crcs)) + "7 1234")
    items = iter([CopyItem("big", len(text), f"{zlib.crc32(text):08x}")])
    copier = Copier(str(source), str(dest), str(parts), 2, lambda item: None)
    copier.run(lambda: next(items, None))
    assert (dest / "big").read_bytes() == text
    assert copier.copied_bytes == len(text) - 4000  # four of the five noted ranges were intact
    assert os.listdir(parts) == []


@pytest.mark.parametrize("damage", ["changed", "truncated", "gone"])
def test_a_damaged_source_is_an_error_and_is_never_handed_over(
    data: Path, scratch: dict[str, str], damage: str
) -> None:
    victim = data / "shard-000003.tar"
    if damage == "gone":
        victim.unlink()
    elif damage == "truncated":
        os.truncate(victim, 1000)
    else:
        text = bytearray(victim.read_bytes())
        text[700] ^= 1
        victim.write_bytes(text)
    stage = Stage("test", str(data), scratch)
    stage.begin()
    with pytest.raises(StageError, match=r"shard-000003\.tar"):
        stage.wait()
    record = stage.close()
    assert "shard-000003.tar" in record["problem"]
    assert not os.path.lexists(os.path.join(stage.copy.folder, "shard-000003.tar"))
    assert not stage.copy.is_complete()


def test_a_reader_is_told_when_the_source_turns_out_to_be_damaged(data: Path, scratch: dict[str, str]) -> None:
    text = bytearray((data / "shard-000003.tar").read_bytes())
    text[700] ^= 1
    (data / "shard-000003.tar").write_bytes(text)
    stage = Stage("test", str(data), scratch, wait="first")
    stage.begin()
    try:
        place = stage.wait()
    except StageError:
        place = stage.copy.folder
    stage.join()
    with pytest.raises(shoal.errors.ShoalError, match=r"shard-000003\.tar does not have the checksum"):
        list(shoal.data.open(place))
    stage.close()


def test_a_folder_that_changes_while_it_is_copied_is_noticed(
    tmp_path: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_folder(tmp_path / "src", 40)
    gate = Gate(monkeypatch)
    # Where a node begins depends on its name: on this one the picture is not among the first three.
    stage = Stage("test", str(source), {**scratch, "SLURMD_NODENAME": "n1"}, threads=1)
    stage.begin()
    gate.let(3)
    (source / "class1" / "img_00037.jpg").write_bytes(b"another picture")
    gate.open()
    with pytest.raises(StageError, match=r"img_00037\.jpg"):
        stage.wait()
    stage.close()


def test_a_changed_data_set_is_another_data_set(tmp_path: Path, data: Path, scratch: dict[str, str]) -> None:
    old, _ = stage_all(data, scratch)
    before = contents(Path(old))
    (tmp_path / "src" / "class0" / "new.jpg").write_bytes(b"new")
    shoal.data.shard_dataset(str(tmp_path / "src"), str(data), ShardSettings(shard_mb=0.05), overwrite=True)
    new, record = stage_all(data, scratch)
    assert new != old and record["how"] == "staged"
    assert contents(Path(new)) == contents(data)
    assert contents(Path(old)) == before


def test_files_of_a_crashed_node_are_not_trusted(data: Path, scratch: dict[str, str]) -> None:
    stage = Stage("test", str(data), scratch)
    stage.begin()
    stage.wait()
    stage.join()
    stage.close()
    home = Path(stage.copy.home)
    about = json.loads((home / dataset_copy.ABOUT_FILE).read_text())
    complete = json.loads((home / dataset_copy.COMPLETE_FILE).read_text())
    assert complete["synced"]
    # The node went down before the data was on disk: names are there, bytes are not.
    (home / dataset_copy.ABOUT_FILE).write_text(json.dumps({**about, "boot": "another"}))
    (home / dataset_copy.COMPLETE_FILE).write_text(json.dumps({"boot": "another", "bytes": complete["bytes"]}))
    victim = home / "data" / "shard-000002.tar"
    victim.write_bytes(b"\0" * victim.stat().st_size)
    place, record = stage_all(data, scratch)
    assert record["how"] == "staged" and contents(Path(place)) == contents(data)
    # It went down later: the data was on disk, and is used again.
    (home / dataset_copy.ABOUT_FILE).write_text(json.dumps({**about, "boot": "another"}))
    assert stage_all(data, scratch)[1]["how"] == "shared"


def test_a_source_that_is_not_there_is_one_sentence(tmp_path: Path, scratch: dict[str, str]) -> None:
    with pytest.raises(StageError, match="nowhere cannot be read: no such file"):
        Stage("test", str(tmp_path / "nowhere"), scratch).begin()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StageError, match="is empty"):
        Stage("test", str(tmp_path / "empty"), scratch).begin()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text('{"version": 1, "id": "../../etc", "shards": []}')
    with pytest.raises(StageError, match="damaged"):
        Stage("test", str(tmp_path / "bad"), scratch).begin()


def test_a_manifest_of_a_newer_version_is_read_from_the_source(data: Path, scratch: dict[str, str]) -> None:
    path = data / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    place, record = stage_all(data, scratch)
    assert place == str(data) and "newer shoal" in record["note"]


def _start_slow_copier(data: Path, scratch: dict[str, str]) -> subprocess.Popen[bytes]:
    """A job that copies a few shards and then hangs on one."""
    code = """
import sys, time
from shoal.job import file_copy
from shoal.job.staging import Stage
plain, done = file_copy._PartialFile.copy, []
def copy(part, number, buffer):
    done.append(1)
    if len(done) > 8:
        time.sleep(600)
    return plain(part, number, buffer)
file_copy._PartialFile.copy = copy
stage = Stage("x", sys.argv[1], {"SHOAL_SCRATCH": sys.argv[2]}, threads=1)
stage.begin()
stage.join()
"""
    return subprocess.Popen([sys.executable, "-c", code, str(data), scratch["SHOAL_SCRATCH"]])


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test that leaves a copying thread behind would disturb the next one."""
    before = busy_threads()
    yield
    wait_until(lambda: busy_threads() <= before, 10, "all threads of the test have ended")
