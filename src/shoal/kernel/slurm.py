"""The one caller of Slurm: argument lists, time limits, a clean environment, and retries where they are safe.

    done = slurm.run_command(["sinfo", "-h"], 30.0, os.environ)    any program; see `CommandResult`
    answer = slurm.sbatch(options, script, environ)                submit, once; never retried

`run_command` never raises for what happens to the program: one that cannot be started, or does not answer in time, is a
`CommandResult` with a `failure`. A program that ran and failed is an answer, because only the caller knows what that
means: for sbatch it does not mean "not submitted". What Slurm prints is read in slurm_text.py.
"""

import signal
import subprocess
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import slurm_job, slurm_text
from .lease import LEASE_VARIABLE as LEASE_VARIABLE
from .slurm_job import JobDescription
from .slurm_text import JobRow, JobState, SbatchAnswer, classify_sbatch

__all__ = [
    "BAD_ARGUMENTS",
    "ENDING_TIMEOUT_S",
    "PROGRAM_MISSING",
    "QUERY_TIMEOUT_S",
    "SBATCH_TIMEOUT_S",
    "TIMED_OUT",
    "USER_VARIABLES",
    "CommandResult",
    "JobRow",
    "JobState",
    "SbatchAnswer",
    "SqueueResult",
    "classify_sbatch",
    "clean_environ",
    "expand_hostlist",
    "is_read_only",
    "job_end_time",
    "job_state",
    "pending_dependencies",
    "run_command",
    "sacct",
    "sbatch",
    "scancel",
    "squeue",
    "step_environ",
    "update_job",
]

QUERY_TIMEOUT_S = 30.0
#: Of questions and signals while a job is being ended: Slurm kills it KillWait (30 s by default) after SIGTERM.
ENDING_TIMEOUT_S = 20.0
#: sbatch itself gives up after MessageTimeout (10 s by default, 100 s at busy sites).
SBATCH_TIMEOUT_S = 120.0
#: Slurm's programs wait 4 s for a controller that refuses connections (measured with 22.05), and are not asked again.
#: Where they gave up at once, as when it went away in the middle, a question is repeated until it has taken this long.
RETRY_WITHIN_S = 3.0
_RETRY_PAUSE_S = 0.5

#: `CommandResult.failure`: the program cannot be started; it was stopped by us and Slurm may have acted or not; an
#: argument cannot be passed to any program (a NUL in it, or too long).
PROGRAM_MISSING, TIMED_OUT, BAD_ARGUMENTS = "missing", "timed out", "unusable arguments"
#: What a shell and timeout(1) return for the same.
_FAILURE_CODES = {PROGRAM_MISSING: 127, TIMED_OUT: 124, BAD_ARGUMENTS: 126}

#: Variables of these families are options in disguise: SBATCH_PARTITION moves a job, SQUEUE_STATES hides one,
#: SLURM_TIME_FORMAT changes what a time looks like, SCANCEL_INTERACTIVE waits for an answer.
_OPTION_PREFIXES = (
    "SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "SPRIO_",
)  # fmt: skip
#: These say which cluster to talk to and who we are; without them nothing answers.
_KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_JWKS", "SLURM_SACK_KEY")
#: shoal's own variables are about one run, and never travel to another job.
_SHOAL_PREFIX = "SHOAL_"
#: Settings of a person among them: all jobs of a run must agree on how they keep time, and find the same disk; how
#: often they sample, and how long they wait for a search's sampler and for MLflow.
USER_VARIABLES = (
    LEASE_VARIABLE, "SHOAL_SCRATCH", "SHOAL_SCRATCH_LIMIT", "SHOAL_SAMPLE_S", "SHOAL_SAMPLER_S", "SHOAL_MLFLOW_S",
)  # fmt: skip
#: What Slurm, or a site's prolog, gives one job. Outside a job the same names are the user's own settings.
_JOB_VARIABLES = (
    "SLURMD_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "PMI_",
    "PMIX_", "TMPDIR",
)  # fmt: skip
#: srun takes options from these. A step says all of it itself, so that what the job was asked for cannot mix in.
_STEP_OPTIONS = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET",
    "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_DISTRIBUTION",
    "SLURM_CPU_BIND", "SLURM_TRES_PER_TASK", "SLURM_EXACT", "SLURM_OVERLAP", "SLURM_LABELIO", "SLURM_KILL_BAD_EXIT",
    "SLURM_WAIT", "SLURM_GRES", "SLURM_STEP_GRES",
)  # fmt: skip


class CommandResult(NamedTuple):
    """What a program said. Text is decoded with replacement: Slurm passes on bytes that other users chose.

    `failure` is empty, or one of MISSING, TIMED_OUT, UNUSABLE; then `stderr` says so in one sentence.
    """

    returncode: int
    stdout: str
    stderr: str
    failure: str = ""

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def problem(self) -> str:
        """What it wrote to stderr, in one line."""
        return " ".join(self.stderr.split())


class SqueueResult(NamedTuple):
    """The rows of one squeue. `problem`: Slurm did not answer; then absence from `rows` says nothing."""

    rows: List[JobRow]
    problem: Optional[str] = None


# ---- the environment


def clean_environ(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment that a new job gets: no options in disguise, and nothing that belongs to the current job."""
    kept = _without_options(environ)
    of_this_job = (_SHOAL_PREFIX, *_JOB_VARIABLES) if "SLURM_JOB_ID" in environ else (_SHOAL_PREFIX,)
    return {name: value for name, value in kept.items() if name in USER_VARIABLES or not name.startswith(of_this_job)}


def step_environ(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment of an srun that starts a step of this job: only its own arguments decide the step."""
    return {k: v for k, v in environ.items() if k not in _STEP_OPTIONS and not k.startswith("SRUN_")}


def _without_options(environ: Mapping[str, str]) -> Dict[str, str]:
    return {k: v for k, v in environ.items() if k in _KEPT_VARIABLES or not k.startswith(_OPTION_PREFIXES)}


# ---- any program


def run_command(
    argv: Sequence[str],
    timeout_s: float,
    environ: Mapping[str, str],
    stdin: Union[str, bytes, None] = None,
) -> CommandResult:
    """Run `argv` to its end, in English; `environ` is the caller's environment before cleaning.

    A question that only reads is asked again for a moment when the controller cannot be reached; `timeout_s` is the
    limit of all tries together. Anything else runs once.
    """
    env = dict(_without_options(environ), LC_ALL="C")
    began = time.monotonic()
    while True:
        done = _run_once(argv, timeout_s - (time.monotonic() - began), env, stdin, timeout_s)
        taken_s = time.monotonic() - began
        if done.ok or done.failure or not is_read_only(argv) or not slurm_text.is_controller_silent(done.stderr):
            return done
        if slurm_text.has_no_cluster(done.stderr):
            return done  # Nobody will answer a moment later either; every command on such a machine would wait.
        if taken_s + _RETRY_PAUSE_S >= min(RETRY_WITHIN_S, timeout_s):
            return done
        time.sleep(_RETRY_PAUSE_S)


def is_read_only(argv: Sequence[str]) -> bool:
    """Whether the controller is only read, so that asking twice changes nothing."""
    words = [word for word in argv[1:] if not word.startswith("-")]
    return argv[0] in ("squeue", "sinfo") or (argv[0] == "scontrol" and words[:1] == ["show"])


def _run_once(
    argv: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str],
    stdin: Union[str, bytes, None],
    limit_s: float,
) -> CommandResult:
    """`limit_s` is the limit that the caller set, for the message."""
    program = argv[0]
    given = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin or b""
    try:
        done = subprocess.run(
            list(argv),
            input=given,
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed_result(TIMED_OUT, "%s did not answer within %g s" % (program, limit_s))
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        return _failed_result(PROGRAM_MISSING, "cannot run %s: %s" % (program, error.strerror))
    except (OSError, ValueError) as error:
        return _failed_result(BAD_ARGUMENTS, "cannot pass these arguments to %s: %s" % (program, error))
    return CommandResult(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


def _failed_result(failure: str, message: str) -> CommandResult:
    return CommandResult(_FAILURE_CODES[failure], "", message, failure)


# ---- changes


def sbatch(options: Sequence[str], script: Union[str, bytes], environ: Mapping[str, str]) -> SbatchAnswer:
    """Submit a script, given on standard input so that no file needs to be visible to anyone else yet.

    `environ`, cleaned, becomes the job's, so its locale stays. Never repeated here: a controller that was busy may
    create the job after sbatch gave up.
    """
    done = _run_once(
        ["sbatch", "--parsable", *options], SBATCH_TIMEOUT_S, clean_environ(environ), script, SBATCH_TIMEOUT_S
    )
    if done.failure:
        return SbatchAnswer("unclear" if done.failure == TIMED_OUT else "unreached", message=done.stderr)
    return classify_sbatch(done.returncode, done.stdout, done.stderr)


def scancel(
    job_ids: Iterable[str],
    environ: Mapping[str, str],
    *,
    signal_number: Optional[int] = None,
    state: Optional[str] = None,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> CommandResult:
    """Cancel jobs or steps, or send them a signal; with `state`, only those that are in it.

    `ok` also when a job has ended already: what was wanted is so.
    """
    options = ["--signal=%s" % signal.Signals(signal_number).name[3:]] if signal_number is not None else []
    options += ["--state=%s" % state] if state is not None else []
    done = run_command(["scancel", *options, *job_ids], timeout_s, environ)
    return done._replace(returncode=0) if slurm_text.has_ended_already(done.stderr) else done


def update_job(
    job: str, fields: Mapping[str, str], environ: Mapping[str, str], timeout_s: float = QUERY_TIMEOUT_S
) -> CommandResult:
    """Change fields of a job, as in update_job("12", {"JobName": "x"}, os.environ)."""
    changes = ["%s=%s" % (name, value) for name, value in fields.items()]
    return run_command(["scontrol", "update", "JobId=%s" % job, *changes], timeout_s, environ)


# ---- questions


def squeue(environ: Mapping[str, str], users: Sequence[str] = (), job: Optional[str] = None) -> SqueueResult:
    """Everything of ours that Slurm still has in memory: waiting, running, and ended less than MinJobAge ago.

    With `users`, everything of theirs, as far as Slurm shows it; with `job`, that one alone.
    """
    whose = ["-j", job] if job else ["-u", ",".join(users)] if users else ["--me"]
    argv = ["squeue", *whose, "-t", "all", "-r", "-h", "-o", slurm_text.SQUEUE_FIELDS]
    done = run_command(argv, QUERY_TIMEOUT_S, environ)
    if not done.ok:
        return SqueueResult([], done.problem or "squeue ended with code %d" % done.returncode)
    return SqueueResult(slurm_text.parse_squeue(done.stdout))


def sacct(job_ids: Iterable[str], since: float, environ: Mapping[str, str]) -> Optional[List[JobRow]]:
    """The accounting rows of jobs that squeue has forgotten, steps folded into their job; None without accounting.

    `since` is when the oldest of them was submitted: sacct would look at today only.
    """
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 86400))
    ids = sorted({job_id.partition("_")[0] for job_id in job_ids})
    wanted = ["-j", ",".join(ids)] if 0 < len(ids) <= 500 else []
    argv = ["sacct", "-D", "-n", "-P", "-S", begin, *wanted, "-o", slurm_text.SACCT_FIELDS]
    done = run_command(argv, QUERY_TIMEOUT_S, environ)
    return slurm_text.parse_sacct(done.stdout) if done.ok else None


def show_job(
    job: str, environ: Mapping[str, str], timeout_s: float = QUERY_TIMEOUT_S
) -> Optional[List[JobDescription]]:
    """What Slurm has in memory about a job, an array (its tasks) or a heterogeneous job (its parts): an empty list if
    it does not know it, None if it does not answer."""
    done = run_command(["scontrol", "show", "job", job], timeout_s, environ)
    if done.ok:
        return slurm_job.parse_jobs(done.stdout)
    return [] if slurm_text.is_job_unknown(done.stderr + done.stdout) else None


def queued_jobs(
    jobs: Sequence[str], environ: Mapping[str, str], timeout_s: float = QUERY_TIMEOUT_S
) -> Optional[List[JobDescription]]:
    """What Slurm has in memory about jobs, all of them in one question; those it does not know are left out. None if it
    does not answer."""
    columns = ",".join("%s:%d" % (name, width) for name, width, _ in slurm_job.QUEUED_COLUMNS)
    done = run_command(["squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-O", columns], timeout_s, environ)
    if done.ok:
        return slurm_job.parse_queued(done.stdout)
    return [] if slurm_text.is_job_unknown(done.stderr + done.stdout) else None


def accounted_jobs(
    jobs: Sequence[str], environ: Mapping[str, str], timeout_s: float = QUERY_TIMEOUT_S
) -> Optional[List[JobDescription]]:
    """What accounting has kept about jobs, of every cluster that it serves; an empty list without accounting, None if
    it does not answer."""
    argv = ["sacct", "-L", "-X", "-D", "-n", "-P", "-j", ",".join(jobs), "-o", ",".join(slurm_job.ACCOUNTING_FIELDS)]
    done = run_command(argv, timeout_s, environ)
    if done.ok:
        return slurm_job.parse_accounting(done.stdout)
    return [] if done.failure == PROGRAM_MISSING or slurm_text.has_no_accounting(done.stderr) else None


def batch_script(job: str, environ: Mapping[str, str]) -> Optional[str]:
    """The script of a job as Slurm has it; None where Slurm has none, or shows it to nobody else."""
    done = run_command(["scontrol", "write", "batch_script", job, "-"], QUERY_TIMEOUT_S, environ)
    return done.stdout if done.ok and done.stdout else None


def is_controller_up(environ: Mapping[str, str]) -> bool:
    """Whether a controller answers at this moment."""
    return " is UP" in run_command(["scontrol", "ping"], ENDING_TIMEOUT_S, environ).stdout


def job_state(job: str, environ: Mapping[str, str]) -> Optional[JobState]:
    """What Slurm says of a job that may be ending; None when it does not answer or has forgotten it."""
    argv = ["squeue", "--noheader", "--jobs=%s" % job, "--Format=JobID,State,PreemptTime,Reason"]
    done = run_command(argv, ENDING_TIMEOUT_S, environ)
    return slurm_text.parse_job_state(done.stdout, job) if done.ok else None


def pending_dependencies(environ: Mapping[str, str]) -> List[Tuple[str, str]]:
    """(job, what it waits for) of each pending job of ours; none if Slurm does not answer."""
    done = run_command(["squeue", "--me", "-h", "-t", "PD", "-o", "%F|%E"], QUERY_TIMEOUT_S, environ)
    pairs = [line.partition("|") for line in sorted(set(done.stdout.splitlines()))] if done.ok else []
    return [(job, waits) for job, _, waits in pairs]


def job_end_time(job: str, environ: Mapping[str, str]) -> Optional[float]:
    """When Slurm will end a job (Unix time); None where nothing ends it or Slurm does not answer."""
    done = run_command(["squeue", "-h", "-j", job, "-o", "%e"], QUERY_TIMEOUT_S, environ)
    return slurm_text.parse_time(done.stdout) if done.ok else None


def expand_hostlist(nodelist: str, environ: Mapping[str, str]) -> Optional[List[str]]:
    """Slurm's own expansion of n[1-4], which needs no controller; None if scontrol cannot be asked."""
    done = run_command(["scontrol", "show", "hostnames", nodelist], QUERY_TIMEOUT_S, environ)
    return done.stdout.split() if done.ok else None


def current_job(environ: Mapping[str, str]) -> Dict[str, Any]:
    """The job that this process is of: its number, the one that people type, how often Slurm has started it, its nodes.

    In a step of its own a process has one node of several.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job = {
        "job_id": environ.get("SLURM_JOB_ID"),
        "job_label": "%s_%s" % (array, task) if array and task else environ.get("SLURM_JOB_ID"),
        "life": int(environ.get("SLURM_RESTART_COUNT") or 0),
        "node": environ.get("SLURMD_NODENAME"),
        "nodes": environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"),
    }
    return dict(job, array_job_id=array) if array else job


def after_current_job(job: str, environ: Mapping[str, str]) -> List[str]:
    """The option that lets a job start when `job` has ended, if that is the job of this process.

    Another one has ended already, and a controller that lost its state may have given its number to somebody else.
    """
    own = current_job(environ)
    return ["--dependency=afterany:%s" % job] if job in (own["job_id"], own["job_label"]) else []
