"""`srun`, `scontrol show hostnames` and `scontrol show job` for batch scripts that run without Slurm, on one machine.

`srun` starts the tasks that the script asked for as processes here, with the variables that tasks have. It refuses
several nodes.
"""

import os
import re
import signal
import subprocess
import sys
import time
from typing import Dict, List, NamedTuple, Optional

#: Options of srun without a value; those not named here take one.
_NO_VALUE = frozenset(
    {"contiguous", "disable-status", "exact", "exclusive", "help", "hold", "interactive", "kill-on-bad-exit", "label"}
    | {"multi-prog", "no-allocate", "no-kill", "nice", "overcommit", "overlap", "oversubscribe", "preserve-env", "pty"}
    | {"propagate", "quiet", "reboot", "spread-job", "unbuffered", "usage", "use-min-nodes", "verbose", "version"}
    | {"whole"}
)
_SHORT_NO_VALUE = frozenset("EHIKOQVXZhklsuv")
_SHORT_NAMES = {"n": "ntasks", "N": "nodes", "o": "output", "e": "error", "D": "chdir", "K": "kill-on-bad-exit"}
_POLL_S = 0.05


class SrunCall(NamedTuple):
    """`options` by their long names, or one letter; `command` is what to start."""

    options: Dict[str, str]
    command: List[str]


def parse_srun(words: List[str]) -> SrunCall:
    """The options of srun up to its program."""
    options: Dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _NO_VALUE and rest:
                value = rest.pop(0)
        else:
            letter, value = word[1], word[2:].lstrip("=")
            if letter in _SHORT_NO_VALUE:
                rest[:0] = ["-" + value] if value and letter not in "IK" else []
                value = ""
            elif not value and rest:
                value = rest.pop(0)
            name = _SHORT_NAMES.get(letter, letter)
        options[name] = value
    return SrunCall(options, rest)


def srun(argv: List[str]) -> int:
    """Start the tasks, and return the highest exit code."""
    call = parse_srun(argv)
    nodes = call.options.get("nodes") or "1"
    if not re.match(r"1(?:-1)?\Z", nodes):
        return _refuse("srun", "--nodes=%s: this machine is one node" % nodes)
    if not call.command:
        return _refuse("srun", "no program to start")
    if "multi-prog" in call.options:
        return _refuse("srun", "--multi-prog needs Slurm")
    count = call.options.get("ntasks") or call.options.get("ntasks-per-node") or os.environ.get("SLURM_NTASKS") or "1"
    if not count.isdigit() or not 0 < int(count) <= 1024:
        return _refuse("srun", "invalid number of tasks %r" % count)
    tasks = [_start(call, number, int(count)) for number in range(int(count))]
    return _wait(tasks, "kill-on-bad-exit" in call.options)


def _start(call: SrunCall, number: int, count: int) -> "subprocess.Popen[bytes]":
    node = os.environ.get("SLURMD_NODENAME", "localhost")
    env = dict(
        os.environ,
        SLURM_PROCID=str(number),
        SLURM_LOCALID=str(number),
        SLURM_NODEID="0",
        SLURM_NTASKS=str(count),
        SLURM_NPROCS=str(count),
        SLURM_STEP_ID="0",
        SLURM_STEPID="0",
        SLURM_STEP_NUM_TASKS=str(count),
        SLURM_STEP_NUM_NODES="1",
        SLURM_STEP_NODELIST=node,
        SLURM_STEP_TASKS_PER_NODE=str(count),
        SLURM_TASKS_PER_NODE=str(count),
        SLURM_LAUNCH_NODE_IPADDR="127.0.0.1",
    )
    for one in (call.options.get("export") or "").split(","):
        name, equals, value = one.partition("=")
        if equals:
            env[name] = value
    if call.options.get("gpus-per-task") == "1" and count > 1:
        env["CUDA_VISIBLE_DEVICES"] = str(number)
    output = _open(call.options.get("output"), number)
    errors = _open(call.options.get("error"), number) or (subprocess.STDOUT if output else None)
    try:
        return subprocess.Popen(
            call.command, env=env, cwd=call.options.get("chdir") or None, stdout=output, stderr=errors
        )
    except OSError as error:
        problem = "cannot start %s: %s" % (call.command[0], (error.strerror or "").lower())
        return subprocess.Popen(["/bin/sh", "-c", 'echo "$1" >&2; exit 127', "sh", "srun: " + problem])


def _open(pattern: Optional[str], number: int) -> Optional[int]:
    if not pattern or pattern in ("none", "all"):
        return None
    values = {"t": str(number), "n": "0", "j": os.environ.get("SLURM_JOB_ID", ""), "s": "0", "%": "%"}
    values.update(J=values["j"], A=os.environ.get("SLURM_ARRAY_JOB_ID") or values["j"])
    values.update(a=os.environ.get("SLURM_ARRAY_TASK_ID", ""), x=os.environ.get("SLURM_JOB_NAME", ""))
    values.update(N=os.environ.get("SLURMD_NODENAME", ""), u=os.environ.get("SLURM_JOB_USER", ""))
    path = re.sub(r"%(\d*)(\w|%)", lambda one: values.get(one.group(2), "").zfill(int(one.group(1) or 0)), pattern)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


def _wait(tasks: "List[subprocess.Popen[bytes]]", kill: bool) -> int:
    def pass_on(number: int, frame: object) -> None:
        for task in tasks:
            task.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    worst = 0
    running = list(tasks)
    while running:
        for task in [task for task in running if task.poll() is not None]:
            running.remove(task)
            code = task.returncode if task.returncode >= 0 else 128 - task.returncode
            worst = max(worst, code)
            if code and kill:
                for other in running:
                    other.kill()
        time.sleep(_POLL_S if running else 0)
    return worst


def scontrol(argv: List[str]) -> int:
    """`scontrol show hostnames [LIST]`: the names, one on each line; `scontrol show job`: a few fields."""
    words = [word for word in argv if not word.startswith("-")]
    if words[:1] == ["show"] and words[1:2] in (["hostnames"], ["hostname"]):
        for name in (words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")).split(","):
            print(name)
        return 0
    if words[:2] == ["show", "job"]:
        fields = (
            ("JobId", "JOB_ID"),
            ("JobName", "JOB_NAME"),
            ("NodeList", "JOB_NODELIST"),
            ("NumCPUs", "CPUS_ON_NODE"),
        )
        print(" ".join("%s=%s" % (name, os.environ.get("SLURM_" + variable, "")) for name, variable in fields))
        return 0
    return _refuse("scontrol", "%s needs Slurm" % " ".join(words[:2]))


def _refuse(program: str, why: str) -> int:
    sys.stderr.write("%s (shoal, without Slurm): %s\n" % (program, why))
    return 1
