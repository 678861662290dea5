"""Hours of a report beside sacct, for jobs of every kind: one cluster, everything submitted first, one wait."""

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

from project import Project, read_record
from published import complaints
from shoal.kernel.slurm_text import parse_time
from shoal.sandbox import Sandbox
from shoal.views.report.check import TOLERANCE, TOLERANCE_S
from waiting import wait_until

pytestmark = pytest.mark.slurm

SETTINGS = """\
snapshot = false
[steps.train]
command = ["bash", "-c", "{script}"]
request = {{ cpus = 1, memory = "60M", time = "5m", gpus = 1 }}
{more}
"""
FIELDS = "JobID,JobIDRaw,Submit,Eligible,Start,End,TimelimitRaw,AllocTRES,State"


@pytest.fixture
def slurm(accounting_cluster: Sandbox) -> Iterator[Sandbox]:
    yield accounting_cluster
    subprocess.run(["scancel", "-u", "root"], env=accounting_cluster.env(os.environ), check=False)


def _project(folder: Path, slurm: Sandbox, script: str = "sleep 3", more: str = "") -> Project:
    project = Project(folder, slurm)
    project.write("shoal.toml", SETTINGS.format(script=script, more=more))
    return project


def _script(project: Project, name: str, flags: str = "") -> str:
    return str(project.write(f"experiments/001_a/{name}.sh", f'source "$(shoal shell)"\ntrain {flags}\n'))


def _sacct(slurm: Sandbox, jobs: list[str]) -> dict[tuple[str, int], list[dict[str, int]]]:
    """Of each time that a job ran: a row for each size that it had, from sacct itself."""
    argv = ["sacct", "-X", "-D", "-n", "-P", "-j", ",".join(jobs), "-o", FIELDS]
    env = {**slurm.env(os.environ), "SLURM_TIME_FORMAT": "%s"}
    found: dict[tuple[str, int], list[dict[str, int]]] = {}
    was_resized = False
    for line in subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines():
        label, _, submit, eligible, start, end, minutes, tres, state = line.split("|")
        if not all(cell.isdigit() for cell in (submit, eligible, start, end, minutes)):
            continue  # slurmdbd has a part of it
        restarts = sum(1 for known, _ in found if known == label) - was_resized
        gpus = next((int(part.partition("=")[2]) for part in tres.split(",") if part.startswith("gres/gpu=")), 0)
        row = {
            "submit": int(submit),
            "eligible": int(eligible),
            "start": int(start),
            "end": int(end),
            "limit_s": int(minutes) * 60,
        }
        found.setdefault((label, restarts), []).append({**row, "gpus": gpus})
        was_resized = state == "RESIZING"
    return found


def _wait_accounted(project: Project, slurm: Sandbox) -> None:
    """Wait until slurmdbd has the end of every job, which the controller tells it in its own time."""
    jobs = {path.name.split(".")[1] for path in project.home.glob("submissions/*/allocation.*")}

    def all_ended() -> bool:
        argv = ["sacct", "-X", "-n", "-P", "-j", ",".join(jobs), "-o", "JobIDRaw,State,End"]
        rows = subprocess.run(argv, env=slurm.env(os.environ), capture_output=True, text=True, check=True).stdout
        ended = [row.split("|") for row in rows.splitlines() if row.split("|")[2] != "Unknown"]
        return {job for job, state, _ in ended if state not in ("RUNNING", "PENDING")} >= jobs

    wait_until(all_ended, 60, "slurmdbd has the ends of all jobs", poll_s=0.5)


def _compare(project: Project, slurm: Sandbox) -> dict[str, Any]:
    """The report, after each of its jobs was found to agree with sacct."""
    _wait_accounted(project, slurm)
    report: dict[str, Any] = project.shoal("report", "--json").json
    assert complaints("report", report) == []
    jobs = report["allocations"]
    assert jobs and {one["end_source"] for one in jobs} == {"slurm"}
    ids = [one["job_id"] for one in jobs]
    rows = sum(1 + len(one["resizes"]) for one in jobs)

    def all_rows() -> dict[tuple[str, int], list[dict[str, int]]] | None:
        found = _sacct(slurm, ids)
        return found if sum(map(len, found.values())) == rows else None

    accounts = wait_until(all_rows, 30, "slurmdbd has all jobs", poll_s=0.5)
    for one in jobs:
        account = accounts[one["job_id"], one["restarts"]]
        first, last = account[0], account[-1]
        _assert_close(one["ended"] - one["started"], last["end"] - first["start"], 1, one)
        assert one["gpus"] == first["gpus"] and one["time_limit_s"] == first["limit_s"], one
        assert one["queue_wait_s"] == pytest.approx(first["start"] - first["eligible"], abs=1.0), one
        waited_s = first["eligible"] - first["submit"]
        assert one["eligible"] - one["submitted"] == pytest.approx(waited_s, abs=1.0), one
        allocated = sum(row["gpus"] * (row["end"] - row["start"]) for row in account)
        _assert_close(one["gpu_hours"]["allocated"] * 3600, allocated, first["gpus"], one)
        requested = max(allocated, first["gpus"] * first["limit_s"])  # a limit of minutes
        assert one["gpu_hours"]["requested"] * 3600 == pytest.approx(requested, rel=0.01)
    whole = report["gpu_hours"]
    for key in ("allocated", "requested"):
        total = sum(one["gpu_hours"][key] for one in jobs)
        assert whole[key] == pytest.approx(total, abs=1e-5)
        assert sum(run["gpu_hours"][key] for run in report["runs"]) == pytest.approx(total, abs=1e-4)
    project.shoal("report", "--check")
    assert _calls_of_report(project, report) == [], "every end is kept"
    _compare_own_records(project, report)
    return report


def _assert_close(ours: float, slurm: float, amount: int, job: dict[str, Any]) -> None:
    """Seconds of so many GPUs."""
    assert abs(ours - slurm) <= max(amount * TOLERANCE_S, TOLERANCE * slurm), job


def _calls_of_report(project: Project, report: dict[str, Any]) -> list[str]:
    """The programs of Slurm that a report starts for allocations, none of which answers. It says the same as before."""
    log = project.root / "calls"
    for name in ("sacct", "squeue"):
        program = project.write(f"bin/{name}", f'#!/bin/sh\necho {name} "$*" >> {log}; exit 1\n')
        program.chmod(0o755)
    again = project.shoal("report", "--json", PATH=f"{project.root / 'bin'}:{project.env['PATH']}").json
    assert again["allocations"] == report["allocations"]
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if "--me" not in line and "-S" not in line.split()]


def _compare_own_records(project: Project, report: dict[str, Any]) -> None:
    """Where there is no sacct and Slurm has forgotten the jobs, their own records tell, and runs ended in time."""
    for path in project.home.glob("submissions/*/account.*"):
        path.unlink()
    again = project.shoal("report", "--json", PATH=f"{project.root / 'bin'}:{project.env['PATH']}").json
    for ours, slurm in zip(again["allocations"], report["allocations"], strict=True):
        assert ours["end_source"] in ("job", "estimate", "slurm") and ours["started"] >= slurm["started"]
        assert ours["ended"] <= slurm["ended"] + TOLERANCE_S, "Slurm notices an end later than the job itself"
        ran = slurm["gpu_hours"]["runs"] + slurm["gpu_hours"]["staging"]
        if ours["end_source"] != "estimate":
            assert ours["gpu_hours"]["allocated"] >= min(ran, slurm["gpu_hours"]["allocated"]) - 1e-5


def _wait_ended(project: Project, *ended: str, max_gpus: int = 8, deadline_s: float = 120) -> dict[str, dict[str, Any]]:
    """`ended`: states that count as an end here too."""
    active = {"new", "waiting", "pending", "running", "unknown", "blocked"} - set(ended)

    def look() -> dict[str, dict[str, Any]] | None:
        document = project.shoal("status", "--json").json
        assert document["gpus_allocated"] <= max_gpus, "no more than Slurm has granted"
        found = {run["name"]: run for run in document["runs"]}
        return found if found and not active & {run["state"] for run in found.values()} else None

    return wait_until(look, deadline_s, "all runs have ended", poll_s=0.5)


def test_jobs_of_every_kind_cost_what_sacct_says(tmp_path: Path, slurm: Sandbox) -> None:
    """A run alone, an array, one on two GPUs, --exclusive, one that waits for another, and set-up that takes time."""
    script = "while test -e hold; do sleep 0.1; done; sleep 3"
    project = _project(tmp_path, slurm, script, more='[clusters.sandbox]\nsetup = ["sleep 2"]\n')
    hold = project.write("hold", "")
    scripts = [
        _script(project, "000_train_0"),
        _script(project, "001_train_0", "--gres=gpu:2"),
        _script(project, "002_train_0", "--exclusive"),
    ]
    project.shoal("submit", "--on", "sandbox", "--layout", "job", *scripts)
    project.shoal("submit", _script(project, "003_train"), "--seeds", "0-2", "--on", "sandbox")
    child = 'step = "train"\nseeds = "0"\nafter = ["000_train_0"]\n'
    project.shoal("submit", project.write("experiments/001_a/004_train.toml", child), "--on", "sandbox")
    hold.unlink()
    _wait_ended(project)
    report = _compare(project, slurm)
    attempts = {run["name"]: run["attempts"][0] for run in report["runs"]}
    waited = attempts["001_a/004_train_0"]
    assert waited["dependency_wait_s"] >= 2 and waited["set_up_wait_s"] >= 2 and waited["turn_wait_s"] is None
    assert attempts["001_a/000_train_0"]["dependency_wait_s"] <= 1
    assert report["gpu_hours"]["set_up"] * 3600 >= 2 * 6
    exclusive = next(one for one in report["allocations"] if one["runs"] == ["001_a/002_train_0"])
    assert exclusive["gpus"] == 4


def test_packs_cost_their_allocation(tmp_path: Path, slurm: Sandbox) -> None:
    """Idle slots, a tail and set-up are part of what a pack cost, and each run pays its part."""
    project = _project(tmp_path, slurm, more='[clusters.sandbox]\nsetup = ["sleep 2"]\n')
    common = ("--on", "sandbox", "--time", "5m", "--mem", "100M")
    project.shoal("pack", *common, "--name", "tail", "--gpus", "2", "--set", "s=2,3,6", "--", "sleep", "{s}")
    project.shoal("pack", *common, "--name", "alone", "--gpus", "2", "--", "sleep", "2")
    project.shoal(
        "pack", *common, "--name", "many", "--gpus", "2", "--set", "i=0:11:1", "--", "bash", "-c", "sleep 1; echo {i}"
    )
    project.shoal(
        "pack", *common, "--name", "quarter", "--gpus", "1", "--gpus-per-run", "0.25", "--no-mps",
        "--set", "i=0:7:1", "--", "bash", "-c", "sleep 2; echo {i}",
    )  # fmt: skip
    _wait_ended(project, max_gpus=7)
    report = _compare(project, slurm)
    alone = next(one for one in report["allocations"] if one["runs"] == ["alone/run_sleep"] or len(one["runs"]) == 1)
    assert alone["gpus"] == 2 and alone["gpu_hours"]["idle_slots"] > 0
    tail = next(one for one in report["allocations"] if len(one["runs"]) == 3)
    assert tail["gpu_hours"]["idle_slots"] * 3600 >= 2
    many = next(one for one in report["allocations"] if len(one["runs"]) == 12)
    assert many["gpus"] == 2 and many["gpu_hours"]["requested"] * 3600 == pytest.approx(600, abs=0.1)
    turns = [run["attempts"][0]["turn_wait_s"] for run in report["runs"] if run["name"] in many["runs"]]
    assert min(turns) < 1 and max(turns) >= 4, "which is no queue wait"


def _attempts(project: Project, count: int) -> list[dict[str, Any]]:
    """The records of so many attempts that have begun, by run."""
    folder = project.home / "runs"
    found = wait_until(
        lambda: paths if len(paths := sorted(folder.glob("*/*/attempt.1.start"))) == count else None, 60, "they run"
    )
    return [read_record(path) for path in found]


def _kill_agent(start: dict[str, Any]) -> None:
    for pid in (start["pid"], start["agent_pid"]):
        with contextlib.suppress(ProcessLookupError):  # the second dies with the first
            os.kill(pid, signal.SIGKILL)


def _node_of(start: dict[str, Any]) -> str:
    words = Path(f"/proc/{start['pid']}/environ").read_text().split("\0")
    return next(word.partition("=")[2] for word in words if word.startswith("SLURMD_NODENAME="))


def test_packs_over_nodes_cost_what_sacct_says_also_without_a_node_or_an_engine(tmp_path: Path, slurm: Sandbox) -> None:
    """2 nodes x 2 GPUs; a node that is given back; an engine that is killed before and while a run is running."""
    set_up = {"unborn": 'setup = ["sleep 3", "false"]\n'}
    wide, shrunk, dead, unborn = (
        _project(tmp_path / name, slurm, more=f"[clusters.sandbox]\n{set_up.get(name, '')}")
        for name in ("wide", "shrunk", "dead", "unborn")
    )
    common = ("pack", "--on", "sandbox", "--time", "5m", "--mem", "100M")
    shrunk.shoal(
        *common, "--name", "p", "--nodes", 2, "--gpus", 1, "--shrink", "--set", "k=1,2",
        "--", "bash", "-c", "while ! test -e go{k}; do sleep 0.1; done",
    )  # fmt: skip
    wide.shoal(*common, "--name", "p", "--nodes", 2, "--gpus", 2, "--set", "s=2,3,2.5,6,2.1", "--", "sleep", "{s}")
    dead.shoal(*common, "--name", "p", "--gpus", 1, "--set", "s=300,301,302", "--", "sleep", "{s}")
    unborn.shoal(*common, "--name", "p", "--gpus", 1, "--set", "s=1,2", "--", "sleep", "{s}")
    wait_until(lambda: list((dead.home / "runs").glob("*/*/attempt.1.live.*[1-9]*")), 60, "a sign of life")
    _kill_agent(_attempts(dead, 1)[0])
    _wait_ended(dead, "new")  # and look before Slurm forgets it: it could not write its end
    report = _compare(dead, slurm)
    assert report["counts"] == {"new": 2, "lost": 1} and report["gpu_hours"]["wasted"] > 0
    (failure,) = report["failures"]
    assert failure["times"] == 1 and failure["gpu_hours"] == pytest.approx(report["gpu_hours"]["allocated"], abs=1e-4)
    starts = _attempts(shrunk, 2)
    job = starts[0]["job_id"]
    batch_node = shrunk.slurm("squeue", "-h", "-j", job, "-o", "%B").strip()
    first = next(key for key, start in enumerate(starts, 1) if _node_of(start) != batch_node)
    shrunk.write(f"go{first}", "")
    wait_until(lambda: shrunk.slurm("squeue", "-h", "-j", job, "-o", "%N").strip() == batch_node, 60, "it is smaller")
    resized = wait_until(lambda: list(shrunk.home.glob("submissions/*/allocation.*")), 10, "a record")[0]
    wait_until(lambda: "resized" in resized.read_text(), 20, "it is written down")
    assert shrunk.shoal("status", "--json").json["gpus_allocated"] == 1
    shrunk.write(f"go{3 - first}", "")
    for project in (wide, shrunk, unborn):
        _wait_ended(project, "new")
    (one,) = _compare(shrunk, slurm)["allocations"]
    assert one["gpus"] == 2 and [change["gpus"] for change in one["resizes"]] == [1]
    assert _compare(wide, slurm)["allocations"][0]["gpus"] == 4
    report = _compare(unborn, slurm)
    (failure,) = report["failures"]
    assert failure["times"] == 2 and failure["gpu_hours"] == pytest.approx(report["gpu_hours"]["allocated"], abs=1e-4)
    assert report["gpu_hours"]["set_up"] == report["gpu_hours"]["allocated"] > 0


def test_killed_and_failed_jobs_cost_what_sacct_says(tmp_path: Path, slurm: Sandbox) -> None:
    """Set-up that fails, an agent that is killed with its program, and a job that is cancelled."""
    project = _project(tmp_path / "a", slurm, script="sleep 300", more="[clusters.sandbox]\n")
    project.shoal(
        "submit", "--on", "sandbox", _script(project, "000_train_0"), _script(project, "001_train_0"), "--layout", "job"
    )
    refused = _project(tmp_path / "b", slurm, more='[clusters.sandbox]\nsetup = ["sleep 2", "false"]\n')
    refused.shoal("submit", _script(refused, "000_train_0"), "--on", "sandbox")
    start = _attempts(project, 2)[0]
    wait_until(lambda: list((project.home / "runs").glob("*/000_train_0/attempt.1.live.*[1-9]*")), 60, "a sign of life")
    _kill_agent(start)
    killed_at = time.time()
    project.shoal("cancel", "001_a/001_train_0")
    found = _wait_ended(project)
    assert start["t"] < found["001_a/000_train_0"]["ended"] < killed_at + 1, "its last sign of life"
    assert found["001_a/001_train_0"]["state"] == "cancelled" and found["001_a/000_train_0"]["state"] == "lost"
    report = _compare(project, slurm)
    assert report["gpu_hours"]["wasted"] > 0 and [one["times"] for one in report["failures"]] == [1]
    before = project.shoal("status", "--all", "--columns", "run,time").out
    wait_until(lambda: time.time() > report["time"] + 3, 10, "three seconds are over")
    assert project.shoal("status", "--all", "--columns", "run,time").out == before, (
        "TIME stops at the last sign of life"
    )
    _wait_ended(refused)
    report = _compare(refused, slurm)
    assert report["gpu_hours"]["set_up"] * 3600 >= 2 and [one["times"] for one in report["failures"]] == [1]


#: A step every tenth of a second; saves every fifth one; ends when the file `finish` is there.
TRAINING = """\
import os, sys, time
out, resume = os.environ["SHOAL_OUTPUT_DIR"], os.environ["SHOAL_RESUME_FROM"]
first = int(os.path.basename(resume)[6:-4]) if resume else 0
for step in range(first + 1, 100000):
    time.sleep(0.1)
    print("step %d/100000 loss 0.1" % step, flush=True)
    if step % 5 == 0:
        with open(os.path.join(out, "model_%d.pth" % step), "w") as file:
            file.write("weights")
    if os.path.exists("finish"):
        break
"""


def test_a_switched_and_a_preempted_run_cost_what_sacct_says(tmp_path: Path, slurm: Sandbox) -> None:
    """One GPU, then two; and a job that Slurm preempts and starts again. Neither is an error, and no sample is lost."""
    projects = [Project(tmp_path / name, slurm) for name in ("switched", "preempted")]
    for project in projects:
        project.write("training.py", TRAINING)
        step = f'command = [{json.dumps(sys.executable)}, "-S", "training.py"]\ncheckpoint = "model_*.pth"\n'
        request = 'request = { gpus = 1, cpus = 1, memory = "60M", time = "5m" }\n'
        env = 'env = { SHOAL_LOOK_S = "0.2", SHOAL_GRACE_S = "2" }\n'
        project.write("shoal.toml", f"snapshot = false\n[steps.train]\n{step}{request}{env}")
        project.env["SHOAL_SAMPLE_S"] = "0.5"
        project.shoal("submit", _script(project, "000_train_0"))
    switched, preempted = projects
    name = "001_a/000_train_0"
    for project in projects:
        _attempts(project, 1)
        output = Path(project.status(name)[name]["output_dir"])
        wait_until((output / "model_5.pth").exists, 30, "it has a checkpoint")
    switched.shoal("switch", name, "--gpus", "2", "--apply", "--after-step", "4", "--", "--nodelist", slurm.nodes[0])
    wait_until(lambda: switched.records(name, "attempt.2.use"), 60, "samples of the job that took over")
    wait_until(lambda: switched.records(name, "attempt.1.end"), 30, "the job that was replaced has ended")
    assert {use["every_s"] for use in switched.records(name, "attempt.*.use")} == {0.5}, "SHOAL_SAMPLE_S reaches jobs"
    switched.write("finish", "")
    switched.wait(name, "completed")
    wait_until(lambda: not switched.queue("%i", "-t", "R,CG"), 60, "nothing is left there that could be preempted too")
    node = preempted.status(name)[name]["node"]
    preempted.slurm("sbatch", "-q", "high", "--exclusive", "-w", node, "-o", "/dev/null", "--wrap", "sleep 2")
    wait_until(lambda: preempted.records(name, "attempt.2.start"), 60, "it runs again")
    preempted.write("finish", "")
    preempted.wait(name, "completed")
    report = _compare(switched, slurm)
    run = next(run for run in report["runs"] if run["name"] == name)
    assert [(one["state"], one["cause"]) for one in run["attempts"]] == [("stopped", None), ("completed", None)]
    assert [len(one["nodes"]) for one in run["attempts"]] == [1, 1], "samples of both jobs are the run's"
    assert report["failures"] == [] and sorted(one["gpus"] for one in report["allocations"]) == [1, 2]
    report = _compare(preempted, slurm)
    assert [one["state"] for one in report["runs"][0]["attempts"]] == ["preempted", "completed"]
    assert [one["restarts"] for one in report["allocations"]] == [0, 1]
    assert [one["reason"] for one in report["failures"]] != ["ended with an error"]
    first = preempted.records(name, "attempt.1.end")[0]
    saved = Path(preempted.records(name, "attempt.2.start")[0]["resume_from"]).stat().st_mtime
    lost_s = first["ended"] - saved
    assert report["gpu_hours"]["wasted"] * 3600 == pytest.approx(lost_s, abs=0.1), "since the checkpoint"
    assert lost_s < first["ended"] - first["began"], "which it wrote itself"


def test_a_cluster_that_does_not_count_gpus_costs_gpu_hours_all_the_same(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    """Without AccountingStorageTRES=gres/gpu scontrol does not tell how many GPUs a job has; its environment does."""
    assert (
        "gres/gpu" not in quiet_cluster.run("scontrol", "show", "config").stdout.split("AccountingStorageTRES")[1][:80]
    )
    project = _project(tmp_path, quiet_cluster)
    project.shoal("submit", _script(project, "000_train_0", "--gres=gpu:2"))
    _wait_ended(project)
    report = _report_after_end(project)
    (job,) = report["allocations"]
    seconds = job["ended"] - job["started"]
    assert job["gpus"] == 2 and report["gpu_hours"]["allocated"] * 3600 == pytest.approx(2 * seconds, rel=0.01)
    assert seconds >= 3 and job["queue_wait_s"] is not None


def _report_after_end(project: Project) -> dict[str, Any]:
    """The report when no job is left that Slurm has not noticed the end of."""
    wait_until(lambda: not project.queue("%i", "-t", "PD,R,CG"), 60, "Slurm has noticed all ends", poll_s=0.5)
    report: dict[str, Any] = project.shoal("report", "--json").json
    return report


def test_without_accounting_the_end_is_what_the_controller_says_as_long_as_it_remembers(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    """From a report that asks for all jobs at once, and from a look at other runs; then from the job's own record."""
    project = _project(tmp_path, quiet_cluster, "while test -e hold; do sleep 0.1; done")
    project.shoal("submit", _script(project, "000_train"), "--seeds", "0-1")
    _wait_ended(project)

    def assert_from_slurm(report: dict[str, Any]) -> None:
        times = {}
        for line in project.queue("%i|%S|%e", "-t", "all"):
            label, start, end = line.split("|")
            times[label] = (parse_time(start), parse_time(end))
        for job in report["allocations"]:
            if job["end_source"] != "now":
                assert job["end_source"] == "slurm" and (job["started"], job["ended"]) == times[job["job_id"]]

    report = _report_after_end(project)
    assert_from_slurm(report)
    assert _calls_of_report(project, report) == [], "every end is kept"
    for path in project.home.glob("submissions/*/account.*"):
        path.unlink()
    project.write("hold", "")
    project.shoal("submit", _script(project, "001_train_0"))
    project.status("001_a/001_train_0")
    assert len(list(project.home.glob("submissions/*/account.*"))) == 2, "by a look at a run that is running"
    assert_from_slurm(project.shoal("report", "--json").json)
    (project.root / "hold").unlink()
    _wait_ended(project)
    _compare_own_records(project, _report_after_end(project))
