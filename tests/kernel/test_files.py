"""Small files that many machines share: written whole, exactly once, or not at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernel import files
from shoal.observe import run_files
from shoal.observe.run_files import ClaimRecord, DamagedRecord
from shoal.observe.state_dir import as_disk_error


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where every file has a name from the start."""
    monkeypatch.setattr(files, "_devices_without_tmpfile", {tmp_path.stat().st_dev})


@pytest.fixture(params=["without a name first", "with a temporary name"])
def either(request: pytest.FixtureRequest) -> None:
    if request.param == "with a temporary name":
        request.getfixturevalue("named")


@pytest.mark.usefixtures("either")
def test_of_many_writers_exactly_one_creates_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    barrier, won = threading.Barrier(16), []

    def work(number: int) -> None:
        barrier.wait()
        if files.create_exclusive(path, str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and Path(path).read_text() == str(won[0])
    assert os.listdir(tmp_path) == ["claim"]


@pytest.mark.usefixtures("named")
def test_a_link_that_the_server_made_but_denied_counts_as_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS client that resends a LINK is told EEXIST about its own success."""
    real = os.link

    def resent(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", source, None, target)

    monkeypatch.setattr(os, "link", resent)
    assert files.create_exclusive(str(tmp_path / "claim"), b"x")
    assert os.listdir(tmp_path) == ["claim"]


@pytest.mark.usefixtures("named")
def test_without_hard_links_creation_is_still_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOTSUP, "not supported", source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "claim"
    assert files.create_exclusive(str(path), b"first") and not files.create_exclusive(str(path), b"second")
    assert path.read_bytes() == b"first"


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_nothing_and_the_error_names_the_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "claim"
    files.replace(str(path), b"old")
    monkeypatch.setattr(os, call, full)
    for write in (files.create_exclusive, files.replace):
        with pytest.raises(OSError) as caught:
            write(str(path), b"new")
        disk = as_disk_error(caught.value)
        assert disk is not None and disk.exit_code == 74 and str(path) in disk.message
        assert disk.hint == f"df -h {tmp_path}   # free some space there, or choose another folder"
        monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
        assert "SHOAL_HOME" in str(getattr(as_disk_error(caught.value), "hint", ""))
        monkeypatch.delenv("SHOAL_HOME")
    assert os.listdir(tmp_path) == ["claim"] and path.read_bytes() == b"old"


KILLED = """\
import os, signal, sys
from shoal.kernel import files
os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
files.create_exclusive(sys.argv[1], b"x")
"""


def test_a_writer_that_is_killed_leaves_nothing_where_files_need_no_name(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "claim")], check=False)
    assert done.returncode == -9 and os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT])
def test_a_file_system_without_unnamed_files_gets_temporary_names(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = os.open, []

    def refuse(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            asked.append(path)
            raise OSError(code, "refused")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(files, "_devices_without_tmpfile", set())
    monkeypatch.setattr(os, "open", refuse)
    assert files.create_exclusive(str(tmp_path / "a"), b"1") and files.create_exclusive(str(tmp_path / "b"), b"2")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"] and len(asked) == (2 if code == errno.ENOENT else 1)


def test_without_proc_there_are_temporary_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link(source: str, target: str, **named: Any) -> None:
        real(source.replace("/proc/", "/none/"), target, **named)

    monkeypatch.setattr(os, "link", link)
    assert files.create_exclusive(str(tmp_path / "claim"), b"x") and os.listdir(tmp_path) == ["claim"]


def _modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o7777 for path in folder.rglob("*")}


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_modes_come_from_the_folder_and_not_from_the_umask(mask: int, tmp_path: Path) -> None:
    shared, private, plain = tmp_path / "shared", tmp_path / "private", tmp_path / "plain"
    for folder, mode in ((shared, 0o2770), (private, 0o700), (plain, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
    before = os.umask(mask)
    try:
        for folder in (shared, private, plain):
            files.make_dir(str(folder / "a" / "b"))
            files.create_exclusive(str(folder / "a" / "b" / "record"), b"x")
            files.create_exclusive(str(folder / "script"), b"x", executable=True)
            files.replace(str(folder / "a" / "beat"), b"x")
    finally:
        os.umask(before)
    assert _modes(shared) == {"a": 0o2770, "a/b": 0o2770, "a/b/record": 0o660, "a/beat": 0o660, "script": 0o640}
    assert _modes(private) == {"a": 0o700, "a/b": 0o700, "a/b/record": 0o600, "a/beat": 0o600, "script": 0o600}
    assert set(_modes(plain).values()) == {0o777 & ~mask, 0o666 & ~mask}


def test_a_file_that_others_could_have_changed_is_not_read_for_execution(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    path = tmp_path / "script"
    files.create_exclusive(str(path), b"x", executable=True)
    assert files.read_trusted(str(path)) == b"x"
    path.chmod(0o660)
    with pytest.raises(PermissionError, match="other users can change it"):
        files.read_trusted(str(path))
    tmp_path.chmod(0o700)
    assert files.read_trusted(str(path)) == b"x"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    files.replace(str(tmp_path / "record"), b"0123456789")
    assert (tmp_path / "record").read_bytes() == b"0123456789"


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.binary().map(os.fsdecode), st.none())))
def test_any_record_is_read_back_as_it_was(record: dict[str, object]) -> None:
    assert json.loads(files.to_json(record)) == record and files.to_json(record).isascii()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\0\0", b"\xff\xfe", b'{"token": 3}', b'{"schema": 1}'])
def test_a_damaged_record_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "submit.1.claim"
    path.write_bytes(data)
    with pytest.raises(DamagedRecord, match=r"submit\.1\.claim"):
        run_files.read_checked(str(path), ClaimRecord)


def test_a_record_of_a_newer_shoal_is_not_guessed_at(tmp_path: Path) -> None:
    record = {"schema": 2, "token": "t", "revision": 1, "output_dir": "o", "log_dir": "l"}
    (tmp_path / "claim").write_text(json.dumps(record))
    with pytest.raises(DamagedRecord, match="newer shoal"):
        run_files.read_checked(str(tmp_path / "claim"), ClaimRecord)


def test_unknown_fields_of_a_record_are_passed_over(tmp_path: Path) -> None:
    claim = ClaimRecord(token="t", revision=1, output_dir="o", log_dir="l")
    record = {**json.loads(run_files.encode_file(claim)), "colour": "blue"}
    (tmp_path / "claim").write_text(json.dumps(record))
    assert run_files.read_checked(str(tmp_path / "claim"), ClaimRecord) == claim
    assert run_files.read_checked(str(tmp_path / "nothing"), ClaimRecord) is None


COLD = """\
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
from shoal.observe import run_files
record = dict(experiment="e", stem="s", number=None, step="t", step_kind="t", seed=0, command=["x"], cwd="", output="")
together = threading.Barrier(8)
def work():
    together.wait()
    assert msgspec.convert(record, run_files.RunSpec).stem == "s"
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_may_read_records_of_a_kind_that_nobody_read_before() -> None:
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", COLD], check=False).returncode == 0
