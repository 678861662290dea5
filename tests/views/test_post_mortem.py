"""`shoal why` of runs that really failed on a real Slurm: the reason in words, the evidence, the next command."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeSandbox
from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

#: What the program does -> kind, words of the headline, words of the next command. Errors are real where a machine
#: without GPUs can have them; the others are raised with the words that torch and NCCL use.
ENDS = {
    "disk": ("open('/dev/full', 'w', buffering=1).write('weights\\n')", "disk", "No space left on device", "df -h"),
    "quota": ("raise OSError(122, os.strerror(122))", "disk", "Disk quota exceeded", "df -h"),
    "cuda": (
        "raise type('OutOfMemoryError', (RuntimeError,), {'__module__': 'torch'})"
        "('CUDA out of memory. Tried to allocate 2.00 GiB')",
        "cuda_oom",
        "CUDA out of memory",
        "smaller batch",
    ),
    "nccl": (
        "raise RuntimeError('NCCL error in: ProcessGroupNCCL.cpp:1275, remote process exited')",
        "nccl",
        "NCCL communication failure",
        "shoal submit",
    ),
    "ranks": (
        "raise RuntimeError('Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60')",
        "shared_gpu",
        "two ranks on one GPU",
        "one rank for each GPU",
    ),
    "assert": (
        "raise RuntimeError('CUDA error: device-side assert triggered')",
        "cuda_assert",
        "index out of range",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
    "group": (
        "os.write(2, b'terminate called without an active exception\\n'); os.abort()",
        "unfinished_group",
        "process group was still at work",
        "destroy_process_group()",
    ),
    "python": ("{}['lr']", "python", "KeyError: 'lr'", "shoal logs"),
    "module": ("import no_such_module", "import", "No module named 'no_such_module'", "shoal logs"),
    "host": ("bytearray(1 << 50)", "host_oom", "out of memory on the host", "--mem x2"),
    "crash": ("os.abort()", "", "SIGABRT", "shoal logs"),
    "code": ("sys.exit(7)", "", "exit code 7", "shoal logs"),
}
TOML = """
[steps.end]
command = [{python}, "end.py"]
checkpoint = "model_*.pth"
resume_args = []
request = {{ time = "5m", memory = "50M" }}
"""
PROGRAM = """\
import os, sys
open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "model_3.pth"), "w").write("w" if len(sys.argv) > 2 else "")
print("step 1/10", flush=True)
exec(sys.argv[1])
"""


def project_with(folder: Path, cluster: Sandbox) -> Project:
    project = Project(folder, cluster, toml=TOML.format(python=json.dumps(sys.executable)))
    project.write("end.py", PROGRAM)
    return project


def wait_saved(project: Project, name: str) -> dict[str, Any]:
    """The run, once it is running and has a checkpoint."""
    run = project.wait(name, "running")
    checkpoint = Path(run["output_dir"]) / "model_3.pth"
    wait_until(lambda: checkpoint.exists() and checkpoint.stat().st_size > 0, 60, f"{name} has saved")
    return run


def why(project: Project, name: str) -> dict[str, Any]:
    return project.shoal("why", name, "--json").json


def test_what_a_run_died_of_is_told_in_words_with_the_next_command(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = project_with(tmp_path, quiet_cluster)
    for word, (code, *_) in ENDS.items():
        project.script(f"001_ends/000_{word}_0.sh", f"end -- {shlex.quote(code)}")
    project.shoal("submit", "experiments/001_ends")
    for word, (_, kind, headline, command) in ENDS.items():
        name = f"001_ends/000_{word}_0"
        project.wait(name, "failed")
        told = why(project, name)
        assert (told["kind"] or "") == kind and headline in told["headline"], (word, told)
        assert command in told["next"][0], (word, told["next"])
        assert any("attempt 1" in line for line in told["evidence"]) and any("job" in line for line in told["evidence"])
        assert told["log_lines"] and told["log_path"].endswith("attempt-1.out"), "the last lines, whatever they say"


def test_more_memory_is_a_command_that_works_when_pasted(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    """Also where the run set no memory of its own: then the hint names an amount."""
    project = project_with(tmp_path, quiet_cluster)
    project.script("001_ends/000_asked_0.sh", f"end --mem=50 -- {shlex.quote(ENDS['host'][0])}")
    toml = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", toml.replace('memory = "50M"', "cpus = 1"))
    project.script("001_ends/001_unset_0.sh", f"end -- {shlex.quote(ENDS['host'][0])}")
    project.shoal("submit", "experiments/001_ends")
    for name, words in (("001_ends/000_asked_0", "--mem x2"), ("001_ends/001_unset_0", "--mem 1G")):
        project.wait(name, "failed")
        command = why(project, name)["next"][0]
        assert command.startswith(f"shoal retry {name} {words}"), command
        assert f"submitted {name}" in project.bash("-c", command).out


def test_a_run_with_a_checkpoint_is_resumed_and_the_command_works_when_pasted(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    project = project_with(tmp_path, quiet_cluster)
    name = "001_ends/000_nccl_0"
    project.script(f"{name}.sh", f"end -- {shlex.quote(ENDS['nccl'][0])} saved")
    project.shoal("submit", "experiments/001_ends")
    project.wait(name, "failed")
    command = why(project, name)["next"][0]
    assert command == f"shoal resume {name}"
    assert "submitted" in project.bash("-c", command).out


def test_memory_and_time_limit_are_told_with_what_would_have_been_enough(
    tmp_path: Path, make_sandbox: MakeSandbox
) -> None:
    cluster = make_sandbox("ends", nodes=1, gpus=0)
    project = project_with(tmp_path, cluster)
    forever = "import time; time.sleep(600)"
    project.script("001_ends/000_slow_0.sh", f"end --time=1 -- {shlex.quote(forever)} saved")
    eats = cluster.layout.load()
    limits_memory = eats is not None and bool(eats.cgroups)
    if limits_memory:
        project.script("001_ends/000_eats_0.sh", "end --mem=30 -- 'bytearray(1 << 29).find(1)'")
    project.shoal("submit", "experiments/001_ends")
    slow = wait_saved(project, "001_ends/000_slow_0")
    project.slurm("scontrol", "update", f"JobId={slow['job_id']}", "EndTime=now+1")
    project.wait("001_ends/000_slow_0", "timeout", deadline_s=120)
    told = why(project, "001_ends/000_slow_0")
    assert told["kind"] == "time_limit" and told["next"] == ["shoal resume 001_ends/000_slow_0 -- --time=00:02:00"]
    if limits_memory:
        project.wait("001_ends/000_eats_0", "oom")
        told = why(project, "001_ends/000_eats_0")
        command = "shoal retry 001_ends/000_eats_0 --mem x2"
        assert told["kind"] == "host_oom" and told["next"] == [command], told
        assert "submitted" in project.bash("-c", command).out
        sent = [(folder / "submission.json").read_text() for folder in project.submissions()]
        assert any("--mem=60M" in text for text in sent), "twice what it had"
    assert os.path.exists(slow["output_dir"])


def test_a_node_that_fails_is_named_and_the_run_is_resumed_elsewhere(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    project = project_with(tmp_path, make_sandbox("broken", nodes=2, gpus=0))
    name = "001_ends/000_node_0"
    forever = "import time; time.sleep(600)"
    project.script(f"{name}.sh", f"end --no-requeue -- {shlex.quote(forever)} saved")
    project.shoal("submit", "experiments/001_ends")
    node = wait_saved(project, name)["node"]
    project.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
    project.wait(name, "node_fail")
    told = why(project, name)
    assert told["kind"] == "node" and "node failure" in told["headline"] and told["next"] == [f"shoal resume {name}"]
    assert any(node in line for line in told["evidence"]), told
    assert "submitted" in project.bash("-c", told["next"][0]).out
    assert project.wait(name, "running")["node"] != node


def test_an_attempt_that_slurm_stopped_is_explained_while_the_run_goes_on(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    project = project_with(tmp_path, quiet_cluster)
    name = "001_ends/000_again_0"
    waits = "import time; time.sleep(0.2 if os.environ['SHOAL_ATTEMPT'] == '2' else 600)"
    project.script(f"{name}.sh", f"end --requeue -- {shlex.quote(waits)} saved")
    project.shoal("submit", "experiments/001_ends")
    job = wait_saved(project, name)["job_id"]
    project.slurm("scontrol", "requeue", job)
    wait_until(lambda: project.status()[name]["state"] == "pending", 60, "it waits in the queue again")
    stopped = "Slurm stopped it (SIGTERM) and put its job into the queue again: preempted or requeued"
    assert any(line.startswith("attempt 1 on ") and stopped in line for line in why(project, name)["evidence"])
    project.wait(name, "completed", deadline_s=180)
    assert any(stopped in line for line in why(project, name)["evidence"]), "also when it completed"
