"""What is kept of an allocation: the job's own record, and Slurm's word on it afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.kernel import Grant, JobAccount, Resize, by_job, find_account, keep_account, read_allocations, slurm_job
from shoal.kernel.slurm_text import parse_time


def _write(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))


def test_slurms_word_on_the_end_counts_and_everything_else_is_the_jobs_own(tmp_path: Path) -> None:
    _write(
        tmp_path, "allocation.7.0.99", "begin 1000,25", 'granted {"gpus": 2, "started": 1000}',
        'slurm {"memory_mb": 400, "eligible": 990}', "end 1060.5",
    )  # fmt: skip
    (record,) = read_allocations(str(tmp_path))
    assert record.begin == 1000.25 and record.end == 1060.5 and record.granted.ended is None
    grant = Grant(started=1000, ended=1063, memory_mb=100, time_limit_s=600)
    keep_account(str(tmp_path), JobAccount("7", 0, grant, 1063, "COMPLETED", (Resize(1030, 1, 4),)))
    (record,) = read_allocations(str(tmp_path))
    assert record.granted == Grant(
        gpus=2, memory_mb=400, time_limit_s=600, eligible=990, started=1000, ended=1063
    ) and record.resizes == (Resize(1030, 1, 4),)
    assert record.end == 1060.5, "its own record stays what it was"


def test_an_account_is_of_one_time_that_a_job_ran(tmp_path: Path) -> None:
    """A requeued job, and one of the same number that another controller had: the start tells them apart."""
    _write(tmp_path, "allocation.7.0.99", "begin 1000", 'granted {"started": 1000}', "end 1010")
    _write(tmp_path, "allocation.7.1.99", "begin 1021", "end 1030")
    for start, end in ((100, 200), (1020, 1033)):
        keep_account(str(tmp_path), JobAccount("7", 0, Grant(started=start), end))
    first, second = read_allocations(str(tmp_path))
    assert (first.granted.ended, second.granted.ended) == (None, 1033)
    (tmp_path / "account.7.1020").write_text("account {")
    assert [one.granted.ended for one in read_allocations(str(tmp_path))] == [None, None], "damaged: it is asked again"


def test_an_account_without_an_end_is_not_kept(tmp_path: Path) -> None:
    keep_account(str(tmp_path), JobAccount("7", 0, Grant(started=1000), None, "RUNNING"))
    keep_account(str(tmp_path / "away"), JobAccount("7", 0, Grant(started=1000), 1010))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("started", "begin", "end"), [(1000, None, 1010), (None, 1004, 1010), (None, 1400, None)])
def test_an_account_is_found_by_start_or_by_begin(started: float | None, begin: float | None, end: float) -> None:
    accounts = by_job([JobAccount("7", 0, Grant(started=1000), 1010), JobAccount("8", 0, Grant(started=1000), 1500)])
    found = find_account(accounts, "7", started, begin)
    assert (found.end if found else None) == end
    assert find_account(accounts, None, started, begin) is None


def test_captured_columns_of_squeue_are_read() -> None:
    def line(**cells: str) -> str:
        return "".join(cells.get(name, "").ljust(width) for name, width, _ in slurm_job.QUEUED_COLUMNS)

    times = {f"{name}Time": f"2026-11-18T07:03:5{at}" for at, name in enumerate(("Submit", "Eligible", "Start", "End"))}
    common = {
        **times,
        "TimeLimit": "3-00:00:00",
        "NumNodes": "2",
        "NumCPUs": "4",
        "RestartCnt": "1",
        "NodeList": "n[1-2]",
    }
    tres = "cpu=4,mem=500M,node=2,billing=4,gres/gpu=2"
    text = line(**common, **{"tres-alloc": tres}, JobID="5", ArrayJobID="4", ArrayTaskID="0", State="COMPLETED")
    text += "\n" + line(**common, JobID="6", ArrayTaskID="N/A", State="PENDING") + "\nrubbish\n"
    done, waits = slurm_job.parse_queued(text)
    assert (done.job_id, done.label, done.life, done.word, done.nodes, done.gpus) == ("5", "4_0", 1, "COMPLETED", 2, 1)
    assert done.tres == tres and done.time_limit_s == 3 * 86400 and done.memory_mb == 250
    assert (done.started, done.ended) == (parse_time("2026-11-18T07:03:52"), parse_time("2026-11-18T07:03:53"))
    assert waits.label == "6" and waits.started is None, "an estimate"
