"""The submission protocol against a model of Slurm that does all it is known to do: answer late or not at all, lose
jobs, reuse ids, replay, requeue, forget; with commands that die at every point. Never two good ends, never a lost run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.backends.slurm.query import Snapshot
from shoal.kernel import fence, files, layout, process
from shoal.kernel import submission as transaction
from shoal.model import LIVE, RunSpec
from shoal.names import job_name, new_token
from shoal.observe import observe
from shoal.store import writing
from shoal.store.fold import RunView
from shoal.store.records import Claim, Outcome, Send, Submission
from shoal.store.slurm_words import JobRow

SPEC = RunSpec(
    experiment="001_a", stem="000_x_0", order=0, step="x", step_kind="x", seed=0, command=["x"], cwd="/", output="x"
)
DEAD = {"host": process.this_process()["host"], "pid": 2**30, "started": "long ago"}
CRASHES = ("never", "after-submission", "after-claims", "stopped", "after-sending", "after-sbatch", "after-outcome")
ANSWERS = ("accepted", "late", "created, answer lost", "lost", "unreached")


class Job:
    """A job as Slurm has it. `attempt` is set while the program runs."""

    def __init__(self, number: int, token: str) -> None:
        self.number, self.token = number, token
        self.word = "PENDING"
        self.shown = True
        self.claim: fence.Claim | None = None
        self.attempt: int | None = None

    @property
    def row(self) -> JobRow:
        return JobRow(str(self.number), self.word, job_name("001_a", "000_x_0", self.token))


class Protocol(RuleBasedStateMachine):
    """One run, many commands and jobs."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-protocol-"))
        (self.folder / "slurm.conf").write_text("ClusterName=model\n")
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": str(self.folder)}
        self.home = writing.open_home(self.folder / "home")
        self.now, self.next_id = 1_000_000.0, 1
        self.jobs: list[Job] = []
        self.on_their_way: list[str] = []
        self.asleep: list[str] = []
        self.good_ends = 0
        writing.record_spec(self.home, SPEC)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            self._let_it_end()
        finally:
            shutil.rmtree(self.folder)

    # --- commands ---

    @rule(crash=st.sampled_from(CRASHES), answer=st.sampled_from(ANSWERS))
    def submit(self, crash: str, answer: str) -> None:
        view = self._look()
        if view.state in LIVE or view.state == "done":
            return
        token = new_token()
        submission = Submission(
            token=token, backend="slurm", cluster="model", slurm_cluster="model", job_name="x", runs=[SPEC.name],
            t=self.now, **DEAD,
        )  # fmt: skip
        transaction.open_intent(self.home, submission, b"")
        if crash == "after-submission":
            return
        output = str(self.folder / f"out{view.claims}")
        claim = Claim(token=token, revision=1, output_dir=output, log_dir=output, t=self.now)
        assert transaction.claim(self.home, SPEC.name, view.claims + 1, claim)
        if crash in ("after-claims", "stopped"):
            self.asleep += [token] if crash == "stopped" else []
            return
        transaction.mark_sending(self.home, token, Send(self.now, "host", 1))
        if crash == "after-sending":
            return
        if answer in ("accepted", "created, answer lost"):
            self._create(token)
        elif answer == "late":
            self.on_their_way.append(token)
        if crash == "after-sbatch":
            return
        if answer == "accepted":
            transaction.settle(self.home, token, Outcome(kind="accepted", job_id=str(self.next_id - 1)))
        elif answer == "unreached":
            transaction.settle(self.home, token, Outcome(kind="void", reason="connect failure"))

    @rule()
    def look(self) -> None:
        self._look()

    # --- Slurm ---

    @rule(data=st.data())
    @precondition(lambda self: any(job.word == "PENDING" for job in self.jobs))
    def start_job(self, data: st.DataObject) -> None:
        self._start(data.draw(st.sampled_from([job for job in self.jobs if job.word == "PENDING"])))

    @rule(data=st.data(), how=st.sampled_from(["good", "bad", "killed"]))
    @precondition(lambda self: any(job.attempt for job in self.jobs))
    def end_job(self, data: st.DataObject, how: str) -> None:
        self._end(data.draw(st.sampled_from([job for job in self.jobs if job.attempt])), how)

    @rule(data=st.data())
    @precondition(lambda self: any(job.word == "RUNNING" for job in self.jobs))
    def requeue_job(self, data: st.DataObject) -> None:
        """Preemption, a node that fails, or a controller that starts a job again: the process dies, the id stays."""
        job = data.draw(st.sampled_from([job for job in self.jobs if job.word == "RUNNING"]))
        job.word, job.attempt = "PENDING", None

    @rule()
    @precondition(lambda self: any(job.word == "PENDING" for job in self.jobs))
    def crash_controller(self) -> None:
        """What was not saved is gone, and its ids are given out again."""
        lost = [job for job in self.jobs if job.word == "PENDING" and job.claim is None]
        self.jobs = [job for job in self.jobs if job not in lost]
        self.next_id = 1 + max((job.number for job in self.jobs), default=0)

    @rule(data=st.data())
    @precondition(lambda self: bool(self.jobs))
    def replay_job(self, data: st.DataObject) -> None:
        """The same submission becomes a second job."""
        self._create(data.draw(st.sampled_from(self.jobs)).token)

    @rule()
    def deliver_late_requests(self) -> None:
        """In truth only for as long as munge takes the credential; correctness must not rest on that."""
        for token in self.on_their_way:
            self._create(token)
        self.on_their_way = []

    @rule()
    @precondition(lambda self: bool(self.asleep))
    def wake_a_stopped_command(self) -> None:
        """It sends what it had claimed, although others may have given it up meanwhile."""
        token = self.asleep.pop()
        transaction.mark_sending(self.home, token, Send(self.now, "host", 1))
        self._create(token)
        transaction.settle(self.home, token, Outcome(kind="accepted", job_id=str(self.next_id - 1)))

    @rule(data=st.data())
    @precondition(lambda self: any(job.word in ("COMPLETED", "FAILED") for job in self.jobs))
    def start_an_ended_job_again(self, data: st.DataObject) -> None:
        """A controller that crashed before it saved the end recovers the job as it was."""
        data.draw(st.sampled_from([job for job in self.jobs if job.word in ("COMPLETED", "FAILED")])).word = "PENDING"

    @rule()
    def forget_ended_jobs(self) -> None:
        self.jobs = [job for job in self.jobs if job.word in ("PENDING", "RUNNING")]

    @rule(seconds=st.sampled_from([1.0, 70.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for job in self.jobs:
            if job.attempt:
                self._beat(job)

    @invariant()
    def at_most_one_good_end(self) -> None:
        assert getattr(self, "good_ends", 0) <= 1

    # --- how ---

    def _look(self) -> RunView:
        rows: dict[tuple[str, int | None], list[JobRow]] = {}
        for job in self.jobs:
            rows.setdefault((job.token, None), []).append(job.row)
        snapshot = Snapshot(rows, t=self.now)
        view = observe(
            self.home, [SPEC.name], environ=self.environ, clock=lambda: self.now, ask=lambda *_: snapshot
        ).views[SPEC.name]
        if self.good_ends:
            assert view.state == "done", f"a finished run is {view.state}: {view.cause}"
        return view

    def _create(self, token: str) -> None:
        self.jobs.append(Job(self.next_id, token))
        self.next_id += 1

    def _start(self, job: Job) -> None:
        run_dir = layout.run_dir(self.home, SPEC.name)
        try:
            claim = fence.find_claim(run_dir, job.token)
            fence.take_ownership(claim, layout.submission_dir(self.home, job.token), {"job_id": str(job.number)})
        except fence.Fenced:
            job.word = "COMPLETED"
            return
        start: dict[str, Any] = {
            **DEAD, "t": self.now, "output_dir": claim.output_dir, "log_dir": claim.log_dir, "job_id": str(job.number)
        }  # fmt: skip
        job.word, job.claim, job.attempt = "RUNNING", claim, fence.begin_attempt(claim, start)
        self._beat(job)

    def _beat(self, job: Job) -> None:
        assert job.claim is not None and job.attempt is not None
        path = os.path.join(job.claim.run_dir, layout.attempt_file(job.attempt, "beat"))
        files.replace(path, files.to_json({"t": self.now, "every_s": 30.0}), sync=False)
        if fence.superseded(job.claim, job.attempt):
            job.word, job.attempt = "COMPLETED", None

    def _end(self, job: Job, how: str) -> None:
        assert job.claim is not None and job.attempt is not None
        if how != "killed":
            end = {
                "attempt": job.attempt, "generation": job.claim.generation, "revision": 1, "token": job.token,
                "output_dir": job.claim.output_dir, "exit_code": int(how == "bad"), "success": how == "good",
                "began": self.now, "ended": self.now, "duration_s": 1.0, "job_id": str(job.number),
            }  # fmt: skip
            path = os.path.join(job.claim.run_dir, layout.attempt_file(job.attempt, "end"))
            files.create_exclusive(path, files.to_json(end))
        self.good_ends += how == "good"
        job.word, job.attempt = {"good": "COMPLETED", "bad": "FAILED", "killed": "FAILED"}[how], None

    def _let_it_end(self) -> None:
        """When nothing fails any more, a person who submits again and again gets exactly one good end."""
        for _ in range(12):
            self.deliver_late_requests()
            while self.asleep:
                self.wake_a_stopped_command()
            for job in list(self.jobs):
                if job.attempt:
                    self._end(job, "good")
                elif job.word == "PENDING":
                    self._start(job)
                    if job.attempt:
                        self._end(job, "good")
            self.time_passes(400.0)
            self.forget_ended_jobs()
            self.submit("never", "accepted")
        assert self._look().state == "done" and self.good_ends == 1


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=30, stateful_step_count=30)
