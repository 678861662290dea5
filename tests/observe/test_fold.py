"""What the files and Slurm say together: the same evidence, the same answer, and nothing stale undoes an end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import put_attempt
from shoal.clusters import QueueState
from shoal.kernel import files
from shoal.kernel.slurm_text import (
    SLURM_ACTIVE_STATES,
    SLURM_ENDED_STATES,
    JobRow,
    parse_sacct,
    parse_squeue,
    parse_time,
)
from shoal.kernel.submission import job_name
from shoal.model import ACTIVE_STATES, ENDED_STATES, RUN_STATES
from shoal.observe.run_files import RunReader
from shoal.observe.run_state import Evidence, RunView, derive_attempt_state, derive_state

NAME = "001_a/000_x_0"
TOKEN = "abcdefghijkm"
NOW = 2_000_000.0


def _records() -> dict[str, dict[str, object]]:
    """Files of a run that failed, was submitted again and completed: path under the state folder -> record."""
    who = {"host": "elsewhere", "pid": 1, "started": None}
    found: dict[str, dict[str, object]] = {}
    for number, token in ((1, TOKEN), (2, "b" * 12)):
        claim = {"token": token, "revision": 1, "output_dir": f"/o/{number}", "log_dir": "/l", "t": NOW - 900}
        common = {"attempt": number, "generation": number, "revision": 1, "token": token, "output_dir": f"/o/{number}"}
        submission = {"token": token, "backend": "slurm", "cluster": "c", "job_name": "x", "runs": [NAME], "t": NOW}
        end = {**common, "exit_code": 2 - number, "success": number == 2, "began": NOW, "ended": NOW, "duration_s": 1.0}
        run = f"runs/{NAME}"
        found |= {
            f"submissions/{token}/submission.json": {**submission, **who},
            f"submissions/{token}/send.0": {"t": 1.0, "host": "h", "pid": 1},
            f"submissions/{token}/send.0.outcome": {"kind": "accepted", "job_id": str(number)},
            f"{run}/submit.{number}.claim": claim,
            f"{run}/submit.{number}.verdict{number}": {"word": "FAILED" if number == 1 else "COMPLETED"},
            f"{run}/attempt.{number}.start": {**common, **who, "t": NOW, "log_dir": "/l"},
            f"{run}/attempt.{number}.end": end,
        }
    return found


RECORDS = _records()
_GOOD_END = f"runs/{NAME}/attempt.2.end"


def _write(home: Path, found: dict[str, dict[str, object]], lost: str | None = None) -> None:
    """The files, in their order; of an attempt one file with both records, under the name that its state gives it."""
    for path, record in found.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        if "/attempt." not in path:
            (home / path).write_bytes(files.to_json({"schema": 1, **record}))
        elif path.endswith(".start"):
            end = found.get(path.replace(".start", ".end"))
            put_attempt((home / path).parent, int(path.split(".")[-2]), record, end, lost or "")


def _view(paths: list[str], row: JobRow | None = None, asked: bool = True) -> RunView:
    home = Path(tempfile.mkdtemp(prefix="shoal-fold-"))
    try:
        (home / "runs" / NAME).mkdir(parents=True)
        _write(home, {path: RECORDS[path] for path in paths})
        return derive_state(RunReader(str(home)).run(NAME), Evidence(asked, NOW, row))
    finally:
        shutil.rmtree(home)


_ROWS = st.one_of(
    st.none(),
    st.builds(
        lambda word: JobRow("9", word, job_name("001_a/000_x_0", TOKEN)),
        st.sampled_from([*SLURM_ENDED_STATES, *SLURM_ACTIVE_STATES, "NEW_WORD_OF_SLURM"]),
    ),
)


@settings(max_examples=60)
@given(st.permutations(list(RECORDS)), _ROWS, st.booleans())
def test_the_order_in_which_files_came_makes_no_difference(order: list[str], row: JobRow | None, asked: bool) -> None:
    assert _view(order, row, asked) == _view(sorted(RECORDS), row, asked)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.sets(st.sampled_from(sorted(RECORDS))), _ROWS, st.booleans())
def test_nothing_stale_or_missing_undoes_a_good_end(some: set[str], row: JobRow | None, asked: bool) -> None:
    """Whatever else is there or not yet visible, a run whose newest generation completed is completed."""
    kept = {*some, _GOOD_END, f"runs/{NAME}/attempt.2.start", f"runs/{NAME}/submit.2.claim"}
    state = _view(sorted(kept), row, asked).state
    assert state == "completed" or (row is not None and row.word == "OUT_OF_MEMORY" and state == "oom")


def test_an_earlier_attempt_that_ended_well_counts_although_a_later_one_failed() -> None:
    """What the fence goes by, so that a run is never submitted again only to be fenced."""
    paths = sorted(RECORDS)
    swapped = {
        f"runs/{NAME}/attempt.1.end": {**RECORDS[f"runs/{NAME}/attempt.1.end"], "success": True, "exit_code": 0},
        _GOOD_END: {**RECORDS[_GOOD_END], "success": False, "exit_code": 1},
    }
    before = dict(RECORDS)
    RECORDS.update(swapped)
    try:
        view = _view(paths)
    finally:
        RECORDS.update(before)
    assert (view.state, view.attempt) == ("completed", 1)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.sets(st.sampled_from(sorted(RECORDS))), _ROWS, st.booleans())
def test_any_evidence_gives_a_known_state(some: set[str], row: JobRow | None, asked: bool) -> None:
    assert _view(sorted(some), row, asked).state in RUN_STATES


@pytest.mark.parametrize("word", [*SLURM_ACTIVE_STATES, "NEW_WORD_OF_SLURM"])
def test_a_job_that_is_in_slurms_hands_or_has_a_new_word_has_not_ended(word: str) -> None:
    begun = [path for path in RECORDS if TOKEN in path or ".1." in path]
    begun = [path for path in begun if not path.endswith((".end", "verdict1"))]
    row = JobRow("1", word, job_name("001_a/000_x_0", TOKEN))
    assert _view(begun, row).state == "running", "its lease is live"
    view = _view([path for path in begun if "attempt" not in path], row)
    assert view.state in ACTIVE_STATES, view
    if word not in SLURM_ACTIVE_STATES:
        assert view.state == "unknown" and word in str(view.reason)


@pytest.mark.parametrize("word", SLURM_ENDED_STATES)
def test_slurms_last_word_ends_a_job_whose_run_never_began_and_no_other(word: str) -> None:
    begun = [path for path in RECORDS if (TOKEN in path or ".1." in path) and not path.endswith((".end", "verdict1"))]
    row = JobRow("1", word, job_name("001_a/000_x_0", TOKEN))
    assert _view(begun, row).state == "running", "a live lease counts more than what Slurm says"
    state = _view([path for path in begun if "attempt" not in path], row).state
    assert state in ENDED_STATES and state != "completed", "without an end record nothing is completed"


def test_every_state_is_live_or_ended_or_new() -> None:
    assert set(RUN_STATES) == ACTIVE_STATES | ENDED_STATES | {"new"} and not ACTIVE_STATES & ENDED_STATES
    assert set(SLURM_ACTIVE_STATES.values()) <= ACTIVE_STATES and set(SLURM_ENDED_STATES.values()) <= ENDED_STATES


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    for row in [*parse_squeue(text), *parse_sacct(text)]:
        assert isinstance(row, JobRow)


def test_captured_lines_of_squeue_and_sacct_are_read() -> None:
    name = job_name("001_a/000_x", TOKEN)
    one, two, three = parse_squeue(
        f"12|12|N/A|RUNNING|n1|lab|7|2026-11-17T19:58:40|2026-11-17T20:58:40|None|{name}\n"
        f"14|13|3|PENDING||lab|7|N/A|N/A|(launch failed|held)|{name}\nrubbish\n"
        f"15|15|N/A|COMPLETED|n1|lab|7|2026-11-17T19:58:40|2026-11-17T19:59:40|None|{name}\n"
    )
    assert one.ended is None, "the time limit's, which is no end yet"
    assert three.ended == parse_time("2026-11-17T19:59:40")
    assert (one.job_id, one.task, one.node, one.label) == ("12", None, "n1", "12")
    assert one.started == parse_time("2026-11-17T19:58:40") and two.started is None
    assert (two.job_id, two.task, two.reason, two.label) == ("14", 3, "(launch failed|held)", "13_3")
    times = "2026-11-17T19:58:40|2026-11-17T19:59:40"
    text = f"7|7|REQUEUED|0:0|n1|{times}|{name}\n7.batch|7.batch|CANCELLED|0:15|n1|{times}|batch\n"
    text += f"7|7|FAILED|3:0|n2|{times}|{name}\n7.0|7.0|OUT_OF_MEMORY|0:125|n2|{times}|step\n"
    text += f"9_2|11|CANCELLED by 1000|0:0|None assigned|Unknown|Unknown|{name}\n"
    rows = parse_sacct(text)
    assert [row.word for row in rows] == ["REQUEUED", "FAILED", "CANCELLED"]
    assert rows[1].oom_step and rows[1].exit_code == 3 and rows[2].by == "1000" and rows[2].label == "9_2"
    assert rows[1].started is not None and rows[1].ended == rows[1].started + 60 and rows[2].ended is None
    newest = QueueState({(TOKEN, None): rows[:2]}).row(TOKEN, 0, 1)
    assert newest is not None and newest.word == "FAILED"


@pytest.mark.parametrize(
    ("word", "state", "reason"),
    [
        ("FAILED", "failed", "stopped by SIGTERM; Slurm says FAILED"),
        ("CANCELLED", "cancelled", "cancelled"),
        (None, "cancelled", "stopped by SIGTERM"),
    ],
)
def test_a_job_that_slurm_could_not_start_again_was_not_cancelled(
    word: str | None, state: str, reason: str, tmp_path: Path
) -> None:
    kept = [path for path in RECORDS if "b" * 12 not in path and "2." not in path and "verdict" not in path]
    found = {path: RECORDS[path] for path in kept}
    stopped = {"exit_code": 143, "stopped_by": "SIGTERM", "host": "vm", "nodes": "n1"}
    found[f"runs/{NAME}/attempt.1.end"] = {**found[f"runs/{NAME}/attempt.1.end"], **stopped}
    if word is not None:
        found[f"runs/{NAME}/submit.1.verdict1"] = {"word": word}
    _write(tmp_path, found)
    files_of = RunReader(str(tmp_path)).run(NAME)
    view = derive_state(files_of, Evidence(True, NOW))
    assert (view.state, view.reason) == (state, reason)
    assert files_of.end is not None
    assert derive_attempt_state(files_of, files_of.end, None).node == "n1", "the node has Slurm's name"


@pytest.mark.parametrize(("renewals", "state"), [(179, "timeout"), (182, "timeout"), (175, "lost"), (3, "lost")])
def test_an_attempt_that_was_lost_was_at_its_time_limit_if_its_last_renewal_was(renewals: int, state: str) -> None:
    changed: dict[str, dict[str, object]] = {
        f"submissions/{TOKEN}/submission.json": {"time_limit_s": 3600},
        f"runs/{NAME}/attempt.1.start": {"t": NOW - 9000, "beat_s": 20.0},
    }
    kept = ("submission.json", "send.0.outcome", "1.claim", "1.start")
    paths = [path for path in RECORDS if path.endswith(kept) and "b" * 12 not in path]
    home = Path(tempfile.mkdtemp(prefix="shoal-fold-"))
    try:
        found = {path: {**RECORDS[path], **changed.get(path, {})} for path in paths}
        _write(home, found, lost=f"lost.{renewals:06}")
        view = derive_state(RunReader(str(home)).run(NAME), Evidence(True, NOW))
    finally:
        shutil.rmtree(home)
    assert view.state == state
