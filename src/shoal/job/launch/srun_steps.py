"""Start and signal the processes of a rank group, as a Slurm step or as ranks on this machine; and preemption.

At a preemption with a grace time Slurm signals the steps of a job at once, and the batch script only when the time is
over. So ranks and engines that srun started save and exit while the batch script has no signal (measured with Slurm
22.05). Their exit counts as stopped and not as completed, and the job is requeued only if Slurm ends it.
"""

import glob
import json
import os
import select
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from ...kernel import guard, processes, slurm
from .rank_group import RankGroup, RanksTrainAlone

_MAX_END_S = 10.0
ENDED_BY_SLURM_FILE = "ended-by-slurm"


class SlurmStep:
    """A Slurm step, and the srun that waits for it. It is signalled by its number: srun makes SIGKILL of SIGTERM."""

    def __init__(self, argv: List[str], group: RankGroup, env: Dict[str, str], job: str, log: Any = None):
        self.group = group
        self.job = job
        self.process = subprocess.Popen(
            argv,
            env=slurm.step_environ(env),
            cwd=group.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=processes.make_preexec(block_signals=False),
        )

    def wait(self, inbox: processes.SignalQueue, look: Callable[[], None]) -> int:
        try:
            return processes.shell_exit_code(processes.wait_for_child(self.process, inbox, self.pass_on, look))
        except RanksTrainAlone:
            self.signal(signal.SIGKILL)
            self.process.wait()
            raise

    def pass_on(self, number: int) -> None:
        """A signal that the agent got: also for the ranks, unless Slurm, ending the job, has told them itself."""
        if not slurm_is_ending(self.job):
            self.signal(number)

    def signal(self, number: int) -> None:
        """Signal the step's tasks; SIGKILL ends every process of the step on all its nodes."""
        number_of_step = self._step_id()
        if number_of_step is None:
            if number in processes.STOP_SIGNALS or number == signal.SIGKILL:
                self.process.terminate()  # nothing of the user runs yet
            return
        step_id = "%s.%s" % (self.job, number_of_step)
        slurm.scancel([step_id], os.environ, signal_number=number, timeout_s=slurm.ENDING_TIMEOUT_S)

    def _step_id(self) -> Optional[str]:
        """As a task of the step noted it."""
        for pattern in ("node-*.json", "rank-*.json"):
            for path in glob.glob(glob.escape(self.group.log) + pattern):
                try:
                    with open(path) as file:
                        step = json.load(file).get("step")
                except (OSError, ValueError):
                    continue
                if step is not None:
                    return str(step)
        return None


class LocalNode:
    """A group on this machine: its node process, which hands signals on and takes everything with it when killed."""

    def __init__(self, argv: List[str], group: RankGroup, env: Dict[str, str], job: str, log: Any = None):
        self.process = subprocess.Popen(
            argv,
            env=env,
            cwd=group.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=processes.make_preexec(block_signals=False),
        )

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


class LocalRanks:
    """All ranks of a group as processes of this machine; when one fails the others are ended, as srun would."""

    def __init__(self, group: RankGroup, env: Dict[str, str]) -> None:
        self.group = group
        self.ranks = [self._start(rank, env) for rank in range(group.world)]

    def _start(self, rank: int, env: Dict[str, str]) -> "subprocess.Popen[bytes]":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(self.group.world),
            "LOCAL_WORLD_SIZE": str(self.group.world),
            "MASTER_ADDR": self.group.address,
            "MASTER_PORT": str(self.group.port),
            "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS") or str(max(1, cores // self.group.world)),
        }
        return subprocess.Popen(
            [*self.group.wrapper, "rank", self.group.path],
            env=dict(env, **place),
            cwd=self.group.cwd,
            start_new_session=True,
            preexec_fn=processes.make_preexec(block_signals=True),
        )

    def pass_on(self, number: int) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    def wait(self, inbox: processes.SignalQueue, look: Callable[[], None]) -> int:
        """0 when all ended well; else the exit code of the first that did not."""
        first = 0
        deadline: Optional[float] = None
        while True:
            for number in inbox.take():
                self.pass_on(number)
            codes = [rank.poll() for rank in self.ranks]
            bad = [(code, rank) for rank, code in enumerate(codes) if code not in (None, 0)]
            if bad and not first:
                first = bad[0][0] or 0
                processes.log_message("rank %d ended with code %d" % (bad[0][1], processes.shell_exit_code(first)))
                deadline = time.monotonic() + _MAX_END_S
                self.pass_on(signal.SIGTERM)
            if None not in codes:
                return processes.shell_exit_code(first)
            if deadline is not None and time.monotonic() > deadline:
                self.pass_on(signal.SIGKILL)
            look()
            time.sleep(0.05)


def slurm_is_ending(job: str) -> bool:
    """Whether Slurm itself is ending the job (cancelled, out of time, preempted): then it signals every task of it."""
    state = slurm.job_state(job, os.environ)
    return state is not None and (state.preempted or state.word not in ("RUNNING", "CONFIGURING", "SUSPENDED"))


def note_end_by_slurm(plan: Dict[str, Any]) -> None:
    """For the agent: the steps have ended because Slurm told them to, whatever their exit code. In the grace time of a
    preemption nobody else hears of it; and ranks that left politely are not done.
    """
    if slurm_is_ending(plan["job"]):
        with open(os.path.join(plan["folder"], ENDED_BY_SLURM_FILE), "w"):
            pass


_PREEMPTION_POLL_S = 5.0
#: A busy controller may be silent so long before we give up waiting for it.
_MAX_SILENCE_S = 300.0


def were_steps_ended(launch_folder: str) -> bool:
    """Whether the launcher found that Slurm had told its steps to end."""
    return os.path.exists(os.path.join(launch_folder, ENDED_BY_SLURM_FILE))


def wait_for_preemption(environ: Mapping[str, str], link: Optional[guard.GuardLink] = None) -> None:
    """While this job is in its grace time: wait until Slurm ends us, which is what makes it start the job again.

    Under a guard signals come through `link`; else the next one ends this process.
    """
    for number in processes.STOP_SIGNALS if link is None else ():
        signal.signal(number, signal.SIG_DFL)
    answered: Optional[float] = None
    while True:
        state = slurm.job_state(environ["SLURM_JOB_ID"], environ)
        if state is not None and not (state.preempted and state.word == "RUNNING"):
            return
        if state is not None:
            answered = time.monotonic()
        elif answered is None or time.monotonic() - answered > _MAX_SILENCE_S:
            return
        if link is None:
            time.sleep(_PREEMPTION_POLL_S)
        elif select.select([link.fd], [], [], _PREEMPTION_POLL_S)[0]:
            return
