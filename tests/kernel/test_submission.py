"""The one submission transaction, with a fake sbatch: who writes what, who wins, and what an early void leads to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shoal.kernel import fence, files, layout, records, submission
from shoal.kernel.records import ClaimRecord, FollowUp, Outcome, SendRecord, Submission
from shoal.kernel.slurm import SbatchAnswer
from shoal.observe import run_files as checked
from shoal.observe.run_files import RunReader

TOKEN, RUN = "abcdefghijkm", "001_a/000_train_0"
ORDER = SendRecord(1.0, "host", 1, argv=["--mem=50M"])


def intent(token: str = TOKEN, **fields: object) -> Submission:
    base = Submission(token, "slurm", "x", f"001_a.000_train_0.{token}", [RUN], 1.0, "host", 1)
    return base._replace(**fields)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path) -> str:
    os.makedirs(layout.run_dir(str(tmp_path), RUN))
    submission.write_intent(str(tmp_path), intent(), b"#!/bin/sh\n")
    claim = ClaimRecord(TOKEN, 1, str(tmp_path / "out"), str(tmp_path / "out"))
    assert submission.claim_generation(str(tmp_path), RUN, 1, claim)
    return str(tmp_path)


def answering(answer: SbatchAnswer, before: Callable[[], object] = lambda: None) -> submission.Sbatch:
    def call(options: list[str], script: bytes, environ: Mapping[str, str]) -> SbatchAnswer:
        before()
        return answer

    return call


def test_only_the_first_who_marks_a_send_calls_sbatch(home: str) -> None:
    calls: list[int] = []
    first = submission.send(
        home, TOKEN, ORDER, run_sbatch=answering(SbatchAnswer("accepted", "7"), lambda: calls.append(1))
    )
    second = submission.send(
        home, TOKEN, ORDER, run_sbatch=answering(SbatchAnswer("accepted", "8"), lambda: calls.append(2))
    )
    assert (first.kind, first.job_id, second.kind, calls) == ("accepted", "7", "taken", [1])
    assert submission.outcome_of(home, TOKEN) == Outcome("accepted", job_id="7")


def test_an_unclear_answer_leaves_the_send_open(home: str) -> None:
    sent = submission.send(home, TOKEN, ORDER, run_sbatch=answering(SbatchAnswer("unclear", message="timed out")))
    assert sent.kind == "unclear" and submission.outcome_of(home, TOKEN) is None
    origin = RunReader(home).run(RUN).origin
    assert origin is not None and (origin.submission, origin.outcome, origin.sent) == (intent(), None, 1.0)


@pytest.mark.parametrize(("kind", "refused"), [("refused", True), ("unreached", False)])
def test_a_send_that_reached_nobody_is_void(home: str, kind: str, refused: bool) -> None:
    sent = submission.send(home, TOKEN, ORDER, run_sbatch=answering(SbatchAnswer(kind, message="no")))
    assert sent.kind == kind
    assert submission.outcome_of(home, TOKEN) == Outcome("void", reason="no", refused=refused)


def given_up_meanwhile(home: str, token: str) -> submission.Sbatch:
    void = Outcome("void", reason="Slurm never received it")
    return answering(SbatchAnswer("accepted", "4711"), lambda: submission.write_outcome(home, token, void))


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that scancel was called for."""
    calls: list[str] = []
    monkeypatch.setattr("shoal.kernel.slurm.scancel", lambda ids, environ: calls.extend(ids))
    return calls


def test_a_job_of_a_submission_that_was_given_up_is_cancelled_and_told_as_void(home: str, cancelled: list[str]) -> None:
    sent = submission.send(home, TOKEN, ORDER, run_sbatch=given_up_meanwhile(home, TOKEN))
    assert (sent.kind, sent.job_id, sent.message) == ("void", None, "Slurm never received it")
    assert cancelled == ["4711"]


def test_a_follow_up_that_was_given_up_meanwhile_is_not_told_as_a_job(
    home: str, cancelled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: the ending job's own copy of the transaction told of a job that would never run."""
    from shoal.job import recovery

    submission.send(home, TOKEN, ORDER, run_sbatch=answering(SbatchAnswer("accepted", "7")))

    def sbatch(options: list[str], script: bytes, environ: Mapping[str, str]) -> SbatchAnswer:
        token = next(word for word in options if word.startswith("--job-name=")).rpartition(".")[2]
        return given_up_meanwhile(home, token)(options, script, environ)

    monkeypatch.setattr("shoal.kernel.slurm.sbatch", sbatch)
    claim = fence.find_claim(layout.run_dir(home, RUN), TOKEN)
    job, words = recovery._submit_next_job(home, RUN, claim, 1, "7", lambda argv: (argv, ""))
    assert (job, words, cancelled) == (None, "Slurm never received it", ["4711"])


def test_records_are_the_same_for_jobs_and_for_commands(tmp_path: Path) -> None:
    asked = intent(asked=records.RequestedResources(gpus=2), provenance=records.Provenance("1.0", True), needs=["a/b"])
    for record in (
        asked,
        ORDER,
        Outcome("void", reason="x"),
        ClaimRecord("t", 1, "o", "l", 3, command_id="r"),
        FollowUp("oom"),
    ):
        path = tmp_path / type(record).__name__
        path.write_bytes(records.encode_record(record))
        kind: type = type(record)
        assert records.read_record(str(path), kind) == checked.read_checked(str(path), kind) == record
    path.write_bytes(files.to_json({"schema": 2, "cause": "oom"}))
    with pytest.raises(ValueError, match="newer shoal"):
        records.read_record(str(path), FollowUp)
    with pytest.raises(checked.DamagedRecord, match="newer shoal"):
        checked.read_checked(str(path), FollowUp)
    path.write_bytes(files.to_json({"number": 3}))
    with pytest.raises(ValueError, match="is damaged"):
        records.read_record(str(path), FollowUp)


def test_the_record_of_an_unfinished_send_is_whole_json(home: str) -> None:
    submission.mark_sending(home, TOKEN, ORDER)
    path = os.path.join(layout.submission_dir(home, TOKEN), "send.0")
    assert json.loads(Path(path).read_text()) == {
        "t": 1.0,
        "host": "host",
        "pid": 1,
        "argv": ["--mem=50M"],
        "schema": 1,
    }


def test_whoever_wrote_the_intent_sends_it_without_another_file(home: str) -> None:
    folder = Path(layout.submission_dir(home, TOKEN))
    (folder / "submission.json").unlink()
    (folder / "submission.json").write_bytes(records.encode_record(intent(argv=["--mem=50M"])))
    asked: list[list[str]] = []

    def sbatch(options: list[str], script: bytes, environ: Mapping[str, str]) -> SbatchAnswer:
        asked.append(options)
        return SbatchAnswer("accepted", "7")

    assert submission.send(home, TOKEN, run_sbatch=sbatch).kind == "accepted" and asked == [["--mem=50M"]]
    assert submission.send(home, TOKEN, ORDER, run_sbatch=sbatch).kind == "taken" and len(asked) == 1
    assert os.path.samefile(folder / "submission.json", folder / "send.0")
    order = submission.last_send(home, TOKEN)
    assert order is not None and (order.t, order.host, list(order.argv)) == (1.0, "host", ["--mem=50M"])


def test_the_kernel_needs_no_package() -> None:
    code = "import sys; sys.modules['msgspec'] = None; import shoal.kernel.submission"
    subprocess.run([sys.executable, "-c", code], check=True)
