"""The Ray engine, with real Ray: on this machine and over the nodes of a Slurm job."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from data_sets import make_data, with_data
from made_up import ME
from project import Project, assert_clear_error, processes_with, project_here, read_record
from shoal.job.allocation import VisibleGpus, memory_mb
from shoal.job.child_processes import StarterFailed
from shoal.job.pack import ray_cluster
from shoal.job.pack.node import EngineNode
from shoal.job.pack.ray_cluster import RayCluster, ShortTempDir, ray_environment, resource_flags
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

QUICK = [sys.executable, "-S", "train.py"]
SAVES = """
import os, signal, sys, time
def save(number, frame):
    time.sleep(1)  # a large model
    print("saved on", os.environ["SLURMD_NODENAME"], flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(os.path.join("marks", sys.argv[1]), "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = project_here(tmp_path)
    yield made
    for pid in _of_ray(made):
        os.kill(pid, signal.SIGKILL)


def _of_ray(project: Project) -> list[int]:
    """Every process that has this project's token file in its environment: Ray's own, and what it started."""
    return processes_with(f"RAY_AUTH_TOKEN_PATH={project.home}")


def _command(pid: int) -> bytes:
    """The command line of a process, empty if it has gone: Ray's come and go."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _wait_for_none(project: Project) -> None:
    wait_until(lambda: not _of_ray(project), 60, "nothing of Ray is left")


def test_sizes_and_surroundings_are_the_allocations_and_not_the_machines() -> None:
    assert resource_flags(4, 2, 2048)[:2] == ["--num-cpus=4", "--num-gpus=2"]
    assert f"--memory={2048 << 20}" in resource_flags(
        4, 2, 2048
    ) and f"--object-store-memory={100 << 20}" in resource_flags(4, 2, 2048)
    assert f"--object-store-memory={80 << 20}" in resource_flags(4, 2, 512), "Ray takes no less than 75 MB"
    assert not any("--memory" in word for word in resource_flags(4, 2, None))
    env = ray_environment({"RAY_ADDRESS": "somebody:6379", "HOME": "/h", "PYTHONPATH": "/p"}, "/t")
    assert "RAY_ADDRESS" not in env and env["RAY_AUTH_MODE"] == "token" and env["RAY_AUTH_TOKEN_PATH"] == "/t"
    assert env["RAY_worker_niceness"] == "0" and env["PYTHONPATH"].endswith(":/p")


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_MEM_PER_NODE": "2048"}, 2048),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "3"}, 300),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({}, None),
    ],
)
def test_the_memory_of_an_allocation_is_what_slurm_says(environ: dict[str, str], found: int | None) -> None:
    assert memory_mb(environ) == found


def test_runs_are_the_same_under_ray_and_nothing_of_it_is_left(project: Project) -> None:
    words = ("--engine", "ray", "--slots", 2, "--set", "what=exit=0,exit=7,print=hello,kill=9", "--json", "--", *QUICK)
    done = project.shoal("pack", *words, "{what}", code=4, timeout_s=200)
    runs = {run["name"].rpartition("what")[2]: run for run in done.json["runs"]}
    assert sorted(run["state"] for run in runs.values()) == ["completed", "completed", "failed", "failed"]
    assert sorted(run["exit_code"] for run in runs.values()) == [0, 0, 7, 137]
    assert len({bar["lane"] for bar in done.json["timeline"]}) == 2
    _wait_for_none(project)
    (token,) = project.submissions()[0].glob("ray.*.token")
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


SWEEP_FILE = """\
step = "train"
command = [{python}, "-S", {train}, "{{k}}", "wait=go{{k}}"]
[sweep]
k = "1:{runs}:1"
[request]
gpus = 1
[[requests]]
when = "k == 1"
gpus = 2
"""


def _sweep_file(project: Project, runs: int) -> Path:
    """Runs of which the first has two GPUs and the others one; run k waits for the file go<k>."""
    train = json.dumps(str(project.root / "train.py"))
    text = SWEEP_FILE.format(python=json.dumps(sys.executable), train=train, runs=runs)
    return project.write("experiments/001_depth/000_train.toml", text)


def _starts(project: Project) -> dict[str, dict[str, Any]]:
    """Start records by the run's k."""
    found = (project.home / "runs").glob("*/*/attempt.1.start")
    return {path.parent.name[-1]: read_record(path) for path in found}


def test_runs_hold_what_they_need_under_ray_too_gpus_and_cpus(project: Project) -> None:
    """Two GPUs, which are only names; all CPUs for each run, so that no two run at the same time."""
    cpus = len(os.sched_getaffinity(0))
    project.env["CUDA_VISIBLE_DEVICES"] = "GPU-aaaa,GPU-bbbb"
    words = ("--layout", "pack", "--engine", "ray", "--slots", 2, "--cpus-per-run", cpus)
    for number in (1, 2, 3):
        project.write(f"go{number}", "")
    project.shoal("submit", _sweep_file(project, 3), *words, timeout_s=200)
    starts = _starts(project)
    assert {k: len(start["held"]["gpus"]) for k, start in starts.items()} == {"1": 2, "2": 1, "3": 1}
    marks = {name: project.marks(name)[0]["env"] for name in project.status()}
    assert {(env["SHOAL_GPUS_PER_NODE"], env["SHOAL_CPUS_PER_NODE"]) for env in marks.values()} == {
        ("2", str(cpus)),
        ("1", str(cpus)),
    }
    times = sorted((end["began"], end["ended"]) for end in _ends(project))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times)), "one after the other"


def test_killing_a_worker_of_ray_ends_its_run_which_is_tried_again(project: Project) -> None:
    words = ("pack", "--engine", "ray", "--slots", 2, "--set", "k=1:3:1", "--", *QUICK, "wait=go", "{k}")
    begun = project.start(*words, SHOAL_SAMPLE_S="0.1")
    wait_until(lambda: len(list((project.root / "marks").iterdir())) >= 2, 120, "two runs have begun")

    def both_sampled() -> list[Path] | None:
        found = list((project.home / "runs").glob("*/*/attempt.1.use"))
        return found if len(found) == 2 else None

    sampled = wait_until(both_sampled, 60, "both are sampled")
    worker = next(pid for pid in _of_ray(project) if b"SlotWorker" in _command(pid))
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: list((project.home / "runs").glob("*/*/attempt.1.end")), 60, "the lost run is recorded")
    project.write("go", "")
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 0, said
    ends = [read_record(path) for path in (project.home / "runs").glob("*/*/attempt.*.end")]
    assert sorted((end["stopped_by"] or "completed") for end in ends) == ["completed", "completed", "completed", "lost"]
    used = [json.loads(path.read_text()) for path in sampled]
    assert all(one["points"] and one["peak_memory_mb"] > 1 and one["gpu_problem"] for one in used)
    _wait_for_none(project)


def test_a_lost_worker_leaves_its_gpus_to_the_others_until_none_is_left(project: Project) -> None:
    """Each run has both GPUs. When its worker is killed, the next one has them, until there is no other worker."""
    project.env["CUDA_VISIBLE_DEVICES"] = "GPU-aaaa,GPU-bbbb"
    sweep_file, words = _sweep_file(project, 2), ("--layout", "pack", "--slots", 2, "--gpus-per-run", 2)
    begun = project.start("submit", sweep_file, *words, "--engine", "ray")
    for count in (1, 2):
        _wait_begun(project, count)
        os.kill(wait_until(lambda: _busy(project), 60, "a worker runs it"), signal.SIGKILL)
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 4 and "2 runs are left over" in said, said
    _wait_for_none(project)
    for number in (1, 2):
        project.write(f"go{number}", "")
    project.shoal("submit", sweep_file, *words)
    assert {run["state"] for run in project.status().values()} == {"completed"}


def _busy(project: Project) -> int | None:
    """A worker of Ray that has a run: its parent. A worker's title may tell of a question that it answers meanwhile."""
    for pid in processes_with("SHOAL_RUN=", f"SHOAL_OUTPUT_DIR={project.root}"):
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if b"ray::SlotWorker" in _command(parent):
                return parent
    return None


def test_signals_for_all_of_ray_are_left_to_its_runs(project: Project) -> None:
    """Slurm signals every process of a step, and Ray would end at once."""
    begun = project.start("pack", "--engine", "ray", "--slots", 2, "--set", "k=1,2", "--", *QUICK, "wait=go", "{k}")
    _wait_begun(project, 2)
    for pid in _of_ray(project):
        if b"train.py" not in _command(pid):
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGTERM)
    project.write("go", "")
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 0, said
    assert [end["attempt"] for end in _ends(project)] == [1, 1]
    _wait_for_none(project)


def test_an_end_before_ray_is_up_leaves_nothing_and_starts_nothing(project: Project) -> None:
    begun = project.start("pack", "--engine", "ray", "--slots", 2, "--set", "k=1:2:1", "--", *QUICK, "{k}")
    wait_until(lambda: any(b"raylet" in _command(pid)[:200] for pid in _of_ray(project)), 120, "Ray is coming up")
    begun.send_signal(signal.SIGTERM)
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 143, said
    _wait_for_none(project)


def test_what_ray_cannot_do_is_told_before_anything_starts(project: Project) -> None:
    words = ("pack", "--engine", "ray", "--slots", 2, "--dry-run")
    page = project.shoal("pack", "--dashboard", "--dry-run", "--", "true", code=2)
    assert_clear_error(page, 2, "--dashboard is Ray's")
    for flag in (("--preload", "json"), ("--bind",)):
        assert_clear_error(project.shoal(*words, *flag, "--", "true", code=2), 2, f"{flag[0]} is not for --engine ray")


def test_without_ray_it_says_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StarterFailed, match=r"pip install 'shoal\[ray\]'"):
        RayCluster(_node(tmp_path / "program", {}), 1)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StarterFailed, match=r"pip install 'shoal\[ray\]'"):
        RayCluster(_node(tmp_path / "module", {}), 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name == "ray" else None)
    with pytest.raises(StarterFailed, match=r"pip install 'ray\[default\]'"):
        RayCluster(_node(tmp_path / "page", {}), 1, dashboard=True)


def _node(home: Path, environ: dict[str, str]) -> EngineNode:
    node = EngineNode(str(home), "token", ME, VisibleGpus(), [0], environ, None)
    Path(node.folder).mkdir(parents=True)
    return node


@pytest.mark.skipif(importlib.util.find_spec("aiohttp_cors") is None, reason="needs pip install 'ray[default]'")
def test_the_dashboard_is_there_when_asked_for_and_wants_the_token(project: Project) -> None:
    words = ("pack", "--engine", "ray", "--dashboard", "--slots", 1, "--set", "k=1", "--", *QUICK, "wait=go")
    begun = project.start(*words)
    _wait_begun(project, 1)
    page = f"http://127.0.0.1:{_port(project, 'dashboard-port')}/api/cluster_status"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(page, timeout=300)
    (token,) = project.submissions()[0].glob("ray.*.token")
    asked = urllib.request.Request(page, headers={"Authorization": f"Bearer {token.read_text()}"})
    assert json.load(urllib.request.urlopen(asked, timeout=300))["result"] is True
    project.write("go", "")
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 0 and page.rpartition("/api")[0] in said and str(token) in said, said
    _wait_for_none(project)


@pytest.mark.slurm
def test_ray_over_the_nodes_of_a_job(tmp_path: Path, make_sandbox: Callable[..., Sandbox]) -> None:
    """The nodes are hosts of their own here: own address, own processes. The first run has the GPUs of one of them."""
    project = Project(tmp_path, make_sandbox("ray", nodes=2, gpus=2, hosts=True))
    with_data(project, f'data = {{ images = "{make_data(tmp_path)}" }}')
    words = ("--layout", "pack", "--engine", "ray", "--nodes", 2, "--gpus", 2, "--slots", 2, "--time", "10m")
    project.shoal("submit", _sweep_file(project, 5), *words, "--mem", "2G")
    _wait_begun(project, 3)
    starts = _starts(project)
    assert sorted(starts) == ["1", "2", "3"], "no room for more"
    assert len({start["held"]["host"] for start in starts.values()}) == 2, "slots on both nodes"
    assert len({start["engine"] for start in starts.values()}) == 1, "one engine for all of them"
    assert {k: start["held"]["gpus"] for k, start in starts.items()} == {"1": ["0", "1"], "2": ["0"], "3": ["1"]}
    told = [path.name for path in project.submissions()[0].glob("*.data/node-*.json")]
    assert len(told) == 2, "the data was brought to both nodes"
    for number in (1, 2, 3, 4):
        project.write(f"go{number}", "")
    _wait_begun(project, 5)
    wait_until(lambda: sum(end["success"] for end in _ends(project)) == 4, 60, "all but the last completed")
    commands = [_command(int(name)).split(b"\0") for name in os.listdir("/proc") if name.isdigit()]
    folder = bytes(project.submissions()[0])
    helpers = [words for words in commands if b"stage" in words and any(word.startswith(folder) for word in words)]
    assert len([words for words in helpers if words[0] != b"srun"]) == 2, "the first run has ended, they hold the data"
    assert any(words[0] == b"srun" for words in helpers)
    project.write("go5", "")
    wait_until(lambda: {run["state"] for run in project.status().values()} == {"completed"}, 180, "all runs completed")
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has ended")
    _wait_for_none(project)
    assert not list(project.submissions()[0].glob("*.data"))


@pytest.mark.slurm
def test_the_end_of_a_job_lets_runs_on_every_node_save(tmp_path: Path, make_sandbox: Callable[..., Sandbox]) -> None:
    project = Project(tmp_path, make_sandbox("raysave", nodes=2, hosts=True, settings=(("KillWait", "30"),)))
    project.write("saves.py", SAVES)
    words = ("pack", "--engine", "ray", "--nodes", 2, "--gpus", 2, "--slots", 1, "--time", "10m", "--mem", "2G")
    project.shoal(*words, "--set", "k=1,2", "--", sys.executable, "-S", "saves.py", "{k}")
    _wait_begun(project, 2)
    project.slurm("scancel", project.status().popitem()[1]["job_id"])
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has ended")
    assert [(end["exit_code"], end["stopped_by"]) for end in _ends(project)] == [(0, "SIGTERM")] * 2
    said = sorted(path.read_text() for path in (project.root / "outputs").rglob("attempt-1.out"))
    assert said == sorted(f"saved on {end['held']['host']}\n" for end in _ends(project)) and len(set(said)) == 2
    assert "SIGTERM received" not in next(project.submissions()[0].glob("slurm-*.out")).read_text(), "no crash report"
    _wait_for_none(project)


def _ends(project: Project) -> list[dict[str, Any]]:
    return [read_record(path) for path in (project.home / "runs").glob("*/*/attempt.*.end")]


def _wait_begun(project: Project, count: int) -> None:
    wait_until(lambda: len(list((project.root / "marks").iterdir())) >= count, 180, f"{count} runs have begun")


@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_killing_rays_head_ends_the_pack_and_the_next_command_continues(project: Project, part: str) -> None:
    words = ("--slots", 2, "--set", "k=1:4:1", "--", *QUICK, "wait=go{k}", "{k}")
    project.write("go1", "")
    begun = project.start("pack", "--engine", "ray", *words)
    wait_until(lambda: any(end["success"] for end in _ends(project)), 180, "one run completed")
    _wait_begun(project, 3)
    head = next(pid for pid in _of_ray(project) if part.encode() in _command(pid)[:200])
    os.kill(head, signal.SIGKILL)
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 4 and "Ray's head has died" in said, said
    assert "are left over" in said, "and what comes after the runs was done, such as a follow-up job: " + said
    _wait_for_none(project)
    assert {run["state"] for run in project.status().values()} <= {"completed", "lost", "new"}
    for number in (2, 3, 4):
        project.write(f"go{number}", "")
    project.shoal("pack", *words)
    assert sorted(end["success"] for end in _ends(project)).count(True) == 4, "what was done was not run again"


def test_a_taken_port_means_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first, free_port = iter([taken.getsockname()[1]]), ray_cluster.free_port
        # A busy machine may need more than the second: Ray takes its time, or somebody else takes the port.
        monkeypatch.setattr(ray_cluster, "free_port", lambda: next(first, None) or free_port())
        cluster = RayCluster(_node(tmp_path / "home", project.env), 1)
        try:
            assert not cluster.address.endswith(f":{taken.getsockname()[1]}")
            assert next(first, None) is None, "the taken one was tried"
        finally:
            cluster.close()


USERS = (1, 65534)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two other users")
def test_two_users_on_one_node_do_not_meet() -> None:
    """A's Ray is up while B's starts, works and ends; and B, who knows where A's is, is not let in."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-two-", dir="/tmp"))
    folder.chmod(0o755)
    packs: list[subprocess.Popen[str]] = []
    try:
        python = _open_python(folder)
        first, second = (_project_of(folder / str(uid), uid) for uid in USERS)
        words = ["-m", "shoal", "pack", "--engine", "ray", "--slots", "1", "--set", "k=1,2", "--", python, "train.py"]
        for uid, project in zip(USERS, (first, second), strict=True):
            packs.append(_as(uid, project, [python, *words, "{k}", "wait=go"]))
            _wait_whole(project, packs[-1])
        assert len({_port(project, "ray-client-server-port") for project in (first, second)}) == 2
        _finish(second, packs[1])
        code = f"import ray; ray.init(address='127.0.0.1:{_port(first, 'port')}', log_to_driver=False)"
        stranger = _as(USERS[1], second, [python, "-c", code], RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        _, said = stranger.communicate(timeout=300)
        assert stranger.returncode != 0 and "uthenticat" in said, said
        _finish(first, packs[0])
        assert all(end["success"] for one in (first, second) for end in _ends(one))
    finally:
        for pack in packs:
            pack.kill()
            pack.communicate()
        shutil.rmtree(folder)


def _wait_whole(project: Project, pack: subprocess.Popen[str]) -> None:
    """A run has begun, and all of Ray is up: its server for clients comes last, and when it fails, everything ends."""

    def is_whole() -> bool:
        return any((project.root / "marks").iterdir()) and _listens(_port(project, "ray-client-server-port"))

    wait_until(lambda: is_whole() or pack.poll() is not None, 180, "all of Ray is up")
    assert pack.poll() is None, _log(project)


def _finish(project: Project, pack: subprocess.Popen[str]) -> None:
    project.write("go", "")
    _, said = pack.communicate(timeout=300)
    assert pack.returncode == 0, said + _log(project)


def _log(project: Project) -> str:
    (log,) = project.submissions()[0].glob("ray.*.log")
    return log.read_text()


def _port(project: Project, part: str) -> int:
    """The port that a part of a project's Ray was given."""
    return int(_log(project).partition(f" --{part}=")[2].split()[0])


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def _open_python(folder: Path) -> str:
    """A Python that everybody may use and that has what this one has; ours may stand where only we can go."""
    base = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    if not os.path.exists(base):
        pytest.skip(f"there is no {base} that other users can run")
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder / "python")], check=True)
    (site,) = (folder / "python").glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join([*packages, str(Path(shoal.__file__).parents[1])]) + "\n")
    ray = folder / "python" / "bin" / "ray"
    ray.write_text(
        f"#!{folder}/python/bin/python\nimport sys\nfrom ray.scripts.scripts import main\nsys.exit(main())\n"
    )
    ray.chmod(0o755)
    return str(folder / "python" / "bin" / "python")


def _project_of(folder: Path, uid: int) -> Project:
    folder.mkdir()
    made = project_here(folder, USER=f"user{uid}", LOGNAME=f"user{uid}")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return made


def _as(uid: int, project: Project, argv: list[str], **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        cwd=project.root,
        env={**project.env, **env},
        user=uid,
        group=uid,
        extra_groups=[],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slurm
def test_a_lost_node_of_ray_loses_its_runs_which_go_on_elsewhere(
    tmp_path: Path, make_sandbox: Callable[..., Sandbox]
) -> None:
    project = Project(tmp_path, make_sandbox("raylost", nodes=2, hosts=True))
    words = ("pack", "--engine", "ray", "--nodes", 2, "--gpus", 2, "--slots", 2, "--time", "10m", "--mem", "2G")
    project.shoal(*words, "--set", "k=1:6:1", "--", *QUICK, "wait=go", "{k}")
    _wait_begun(project, 4)
    for pid in _of_ray(project):
        command = _command(pid)
        if b"ray-node" in command.split(b"\0") and b"srun" not in command:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sum(end["stopped_by"] == "lost" for end in _ends(project)) == 2, 180, "two runs are lost")
    project.write("go", "")
    wait_until(lambda: {run["state"] for run in project.status().values()} == {"completed"}, 180, "all runs completed")
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has ended")
    assert sum(end["success"] for end in _ends(project)) == 6
    _wait_for_none(project)
    ShortTempDir().close()  # as the next Ray here would: it removes what the killed one left
