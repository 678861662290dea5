"""`--slurm`: another release of Slurm from Debian's packages; what is refused, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import sandbox_name
from sandboxes import CLI, shoal_sandbox
from shoal.sandbox import slurm_root
from waiting import wait_until

#: Of Debian's stable suites, so that the release is still there tomorrow.
RELEASE = "24.11"


def left_in(cache: Path) -> list[str]:
    """What a build that did not end well may have left; the folder of the roots itself stays."""
    return [path.name for path in cache.glob("shoal/slurm/*")]


def test_a_release_that_no_suite_has_is_refused_with_those_that_are_there() -> None:
    done = shoal_sandbox("up", "--slurm", "19.05")
    assert done.returncode == 2
    assert "'19.05'" in done.stderr and all(release in done.stderr for release in slurm_root.SUITES)


def test_a_machine_without_apt_is_told_so(tmp_path: Path) -> None:
    home = f"/tmp/{sandbox_name('noapt')}"
    done = shoal_sandbox(
        "up", "--slurm", RELEASE, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), SHOAL_SANDBOX_HOME=home
    )
    assert done.returncode == 1
    assert "apt-get" in done.stderr and "hint: leave out --slurm" in done.stderr
    assert not list(tmp_path.iterdir()) and not Path(home).exists()


def test_a_mirror_that_does_not_answer_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        mirror = f"http://127.0.0.1:{nobody.getsockname()[1]}/debian"
        home = f"/tmp/{sandbox_name('mirror')}"
        env = {"XDG_CACHE_HOME": str(tmp_path), "SHOAL_SANDBOX_HOME": home, slurm_root.MIRROR_VARIABLE: mirror}
        done = shoal_sandbox("up", "--slurm", RELEASE, **env)
    assert done.returncode == 1
    assert mirror in done.stderr and "trixie" in done.stderr and f"export {slurm_root.MIRROR_VARIABLE}=" in done.stderr
    assert left_in(tmp_path) == [] and not Path(home).exists()


def test_an_archive_that_debian_did_not_sign_is_refused(tmp_path: Path) -> None:
    suite = tmp_path / "mirror/dists/trixie"
    suite.mkdir(parents=True)
    (suite / "Release").write_text("Origin: Debian\nSuite: stable\nCodename: trixie\nSHA256:\n")
    mirror = f"file:{tmp_path}/mirror"
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), slurm_root.MIRROR_VARIABLE: mirror}
    done = shoal_sandbox("up", "--slurm", RELEASE, SHOAL_SANDBOX_HOME=f"/tmp/{sandbox_name('sign')}", **env)
    assert done.returncode == 1
    assert "not signed" in done.stderr
    assert left_in(tmp_path / "cache") == []


def test_a_root_that_was_moved_is_not_used_because_its_programs_name_their_loader_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = slurm_root.slurm_roots_dir() / RELEASE
    folder.mkdir(parents=True)
    record = {"release": RELEASE, "version": "24.11.5", "suite": "trixie", "folder": str(folder), "plugins": "x"}
    (folder / "slurm-root.json").write_text(json.dumps(record))
    found = slurm_root.find_slurm_root(RELEASE)
    assert found is not None and found.programs == folder / "programs"
    shutil.move(tmp_path / "shoal", tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "new/shoal")
    assert slurm_root.find_slurm_root(RELEASE) is None
    (slurm_root.slurm_roots_dir() / RELEASE / "slurm-root.json").write_text("{")
    assert slurm_root.find_slurm_root(RELEASE) is None


@pytest.mark.slurm
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_ended_leaves_nothing_or_the_next_one_removes_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    home = f"/tmp/{sandbox_name('half')}"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "SHOAL_SANDBOX_HOME": home}
    argv = [*CLI, "up", "--slurm", RELEASE]
    # A session of its own, so that what apt started can be ended with it.
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, start_new_session=True) as building:
        lists = tmp_path / f"shoal/slurm/.building-{RELEASE}/apt/state/lists"
        wait_until(lambda: building.poll() is not None or any(lists.glob("*trixie*")), 120, "apt has begun")
        assert building.poll() is None, building.stderr
        if number == signal.SIGKILL:
            os.killpg(building.pid, number)
        else:
            building.send_signal(number)
        building.wait(60)
    assert left_in(tmp_path) == ([] if number == signal.SIGTERM else [f".building-{RELEASE}"])
    mirror = {slurm_root.MIRROR_VARIABLE: f"file:{tmp_path}/nowhere"}
    again = shoal_sandbox("up", "--slurm", RELEASE, XDG_CACHE_HOME=str(tmp_path), SHOAL_SANDBOX_HOME=home, **mirror)
    assert again.returncode == 1 and left_in(tmp_path) == []
    assert not Path(home).exists()


@pytest.mark.slurm
def test_another_release_runs_jobs_beside_the_installed_one_and_its_version_is_told(tmp_path: Path) -> None:
    """Built at the first time, in less than a minute; the jobs see this machine's files and Python."""
    name = sandbox_name("old")
    try:
        up = shoal_sandbox("up", "--name", name, "--nodes", "2", "--slurm", RELEASE, "--accounting")
        assert up.returncode == 0, up.stderr
        log = tmp_path / "log"
        job = f"{sys.executable} -c 'print(1 + 1)'; squeue -V"
        sbatch = f"sbatch --wait -o {log} --gres=gpu:2 --wrap {shlex.quote(job)}"
        script = f"{up.stdout}\nsinfo -V\n{sbatch}\nsacct -n -X -o state,alloctres%60"
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert (
            done.stdout.startswith(f"slurm-wlm {RELEASE}.")
            and "COMPLETED" in done.stdout
            and "gres/gpu=2" in done.stdout
        )
        assert log.read_text().startswith(f"2\nslurm-wlm {RELEASE}.")
        shown = json.loads(shoal_sandbox("status", "--name", name, "--json").stdout)["sandboxes"][0]
        assert shown["slurm_version"].startswith(f"{RELEASE}.") and shown["programs"]
        assert f"Slurm {shown['slurm_version']}" in shoal_sandbox("status", "--name", name).stdout
    finally:
        down = shoal_sandbox("down", "--name", name)
    assert down.returncode == 0 and "is down" in down.stderr
    mounts = Path("/proc/self/mounts").read_text()
    assert name not in mounts and str(slurm_root.slurm_roots_dir()) not in mounts
