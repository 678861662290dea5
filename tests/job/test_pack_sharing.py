"""Runs that share a GPU: their part of the memory, and MPS.

No GPU is here, so a small program stands in for its daemon; `python -m benchmarks pack_gpu` uses the real one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from project import Project
from shoal.job.allocation import VisibleGpus, gpu_environment, visible_gpus_of_node
from shoal.job.environment import escape_placeholders
from shoal.job.pack.allocator import GPU_PARTS, Assignment
from shoal.job.pack.node import GpuSharing, memory_environment, set_up_gpu_sharing
from waiting import wait_until

pytestmark = pytest.mark.slow

#: Speaks as nvidia-cuda-mps-control does: -f is the daemon, without it commands come on standard input.
STAND_IN = """\
#!{python}
import json, os, sys, time
pipes, logs = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
pid, over = os.path.join(pipes, "pid"), os.path.join(pipes, "over")
def note(what):
    with open(os.path.join(logs, "control.log"), "a") as file:
        file.write(json.dumps([what, os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")]) + "\\n")
if sys.argv[1:] == ["-f"]:
    note("begin")
    if {broken}:
        sys.exit(1)
    open(pid, "w").close()
    while not os.path.exists(over):
        time.sleep(0.02)
    note("end")
else:
    word = sys.stdin.read().split()[0]
    if not os.path.exists(pid):
        sys.exit(1)
    if word == "quit":
        open(over, "w").close()
"""
#: All four are there at the same time, whenever each is claimed.
SHOW = """\
import glob, json, os, time
while len(glob.glob(".shoal/runs/*/*/attempt.1.start")) < 4:
    time.sleep(0.02)
print(json.dumps(dict(os.environ)))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    made.env.update(SHOAL_ON="local", CUDA_VISIBLE_DEVICES="GPU-aaaa,GPU-bbbb", TMPDIR=str(tmp_path))
    yield made
    for what, pid, _ in log_of(made, missing_ok=True):
        if what == "begin" and is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def install(project: Project, *, broken: bool = False) -> None:
    path = project.write("bin/nvidia-cuda-mps-control", STAND_IN.format(python=sys.executable, broken=broken))
    path.chmod(0o755)
    project.env["PATH"] = f"{path.parent}{os.pathsep}{project.env['PATH']}"


def log_of(project: Project, *, missing_ok: bool = False) -> list[list[Any]]:
    found = list((project.home / "submissions").glob("*/mps.*/control.log"))
    assert found or missing_ok
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


class Shown(NamedTuple):
    runs: list[dict[str, str]]
    said: str


def shown(project: Project, *words: object) -> Shown:
    """Runs that print their environment, two on each GPU."""
    command = [sys.executable, "-S", "-c", *escape_placeholders([SHOW]), "{k}"]
    done = project.shoal("pack", "--slots", 4, "--gpus-per-run", 0.5, *words, "--set", "k=1:4:1", "--", *command)
    assert "4 completed" in done.out
    return Shown([json.loads(text) for text in printed(project)], done.err)


def printed(project: Project) -> list[str]:
    return [path.read_text() for path in (project.root / "outputs").rglob("attempt-1.out")]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_share_of_the_memory_leaves_room_for_what_a_process_takes_beside_its_tensors() -> None:
    gib = 1 << 30
    env = memory_environment(GPU_PARTS // 4, 80 * gib, {})
    assert 0.24 < float(env["SHOAL_GPU_MEMORY_FRACTION"]) < 0.25
    assert int(env["SHOAL_GPU_MEMORY_BYTES"]) < 20 * gib
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == env["SHOAL_GPU_MEMORY_FRACTION"]
    blind = memory_environment(GPU_PARTS // 4, None, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"})
    assert float(blind["SHOAL_GPU_MEMORY_FRACTION"]) == pytest.approx(0.225)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in blind, "what somebody has set stays"
    assert GpuSharing().environment(Assignment(0, (0, 1), GPU_PARTS), {}) == {}, "whole GPUs are not shared"


@pytest.mark.parametrize("engine", ["slots", "ray"])
def test_runs_that_share_a_gpu_go_through_mps_which_ends_with_them(project: Project, engine: str) -> None:
    install(project)
    runs, _ = shown(project, "--engine", engine)
    assert {run["CUDA_VISIBLE_DEVICES"] for run in runs} == {"GPU-aaaa", "GPU-bbbb"}
    assert {run["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for run in runs} == {"100"}
    assert {run["SHOAL_GPU_SHARE"] for run in runs} == {"0.5"}
    (pipes,) = {run["CUDA_MPS_PIPE_DIRECTORY"] for run in runs}
    begin, end = log_of(project)
    assert begin[0] == "begin" and end[0] == "end", "asked to quit, not killed"
    assert begin[2] == "GPU-aaaa,GPU-bbbb"
    assert not is_alive(begin[1]) and not Path(pipes).exists()


def test_mps_that_does_not_come_up_is_one_note_and_runs_go_on_without(project: Project) -> None:
    install(project, broken=True)
    runs, said = shown(project)
    assert not any("CUDA_MPS_PIPE_DIRECTORY" in run for run in runs)
    assert said.count("without MPS") == 1
    assert {run["SHOAL_GPU_MEMORY_FRACTION"] for run in runs} == {"0.4500"}


@pytest.mark.parametrize("words", [("--no-mps",), ()])
def test_without_mps_nothing_is_said(project: Project, words: tuple[str, ...]) -> None:
    if words:
        install(project)
    runs, said = shown(project, *words)
    assert not any("CUDA_MPS_PIPE_DIRECTORY" in run for run in runs)
    assert "MPS" not in said and not log_of(project, missing_ok=True)


def test_mps_dies_with_an_engine_that_is_killed(project: Project) -> None:
    install(project)
    words = ("--slots", 2, "--gpus-per-run", 0.5, "--set", "k=1:2:1", "--", sys.executable, "-S", "train.py", "wait=go")
    begun = project.start("pack", *words, "{k}")
    starts = wait_until(lambda: list((project.home / "runs").glob("*/*/attempt.1.start")), 60, "a run has begun")
    daemon = log_of(project)[0][1]
    assert is_alive(daemon)
    os.kill(json.loads(starts[0].read_text())["pid"], signal.SIGKILL)
    begun.communicate(timeout=300)
    wait_until(lambda: not is_alive(daemon), 60, "the daemon is gone")


@pytest.mark.parametrize(
    ("gpus", "environ"),
    [
        (VisibleGpus("ROCR_VISIBLE_DEVICES", ("0", "1")), {}),
        (VisibleGpus("CUDA_VISIBLE_DEVICES", ("GPU-a",)), {"CUDA_MPS_PIPE_DIRECTORY": "/somebody"}),
    ],
)
def test_amd_has_no_mps_and_a_daemon_that_is_there_is_left_alone(gpus: VisibleGpus, environ: dict[str, str]) -> None:
    said: list[str] = []
    found = set_up_gpu_sharing(gpus, environ, mps=True, prefix=(), logs="/nowhere", say=said.append)
    assert found.mps is None and not said


def test_mig_instances_are_shared_without_mps(project: Project) -> None:
    install(project)
    project.env["CUDA_VISIBLE_DEVICES"] = "MIG-aaaa,MIG-bbbb"
    runs, said = shown(project)
    assert {run["CUDA_VISIBLE_DEVICES"] for run in runs} == {"MIG-aaaa", "MIG-bbbb"}
    assert "MIG instances are parts" in said


@pytest.mark.parametrize(
    ("environ", "chosen", "seen"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,5"}, (1,), {"CUDA_VISIBLE_DEVICES": "5"}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, (0,), {"CUDA_VISIBLE_DEVICES": "GPU-a"}),
        ({"ROCR_VISIBLE_DEVICES": "2,5"}, (1,), {"ROCR_VISIBLE_DEVICES": "5", "HIP_VISIBLE_DEVICES": "0"}),
        ({"ROCR_VISIBLE_DEVICES": "2,5"}, (0, 1), {"ROCR_VISIBLE_DEVICES": "2,5", "HIP_VISIBLE_DEVICES": "0,1"}),
        ({"HIP_VISIBLE_DEVICES": "1,3"}, (1,), {"HIP_VISIBLE_DEVICES": "3"}),
        # Slurm without a word on the kind of GPU sets both; HIP counts CUDA's variable within what ROCR shows.
        ({"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}, (1,), {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_a_run_sees_its_own_gpus_by_the_names_they_came_with(
    environ: dict[str, str], chosen: tuple[int, ...], seen: dict[str, str]
) -> None:
    assert gpu_environment(visible_gpus_of_node(environ), chosen) == seen


def test_a_warm_torch_hears_of_its_share_when_it_first_touches_cuda(project: Project) -> None:
    """Not before: a program that never touches CUDA must not pay for it."""
    project.write(
        "ask.py",
        "import torch\n"
        "queued = [call for call, _ in torch.cuda._queued_calls if 'warm_server' in call.__code__.co_filename]\n"
        "print(len(queued), torch.cuda.is_initialized())\n",
    )
    words = ("--slots", 2, "--gpus-per-run", 0.5, "--preload", "torch", "--set", "k=1:2:1")
    project.shoal("pack", *words, "--", sys.executable, "ask.py", "{k}")
    assert [text.strip() for text in printed(project)] == ["1 False"] * 2
