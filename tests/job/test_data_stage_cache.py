"""The cache of a node: where it is, who may use it, what is removed, what happens when there is no room."""

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
from data_sets import contents, make_folder
from shoal.job import cache
from shoal.job.cache import FileLock, find_root
from shoal.job.staging import Stage
from shoal.kernel import processes
from staging_cases import STAGE, busy_threads, make_scratch, make_shards, node_root, stage_all
from waiting import wait_until


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_shards(tmp_path)


@pytest.fixture
def scratch(tmp_path: Path) -> dict[str, str]:
    return make_scratch(tmp_path)


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
    monkeypatch.setattr(cache, "file_system_type", lambda path: "nfs4" if "share" in path else "ext4")
    (tmp_path / "share").mkdir()
    (tmp_path / "local").mkdir()
    root, notes = find_root({"SHOAL_SCRATCH": str(tmp_path / "share"), "TMPDIR": str(tmp_path / "local")})
    assert root is not None and root.path.startswith(str(tmp_path / "local"))
    assert "network storage (nfs4)" in notes[0]


def test_names_in_a_scratch_path_are_filled_in_on_the_node_and_the_choice_is_told(data: Path, tmp_path: Path) -> None:
    node = processes.host_name()
    (tmp_path / f"me/77/{node}").mkdir(parents=True)
    environ = {"USER": "me", "SLURM_JOB_ID": "77", "SCRATCH": str(tmp_path), "SHOAL_SCRATCH_LIMIT": "lots"}
    environ["SHOAL_SCRATCH"] = "$SCRATCH/${USER}/$SLURM_JOB_ID/$SLURMD_NODENAME"
    said: list[str] = []
    place, _ = stage_all(data, environ, say=said.append)
    assert place.startswith(str(tmp_path / f"me/77/{node}/shoal-data"))
    assert [line for line in said if "goes to" in line] == [
        f"test goes to {tmp_path}/me/77/{node}/shoal-data, from SHOAL_SCRATCH; "
        "SHOAL_SCRATCH_LIMIT=lots is not a size, and is ignored"
    ]
    said.clear()
    environ = {"SHOAL_SCRATCH": "$SLURM_TMPDIR/x", "TMPDIR": str(tmp_path)}
    place, _ = stage_all(data, environ, say=said.append)
    told = "from TMPDIR; SHOAL_SCRATCH ($SLURM_TMPDIR/x) is not used: $SLURM_TMPDIR is not set on this node"
    assert place.startswith(str(tmp_path / "shoal-data")) and any(told in line for line in said)


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


@pytest.fixture
def group_scratch(data: Path) -> Iterator[Path]:
    """Data that all may read, and a scratch folder of the group 5555; not in pytest's own folder, which is closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(data, Path(folder) / "data")
        base = Path(folder) / "project"
        base.mkdir()
        os.chown(base, 0, 5555)
        base.chmod(0o2770)
        yield Path(folder)


def as_user(folder: Path, user: int, code: str = "", check: bool = True) -> dict[str, Any]:
    """Stage as a user of the group 5555 with a umask that closes all files to others; `code` runs before."""
    script = _AS_USER.replace("stage = ", f"os.umask(0o077)\n{code}\nstage = ", 1)
    argv = [sys.executable, "-c", script, str(folder / "data"), str(folder / "project"), str(user)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may play two users of a group")
def test_copies_have_the_permissions_of_the_source(group_scratch: Path) -> None:
    data = group_scratch / "data"
    modes = {"shard-000000.tar": 0o644, "shard-000001.tar": 0o640, "shard-000002.tar": 0o444, "shard-000003.tar": 0o755}
    for name, mode in modes.items():
        os.chown(data / name, 0, 5555)
        (data / name).chmod(mode)
    place = Path(as_user(group_scratch, 6001)["path"])
    assert {name: (place / name).stat().st_mode & 0o777 for name in modes} == modes
    assert (place / "shard-000001.tar").stat().st_gid == 5555
    above = [path for path in (place, *place.parents) if path.is_relative_to(group_scratch / "project")]
    assert not any(path.stat().st_mode & 0o007 for path in above), "nobody else may look into what a group shares"
    second = as_user(group_scratch, 6002)
    assert (second["how"], second["path"], second["copied_bytes"]) == ("shared", str(place), 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may play two users of a group")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_data_that_the_group_may_not_read_is_not_shared_with_it(group_scratch: Path, closed: str) -> None:
    for path in (group_scratch / "data").iterdir():
        os.chown(path, 6001, 7777)
        path.chmod(0o600 if closed == "file" else 0o644)
    os.chown(group_scratch / "data", 6001, 7777)
    (group_scratch / "data").chmod(0o755 if closed == "file" else 0o700)
    record = as_user(group_scratch, 6001)
    assert record["how"] == "staged" and "/shoal-data-6001/" in record["path"]
    assert "this user's own" in record["notes"][0]
    assert (group_scratch / "project" / "shoal-data-6001").stat().st_mode & 0o777 == 0o700
    assert not list((group_scratch / "project" / "shoal-data" / "objects").iterdir())
    assert as_user(group_scratch, 6002, check=False) == {}, "another member cannot read it, neither there nor here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may play two users of a group")
def test_a_second_user_goes_on_with_an_unfinished_copy(group_scratch: Path) -> None:
    killed = """
from shoal.job import file_copy
file_copy.RANGE_BYTES, plain, done = 5000, file_copy._PartialFile.copy, []
def copy(part, number, buffer):
    done.append(1)
    if len(done) > 50:
        os._exit(0)
    return plain(part, number, buffer)
file_copy._PartialFile.copy = copy
"""
    assert as_user(group_scratch, 6001, killed) == {}
    (home,) = (group_scratch / "project" / "shoal-data" / "objects").iterdir()
    here = {path.name: path.stat().st_uid for path in (home / "data").glob("shard-*")}
    assert len(here) > 5 and set(here.values()) == {6001} and list((home / "parts").iterdir())
    record = as_user(group_scratch, 6002)
    assert record["how"] == "staged" and contents(Path(record["path"])) == contents(group_scratch / "data")
    kept = sum((home / "data" / name).stat().st_size for name in here)
    assert record["copied_bytes"] == record["bytes"] - kept, "finished shards are shared, begun ones are copied again"
    assert as_user(group_scratch, 6001)["how"] == "shared"


def test_what_nobody_uses_makes_room_and_what_is_used_stays(tmp_path: Path, scratch: dict[str, str]) -> None:
    sets = []
    for number in range(3):
        make_folder(tmp_path / f"src{number}", 40, seed=number)
        shoal.data.shard_dataset(str(tmp_path / f"src{number}"), str(tmp_path / f"d{number}"))
        sets.append(tmp_path / f"d{number}")
    used = Stage("used", str(sets[0]), scratch)
    used.begin()
    used.wait()
    used.join()
    stage_all(sets[1], scratch)
    root = node_root(scratch)
    size = sum(entry["bytes"] for entry in cache.list_datasets(root)) // 2
    place, record = stage_all(sets[2], {**scratch, "SHOAL_SCRATCH_LIMIT": str(int(size * 2.3))})
    assert len(record["removed"]) == 1
    assert record["how"] == "staged" and contents(Path(place)) == contents(sets[2])
    assert os.path.isdir(used.path) and contents(Path(used.path)) == contents(sets[0])
    assert {entry["id"] for entry in cache.list_datasets(root)} == {used.list.id, record["id"]}
    assert not cache.remove_dataset(root, used.list.id)
    used.close()
    assert cache.remove_dataset(root, used.list.id)
    assert os.listdir(root.folder("trash")) == []


def test_what_does_not_fit_is_read_from_the_source_and_no_file_lacks(data: Path, scratch: dict[str, str]) -> None:
    said: list[str] = []
    place, record = stage_all(data, {**scratch, "SHOAL_SCRATCH_LIMIT": "500K"}, say=said.append)
    links = [name for name in os.listdir(place) if os.path.islink(os.path.join(place, name))]
    assert 0 < len(links) < len(os.listdir(place)) - 1
    assert record["left_at_source_bytes"] > 0 and "no room" in said[1]
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


def test_a_lock_is_open_to_all_from_its_first_moment_and_the_umask_stays(tmp_path: Path) -> None:
    seen, over, before = set(), threading.Event(), os.umask(0o077)

    def watch() -> None:
        while True:
            seen.add(Path("/proc/self/status").read_text().partition("Umask:\t")[2][:4])
            if over.is_set():
                return

    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        for number in range(200):
            lock = FileLock(str(tmp_path / str(number)))
            assert os.fstat(lock.fd).st_mode & 0o777 == 0o666
            lock.close()
    finally:
        over.set()
        watcher.join()
        os.umask(before)
    assert seen == {"0077"} and len(os.listdir(tmp_path)) == 200


def test_a_lock_goes_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
    assert cache.is_locked(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert not cache.is_locked(path)
    lock = FileLock(path)
    assert lock.take(True)
    lock.close()


@pytest.mark.parametrize("text", ["200G", "1.5T", "300", "10MB", "", "lots"])
def test_sizes_are_parsed(text: str) -> None:
    expected = {"200G": 200 * 10**9, "1.5T": 1_500_000_000_000, "300": 300, "10MB": 10**7}
    assert cache.parse_size(text) == expected.get(text)


_AS_USER = STAGE.replace(
    "stage = ", "import os; os.setgroups([5555]); os.setgid(5555); os.setuid(int(sys.argv[3]))\nstage = ", 1
)
_HOLD = """
import sys, time
from shoal.job.cache import FileLock
lock = FileLock(sys.argv[1])
lock.take(True)
print(1, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test that leaves a copying thread behind would disturb the next one."""
    before = busy_threads()
    yield
    wait_until(lambda: busy_threads() <= before, 10, "all threads of the test have ended")
