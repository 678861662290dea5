"""A budget of jobs, nodes and GPUs: what does not fit waits on disk and is let in by whoever frees room."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import cancel_all
from project import Project
from shoal.clusters import ClusterFacts
from shoal.clusters.parse import parse_accounts, parse_qos, parse_user
from shoal.clusters.read import associations_of, submit_limits
from shoal.job import admission
from shoal.sandbox import Sandbox
from waiting import wait_until

SWEEP_FILE = """\
step = "train"
seeds = "0-5"
args = ["wait=go{seed}"]
[request]
time = "5m"
memory = "50M"
gpus = 2
"""


@pytest.fixture
def project(tmp_path: Path, cluster: Sandbox) -> Iterator[Project]:
    yield Project(tmp_path, cluster)
    cancel_all(cluster)


def sweep_file(project: Project, text: str = SWEEP_FILE) -> Path:
    return project.write("experiments/002_depth/000_train.toml", text)


def states(project: Project) -> Counter[str]:
    return Counter(run["state"] for run in project.status().values())


def go(project: Project, *seeds: int) -> None:
    for seed in seeds:
        (project.root / f"go{seed}").touch()


@pytest.mark.slurm
def test_finishing_jobs_let_the_next_ones_in_and_the_budget_is_never_passed(project: Project) -> None:
    told = project.shoal("submit", "--budget", "jobs=2", sweep_file(project))
    assert "4 waits" in told.out or "waits" in told.out
    wait_until(lambda: states(project) == {"running": 2, "waiting": 4}, 60, "two run and four wait")
    waiting = [run for run in project.status().values() if run["state"] == "waiting"]
    assert all(run["reason"] == "waits for room under the budget" for run in waiting)
    go(project, 0)
    project.wait("002_depth/000_train_0", "completed")
    wait_until(lambda: states(project) == {"completed": 1, "running": 2, "waiting": 3}, 60, "one was let in")
    go(project, 1, 2, 3, 4, 5)
    wait_until(lambda: states(project) == {"completed": 6}, 120, "all completed", poll_s=0.5)
    project.assert_ran_once(*project.status())
    ends = [project.records(name, "attempt.*.end")[0] for name in project.status()]
    for end in ends:
        together = [other for other in ends if other["began"] <= end["began"] < other["ended"]]
        assert len(together) <= 2


@pytest.mark.slurm
def test_a_run_whose_command_was_killed_before_it_joined_the_line_is_put_there_by_the_next_look(
    project: Project,
) -> None:
    names = [f"001_a/{number:03}_train_0" for number in range(2)]
    first, second = (project.script(f"{name}.sh", "train --time=5 --mem=50 -- wait=go") for name in names)
    project.shoal("submit", "--budget", "jobs=1", first)
    project.wait(names[0], "running")
    project.shoal("submit", second, code=-9, SHOAL_FAILPOINT="after-claims")
    assert project.status()[names[1]]["reason"] == "waits for room under the budget"
    (project.root / "go").touch()
    project.wait(names[1], "completed")
    project.assert_ran_once(*names)


@pytest.mark.slurm
def test_a_budget_of_gpus_counts_what_each_run_holds_and_a_larger_one_lets_more_in(project: Project) -> None:
    project.shoal("submit", "--budget", "gpus=5", sweep_file(project))
    wait_until(lambda: states(project) == {"running": 2, "waiting": 4}, 60, "two of two GPUs each run")
    again = project.shoal("submit", "--budget", "gpus=8", "--json", sweep_file(project)).json["runs"]
    assert {run["did"] for run in again} == {"left alone"}
    wait_until(lambda: states(project) == {"running": 4, "waiting": 2}, 60, "four run")
    project.shoal("cancel", "002_depth/000_train_5", "002_depth/000_train_0", "--yes")
    wait_until(lambda: states(project)["cancelled"] == 2, 60, "one running and one waiting run are cancelled")
    go(project, *range(6))
    wait_until(lambda: states(project) == {"completed": 4, "cancelled": 2}, 120, "the rest completed", poll_s=0.5)


@pytest.mark.slurm
def test_a_squeue_that_fails_is_never_nothing_running(project: Project) -> None:
    project.shoal("submit", "--budget", "jobs=1", sweep_file(project))
    wait_until(lambda: states(project) == {"running": 1, "waiting": 5}, 60, "one runs")
    broken = project.root / "bin" / "squeue"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
    broken.chmod(0o755)
    path = f"{broken.parent}{os.pathsep}{project.env['PATH']}"
    more = sweep_file(project, SWEEP_FILE.replace("0-5", "0-7"))
    told = project.shoal("submit", "--json", more, PATH=path, code=None)
    if told.code == 0:
        assert {run["did"] for run in told.json["runs"]} <= {"left alone", "waits"}
    assert len(project.jobs()) == 1


@pytest.mark.slurm
def test_what_the_account_may_not_submit_at_once_waits_on_disk(tmp_path: Path, accounting_cluster: Sandbox) -> None:
    toml = '[clusters.small]\nmatch = { host = "*" }\naccount = "small"\n'
    project = Project(tmp_path, accounting_cluster, toml=toml)
    text = SWEEP_FILE.replace("0-5", "0-7").replace("gpus = 2\n", "")
    told = project.shoal("submit", "--on", "small", sweep_file(project, text))
    assert "8 runs: 5 submitted, 3 waits" in told.out
    wait_until(lambda: states(project)["waiting"] == 3, 60, "three wait")
    go(project, *range(8))
    wait_until(lambda: states(project) == {"completed": 8}, 120, "all completed", poll_s=0.5)
    project.assert_ran_once(*project.status())
    cancel_all(accounting_cluster)


@pytest.mark.slurm
@pytest.mark.parametrize("where", ["--qos=tight", "--partition=low"], ids=["the job's", "the partition's"])
def test_limits_of_a_qos_count_and_so_do_other_jobs(tmp_path: Path, accounting_cluster: Sandbox, where: str) -> None:
    def change(*words: str) -> None:
        accounting_cluster.run("sacctmgr", "-i", *words)

    def of_partition(qos: str) -> bool:
        words = ("scontrol", "update", "PartitionName=low", f"QOS={qos}")
        return accounting_cluster.run(*words, check=False).returncode == 0

    user = accounting_cluster.run("id", "-un").stdout.strip()
    change("add", "qos", "tight", "MaxSubmitJobsPerUser=4")
    try:
        change("modify", "user", user, "where", "account=lab", "set", "qos+=tight")
        if "partition" in where:
            wait_until(lambda: of_partition("tight"), 30, "the controller knows the QOS")
        toml = f'[clusters.tight]\nmatch = {{ host = "*" }}\naccount = "lab"\nflags = ["{where}"]\n'
        project = Project(tmp_path, accounting_cluster, toml=toml)
        held = ("--hold", "-Alab", where, "-o/dev/null", "--time=5", "--wrap=true")
        wait_until(
            lambda: "Submitted" in project.slurm("sbatch", *held, check=False), 30, "the controller knows the QOS"
        )
        text = SWEEP_FILE.replace("gpus = 2\n", "")
        told = project.shoal("submit", "--on", "tight", sweep_file(project, text))
        assert "6 runs: 3 submitted, 3 waits" in told.out
        go(project, *range(6))
        wait_until(lambda: states(project) == {"completed": 6}, 120, "all completed", poll_s=0.5)
        project.assert_ran_once(*project.status())
    finally:
        cancel_all(accounting_cluster)
        assert of_partition("")
        change("delete", "qos", "tight")


def test_the_limit_is_the_smallest_of_association_accounts_above_and_qos() -> None:
    text = "small|lab|normal||5|\nlab|lab|normal|||\nlab|lab|normal||100|40\nsub|lab||||\nodd|lab||||\nnonsense\n"
    mine, default = parse_user(text, "me")
    tree = parse_accounts("root|||700\nlab||root|50\nsub||lab|\nlab|me|lab|3\nodd||odd|9\n")
    facts = ClusterFacts(associations=mine, default_account=default, parent_accounts=tree)

    def limits(account: str | None) -> list[int]:
        return submit_limits(facts, associations_of(facts, account))

    assert [one.default_qos for one in associations_of(facts, "small")] == ["normal"]
    assert limits("small") == [5]
    assert limits(None) == [100, 40, 50, 700]
    assert limits("sub") == [50, 700]
    assert limits("odd") == [9]
    assert associations_of(facts, "none") == []
    facts = facts._replace(qos_limits=parse_qos("normal||||||\ntight|1:00:00|gres/gpu=8|gres/gpu=4,cpu=2|4|6|9\n"))
    assert limits("small") == [5, 4, 6, 9]
    assert facts.qos_limits[1][:3] == ("tight", 3600, 4)


SHOWN = """\
Association Records

ClusterName=c Account=lab UserName= Partition= Priority=0 ID=3
    GrpSubmitJobs=50(44) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=2(0) MaxWallPJ=
ClusterName=c Account=lab UserName=me(7) Partition= Priority=0 ID=6
    GrpSubmitJobs=N(4) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=30(4) MaxWallPJ=

QOS Records

QOS=tight(3)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=90(4) GrpWall=N(0.00)
    Account Limits
      lab
        MaxJobsPA=N(0) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=60(4)
    User Limits
      6
        MaxJobsPU=N(0) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=4(4)
      7
        MaxJobsPU=N(0) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=LIMIT(4)
"""


@pytest.mark.parametrize(("limit", "left"), [("N", 6), ("9", 5), ("4", 0)])
def test_room_is_what_the_controller_says_each_limit_leaves_to_us(limit: str, left: int) -> None:
    assert admission.parse_slurm_room(SHOWN.replace("LIMIT", limit), "me", 7, "lab", ["tight"]) == left
    assert admission.parse_slurm_room(SHOWN.replace("LIMIT", limit), "me", 7, "lab", ["normal"]) == 6
    assert admission.parse_slurm_room("nonsense\n\nQOS=x\n", "me", 7, "lab", ["x"]) is None


def test_nothing_is_let_in_when_squeue_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    admission.enqueue(home, "q", "abcdefghijkm", {"jobs": 1})
    report = admission.admit(home, "q")
    assert report.admitted == [] and report.waiting == 1 and report.problem and "squeue" in report.problem


def test_turns_are_taken_one_after_another_and_a_dead_holder_loses_its(tmp_path: Path) -> None:
    home = str(tmp_path)
    first = admission.take_lock(home, "q", 0.0)
    assert first == 1
    assert admission.take_lock(home, "q", 0.0) is None
    admission.release_lock(home, "q", first)
    second = admission.take_lock(home, "q", 0.0)
    assert second == 2
    holder = Path(admission.queue_dir(home, "q"), "turn.2")
    holder.write_text(holder.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194399'))
    assert admission.take_lock(home, "q", 0.0) == 3


def test_room_is_what_every_limit_leaves() -> None:
    need, used = {"jobs": 1, "nodes": 2, "gpus": 8}, {"jobs": 3, "nodes": 6, "gpus": 24}

    def fits(used: dict[str, int], most: dict[str, int]) -> bool:
        return not admission.full_scopes(need, {"": used}, {"": most})

    assert fits(used, {"jobs": 4})
    assert fits(used, {"nodes": 8, "gpus": 32})
    assert not fits(used, {"nodes": 8, "gpus": 31})
    assert fits(used, {})
    assert fits({**used, "submit": 8}, {"submit": 9, "jobs": 9})
    assert not fits({**used, "submit": 9}, {"submit": 9, "jobs": 9})


def test_limits_of_a_step_and_an_experiment_hold_beside_those_of_the_project() -> None:
    need, used = {"jobs": 1, "nodes": 1, "gpus": 1}, {"": {"jobs": 5}, "route": {"jobs": 4}, "001_a": {"jobs": 5}}
    assert admission.full_scopes(need, used, {"route": {"jobs": 4}}, ("route", "001_a")) == ["route"]
    assert admission.full_scopes(need, used, {"route": {"jobs": 4}}, ("train", "001_a")) == []
    assert admission.full_scopes(need, used, {"": {"jobs": 5}, "001_a": {"gpus": 1}}, ("train", "001_a")) == [""]
