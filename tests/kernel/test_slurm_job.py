"""What Slurm says about one job, from captured output of scontrol and sacct; and the log files that patterns mean."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from shoal.kernel import adopted, layout, lease, slurm_job
from shoal.kernel.fence import Claim
from shoal.kernel.records import End
from shoal.kernel.slurm_job import JobDescription

#: Slurm 22.05, a job whose owner has put a path into its comment, and whose names hold blanks.
RUNNING = """\
JobId=1 JobName=my train
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=lab QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:22 TimeLimit=3-00:00:00 TimeMin=N/A
   SubmitTime=2026-11-17T19:58:39 EligibleTime=2026-11-17T19:58:39
   StartTime=2026-11-17T19:58:40 EndTime=2026-11-20T19:58:39 Deadline=N/A
   Partition=main AllocNode:Sid=localhost:4358
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   BatchHost=n1
   NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=4,mem=1000M,node=2,billing=2,gres/gpu=4,gres/gpu:a100=4
   MinCPUsNode=1 MinMemoryNode=500M MinTmpDiskNode=0
   Command=/home/ann/my dir/t.sbatch a=1 b c
   WorkDir=/home/ann/my dir
   Comment=hello = world StdOut=/etc/shadow UserId=root(0)
   StdErr=/home/ann/my dir/err-%N_ann-%5j.log
   StdIn=/dev/null
   StdOut=/home/ann/my dir/my train-1.out
   TresPerNode=gres:gpu:2
"""
ARRAY = """\
JobId=7 ArrayJobId=2 ArrayTaskId=0 ArrayTaskThrottle=2 JobName=wrap
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=7:0
   RunTime=00:00:03 TimeLimit=00:01:00 TimeMin=N/A
   StartTime=2026-11-17T19:58:39 EndTime=2026-11-17T19:58:42 Deadline=N/A
   NodeList=n1
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   WorkDir=/home/ann
   StdOut=/home/ann/slurm-2_0.out

JobId=2 ArrayJobId=2 ArrayTaskId=2-3%2 ArrayTaskThrottle=2 JobName=wrap
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   StartTime=2026-11-20T19:58:39 EndTime=Unknown Deadline=N/A
   NodeList=
   NumNodes=1-1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   WorkDir=/home/ann
   StdOut=/home/ann/slurm-2_4294967294.out
"""
#: Slurm 24.05 writes two TRES lines, and leaves patterns as they were given.
NEWER = """\
JobId=9 JobName=x
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=PENDING Reason=Priority Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   NumNodes=2-2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=2,mem=2T,node=2,billing=2,gres/gpu=8
   AllocTRES=(null)
   WorkDir=/home/ann
   StdOut=logs/%x-%A.out
"""


def test_free_text_of_a_job_moves_neither_its_owner_nor_its_log() -> None:
    (job,) = slurm_job.parse_jobs(RUNNING)
    assert (job.label, job.name, job.user, job.uid, job.word, job.life) == ("1", "my train", "ann", 1000, "RUNNING", 2)
    assert (job.nodes, job.gpus, job.gpu_type, job.cpus, job.memory_mb) == (2, 2, "a100", 2, 500)
    assert (job.time_limit_s, job.partition, job.account, job.qos) == (3 * 86400, "main", "lab", "normal")
    assert job.stdout == "/home/ann/my dir/my train-1.out" and job.work_dir == "/home/ann/my dir"
    assert job.command == "/home/ann/my dir/t.sbatch a=1 b c"
    assert job.started is not None and job.submitted == job.started - 1


def test_tasks_that_wait_together_are_told_apart_from_those_that_have_run() -> None:
    ran, waiting = slurm_job.parse_jobs(ARRAY)
    assert (ran.label, ran.task, ran.tasks, ran.exit_code, ran.word) == ("2_0", 0, "", 7, "FAILED")
    assert (waiting.label, waiting.task, waiting.tasks) == ("2", None, "2-3%2")
    assert waiting.started is None, "an estimate is no start"
    assert slurm_job.log_path(waiting, waiting.stdout) is None
    assert slurm_job.log_path(waiting._replace(task=3), waiting.stdout) == "/home/ann/slurm-2_3.out"


def test_newer_slurm_says_what_was_requested_and_leaves_patterns() -> None:
    (job,) = slurm_job.parse_jobs(NEWER)
    assert (job.gpus, job.memory_mb, job.time_limit_s) == (4, 1024 * 1024, None)
    assert slurm_job.log_path(job, job.stdout) == "/home/ann/logs/x-9.out"


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("%x-%j.out", "/w/a b-12.out"),
        ("%A_%a.out", "/w/11_3.out"),
        ("%6j/%4a.log", "/w/000012/0003.log"),
        ("%u.%N.%s.%t", "/w/ann.n1.batch.0"),
        ("100%%-%b", "/w/100%-3"),
        ("/abs/%J", "/abs/12"),
        ("/dev/null", None),
        ("", None),
    ],
)
def test_a_pattern_of_sbatch_means_a_file(pattern: str, path: str | None) -> None:
    job = JobDescription("11_3", "12", "a b", "RUNNING", "ann", 1000, "11", 3, batch_host="n1.lab", work_dir="/w")
    assert slurm_job.log_path(job, pattern) == path


def test_a_node_that_has_another_host_name_is_found_by_the_only_file_that_fits(tmp_path: Path) -> None:
    job = JobDescription("5", "5", "[x]", "RUNNING", "ann", 1000, batch_host="n1", work_dir=str(tmp_path))
    (tmp_path / "[x]-vm-00005.out").touch()
    (tmp_path / "[x]-vm-00006.out").touch()
    assert slurm_job.log_path(job, "%x-%N-%5j.out") == str(tmp_path / "[x]-vm-00005.out")
    (tmp_path / "[x]-vm2-00005.out").touch()
    assert slurm_job.log_path(job, "%x-%N-%5j.out") == str(tmp_path / "[x]-n1-00005.out"), "two fit: none is guessed"


def test_accounting_knows_each_time_that_a_job_ran() -> None:
    row = "1|1|ann|1000|{}|{}|2026-11-17T19:58:39|2026-11-17T19:58:39|{}|{}|01:00:00|main|lab|normal|2|4|"
    row += "cpu=4,gres/gpu=2,mem=1G,node=2|billing=4,cpu=4,gres/gpu=2,mem=1G,node=2|n[1-2]|lab|/w|a|b"
    text = "\n".join(
        (
            row.format("REQUEUED", "0:0", "2026-11-17T19:58:40", "2026-11-17T19:58:50"),
            row.format("CANCELLED by 1000", "0:15", "2026-11-17T19:59:00", "2026-11-17T20:00:00"),
            "a line of something else",
        )
    )
    first, last = slurm_job.parse_accounting(text)
    assert (first.word, last.word, last.by, last.signal, last.name) == ("REQUEUED", "CANCELLED", "1000", 15, "a|b")
    assert (last.nodes, last.gpus, last.cpus, last.memory_mb, last.time_limit_s) == (2, 1, 2, 512, 3600)
    assert last.started is not None and last.ended == last.started + 60
    assert first.eligible == first.submitted and "billing=4" in last.tres


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3-00:00:00", 259200),
        ("01:30:00", 5400),
        ("10:00", 600),
        ("1-00:10:00", 87000),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_time_limits(text: str, seconds: int | None) -> None:
    assert slurm_job.parse_time_limit_s(text) == seconds


# ---- attempts that nobody holds


def _claim(folder: Path) -> Claim:
    run = folder / "runs/adopted/a-1"
    run.mkdir(parents=True)
    return Claim(str(run), 1, 1, "abcdefghijkm", str(folder), str(folder), False)


def _job(folder: Path, **changes: Any) -> JobDescription:
    job = JobDescription("1", "1", "a", "RUNNING", "ann", 1000, started=1000.0, node_list="n1", work_dir=str(folder))
    return job._replace(**changes)


def _ends(claim: Claim) -> list[End]:
    return lease.read_ends(claim.run_dir, layout.parse_names([path.name for path in Path(claim.run_dir).iterdir()]))


@pytest.mark.parametrize(
    ("changes", "exit_code", "success", "stopped_by", "signal"),
    [
        ({"word": "COMPLETED", "exit_code": 0, "signal": 0}, 0, True, None, None),
        ({"word": "FAILED", "exit_code": 7, "signal": 0}, 7, False, None, None),
        ({"word": "FAILED", "exit_code": 0, "signal": 9}, 137, False, None, "SIGKILL"),
        ({"word": "FAILED", "exit_code": 0, "signal": 53}, None, False, None, None),
        ({"word": "TIMEOUT", "exit_code": 0, "signal": 0}, None, False, "SIGTERM", None),
        ({"word": "CANCELLED", "exit_code": 0, "signal": 15}, 143, False, "SIGTERM", "SIGTERM"),
        ({"word": "NODE_FAIL", "exit_code": 0, "signal": 0}, None, False, "SIGTERM", None),
    ],
)
def test_an_end_says_what_slurm_says_and_no_more(
    tmp_path: Path,
    changes: dict[str, Any],
    exit_code: int | None,
    success: bool,
    stopped_by: str | None,
    signal: str | None,
) -> None:
    claim = _claim(tmp_path)
    assert adopted.write_attempts(claim, _job(tmp_path), 2000.0)
    assert not adopted.write_attempts(claim, _job(tmp_path), 2000.0), "nothing new"
    assert adopted.write_attempts(claim, _job(tmp_path, ended=1500.0, **changes), 2000.0)
    (end,) = _ends(claim)
    assert (end.exit_code, end.success, end.stopped_by, end.signal) == (exit_code, success, stopped_by, signal)
    assert (end.began, end.ended, end.duration_s, end.adopted) == (1000.0, 1500.0, 500.0, True)


def test_a_job_that_slurm_starts_again_is_another_attempt(tmp_path: Path) -> None:
    claim = _claim(tmp_path)
    adopted.write_attempts(claim, _job(tmp_path), 2000.0)
    adopted.write_attempts(claim, _job(tmp_path, word="PENDING", started=None, submitted=1100.0), 2000.0)
    assert [end.ended for end in _ends(claim)] == [1100.0]
    adopted.write_attempts(claim, _job(tmp_path, started=1200.0, life=1), 2000.0)
    adopted.write_attempts(
        claim, _job(tmp_path, started=1200.0, life=1, word="COMPLETED", exit_code=0, ended=1300.0), 0
    )
    assert [(end.attempt, end.success) for end in _ends(claim)] == [(1, False), (2, True)]


def test_a_restart_that_nobody_saw_ends_the_attempt_before(tmp_path: Path) -> None:
    claim = _claim(tmp_path)
    adopted.write_attempts(claim, _job(tmp_path), 1050.0)
    adopted.write_attempts(claim, _job(tmp_path, started=1200.0, submitted=1100.0, life=1), 2000.0)
    names = layout.parse_names([path.name for path in Path(claim.run_dir).iterdir()])
    assert [end.ended for end in _ends(claim)] == [1100.0] and names.is_live(2)


def test_a_job_that_never_started_has_no_attempt(tmp_path: Path) -> None:
    claim = _claim(tmp_path)
    assert not adopted.write_attempts(claim, _job(tmp_path, word="CANCELLED", started=None, node_list=None), 2000.0)
    assert list(Path(claim.run_dir).iterdir()) == []


def _end_it(claim: Claim, folder: Path, begin: object, won: object) -> None:
    begin.wait()  # type: ignore[attr-defined]
    done = adopted.write_attempts(claim, _job(folder, word="FAILED", exit_code=7, signal=0, ended=1500.0), 2000.0)
    won.put(done)  # type: ignore[attr-defined]


def test_of_many_that_look_at_once_one_writes_the_end(tmp_path: Path) -> None:
    claim = _claim(tmp_path)
    adopted.write_attempts(claim, _job(tmp_path), 2000.0)
    context = multiprocessing.get_context("fork")
    begin, won = context.Barrier(6), context.Queue()
    racers = [context.Process(target=_end_it, args=(claim, tmp_path, begin, won)) for _ in range(6)]
    for racer in racers:
        racer.start()
    assert sorted(won.get(timeout=300) for _ in racers) == [False] * 5 + [True]
    for racer in racers:
        racer.join()
    assert [end.exit_code for end in _ends(claim)] == [7]


def test_a_look_that_was_killed_in_the_middle_of_an_end_is_completed_by_the_next(tmp_path: Path) -> None:
    claim = _claim(tmp_path)
    adopted.write_attempts(claim, _job(tmp_path), 2000.0)
    run = Path(claim.run_dir)
    (run / "attempt.1.live.000000").rename(run / "attempt.1.live.000001")
    assert adopted.write_attempts(claim, _job(tmp_path, word="COMPLETED", exit_code=0, signal=0, ended=1500.0), 2000.0)
    assert [end.success for end in _ends(claim)] == [True]


def test_of_a_forgotten_job_the_last_thing_that_it_printed_is_all_that_is_known(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text("step 5/10\n")
    os.utime(log, (1234.0, 1234.0))
    claim = _claim(tmp_path)
    adopted.write_attempts(claim, _job(tmp_path, stdout=str(log)), 2000.0)
    assert adopted.write_forgotten(claim, "nothing tells")
    (end,) = _ends(claim)
    assert (end.exit_code, end.success, end.ended, end.stopped_by) == (None, False, 1234.0, adopted.FORGOTTEN)
