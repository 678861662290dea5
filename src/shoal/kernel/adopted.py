"""Attempts of jobs that shoal did not start: such a job writes no records, so each command that looks at it does.

An adopted run has the records of any other: a spec, a claim, a submission that was accepted, and an attempt for each
time that Slurm started the job. The attempt begins when Slurm says that the job runs, and ends when Slurm says how it
ended. Its lease is never renewed, and its end is written once, by the first command that sees it
(lease.end_unheld_attempt). What Slurm does not tell, such as how a forgotten job ended, is not invented.

The log stays where the job writes it; the attempt has links to it. Nothing here changes the job.
"""

import os
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from . import files, layout, lease, slurm, slurm_job
from .fence import Claim, read_claim
from .records import End, Start
from .slurm_job import JobDescription
from .slurm_text import SLURM_ACTIVE_STATES, SLURM_ENDED_STATES

#: In an end record: Slurm has forgotten the job, and nothing tells how it ended.
FORGOTTEN = "forgotten"
#: In an end record: Slurm has put the job into the queue again, or ended it; SIGTERM is what it sends.
_BY_SLURM = "SIGTERM"
JOB_FILE = "job.json"
#: Start times of one start, by squeue, scontrol and sacct.
_SAME_START_S = 2.0
_DEFAULT_LOGS = ("slurm-%A_%a.out", "slurm-%j.out")


def keep_description(folder: str, job: JobDescription) -> None:
    """Write down what Slurm said about a job when it was adopted."""
    files.create_exclusive(os.path.join(folder, JOB_FILE), files.to_json(dict(job._asdict(), schema=1)))


def kept_description(folder: str) -> Optional[JobDescription]:
    record: Optional[Dict[str, Any]] = files.read_json(os.path.join(folder, JOB_FILE))
    if record is None:
        return None
    return JobDescription(**{key: record[key] for key in JobDescription._fields if key in record})


class JobAnswer(NamedTuple):
    """What Slurm and accounting say about a job now; `is_known_to_be_gone`: both have answered and have no such job."""

    job: Optional[JobDescription]
    is_known_to_be_gone: bool = False


def find_job(known: JobDescription, environ: Mapping[str, str]) -> JobAnswer:
    """Ask Slurm about an adopted job, and if that has forgotten it, as it does after minutes, accounting."""
    shown = slurm.show_job(known.label, environ)
    is_shown = any(is_same_job(known, job) for job in shown or ())
    accounted = None if is_shown else slurm.accounted_jobs([known.label], environ)
    found = [job for job in (*(accounted or ()), *(shown or ())) if is_same_job(known, job)]
    return JobAnswer(found[-1] if found else None, not found and shown is not None and accounted is not None)


def is_same_job(known: JobDescription, job: JobDescription) -> bool:
    """A controller that has lost its state gives the same numbers to other jobs."""
    return (
        (job.label, job.uid) == (known.label, known.uid)
        and job.cluster in (None, known.cluster)
        and (job.name == known.name or job.submitted == known.submitted)
    )


def is_same_start(start: Start, started: Optional[float]) -> bool:
    return started is None or abs(started - start.t) < _SAME_START_S


def write_attempts(claim: Claim, job: JobDescription, now: float) -> bool:
    """Write down what a job has done since it was last looked at; True if there was anything.

    A job that is completing tells too little: it ends or waits again, and its times may be those of the next start.
    """
    if job.word == "COMPLETING":
        return False
    names = layout.parse_names(files.list_names(claim.run_dir))
    last = lease.read_attempt(claim.run_dir, names, names.attempt) if names.attempt else None
    start = last.start if last is not None and last.start.generation == claim.generation else None
    has_begun = job.started is not None and SLURM_ACTIVE_STATES.get(job.word) != "pending"
    is_news = False
    if start is not None and names.is_live(start.attempt) and not (has_begun and is_same_start(start, job.started)):
        ended = job.submitted if job.submitted is not None and job.submitted > start.t else now
        is_news = _write_end(claim, names, requeued_end(start, min(ended, now)))
        names = layout.parse_names(files.list_names(claim.run_dir))
    if has_begun and (start is None or not is_same_start(start, job.started)):
        start = _begin(claim, names.attempt + 1, job)
        is_news = is_news or start is not None
        names = layout.parse_names(files.list_names(claim.run_dir))
    if start is not None and names.is_live(start.attempt) and job.word in SLURM_ENDED_STATES:
        is_news = _write_end(claim, names, end_of_job(start, job, now)) or is_news
    return is_news


def write_forgotten(claim: Claim, reason: str) -> bool:
    """End the attempt of a job that Slurm has forgotten: when it last printed something is all that is known."""
    names = layout.parse_names(files.list_names(claim.run_dir))
    last = lease.read_attempt(claim.run_dir, names, names.attempt) if names.attempt else None
    if last is None or last.state != "live":
        return False
    times = [last.start.t]
    for path in layout.log_files(claim.log_dir, last.number):
        try:
            times.append(os.stat(path).st_mtime)
        except OSError:
            pass
    end = End.after(last.start, max(times))._replace(stopped_by=FORGOTTEN, cause="lost", problem=reason)
    return _write_end(claim, names, end)


def refresh(home: str, name: str, environ: Mapping[str, str], now: float) -> None:
    """Ask Slurm about the job of a run if that is an adopted one, and write down what it says."""
    run_dir = layout.run_dir(home, name)
    claim = read_claim(run_dir, layout.parse_names(files.list_names(run_dir)).generation)
    known = kept_description(layout.submission_dir(home, claim.token)) if claim is not None else None
    job = find_job(known, environ).job if known is not None else None
    if claim is not None and job is not None:
        write_attempts(claim, job, now)


def write_superseded(run_dir: str, now: float) -> bool:
    """End the attempt of an adopted job that was cancelled because its replacement goes on as the run."""
    names = layout.parse_names(files.list_names(run_dir))
    last = lease.read_attempt(run_dir, names, names.attempt) if names.attempt else None
    if last is None or last.state != "live" or not last.start.adopted:
        return False
    end = End.after(last.start, now)._replace(
        stopped_by="superseded", cause="superseded", problem="cancelled when its replacement took over (shoal switch)"
    )
    return lease.end_unheld_attempt(run_dir, names, last.number, end)


def end_of_job(start: Start, job: JobDescription, now: float) -> End:
    """The end of an attempt as Slurm tells it. An exit code that says nothing, as 0 after a time limit, is left out."""
    by_program = SLURM_ENDED_STATES.get(job.word) in (SLURM_ENDED_STATES["COMPLETED"], SLURM_ENDED_STATES["FAILED"])
    code, problem = job.exit_code, None
    if job.signal and (code, job.signal) != (0, 53):
        code = 128 + job.signal
    elif code == 0 and job.word != "COMPLETED":
        code = None
    if (job.exit_code, job.signal) == (0, 53):
        code, problem = None, "Slurm could not open the output file: its folder is missing or not writable"
    success = job.word == "COMPLETED" and code == 0
    return End.after(start, job.ended if job.ended is not None else now)._replace(
        exit_code=code,
        success=success,
        signal=_signal_name(job.signal) if code is not None and job.signal else None,
        stopped_by=None if by_program else _BY_SLURM,
        problem=problem,
        submitted=job.submitted,
        oom=job.word == "OUT_OF_MEMORY",
    )


def requeued_end(start: Start, ended: float) -> End:
    return End.after(start, ended)._replace(stopped_by=_BY_SLURM)


def _write_end(claim: Claim, names: layout.RunNames, end: End) -> bool:
    return lease.end_unheld_attempt(claim.run_dir, names, end.attempt, end)


def _begin(claim: Claim, number: int, job: JobDescription) -> Optional[Start]:
    """Begin an attempt; None if another process has begun it."""
    start = Start(
        attempt=number,
        generation=claim.generation,
        revision=claim.revision,
        token=claim.token,
        host=job.batch_host or job.node_list or "",
        pid=0,
        started=None,
        t=job.started or 0.0,
        output_dir=claim.output_dir,
        log_dir=claim.log_dir,
        uid=job.uid,
        mark="adopted-%s-%d" % (claim.token, number),
        job_id=job.job_id,
        job_label=job.label,
        array_job_id=job.array_job_id,
        life=job.life,
        node=job.batch_host,
        nodes=job.node_list,
        adopted=True,
    )
    _link_logs(claim.log_dir, number, job)
    held = lease.create_lease(claim.run_dir, number, start, lease.timing({}))
    return start if held is not None else None


def _link_logs(folder: str, number: int, job: JobDescription) -> None:
    """Links to what the job prints: its log, and its errors where those have a file of their own."""
    out, err = _log_paths(folder, job)
    links = {layout.log_file(folder, number): out, layout.error_log_file(folder, number): err}
    for link, path in links.items():
        if path is not None:
            try:
                os.symlink(path, link)
            except FileExistsError:
                pass


def _log_paths(folder: str, job: JobDescription) -> List[Optional[str]]:
    """[log, errors if they have their own file]. Accounting does not know them: then as they were when the job was
    adopted, or the file that sbatch writes by default, if that exists."""
    known = job if job.stdout or job.stderr else kept_description(folder)
    if known is not None and (known.stdout or known.stderr):
        filled = job._replace(work_dir=known.work_dir or job.work_dir)
        out, err = slurm_job.log_path(filled, known.stdout), slurm_job.log_path(filled, known.stderr)
        return [out, err if err != out else None]
    paths = [
        slurm_job.log_path(job, pattern) for pattern in (_DEFAULT_LOGS if job.task is not None else _DEFAULT_LOGS[1:])
    ]
    return [next((path for path in paths if path is not None and os.path.isfile(path)), None), None]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
