"""A job of several nodes: one engine on each, a step of srun of its own, and nodes that are given back when idle."""

import os
import signal
import subprocess
import sys
import time
from typing import Callable, List, Mapping, Sequence

from ...kernel import Allocation, agent_path, slurm
from .. import preempted
from ..launch import allocation, family
from . import machine

_RELEASE_TRIES, _RELEASE_RETRY_S, _RELEASE_TIMEOUT_S = 3, 2.0, 60.0
#: Exit codes of an engine that has worked through the queue: all done, or some failed.
_FINISHED_CODES = (0, 4)


def run_on_all_nodes(
    folder: str, me: Allocation, environ: Mapping[str, str], shrink: bool, say: Callable[[str], None]
) -> int:
    """Start an engine on every node and wait for all of them; the exit code of the worst.

    With `shrink` a node whose engine has nothing left to do leaves the job. The first one cannot: the batch script runs
    there. Slurm signals the engines itself when it ends the job.
    """
    nodes = allocation.expand_nodelist(environ["SLURM_JOB_NODELIST"])
    steps = {_start_engine(node, folder, environ).pid: node for node in nodes}
    _pass_signals_on(str(me.job_id))
    codes: List[int] = []
    kept = list(nodes)
    while steps:
        pid, status = os.wait()
        node = steps.pop(pid, None)
        if node is None:
            continue
        codes.append(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
        # An engine that was stopped is no sign of an idle node: the whole job is about to end.
        if shrink and steps and node != nodes[0] and codes[-1] in _FINISHED_CODES:
            kept.remove(node)
            problem = release_nodes(str(me.job_id), kept)
            say("node %s has nothing left to do and %s" % (node, problem or "is given back"))
            if problem:
                kept.append(node)
    if max(codes) not in _FINISHED_CODES:
        preempted.wait_for_preemption(environ)
    return max(codes)


def _start_engine(node: str, folder: str, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    argv = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=%s" % node, "--job-name=pack", "--input=none"]
    cpus = machine.min_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    argv += ["--cpu-bind=none", *(["--cpus-per-task=%d" % cpus] if cpus else [])]
    argv += [sys.executable, "-I", agent_path(), "pack", folder, "--node", "yes"]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)


def release_nodes(job_id: str, kept: Sequence[str]) -> str:
    """Let the job go on with these nodes alone; what went wrong, in words, or nothing.

    In a job's environment scontrol would leave scripts behind that tell a shell of the job's new size; ours is clean
    and needs none, and none of the variables that are out of date from now on is read again.
    """
    said = ""
    for attempt in range(_RELEASE_TRIES):
        time.sleep(_RELEASE_RETRY_S if attempt else 0)
        done = slurm.update_job(job_id, {"NodeList": ",".join(kept)}, os.environ, _RELEASE_TIMEOUT_S)
        if done.ok:
            return ""
        said = done.problem
        if done.failure:
            break
    return "cannot be given back: %s" % said


def _pass_signals_on(job_id: str) -> None:
    def pass_on(number: int, frame: object) -> None:
        slurm.scancel([job_id], os.environ, signal_number=number, timeout_s=slurm.ENDING_TIMEOUT_S)

    for number in family.FORWARDED_SIGNALS:
        signal.signal(number, pass_on)
