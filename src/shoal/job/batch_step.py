"""A user's batch script inside a job: its command, its SLURM_ variables, and the files of --output and --error.

The script runs as sbatch would run it: the kept copy under the interpreter of its #! line, on the first node, in the
directory of the submission. Its output is in the attempt's log as for every run; files that --output and --error name
get a copy of it while it comes. Without Slurm, the variables of the allocation are made up from the request, and `srun`
and `scontrol show hostnames` are programs of ours (local_slurm.py).
"""

import getpass
import hashlib
import os
import re
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, List, Mapping, Optional, Tuple

from ..kernel import fence, files, layout, processes
from .launch.launch_spec import agent_argv

if TYPE_CHECKING:
    from .attempt import Attempt

_ARRAY_VARIABLES = ("ID", "COUNT", "MIN", "MAX", "STEP")
_PATTERN = re.compile(r"%(\d*)([AabJjNnstuxX%])")
#: No job of Slurm has such a number; the largest is 67,108,863.
_FIRST_LOCAL_ID = 100_000_000
_POLL_S = 0.1
_MAX_JOIN_S = 10.0


def prepare_script(
    spec: Mapping[str, Any], claim: fence.Claim, argv: List[str], env: Dict[str, str]
) -> Tuple[List[str], Dict[str, str], Optional[str]]:
    """(arguments, environment, None), or a problem in words as the third."""
    home, script = layout.state_dir_of(claim.run_dir), spec["script"]
    kept = layout.kept_script(home, script["digest"], script["file"], files.is_shared(home))
    env = script_environment(spec, env)
    if not env.get("SLURM_JOB_ID"):
        add_local_variables(script, env, os.path.join(claim.log_dir, ".slurm"))
    try:
        data = files.read_trusted(kept)
    except OSError as error:
        return argv, env, "cannot read the copy of its batch script %s: %s" % (kept, (error.strerror or "").lower())
    if hashlib.sha256(data).hexdigest()[:16] != script["digest"]:
        return argv, env, "the copy of its batch script was changed: %s" % kept
    word = int(script["word"])
    return [*argv[:word], kept, *argv[word + 1 :]], env, None


def script_environment(spec: Mapping[str, Any], env: Mapping[str, str]) -> Dict[str, str]:
    """The environment with the variables that sbatch would have set for this script: its own name, directory and
    array, in place of those of the job that shoal submitted."""
    script, found = spec["script"], dict(env)
    found["SLURM_JOB_NAME"] = script["job_name"]
    found["SLURM_SUBMIT_DIR"] = script["submit_dir"]
    task = script.get("array")
    job = found.get("SLURM_ARRAY_JOB_ID") or found.get("SLURM_JOB_ID")
    for name in _ARRAY_VARIABLES:
        found.pop("SLURM_ARRAY_TASK_" + name, None)
    found.pop("SLURM_ARRAY_JOB_ID", None)
    if task is not None:
        names = {"ID": "index", "COUNT": "count", "MIN": "min", "MAX": "max", "STEP": "step"}
        found.update(("SLURM_ARRAY_TASK_" + name, str(task[key])) for name, key in names.items())
        found["SLURM_ARRAY_JOB_ID"] = job or str(_local_id())
    return found


def add_local_variables(script: Mapping[str, Any], env: Dict[str, str], folder: str) -> None:
    """What an allocation of one node would tell, from the script's own request; and our srun before any other."""
    node, number = socket.gethostname().partition(".")[0], str(_local_id())
    env.update(script.get("variables") or {})
    env.update(
        SLURM_JOB_ID=number,
        SLURM_JOBID=number,
        SLURM_JOB_NODELIST=node,
        SLURM_NODELIST=node,
        SLURMD_NODENAME=node,
        SLURM_JOB_NUM_NODES="1",
        SLURM_NNODES="1",
        SLURM_NODEID="0",
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
        SLURM_GTIDS="0",
        SLURM_CLUSTER_NAME="local",
        SLURM_SUBMIT_HOST=node,
        SLURM_JOB_USER=getpass.getuser(),
        SLURM_JOB_UID=str(os.getuid()),
        SLURM_JOB_START_TIME=str(int(time.time())),
    )
    for name, value in (one.partition("=")[::2] for one in (script.get("export") or "").split(",") if "=" in one):
        env[name] = value
    os.makedirs(folder, exist_ok=True)
    for program in ("srun", "scontrol"):
        path = os.path.join(folder, program)
        words = " ".join("'%s'" % word.replace("'", "'\\''") for word in [*agent_argv(), program])
        with open(path, "w") as file:
            file.write('#!/bin/sh\nexec %s "$@"\n' % words)
        os.chmod(path, 0o700)
    env["PATH"] = os.pathsep.join([folder, env.get("PATH", os.defpath)])


def _local_id() -> int:
    return _FIRST_LOCAL_ID + os.getpid()


def expand_pattern(pattern: str, script: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """A file name of --output with its %j, %A, %a, %x, %u, %N as sbatch replaces them for a batch script."""
    job, task = env.get("SLURM_JOB_ID", ""), (script.get("array") or {}).get("index")
    values = {
        "A": env.get("SLURM_ARRAY_JOB_ID") or job,
        "a": "4294967294" if task is None else str(task),
        "b": "4294967294" if task is None else str(task % 10),
        "J": job,
        "j": job,
        "N": (env.get("SLURMD_NODENAME") or processes.node_name()).partition(".")[0],
        "n": "0",
        "s": "4294967294",
        "t": "0",
        "u": getpass.getuser(),
        "x": script["job_name"],
        "X": script["job_name"],
        "%": "%",
    }
    if "\\" in pattern:  # sbatch: a backslash switches replacement off
        return pattern.replace("\\", "")
    return _PATTERN.sub(lambda found: values[found.group(2)].zfill(int(found.group(1) or 0)), pattern)


class OutputCopies:
    """Copies what a script prints to the files that its --output and --error name.

    With --output alone the attempt's log is copied. Where --error names another file, the two streams are written
    apart, and both are copied to the log as well.
    """

    def __init__(self, attempt: "Attempt", environ: Mapping[str, str]) -> None:
        spec, script = attempt.spec, attempt.spec["script"]
        env = script_environment(spec, environ)
        if not env.get("SLURM_JOB_ID"):
            env["SLURM_JOB_ID"] = str(_local_id())
        self._over = threading.Event()
        self._threads: List[threading.Thread] = []
        self._raw: List[str] = []
        output, error = (self._open(attempt, name, script, env) for name in ("output", "error"))
        if error is not None:
            attempt.streams = ("%s.stdout" % attempt.log, "%s.stderr" % attempt.log)
            self._raw = list(attempt.streams)
            self._follow(self._raw[0], [_append(attempt.log), *([output] if output else [])])
            self._follow(self._raw[1], [_append(attempt.log), error])
        elif output is not None:
            self._follow(attempt.log, [output])

    def _open(
        self, attempt: "Attempt", name: str, script: Mapping[str, Any], env: Mapping[str, str]
    ) -> Optional[BinaryIO]:
        """The file that an option names; None if it names none, or none of its own."""
        if not script.get(name) or (name == "error" and script.get("error") == script.get("output")):
            return None
        path = os.path.join(attempt.spec["cwd"], expand_pattern(script[name], script, env))
        if os.path.realpath(path) == "/dev/null":
            return open(os.devnull, "wb")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return open(path, "ab" if script.get("append") else "wb")
        except OSError as problem:
            text = "shoal: cannot write --%s %s: %s\n" % (name, path, (problem.strerror or "").lower())
            with open(attempt.log, "ab") as file:
                file.write(text.encode("utf-8", "replace"))
            return None

    def _follow(self, path: str, copies: List[BinaryIO]) -> None:
        open(path, "ab").close()
        self._threads.append(threading.Thread(target=_copy_lines, args=(path, copies, self._over), daemon=True))
        self._threads[-1].start()

    def close(self) -> None:
        """Copy what is left."""
        self._over.set()
        for thread in self._threads:
            thread.join(_MAX_JOIN_S)
        for path in self._raw:
            try:
                os.unlink(path)
            except OSError:
                pass
        self._threads, self._raw = [], []


def _append(path: str) -> BinaryIO:
    return open(path, "ab")


def _copy_lines(path: str, copies: List[BinaryIO], over: threading.Event) -> None:
    """Copy what is appended to a file until `over`; a copy that cannot be written is given up."""
    with open(path, "rb") as file:
        while True:
            finished = over.is_set()
            data = file.read(1 << 16)
            for copy in list(copies) if data else ():
                try:
                    copy.write(data)
                    copy.flush()
                except OSError as problem:
                    print("shoal: cannot write %s: %s" % (copy.name, problem), file=sys.stderr, flush=True)
                    copies.remove(copy)
            if not data and finished:
                break
            if not data:
                over.wait(_POLL_S)
    for copy in copies:
        copy.close()
