"""Staging: one copy per node however many jobs, checked, resumable, evicted only when unused; and its faults."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal.data
from data_sets import SHOAL, contents, make_folder
from shoal.agent import cache, copying, listing, staging
from shoal.agent.cache import Lock, find_root
from shoal.agent.copying import Copier, Item
from shoal.agent.staging import Stage, StageError
from shoal.data.planning import Settings
from waiting import wait_until

#: The oldest Python that the agent promises to run on, if this machine has it.
OLD_PYTHON = next(
    (path for path in map(os.path.expanduser, ["~/.pyenv/versions/3.8.18/bin/python"]) if os.path.exists(path)),
    shutil.which("python3.8"),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data set of about 40 shards of 50 KB."""
    make_folder(tmp_path / "src", 300, size=5000)
    shoal.data.pack(str(tmp_path / "src"), str(tmp_path / "data"), Settings(shard_mb=0.05, first_mb=0.01))
    return tmp_path / "data"


@pytest.fixture
def scratch(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "scratch").mkdir()
    return {"SHOAL_SCRATCH": str(tmp_path / "scratch")}


def stage_all(path: Path, environ: dict[str, str], **options: Any) -> tuple[str, dict[str, Any]]:
    stage = Stage("test", str(path), environ, **options)
    stage.begin()
    place = stage.wait()
    stage.join()
    return place, stage.close()


def node_root(environ: dict[str, str]) -> cache.Root:
    root, _ = find_root(environ)
    assert root is not None
    return root


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
    monkeypatch.setattr(copying, "RANGE", 1000)
    make_folder(tmp_path / "src", 30)
    shoal.data.pack(str(tmp_path / "src"), str(tmp_path / "data"))
    place, _ = stage_all(tmp_path / "data", scratch, threads=7)
    assert contents(Path(place)) == contents(tmp_path / "data")


def test_the_first_shard_comes_first_and_nodes_begin_in_different_places() -> None:
    units = [(f"s{number}",) for number in range(20)]
    orders = {
        node: listing.node_order(units, listing.rotation({"SLURMD_NODENAME": node}, "host"))
        for node in ("n1", "n2", "n3", "n4", "n5")
    }
    assert all(order[0] == units[0] and sorted(order) == sorted(units) for order in orders.values())
    assert len({order[1] for order in orders.values()}) > 2
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "77"}
    assert listing.rotation({**job, "SLURMD_NODENAME": "a"}, "x") == listing.rotation(
        {**job, "SLURMD_NODENAME": "b"}, "y"
    )


def test_a_run_may_start_at_the_first_shard_and_what_a_reader_wants_comes_next(
    data: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    stage = Stage("test", str(data), scratch, threads=1)
    stage.begin()
    gate.let(2)
    place = stage.wait()
    assert sorted(name for name in os.listdir(place) if name.endswith(".tar")) == ["shard-000000.tar"]
    reader = shoal.data.open(place, fields=("__key__", "jpg"))
    last = len(reader) - 1
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(reader[last]))
    thread.start()
    wanted = Path(place).parent / staging.WANTS
    wait_until(lambda: os.listdir(wanted), 10, "the reader asks for its shard")
    name = os.listdir(wanted)[0]
    gate.let(4)  # the range that waits, its shard, and the wanted pair
    thread.join(10)
    assert not thread.is_alive()
    assert got == [shoal.data.open(str(data), fields=("__key__", "jpg"))[last]]
    assert name in os.listdir(place) and len(os.listdir(place)) < 10
    assert os.listdir(wanted) == []
    gate.open()
    stage.join()
    stage.close()
    assert contents(Path(place)) == contents(data)


def test_an_epoch_is_read_while_it_is_staged_in_the_order_of_the_copy(data: Path, scratch: dict[str, str]) -> None:
    stage = Stage("test", str(data), scratch, threads=1)
    stage.begin()
    place = stage.wait()
    reader = shoal.data.open(place, fields=("__key__",), check=True)
    stream = reader.stream(seed=3)
    order = [window.shards[0] for window in stream.windows()]
    manifest = json.loads((data / "manifest.json").read_text())["shards"]
    units = [(str(number),) for number in range(len(manifest))]
    turn = listing.rotation(os.environ, os.uname().nodename)
    assert order == [int(unit[0]) for unit in listing.node_order(units, turn)]
    seen = [key for (key,) in stream]
    stage.join()
    stage.close()
    assert sorted(seen) == sorted(key for (key,) in shoal.data.open(str(data), fields=("__key__",)))


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


def test_a_killed_copier_is_replaced_at_once_and_nothing_is_fetched_twice(data: Path, scratch: dict[str, str]) -> None:
    copier = _start_slow_copier(data, scratch)
    root = node_root(scratch)
    objects = Path(root.folder("objects"))
    wait_until(lambda: len(list(objects.glob("*/data/shard-*"))) == 8, 20, "four shards and their indexes are there")
    waiter = Stage("test", str(data), scratch)
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
    monkeypatch.setattr(copying, "RANGE", 1000)
    source, goal, parts = (tmp_path / name for name in ("from", "to", "parts"))
    for folder in (source, goal, parts):
        folder.mkdir()
    text = os.urandom(10_500)
    (source / "big").write_bytes(text)
    (parts / "big").write_bytes(text[:3000] + b"?" * 1000 + text[4000:5000])
    crcs = [copying.zlib.crc32(text[k * 1000 : k * 1000 + 1000]) for k in range(5)]
    (parts / "big.done").write_text("".join(f"{k} {crc:08x}\n" for k, crc in enumerate(crcs)) + "7 1234")
    items = iter([Item("big", len(text), f"{copying.zlib.crc32(text):08x}")])
    copier = Copier(str(source), str(goal), str(parts), 2, lambda item: None)
    copier.run(lambda: next(items, None))
    assert (goal / "big").read_bytes() == text
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
    stage = Stage("test", str(data), scratch, wait_all=True)
    stage.begin()
    with pytest.raises(StageError, match=r"shard-000003\.tar"):
        stage.wait()
    record = stage.close()
    assert "shard-000003.tar" in record["problem"]
    assert not os.path.lexists(os.path.join(stage.folder, "shard-000003.tar"))
    assert not stage._is_complete()


def test_a_reader_is_told_when_the_source_turns_out_to_be_damaged(data: Path, scratch: dict[str, str]) -> None:
    text = bytearray((data / "shard-000003.tar").read_bytes())
    text[700] ^= 1
    (data / "shard-000003.tar").write_bytes(text)
    stage = Stage("test", str(data), scratch)
    stage.begin()
    try:
        place = stage.wait()
    except StageError:
        place = stage.folder
    stage.join()
    with pytest.raises(shoal.errors.ShoalError, match=r"shard-000003\.tar does not have the checksum"):
        list(shoal.data.open(place))
    stage.close()


def test_a_folder_that_changes_while_it_is_copied_is_noticed(
    tmp_path: Path, scratch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_folder(tmp_path / "src", 40)
    gate = Gate(monkeypatch)
    stage = Stage("test", str(source), scratch, threads=1)
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
    shoal.data.pack(str(tmp_path / "src"), str(data), Settings(shard_mb=0.05), overwrite=True)
    new, record = stage_all(data, scratch)
    assert new != old and record["how"] == "staged"
    assert contents(Path(new)) == contents(data)
    assert contents(Path(old)) == before


def test_without_scratch_the_source_is_read_and_the_record_says_why(data: Path, tmp_path: Path) -> None:
    for environ, word in (
        ({}, "no node-local scratch"),
        ({"SHOAL_SCRATCH": str(tmp_path / "nowhere")}, "No such file"),
        ({"TMPDIR": str(data / "manifest.json")}, "not a folder"),
    ):
        said: list[str] = []
        place, record = stage_all(data, environ, say=said.append)
        assert place == str(data)
        assert record["how"] == "source" and word in record["note"]
        assert said and "read from the source" in said[0]


def test_network_storage_is_no_scratch(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "file_system", lambda path: "nfs4" if "share" in path else "ext4")
    (tmp_path / "share").mkdir()
    (tmp_path / "local").mkdir()
    root, notes = find_root({"SHOAL_SCRATCH": str(tmp_path / "share"), "TMPDIR": str(tmp_path / "local")})
    assert root is not None and root.path.startswith(str(tmp_path / "local"))
    assert "network storage (nfs4)" in notes[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may play another user")
def test_a_cache_that_belongs_to_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    base = tmp_path / "tmp"
    base.mkdir()
    os.chown(base, 1234, 1234)
    base.chmod(0o1777)
    mine = node_root({"TMPDIR": str(base)})
    assert mine.path == str(base / f"shoal-data-{os.getuid()}") and mine.group is None
    assert oct(os.stat(mine.path).st_mode & 0o777) == "0o700"
    shutil.rmtree(mine.path)
    os.mkdir(mine.path, 0o777)
    os.chown(mine.path, 1234, 1234)
    root, notes = find_root({"TMPDIR": str(base)})
    assert root is None and "belongs to somebody else" in notes[0]
    os.rmdir(mine.path)
    os.symlink(tmp_path, mine.path)
    assert find_root({"TMPDIR": str(base)})[0] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may play two users of a group")
def test_two_users_of_a_group_share_one_copy(data: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not under pytest's folder, which only its owner may enter
        Path(folder).chmod(0o755)
        shutil.copytree(data, Path(folder) / "data")
        base = Path(folder) / "project"
        base.mkdir()
        os.chown(base, 0, 5555)
        base.chmod(0o2770)
        records = []
        for user in ("6001", "6002"):
            argv = [sys.executable, "-c", _AS_USER, str(Path(folder) / "data"), str(base), user]
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            records.append(json.loads(done.stdout))
        assert [record["how"] for record in records] == ["staged", "shared"]
        assert records[1]["copied_bytes"] == 0


def test_what_nobody_uses_makes_room_and_what_is_used_stays(tmp_path: Path, scratch: dict[str, str]) -> None:
    sets = []
    for number in range(3):
        make_folder(tmp_path / f"src{number}", 40, seed=number)
        shoal.data.pack(str(tmp_path / f"src{number}"), str(tmp_path / f"d{number}"))
        sets.append(tmp_path / f"d{number}")
    used = Stage("used", str(sets[0]), scratch)
    used.begin()
    used.wait()
    used.join()
    stage_all(sets[1], scratch)
    root = node_root(scratch)
    size = sum(entry["bytes"] for entry in cache.contents(root)) // 2
    place, record = stage_all(sets[2], {**scratch, "SHOAL_SCRATCH_LIMIT": str(int(size * 2.3))})
    assert len(record["removed"]) == 1
    assert record["how"] == "staged" and contents(Path(place)) == contents(sets[2])
    assert os.path.isdir(used.path) and contents(Path(used.path)) == contents(sets[0])
    assert {entry["id"] for entry in cache.contents(root)} == {used.list.id, record["id"]}
    assert not cache.remove(root, used.list.id)
    used.close()
    assert cache.remove(root, used.list.id)
    assert os.listdir(root.folder("trash")) == []


def test_what_does_not_fit_is_read_from_the_source_and_no_file_lacks(data: Path, scratch: dict[str, str]) -> None:
    said: list[str] = []
    place, record = stage_all(data, {**scratch, "SHOAL_SCRATCH_LIMIT": "500K"}, say=said.append)
    links = [name for name in os.listdir(place) if os.path.islink(os.path.join(place, name))]
    assert 0 < len(links) < len(os.listdir(place)) - 1
    assert record["left_at_source_bytes"] > 0 and "no room" in said[0]
    assert contents(Path(place)) == contents(data)
    again, second = stage_all(data, scratch)
    assert second["copied_bytes"] == record["left_at_source_bytes"]
    assert not any(os.path.islink(os.path.join(again, name)) for name in os.listdir(again))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_disk_that_fills_up_while_copying_leaves_a_readable_data_set(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=True)
    try:
        monkeypatch.setattr(cache, "free_bytes", lambda root, environ: 10**12)  # somebody else is about to take it
        place, record = stage_all(data, {"SHOAL_SCRATCH": str(disk)})
        assert record["left_at_source_bytes"] > 0
        assert contents(Path(place)) == contents(data)
        assert os.listdir(Path(place).parent / "parts") == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_files_of_a_crashed_node_are_not_trusted(data: Path, scratch: dict[str, str]) -> None:
    stage = Stage("test", str(data), scratch)
    stage.begin()
    stage.wait()
    stage.join()
    stage.close()
    home = Path(stage.home)
    about = json.loads((home / staging.ABOUT).read_text())
    complete = json.loads((home / staging.COMPLETE).read_text())
    assert complete["synced"]
    # The node went down before the data was on disk: names are there, bytes are not.
    (home / staging.ABOUT).write_text(json.dumps({**about, "boot": "another"}))
    (home / staging.COMPLETE).write_text(json.dumps({"boot": "another", "bytes": complete["bytes"]}))
    victim = home / "data" / "shard-000002.tar"
    victim.write_bytes(b"\0" * victim.stat().st_size)
    place, record = stage_all(data, scratch)
    assert record["how"] == "staged" and contents(Path(place)) == contents(data)
    # It went down later: the data was on disk, and is used again.
    (home / staging.ABOUT).write_text(json.dumps({**about, "boot": "another"}))
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


def test_a_lock_goes_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
    assert cache.busy(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert not cache.busy(path)
    lock = Lock(path)
    assert lock.take(True)
    lock.close()


@pytest.mark.parametrize("text", ["200G", "1.5T", "300", "10MB", "", "lots"])
def test_sizes_are_parsed(text: str) -> None:
    expected = {"200G": 200 * 10**9, "1.5T": 1_500_000_000_000, "300": 300, "10MB": 10**7}
    assert cache.parse_size(text) == expected.get(text)


def test_the_command_sees_the_folder_and_gives_its_exit_code(data: Path, scratch: dict[str, str]) -> None:
    argv = [*SHOAL, "data", "stage", str(data), "--", "sh", "-c", 'ls "$SHOAL_DATA_DATA"/shard-000000.tar; exit 7']
    done = subprocess.run(argv, env={**os.environ, **scratch}, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout.splitlines()[0].endswith("/data/shard-000000.tar")


@pytest.mark.skipif(OLD_PYTHON is None, reason="there is no Python 3.8 here to try the agent on")
def test_the_shipped_agent_stages_on_the_oldest_python(data: Path, scratch: dict[str, str], tmp_path: Path) -> None:
    from shoal.agent.shipping import build

    (tmp_path / "agent.pyz").write_bytes(build())
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'agent.pyz')!r})" + _STAGE.replace(
        "shoal.agent", "shoal_agent"
    )
    argv = [str(OLD_PYTHON), "-c", code, str(data), scratch["SHOAL_SCRATCH"]]
    record = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert record["how"] == "staged" and contents(Path(record["path"])) == contents(data)


_STAGE = """
import sys, json
from shoal.agent.staging import Stage
stage = Stage("x", sys.argv[1], {"SHOAL_SCRATCH": sys.argv[2]})
stage.begin()
stage.wait()
stage.join()
print(json.dumps(stage.close()))
"""
_AS_USER = _STAGE.replace(
    "stage = ", "import os; os.setgroups([5555]); os.setgid(5555); os.setuid(int(sys.argv[3]))\nstage = ", 1
)
_HOLD = """
import sys, time
from shoal.agent.cache import Lock
lock = Lock(sys.argv[1])
lock.take(True)
print(1, flush=True)
time.sleep(600)
"""


class Gate:
    """Lets a counted number of ranges through, so that a test decides how far a copy has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allowed = threading.Semaphore(0)
        self._open = False
        plain = copying._Part.copy

        def copy(part: Any, number: int, buffer: memoryview) -> int:
            if not self._open:
                assert self._allowed.acquire(timeout=30)
            return plain(part, number, buffer)

        monkeypatch.setattr(copying._Part, "copy", copy)

    def let(self, count: int) -> None:
        self._allowed.release(count)

    def open(self) -> None:
        self._open = True
        self._allowed.release(1000)


def _start_slow_copier(data: Path, scratch: dict[str, str]) -> subprocess.Popen[bytes]:
    """A job that copies a few shards and then hangs on one."""
    code = """
import sys, time
from shoal.agent import copying
from shoal.agent.staging import Stage
plain, done = copying._Part.copy, []
def copy(part, number, buffer):
    done.append(1)
    if len(done) > 8:
        time.sleep(600)
    return plain(part, number, buffer)
copying._Part.copy = copy
stage = Stage("x", sys.argv[1], {"SHOAL_SCRATCH": sys.argv[2]}, threads=1)
stage.begin()
stage.join()
"""
    return subprocess.Popen([sys.executable, "-c", code, str(data), scratch["SHOAL_SCRATCH"]])


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test that leaves a copying thread behind would disturb the next one."""
    before = threading.active_count()
    yield
    wait_until(lambda: threading.active_count() <= before, 10, "all threads of the test have ended")
