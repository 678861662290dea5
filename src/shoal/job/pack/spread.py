"""A job of several nodes: one engine on each, a step of srun of its own, and nodes that are given back when idle."""

import os
import signal
import subprocess
import sys
import time
from typing import Callable, List, Mapping, Sequence

from ...kernel import Allocation, own_program, slurm
from .. import preempted
from ..launch import allocation, family
from . import machine

_GIVE_BACK_TRIES, _GIVE_BACK_S, _GIVE_BACK_TIMEOUT_S = 3, 2.0, 60.0
#: Exit codes of an engine that has worked through the queue: all done, or some failed.
_FINISHED = (0, 4)


def spread(folder: str, me: Allocation, environ: Mapping[str, str], shrink: bool, say: Callable[[str], None]) -> int:
    """Start an engine on every node and wait for all of them; the exit code of the worst.

    With `shrink` a node whose engine has nothing left to do leaves the job. The first one cannot: the batch script runs
    there. Slurm signals the engines itself when it ends the job.
    """
    nodes = allocation.hostnames(environ["SLURM_JOB_NODELIST"])
    steps = {_start(node, folder, environ).pid: node for node in nodes}
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
        if shrink and steps and node != nodes[0] and codes[-1] in _FINISHED:
            kept.remove(node)
            problem = give_back(str(me.job_id), kept)
            say("node %s has nothing left to do and %s" % (node, problem or "is given back"))
            if problem:
                kept.append(node)
    if max(codes) not in _FINISHED:
        preempted.wait_for_slurm(environ)
    return max(codes)


def _start(node: str, folder: str, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    argv = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=%s" % node, "--job-name=pack", "--input=none"]
    cpus = machine.least_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    argv += ["--cpu-bind=none", *(["--cpus-per-task=%d" % cpus] if cpus else [])]
    argv += [sys.executable, "-I", own_program(), "pack", folder, "--node", "yes"]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)


def give_back(job_id: str, kept: Sequence[str]) -> str:
    """Let the job go on with these nodes alone; what went wrong, in words, or nothing.

    In a job's environment scontrol would leave scripts behind that tell a shell of the job's new size; ours is clean
    and needs none, and none of the variables that are out of date from now on is read again.
    """
    said = ""
    for attempt in range(_GIVE_BACK_TRIES):
        time.sleep(_GIVE_BACK_S if attempt else 0)
        done = slurm.update_job(job_id, {"NodeList": ",".join(kept)}, os.environ, _GIVE_BACK_TIMEOUT_S)
        if done.ok:
            return ""
        said = done.problem
        if done.failure:
            break
    return "cannot be given back: %s" % said


def _pass_signals_on(job_id: str) -> None:
    def pass_on(number: int, frame: object) -> None:
        slurm.scancel([job_id], os.environ, signal_number=number, timeout_s=slurm.ENDING_TIMEOUT_S)

    for number in family.FORWARDED:
        signal.signal(number, pass_on)
