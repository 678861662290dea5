"""The submission and lease protocols against a model of Slurm that does all it is known to do: answer late or not at
all, lose jobs, reuse ids, replay, requeue what still runs, forget; with commands that die at every point and agents
that are frozen, killed or cut off. Never two programs at once, never two good ends, never a lost run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from made_up import END, START
from shoal.clusters import QueueState
from shoal.kernel import fence, layout, lease
from shoal.kernel import submission as transaction
from shoal.kernel.records import Allocation
from shoal.kernel.slurm_text import JobRow
from shoal.kernel.submission import job_name, new_token
from shoal.model import ACTIVE_STATES, RunSpec
from shoal.observe import run_writer
from shoal.observe.run_files import ClaimRecord, Outcome, SendRecord, Submission
from shoal.observe.run_state import RunView
from shoal.observe.run_views import observe

SPEC = RunSpec(
    experiment="001_a", stem="000_x_0", number=0, step="x", step_kind="x", seed=0, command=["x"], cwd="/", output="x"
)
TIMES = lease.timing({})
#: A process of which nobody here can tell anything.
DEAD: dict[str, Any] = {"host": "elsewhere", "pid": 2**30, "started": "long ago"}
CRASHES = ("never", "after-submission", "after-claims", "stopped", "after-sending", "after-sbatch", "after-outcome")
ANSWERS = ("accepted", "late", "created, answer lost", "lost", "unreached")


class Agent:
    """A job's process: waits for its turn, or holds the run's lease. Slurm may have forgotten it."""

    def __init__(self, job: Job, claim: fence.Claim) -> None:
        self.job, self.claim = job, claim
        me = Allocation(**DEAD, job_id=str(job.number), life=job.life)
        self.turn = fence.AttemptWait(claim, me)
        self.held: lease.Lease | None = None
        self.is_frozen = False

    @property
    def runs(self) -> bool:
        """Whether its program runs: a guard stops it when the lease was not renewed in time."""
        return self.held is not None and lease.boot_time_s() < self.held.held_until


class Job:
    """A job as Slurm has it; `life` counts how often it was started."""

    def __init__(self, number: int, token: str) -> None:
        self.number, self.token = number, token
        self.word = "PENDING"
        self.life = 0
        self.agent: Agent | None = None

    @property
    def row(self) -> JobRow:
        return JobRow(str(self.number), self.word, job_name("001_a/000_x_0", self.token))


class Protocol(RuleBasedStateMachine):
    """One run, many commands and jobs."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-protocol-"))
        (self.folder / "slurm.conf").write_text("ClusterName=model\n")
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": str(self.folder)}
        self.home = run_writer.open_state_dir(self.folder / "home", None)
        self.now, self.next_id = 1_000_000.0, 1
        self.real_clock, lease.boot_time_s = lease.boot_time_s, lambda: self.now
        self.jobs: list[Job] = []
        self.agents: list[Agent] = []
        self.on_their_way: list[str] = []
        self.asleep: list[str] = []
        self.good_ends = 0
        run_writer.write_spec(self.home, SPEC)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            self._let_it_end()
        finally:
            lease.boot_time_s = self.real_clock
            shutil.rmtree(self.folder)

    # --- commands ---

    @rule(crash=st.sampled_from(CRASHES), answer=st.sampled_from(ANSWERS))
    def submit(self, crash: str, answer: str) -> None:
        view = self._look()
        if view.state in ACTIVE_STATES or view.state == "completed":
            return
        token = new_token()
        submission = Submission(
            token=token, backend="slurm", cluster="model", slurm_cluster="model", job_name="x", runs=[SPEC.name],
            t=self.now, **DEAD,
        )  # fmt: skip
        transaction.write_intent(self.home, submission, b"")
        if crash == "after-submission":
            return
        output = str(self.folder / f"out{view.claims}")
        claim = ClaimRecord(token=token, revision=1, output_dir=output, log_dir=output, t=self.now)
        assert transaction.claim_generation(self.home, SPEC.name, view.claims + 1, claim)
        if crash in ("after-claims", "stopped"):
            self.asleep += [token] if crash == "stopped" else []
            return
        transaction.mark_sending(self.home, token, SendRecord(self.now, "host", 1))
        if crash == "after-sending":
            return
        if answer in ("accepted", "created, answer lost"):
            self._create(token)
        elif answer == "late":
            self.on_their_way.append(token)
        if crash == "after-sbatch":
            return
        if answer == "accepted":
            transaction.write_outcome(self.home, token, Outcome(kind="accepted", job_id=str(self.next_id - 1)))
        elif answer == "unreached":
            transaction.write_outcome(self.home, token, Outcome(kind="void", reason="connect failure"))

    @rule()
    def look(self) -> None:
        self._look()

    # --- Slurm ---

    @rule(data=st.data())
    @precondition(lambda self: any(job.word == "PENDING" for job in self.jobs))
    def start_job(self, data: st.DataObject) -> None:
        self._start(data.draw(st.sampled_from([job for job in self.jobs if job.word == "PENDING"])))

    @rule(data=st.data(), how=st.sampled_from(["good", "bad", "killed", "power cut"]))
    @precondition(lambda self: any(agent.runs and not agent.is_frozen for agent in self.agents))
    def end_program(self, data: st.DataObject, how: str) -> None:
        self._end(data.draw(st.sampled_from([one for one in self.agents if one.runs and not one.is_frozen])), how)

    @rule(data=st.data(), lives_on=st.booleans())
    @precondition(lambda self: any(job.word == "RUNNING" for job in self.jobs))
    def requeue_job(self, data: st.DataObject, lives_on: bool) -> None:
        """Preemption, a node that fails, or one that only Slurm has lost contact with: its program lives on."""
        job = data.draw(st.sampled_from([job for job in self.jobs if job.word == "RUNNING"]))
        if job.agent is not None and not lives_on:
            self.agents.remove(job.agent)
        job.word, job.agent, job.life = "PENDING", None, job.life + 1

    @rule(data=st.data())
    @precondition(lambda self: any(not agent.is_frozen for agent in self.agents))
    def freeze_an_agent(self, data: st.DataObject) -> None:
        """It renews nothing until it thaws; its guard goes on."""
        data.draw(st.sampled_from([agent for agent in self.agents if not agent.is_frozen])).is_frozen = True

    @rule()
    def thaw_all_agents(self) -> None:
        for agent in self.agents:
            agent.is_frozen = False

    @rule()
    @precondition(lambda self: any(job.word == "PENDING" for job in self.jobs))
    def crash_controller(self) -> None:
        """What was not saved is gone, and its ids are given out again."""
        lost = [job for job in self.jobs if job.word == "PENDING" and job.life == 0]
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
        transaction.mark_sending(self.home, token, SendRecord(self.now, "host", 1))
        self._create(token)
        transaction.write_outcome(self.home, token, Outcome(kind="accepted", job_id=str(self.next_id - 1)))

    @rule(data=st.data())
    @precondition(lambda self: any(job.word in ("COMPLETED", "FAILED") for job in self.jobs))
    def start_an_ended_job_again(self, data: st.DataObject) -> None:
        """A controller that crashed before it saved the end recovers the job as it was."""
        data.draw(st.sampled_from([job for job in self.jobs if job.word in ("COMPLETED", "FAILED")])).word = "PENDING"

    @rule()
    def forget_ended_jobs(self) -> None:
        self.jobs = [job for job in self.jobs if job.word in ("PENDING", "RUNNING")]

    @rule(data=st.data())
    @precondition(lambda self: any(job.word == "RUNNING" for job in self.jobs))
    def forget_a_running_job(self, data: st.DataObject) -> None:
        self.jobs.remove(data.draw(st.sampled_from([job for job in self.jobs if job.word == "RUNNING"])))

    @rule(seconds=st.sampled_from([1.0, 70.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        while seconds > 0:
            self.now += min(seconds, 20.0)
            seconds -= 20.0
            for agent in [one for one in self.agents if not one.is_frozen]:
                self._beat(agent)
                self.only_one_program_runs()

    @invariant()
    def at_most_one_good_end(self) -> None:
        assert getattr(self, "good_ends", 0) <= 1

    @invariant()
    def only_one_program_runs(self) -> None:
        assert sum(agent.runs for agent in getattr(self, "agents", ())) <= 1

    # --- how ---

    def _look(self) -> RunView:
        rows: dict[tuple[str, int | None], list[JobRow]] = {}
        for job in self.jobs:
            rows.setdefault((job.token, None), []).append(job.row)
        snapshot = QueueState(rows, t=self.now)
        view = observe(
            self.home, [SPEC.name], environ=self.environ, clock=lambda: self.now, ask=lambda *_: snapshot
        ).views[SPEC.name]
        if self.good_ends:
            assert view.state == "completed", f"a finished run is {view.state}: {view.reason}"
        if any(agent.runs for agent in self.agents):
            assert view.state == "running", f"a running run is {view.state}: {view.reason}"
        return view

    def _create(self, token: str) -> None:
        self.jobs.append(Job(self.next_id, token))
        self.next_id += 1

    def _start(self, job: Job) -> None:
        run_dir = layout.run_dir(self.home, SPEC.name)
        try:
            claim = fence.find_claim(run_dir, job.token)
            fence.settle_outcome(self.home, job.token, Allocation(**DEAD, job_id=str(job.number)))
        except fence.FencedError:
            job.word = "COMPLETED"
            return
        job.word, job.agent = "RUNNING", Agent(job, claim)
        self.agents.append(job.agent)
        self._take(job.agent)

    def _take(self, agent: Agent) -> None:
        """Begin, if nobody else has the run."""
        try:
            names = agent.turn.look()
        except fence.FencedError:
            self._leave(agent, "COMPLETED")
            return
        if names is None:
            return
        start = START._replace(
            **DEAD, t=self.now, job_id=str(agent.job.number), life=agent.job.life, attempt=names.attempt + 1,
            generation=agent.claim.generation, token=agent.claim.token, beat_s=TIMES.beat_s,
        )  # fmt: skip
        agent.held = lease.create_lease(agent.claim.run_dir, names.attempt + 1, start, TIMES)

    def _beat(self, agent: Agent) -> None:
        if agent.held is None:
            self._take(agent)
            return
        if agent.held.renew() == "lost":
            self._leave(agent, "FAILED")
            return
        why = fence.why_unwanted(agent.claim, agent.held.number)
        if why is not None:
            self._end(agent, "bad", why)

    def _leave(self, agent: Agent, word: str) -> None:
        self.agents.remove(agent)
        if agent.job.agent is agent:
            agent.job.word, agent.job.agent = word, None

    def _end(self, agent: Agent, how: str, stopped_by: str | None = None) -> None:
        assert agent.held is not None
        if how == "killed":  # the guard sees it
            lease.close_lease(agent.claim.run_dir, agent.held.number, agent.held.renewals)
        elif how != "power cut":
            end = END._replace(
                attempt=agent.held.number, generation=agent.claim.generation, token=agent.claim.token,
                exit_code=int(how == "bad"), success=how == "good", began=self.now, ended=self.now,
                job_id=str(agent.job.number), stopped_by=stopped_by,
            )  # fmt: skip
            self.good_ends += agent.held.end(end) and how == "good"
        self._leave(agent, "COMPLETED" if how == "good" else "FAILED")

    def _let_it_end(self) -> None:
        """When nothing fails any more, a person who submits again and again gets exactly one good end."""
        self.thaw_all_agents()
        for _ in range(14):
            self.deliver_late_requests()
            while self.asleep:
                self.wake_a_stopped_command()
            for job in list(self.jobs):
                if job.word == "PENDING":
                    self._start(job)
            for agent in [one for one in self.agents if one.runs and not one.is_frozen]:
                self._end(agent, "good")
            self._look()
            self.time_passes(400.0)
            self.forget_ended_jobs()
            self.submit("never", "accepted")
        assert self._look().state == "completed" and self.good_ends == 1


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=60, stateful_step_count=30)
