"""What clusters do to packs, on a real Slurm: memory, requeues, frozen nodes, code that changes, stages across jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_pack_slurm import good_ends, held, job_of, sweep, wait_all

from conftest import cancel_all
from made_up import ME
from project import Project, git, read_record
from shoal.job.pack import follow_up
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

HOG = """\
import glob, os, sys, time
open(os.path.join("marks", sys.argv[1]), "w").close()
while len(os.listdir("marks")) < 2:
    time.sleep(0.02)
blocks = [b"x" * (1 << 20) for _ in range(90)]
while not glob.glob(".shoal/runs/*/*/attempt.1.end"):
    time.sleep(0.02)
"""
STEP = """
[steps.hog]
command = [{python}, "-S", "hog.py"]
request = {{ cpus = 1, memory = "60M" }}
[steps.hog.recovery]
{policy}
"""


@pytest.fixture
def project(tmp_path: Path, quiet_cluster: Sandbox) -> Iterator[Project]:
    yield Project(tmp_path, quiet_cluster)


def ends(project: Project) -> list[dict[str, Any]]:
    return [read_record(path) for path in (project.home / "runs").glob("*/*/attempt.*.end")]


@pytest.mark.parametrize(
    ("policy", "state"), [("max_retries = { oom = 1 }\nmemory_factor = 'x2'", "completed"), ("", "oom")]
)
def test_lack_of_memory_ends_one_run_alone_and_an_empty_slot_is_more_of_it(
    tmp_path: Path, quiet_cluster: Sandbox, policy: str, state: str
) -> None:
    """Each of two slots has 60 MB, and a run takes 90: together they do not fit, one beside an empty slot does."""
    toml = STEP.format(python=json.dumps(sys.executable), policy=policy)
    project = Project(tmp_path, quiet_cluster, toml=toml)
    project.write("hog.py", HOG)
    project.write("experiments/001_a/000_hog.toml", 'step = "hog"\nargs = ["{k}"]\n[sweep]\nk = "1:2:1"\n')
    project.shoal("submit", "experiments/001_a", "--layout", "pack", "--slots", 2, "--time", "5m")
    runs = wait_all(project, "completed", state)
    assert sorted(run["state"] for run in runs.values()) == sorted(["completed", state])
    assert sorted(str(end["cause"]) for end in ends(project)) == sorted(
        ["None", "oom", *["None"] * (state == "completed")]
    )
    assert len(project.jobs()) == 1, "the engine lived"


def test_a_packed_run_executes_the_code_that_was_there_when_it_was_submitted(project: Project) -> None:
    path = project.write(
        "experiments/001_a/000_train.toml",
        'step = "train"\ncommand = ["sh", "code.sh"]\nseeds = "0-1"\n[request]\ntime = "1m"\nmemory = "50M"\n',
    )
    go = project.root / "go"
    project.write("code.sh", f"while ! test -e {go}; do sleep 0.1; done; echo old\n")
    project.write(".gitignore", "marks/\n.shoal/\noutputs/\ngo\n")
    project.write("shoal.toml", (project.root / "shoal.toml").read_text().replace("snapshot = false\n", ""))
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "first")
    project.shoal("submit", path, "--layout", "pack", "--slots", 1, "--time", "5m")
    wait_until(lambda: len(held(project)) == 1, 60, "one run has begun")
    project.write("code.sh", "echo new\n")
    go.touch()
    for name in wait_all(project, "completed"):
        assert project.shoal("logs", name).out.split() == ["old"]


def test_a_requeued_job_goes_on_with_its_queue(project: Project) -> None:
    path = sweep(project, 4, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_until(lambda: len(held(project)) == 2, 60, "two runs have begun")
    job = job_of(project)
    project.slurm("scontrol", "requeue", job)
    # Slurm lets it wait until its first credential has expired; told to start now, it kills it as "credential revoked".
    wait_until(lambda: len(held(project)) == 4, 120, "two attempts more have begun")
    project.write("go", "")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 4 and len(project.jobs()) == 1


def test_a_run_that_builds_on_a_packed_one_waits_for_it_alone(project: Project) -> None:
    """Another run of the pack fails, and so its job does: that is no reason not to start."""
    train = 'step = "train"\nseeds = "0-1"\nargs = ["save=7", "wait=go", "exit={seed}"]\n[request]\ntime = "1m"\n'
    project.write("experiments/001_a/000_train.toml", train + 'memory = "50M"\n')
    project.shoal("submit", "experiments/001_a", "--layout", "pack", "--slots", 2, "--time", "5m")
    wait_until(lambda: len(held(project)) == 2, 60, "two runs have begun")
    child = 'step = "evaluate"\nseeds = "0"\nstart_from = "000_train_0"\n[request]\ntime = "1m"\nmemory = "50M"\n'
    project.write("experiments/001_a/010_evaluate.toml", child)
    project.shoal("submit", "experiments/001_a/010_evaluate.toml")
    project.write("go", "")
    assert project.wait("001_a/010_evaluate_0", "completed")["state"] == "completed"
    assert project.status("001_a/000_train_1")["001_a/000_train_1"]["state"] == "failed"


def test_a_pack_waits_for_parents_in_other_jobs_and_starts_what_builds_on_a_good_one(project: Project) -> None:
    short = '[request]\ntime = "1m"\nmemory = "50M"\n'
    train = f'step = "train"\nseeds = "0-1"\nargs = ["save=7", "wait=go", "exit={{seed}}"]\n{short}'
    project.write("experiments/001_a/000_train.toml", train)
    project.shoal("submit", "experiments/001_a", "--layout", "job")
    evaluate = f'step = "evaluate"\nseeds = "0-1"\nstart_from = "000_train_{{seed}}"\n{short}'
    project.write("experiments/001_a/010_evaluate.toml", evaluate)
    words = (
        "submit",
        "experiments/001_a/010_evaluate.toml",
        "--layout",
        "pack",
        "--slots",
        2,
        "--time",
        "5m",
        "--json",
    )
    (job,) = {run["job_id"] for run in project.shoal(*words).json["runs"]}
    assert project.slurm("squeue", "-h", "-j", job, "-o", "%T %E").startswith("PENDING afterany:")
    project.write("go", "")
    assert project.wait("001_a/010_evaluate_0", "completed")["job_id"] == job
    (mark,) = project.marks("001_a/010_evaluate_0")[:1]
    assert mark["env"]["SHOAL_START_FROM"].endswith("model_7.pth")
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the pack has ended")
    assert project.status()["001_a/010_evaluate_1"]["state"] == "new" and not project.marks("001_a/010_evaluate_1")


def processes(project: Project) -> dict[str, list[int]]:
    """Job -> its processes, as this host counts them; the nodes count their own."""
    found: dict[str, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(str(project.root).encode()) for word in words):
            job = next((value for value in environ if value.startswith(b"SLURM_JOB_ID=")), b"=")
            found.setdefault(job.partition(b"=")[2].decode(), []).append(int(name))
    return found


def test_a_frozen_node_loses_its_run_to_another_and_gives_it_up_when_it_wakes(
    tmp_path: Path, host_cluster: Sandbox
) -> None:
    lease = '\n[clusters.here]\nmatch = { host = "*" }\nsetup = "export SHOAL_LEASE_S=5"\n'
    project = Project(tmp_path, host_cluster, toml=lease)
    path = sweep(project, 2, "wait=go{k}")
    alone = ("--gpus", 2, "--gpus-per-run", 2)
    project.shoal("submit", path, "--pilots", 2, *alone, "--time", "5m", "--on", "here")
    wait_until(lambda: len(held(project)) == 2, 60, "two runs have begun")
    assert len({one["host"] for one in held(project)}) == 2
    name = "001_depth/000_train_k1"
    (start,) = project.records(name, "attempt.1.start")
    frozen = processes(project)[start["job_id"]]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        live = next((project.home / "runs" / name).glob("attempt.1.live.*"))
        wait_until(lambda: time.time() - live.stat().st_ctime > 3, 60, "its lease is not renewed")
        project.write("go2", "")
        wait_until(lambda: project.records(name, "attempt.2.start"), 60, "the other pilot has taken it over")
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):  # one may have ended before it was frozen
                os.kill(pid, signal.SIGCONT)
    wait_until(
        lambda: not project.slurm("squeue", "-h", "-j", start["job_label"]).strip(), 60, "the first pilot has left"
    )
    project.write("go1", "")
    wait_all(project, "completed")
    assert project.records(name, "attempt.1.lost.*") and project.records(name, "attempt.2.end")[0]["success"]
    assert len(project.marks(name, "end")) == 1, "the frozen node's process was ended"
    cancel_all(host_cluster)


def test_nodes_that_failed_are_avoided_by_the_follow_up_job_and_by_the_next_submit(project: Project) -> None:
    path = sweep(project, 2, "wait=go")
    words = (path, "--layout", "pack", "--gpus", 1, "--time", "5m")
    project.shoal("submit", *words)
    wait_until(lambda: len(held(project)) == 1, 60, "one run has begun")
    job, (folder,) = job_of(project), project.submissions()
    (bad,) = project.slurm("squeue", "-h", "-j", job, "-o", "%N").split()
    # As an engine notes it when it takes over from one that was lost with its node.
    (folder / "engine.gone.end").write_text(json.dumps({"failed_nodes": [bad]}))
    (folder / "engine.torn.end").touch()  # by one whose node died while it wrote
    following = follow_up.pending_after(ME._replace(job_id=job, life=0), 1, {})
    assert following is not None
    told = follow_up.submit_queue_follow_up(str(folder), following, {**project.env, "SLURM_JOB_ID": job})
    assert told.endswith(f"continues, and avoids {bad}, which failed")
    shown = project.slurm("scontrol", "show", "job", told.split()[1])
    assert f"ExcNodeList={bad}" in shown and f"Dependency=afterany:{job}" in shown
    project.slurm("scancel", job, told.split()[1])
    wait_all(project, "cancelled", "new")
    (start,) = (project.home / "runs").glob("*/*/attempt.1.start")
    first, _, second = start.read_text().partition("\n")
    start.write_text(json.dumps({**json.loads(first), "failed_nodes": [bad]}) + "\n" + second)
    assert f"the pack avoids {bad}, which failed" in project.shoal("submit", *words).err
    project.write("go", "")
    wait_all(project, "completed")
    nodes = [read_record(path)["nodes"] for path in (project.home / "runs").glob("*/*/attempt.*.start")]
    assert len(nodes) == 3 and nodes.count(bad) == 1


def test_a_killed_job_leaves_nothing_and_the_next_submit_continues(project: Project) -> None:
    path = sweep(project, 3, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_until(lambda: len(held(project)) == 2, 60, "two runs have begun")
    project.slurm("scancel", "--full", "--signal=KILL", job_of(project))
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has ended")
    left = subprocess.run(["pgrep", "-f", str(project.root / "train.py")], capture_output=True, check=False)
    assert not left.stdout
    assert "completed" not in {run["state"] for run in project.status().values()}
    project.write("go", "")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 3
