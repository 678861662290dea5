"""Frames, the stub on old Pythons, settings and refusals: what needs no Slurm."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import assert_clear_error
from remote_project import RemoteProject
from shoal.describe.project import load_project
from shoal.errors import InputError
from shoal.remote import stub
from ssh_server import SshServer
from waiting import wait_until

MARK = b"0123456789abcdef"
HEADS = st.dictionaries(st.text(max_size=8), st.text(max_size=20), min_size=1, max_size=3)


@given(st.lists(st.tuples(HEADS, st.binary(max_size=300)), max_size=5), st.binary(max_size=80), st.integers(1, 97))
def test_frames_arrive_whole_whatever_stands_before_them_and_however_they_are_cut(
    frames: list[tuple[dict[str, str], bytes]], noise: bytes, size: int
) -> None:
    data = b"".join(noise + stub.encode_frame(MARK, head, body) for head, body in frames)
    reader = stub.FrameReader(MARK)
    found = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
    assert found == frames


def test_a_frame_that_claims_a_gigabyte_is_refused() -> None:
    with pytest.raises(ValueError):
        list(stub.FrameReader(MARK).feed(b"\x1e" + MARK + b" 10 1000000000\n"))


def test_the_stub_is_python_3_6_and_standard_library() -> None:
    tree = ast.parse(Path(stub.__file__).read_text(), feature_version=(3, 6))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imported if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
    annotations = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    annotations += [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    texts = [ast.unparse(one) for one in annotations]
    new = [text for text in texts if " | " in text or text.startswith(("list[", "dict[", "tuple["))]
    assert new == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('host = "-oProxyCommand=x"', "expected a Host of your ssh configuration"),
        ('host = "a b"', "expected a Host of your ssh configuration"),
        ("host = 3", "expected"),
        ('directory = "$HOME/x"', "without $"),
        ('directory = "../x"', "without $ and .."),
        ('directory = "~other/x"', "below ~/"),
        ("port = 22", "unknown key"),
    ],
)
def test_bad_values_of_the_ssh_table_are_refused_with_their_line(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "shoal.toml").write_text(f"[clusters.galvani.ssh]\n{lines}\n")
    with pytest.raises(InputError, match=r"shoal\.toml:2") as caught:
        load_project(tmp_path, {"HOME": str(tmp_path)})
    assert words in caught.value.message


@pytest.mark.parametrize("name", ["local", "slurm"])
def test_a_profile_that_is_this_machine_has_no_ssh(tmp_path: Path, name: str) -> None:
    (tmp_path / "shoal.toml").write_text(f'[clusters.{name}.ssh]\nhost = "galvani"\n')
    with pytest.raises(InputError, match=r"shoal\.toml:2.*has no effect"):
        load_project(tmp_path, {"HOME": str(tmp_path)})


def test_the_host_may_be_the_users_and_the_directory_the_projects(tmp_path: Path) -> None:
    (tmp_path / ".config" / "shoal").mkdir(parents=True)
    (tmp_path / ".config" / "shoal" / "config.toml").write_text(
        '[clusters.galvani.ssh]\nhost = "me@login.example.org"\n'
    )
    (tmp_path / "shoal.toml").write_text('[clusters.galvani.ssh]\ndirectory = "~/lead"\n')
    ssh = load_project(tmp_path, {"HOME": str(tmp_path)}).clusters["galvani"].ssh
    assert (ssh.host, ssh.directory, ssh.python) == ("me@login.example.org", "~/lead", None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    made = SshServer(tmp_path / "ssh", {})
    yield made
    made.close()


@pytest.fixture
def project(tmp_path: Path, server: SshServer) -> RemoteProject:
    return RemoteProject(tmp_path, server, None)


def test_a_mistake_on_the_command_line_needs_no_connection(project: RemoteProject) -> None:
    project.server.stop()
    assert_clear_error(project.shoal("status", "--nope", "--on", "galvani", code=None), 2, "--nope")
    assert_clear_error(project.shoal("why", "x", "--on", "galvoni", code=None), 2, "galvoni")
    assert_clear_error(project.shoal("generate", "--on", "galvani", code=None), 2, "over ssh yet")
    assert_clear_error(project.shoal("ui", code=None, environ={"SHOAL_ON": "galvani"}), 2, "SHOAL_ON=galvani")
    assert_clear_error(project.shoal("watch", "--notify", "--on", "galvani", code=None), 2, "--notify")
    for command in (("report",), ("doctor", "train.py"), ("switch", "x", "--nodes", "2"), ("watch",)):
        assert_clear_error(project.shoal(*command, "--on", "slurm", code=None), 2, "--on slurm has no effect")
    project.write("job.sbatch", "#!/bin/bash\n#SBATCH --time=1\ntrue\n")
    assert_clear_error(project.shoal("submit", "job.sbatch", "--on", "galvani", code=None), 2, "batch scripts")
    assert project.server.proxy.connections == 0


def test_settings_that_would_stay_on_the_laptop_are_refused(project: RemoteProject) -> None:
    user = project.root.parent / ".config" / "shoal" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[clusters.galvani]\naccount = "lab"\n')
    done = project.shoal("status", "--on", "galvani", code=None)
    assert_clear_error(done, 2, "account", "config.toml:2", "stays on this machine")


def test_no_sshd_is_an_error_with_the_command_to_type(project: RemoteProject) -> None:
    project.server.stop()
    done = project.shoal("status", "--on", "galvani", code=None)
    assert_clear_error(done, 5, "galvani", "shoal connect galvani")


@pytest.mark.slow
def test_a_key_that_is_refused_names_connect_and_a_changed_host_key_is_never_accepted(project: RemoteProject) -> None:
    server = project.server
    keys = server.folder / "authorized_keys"
    kept = keys.read_text()
    keys.write_text("")
    assert_clear_error(project.shoal("status", "--on", "galvani", code=None), 5, "asks for a password", "shoal connect")
    keys.write_text(kept)
    known = (server.laptop / ".ssh" / "known_hosts").read_text()
    server.change_host_key()
    assert_clear_error(
        project.shoal("status", "--on", "galvani", code=None), 5, "host key has changed", "ssh-keygen -R"
    )
    assert_clear_error(project.shoal("connect", "galvani", code=None), 5, "cannot connect")
    assert (server.laptop / ".ssh" / "known_hosts").read_text() == known
    server.write_laptop_config(known=False)
    assert_clear_error(project.shoal("status", "--on", "galvani", code=None), 5, "not known", "shoal connect")


@pytest.mark.slow
def test_connect_keeps_one_connection_for_all_commands(project: RemoteProject) -> None:
    proxy = project.server.proxy
    assert "connected to galvani" in project.shoal("connect", "galvani").out
    try:
        assert "connected already" in project.shoal("connect", "galvani").out
        before = proxy.connections
        for _ in range(2):
            assert project.shoal("status", "--on", "galvani").out == "no runs yet\n"
        assert proxy.connections == before == 1
    finally:
        closed = project.shoal("connect", "galvani", "--close")
    assert "closed" in closed.out and "no open" in project.shoal("connect", "galvani", "--close").out


@pytest.mark.slow
def test_banners_max_sessions_and_an_interpreter_of_the_profile(tmp_path: Path) -> None:
    """A login shell that prints a megabyte without a line break, with JSON and a record separator in it."""
    server = SshServer(
        tmp_path / "ssh", {}, settings="MaxSessions 1\n", banner='Welcome {"hello": 1} ' + "\x1e" + "x" * 100_000
    )
    try:
        project = RemoteProject(tmp_path, server, None)
        assert project.shoal("status", "--on", "galvani").out == "no runs yet\n"
        assert project.shoal("connect", "galvani", "-q").out == ""
        assert project.shoal("status", "--on", "galvani", "--json").json["runs"] == []
        project.shoal("connect", "galvani", "--close")
        toml = project.root / "shoal.toml"
        toml.write_text(toml.read_text() + 'python = "/nowhere/python"\n')
        (server.home / ".local").rename(server.home / "gone")
        done = project.shoal("status", "--on", "galvani", code=None)
        assert_clear_error(done, 1, "/nowhere/python", "clusters.galvani.ssh")
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        ("exec /bin/false", 5, "cannot connect"),
        ('PATH=/nowhere; export PATH; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"', 5, "python3"),
        ("echo nope >&2; exec sleep 600", 5, "did not answer"),
    ],
)
def test_a_login_that_gives_no_python_ends_with_an_error(tmp_path: Path, command: str, code: int, word: str) -> None:
    server = SshServer(tmp_path / "ssh", {}, command=command)
    try:
        project = RemoteProject(tmp_path, server, None)
        began = time.monotonic()
        done = project.shoal("status", "--on", "galvani", code=None, environ={"SHOAL_SSH_HELLO_S": "4"})
        assert_clear_error(done, code, word)
        assert time.monotonic() - began < 60
    finally:
        server.close()


@pytest.mark.slow
def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    """A login node whose only python3 says that it is 3.9."""
    programs = tmp_path / "old"
    programs.mkdir()
    real = os.path.realpath(sys.executable)
    about = '[[3, 9], "cpython-39", "linux-x86_64", "glibc"]'
    (programs / "python3").write_text(
        f'#!/bin/sh\ncase "$*" in *SOABI*) echo \'{about}\';; *) exec {real} "$@";; esac\n'
    )
    (programs / "python3").chmod(0o755)
    command = f'PATH={programs}:/bin; export PATH; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    server = SshServer(tmp_path / "ssh", {}, command=command)
    try:
        project = RemoteProject(tmp_path, server, None)
        toml = project.root / "shoal.toml"
        toml.write_text(toml.read_text() + f'python = "{programs}/python3"\n')
        done = project.shoal("status", "--on", "galvani", code=None)
        assert_clear_error(done, 1, "3.11 or later", "is 3.9")
    finally:
        server.close()


@pytest.mark.slow
def test_a_frozen_link_ends_the_command_within_a_minute(project: RemoteProject) -> None:
    proxy = project.server.proxy
    assert project.shoal("status", "--on", "galvani").out == "no runs yet\n"

    def freeze(way: str, count: int) -> None:
        proxy.is_frozen = proxy.is_frozen or (way == "up" and count > 6000)

    proxy.watch = freeze
    began = time.monotonic()
    done = project.shoal("status", "--on", "galvani", code=None, timeout_s=70)
    assert_clear_error(done, 5, "galvani", "shoal connect galvani")
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_look_that_loses_its_connection_leaves_nothing_on_the_login_node(project: RemoteProject) -> None:
    toml = project.root / "shoal.toml"
    toml.write_text(toml.read_text() + "[status]\n")
    project.sweep(1)
    project.shoal("status", "--on", "galvani")
    process = project.start("logs", "001_a/000_train_x0", "--on", "galvani")
    process.send_signal(signal.SIGINT)
    process.communicate()
    wait_until(lambda: not project.server.sessions(), 30, "no process of the login node is left")


def test_a_full_disk_on_the_cluster_is_told_at_once(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: both refuse the first bytes."""
    program = f"""
import errno, resource, signal, sys
sys.path.insert(0, {os.path.dirname(stub.__file__)!r})
import stub
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    stub._start_worker(None, {str(tmp_path)!r}, 1, False)
except OSError as error:
    raise SystemExit(0 if error.errno == errno.EFBIG else 3)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=20)
    assert done.returncode == 0 and not (tmp_path / "1").exists()


@pytest.mark.slow
def test_an_open_order_that_cannot_be_completed_or_only_follows_holds_up_no_other(project: RemoteProject) -> None:
    project.shoal("status", "--on", "galvani")
    notes = project.root.parent / ".local" / "state" / "shoal" / "requests"
    notes.mkdir(parents=True)
    order = {"argv": ["submit", "x"], "tree": "0" * 16, "inside": ".", "cwd": ".", "directory": "~/lead"}
    for request, follows in (("gone", False), ("long", True)):
        note = {**order, "schema": 1, "request": request, "profile": "galvani", "host": "galvani", "t": time.time()}
        (notes / f"{request}.json").write_text(json.dumps(note))
        folder = project.there / ".shoal" / "requests" / request
        folder.mkdir(parents=True)
        record = {**order, "request": request, "follows": follows, "digest": "0" * 16, "env": {}}
        (folder / "request.json").write_text(json.dumps(record))
    done = project.shoal("cancel", "001_a/none", "--on", "galvani", code=None, timeout_s=40)
    assert "cannot be completed" in done.err and "same command again" in done.err, done.err
    assert "001_a/none" in done.err, "the order itself was carried out"
    assert [path.stem for path in project.notes()] == ["long"]
