"""`shoal status`: one squeue and at most one sacct, right with and without accounting, honest when Slurm is silent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import MakeSandbox
from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

RUN = "001_a/000_train_0"


def _count_programs(project: Project, folder: Path) -> Path:
    """Put programs before Slurm's own that write down that they were called, and then are them."""
    calls = folder / "calls"
    shims = folder / "shims"
    shims.mkdir()
    for name in ("squeue", "sacct", "sinfo", "scontrol", "sbatch", "scancel"):
        shim = shims / name
        shim.write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\nexec {shutil.which(name)} "$@"\n')
        shim.chmod(0o755)
    project.env["PATH"] = f"{shims}:{project.env['PATH']}"
    return calls


def _called(calls: Path) -> list[str]:
    names = [line.split()[0] for line in calls.read_text().splitlines()] if calls.exists() else []
    calls.unlink(missing_ok=True)
    return names


@pytest.mark.parametrize("accounting", [False, True])
def test_status_asks_squeue_once_and_sacct_at_most_once(
    accounting: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sandbox: Sandbox = request.getfixturevalue("accounting_cluster" if accounting else "cluster")
    project = Project(tmp_path, sandbox)
    calls = _count_programs(project, tmp_path)
    for number, words in enumerate(("exit=7", "exit=1", "wait=go", "wait=go", "")):
        project.script(f"001_a/{number:03}_train_0.sh", f"train --time=5 --mem=50 -- {words}")
    project.script("002_b/000_train_0.sh", "train --time=5 --mem=50 --hold -- late")
    project.shoal("submit", "experiments/001_a", "experiments/002_b", "--layout", "job")
    for name in ("000", "001", "002", "003", "004"):
        project.wait_started(f"001_a/{name}_train_0")
    for name, state in (("000", "failed"), ("001", "failed"), ("004", "completed")):
        project.wait(f"001_a/{name}_train_0", state)
    # A job asks Slurm about itself after its end is on record.
    wait_until(lambda: len(project.queue("%i", "-t", "R,CG")) == 2, 60, "the three others are over for Slurm")
    _called(calls)
    states = {name: run["state"] for name, run in project.status().items()}
    names = _called(calls)
    assert names.count("squeue") == 1 and names.count("sacct") <= 1 and set(names) <= {"squeue", "sacct"}, names
    assert (
        list(states.values()) == ["failed", "failed", "running", "running", "completed", "pending"]
        or "blocked" in states.values()
    )
    project.write("go", "")
    for name in ("002", "003"):
        project.wait(f"001_a/{name}_train_0", "completed")
    project.shoal("cancel", "002_b", "--yes")
    project.wait("002_b/000_train_0", "cancelled")
    wait_until(lambda: not project.queue("%T"), 60, "the jobs are over, too, for Slurm")
    project.status()
    _called(calls)
    project.status()
    assert _called(calls) == [], "runs that have all ended ask nobody"


def test_states_are_right_after_slurm_has_forgotten_everything_without_accounting(
    tmp_path: Path, make_sandbox: MakeSandbox
) -> None:
    project = Project(tmp_path, make_sandbox("forget", nodes=1, gpus=0, settings=(("MinJobAge", "2"),)))
    words = {"000": "exit=7", "001": "kill=9", "002": "", "003": "wait=never"}
    for number, do in words.items():
        project.script(f"001_a/{number}_train_0.sh", f"train --time=5 --mem=50 -- {do}")
    project.shoal("submit", "experiments/001_a", "--layout", "job")
    project.wait_started("001_a/003_train_0")
    project.shoal("cancel", "001_a/003_train_0")
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "all"), 60, "Slurm has forgotten all jobs", poll_s=0.5)
    runs = {name[6:9]: (run["state"], run["exit_code"], run["reason"]) for name, run in project.status().items()}
    assert runs["000"] == ("failed", 7, "exit code 7")
    assert runs["001"] == ("failed", 137, "killed by SIGKILL")
    assert runs["002"] == ("completed", 0, None)
    assert runs["003"][0] == "cancelled"


def test_a_job_that_never_began_is_explained_by_accounting(tmp_path: Path, accounting_cluster: Sandbox) -> None:
    project = Project(tmp_path, accounting_cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 --hold"))
    job_id = project.status()[RUN]["job_id"]
    project.slurm("scancel", job_id)
    run = project.wait(RUN, "cancelled")
    assert (run["attempt"], run["job_id"]) == (0, job_id)


def test_a_requeued_run_that_failed_is_failed_in_accounting(tmp_path: Path, accounting_cluster: Sandbox) -> None:
    """sacct keeps a row REQUEUED beside the row FAILED; only the newer one is about now."""
    project = Project(tmp_path, accounting_cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- first=waits exit=3"))
    project.wait_started(RUN)
    project.slurm("scontrol", "requeue", project.status()[RUN]["job_id"])
    assert project.wait(RUN, "pending", "running")
    project.wait_started(RUN, 2)
    run = project.wait(RUN, "failed")
    assert (run["attempt"], run["exit_code"]) == (2, 3)
    # The run has written its end; its job is over a moment later, and accounting hears of that later still.
    wait_until(lambda: project.status()[RUN]["slurm_state"] == "FAILED", 60, "Slurm says FAILED")
    words = ("sacct", "-D", "-n", "-P", "-j", run["job_id"], "-o", "State")
    wait_until(lambda: "FAILED" in project.slurm(*words), 60, "accounting says FAILED")
    assert "REQUEUED" in project.slurm(*words) and project.status()[RUN]["state"] == "failed"


def test_slurm_down_shows_last_known_states_with_a_warning(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    project = Project(
        tmp_path, make_sandbox("down", nodes=1, gpus=0, settings=(("MessageTimeout", "2"), ("TCPTimeout", "1")))
    )
    project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- wait=go")
    project.script("001_a/001_train_0.sh", "train --time=5 --mem=50 --hold")
    project.script("001_a/002_train_0.sh", "train --time=5 --mem=50 -- exit=4")
    project.shoal("submit", "experiments/001_a", "--layout", "job")
    project.wait_started(RUN)
    project.wait("001_a/002_train_0", "failed")
    assert project.cluster is not None
    project.cluster.stop_daemon("slurmctld")
    seen = project.shoal("status", "--all")
    assert "warning: Slurm does not answer" in seen.err
    document = project.shoal("status", "--json").json
    states = [run["state"] for run in document["runs"]]
    assert states == ["running", "pending", "failed"] and document["slurm_problem"]
    project.write("go", "")
    wait_until(lambda: project.records(RUN, "attempt.*.end"), 30, "the run ended while the controller was away")
    assert project.status()[RUN]["state"] == "completed"
    project.cluster.start_daemon("slurmctld")


def test_another_persons_job_is_asked_about_by_name_and_never_called_lost_when_it_is_hidden(
    tmp_path: Path, cluster: Sandbox
) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 --begin=now+1hour"))
    record = project.submissions()[0] / "submission.json"
    own = record.read_text()
    record.write_text(json.dumps({**json.loads(own), "user": "colleague", "uid": 2**30}))
    real = shutil.which("squeue")
    shim = tmp_path / "shims/squeue"
    shim.parent.mkdir()
    project.env["PATH"] = f"{shim.parent}:{project.env['PATH']}"
    shim.write_text(f"""#!/bin/sh
case "$1 $2" in
    "--me "*) ;;
    "-u colleague") shift 2; [ -e {tmp_path}/hidden ] || exec {real} "$@" ;;
    *) exit 9 ;;
esac
""")
    shim.chmod(0o755)
    assert project.status()[RUN]["slurm_state"] == "PENDING"
    (tmp_path / "hidden").write_text("")
    run = project.status()[RUN]
    assert run["state"] == "pending" and not list(project.home.glob("cache/watch-*"))
    assert "left alone" in project.shoal("submit", "experiments/001_a").out
    project.env["PATH"] = project.env["PATH"].partition(":")[2]
    record.write_text(own)
    project.shoal("cancel", RUN)
    project.wait(RUN, "cancelled")
