"""The submission transaction: wherever a process of it is killed, no run is lost and none runs twice.

1. intent: `submission.json` and `script.sh`. Nothing can be sent that is not on disk first (a full disk stops here);
2. claim: each run's next generation, by exclusive creation. Of two that want it one wins, the other skips the run;
3. `send.<i>`, by exclusive creation: from here on Slurm may know the job, and no other process sends it;
4. sbatch, once, with the token in the job's name;
5. `send.<i>.outcome`, by exclusive creation: the first writer decides. If the submission was given up meanwhile and
   Slurm accepted the job all the same, that job is cancelled.

An unclear answer stays open: the next look at the runs finds the job by its name, or gives the submission up when it
can no longer turn into a job. It is never sent again blindly. Commands, jobs that end, scripts that people run
themselves, later jobs of a pack, waiting submissions of a budget and local runs all go through here.

Follow-ups: an end record has `next` where the step's policy wants another job. Nothing else is stored about it: it is
owed while no later generation is open or accepted and the run was not cancelled. The ending job tries for
FOLLOW_UP_GRACE_S; after that any `status` or `submit` of the same user does it, and any job of theirs that ends, by the
ordinary transaction of the next generation, whose claim only one of them wins. `owed/<token>`, left by a job that gave
up, only spares other jobs the search; it decides nothing.

For tests, points of the transaction are marked: with SHOAL_FAILPOINT=NAME the process kills itself there, as a crash
would.
"""

import errno
import os
import re
import signal
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from . import files, layout, records, slurm
from .records import ClaimRecord, FollowUp, Outcome, SendRecord, Submission

FAILPOINTS = (
    "before-spec",
    "before-submission",
    "after-submission",
    "between-claims",
    "after-claims",
    "before-sending",
    "after-sending",
    "after-sbatch",
    "before-outcome",
    "after-outcome",
    "before-report",
)


def failpoint(point: str) -> None:
    if os.environ.get("SHOAL_FAILPOINT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


#: A request that is lost can still turn into a job for as long as munge accepts its credential: 300 s, and some skew.
SEND_GRACE_S = 330.0
_SEND_FILE = re.compile(r"send\.(\d+)(\.outcome)?\Z")

#: (options, script, environment) -> what sbatch's answer proves.
Sbatch = Callable[[List[str], bytes, Mapping[str, str]], slurm.SbatchAnswer]


class SendResult(NamedTuple):
    """What came of a send. kind: accepted (with job_id), refused, unreached, unclear; void: given up by somebody else
    meanwhile, and cancelled; taken: somebody else sends it."""

    kind: str
    job_id: Optional[str] = None
    message: str = ""


def new_token() -> str:
    return "".join(layout.TOKEN_LETTERS[byte % 32] for byte in os.urandom(layout.TOKEN_LENGTH))


def job_name(name: str, token: str) -> str:
    """The Slurm job name; the token at its end is how a job is recognised, because Slurm reuses job ids."""
    return "%s.%s" % (name.replace("/", "."), token)


def write_intent(
    home: str,
    submission: Submission,
    script: Optional[bytes],
    queue: Optional[Dict[str, Any]] = None,
    opened: Callable[[], None] = lambda: None,
) -> str:
    """Write the intent, the script, and the queue of a pack; returns the folder. All of it is on disk, and nothing
    sent, when this returns.

    `opened` is called when the files can be read and are not yet on disk: what takes a while to begin may begin then.
    """
    folder = layout.submission_dir(home, submission.token)
    files.make_dir(folder, exist_ok=False)
    parts = {"submission.json": records.encode_record(submission)}
    if script is not None:
        parts["script.sh"] = script
    if queue is not None:
        parts["pack.json"] = files.to_json(queue)
    for name, data in parts.items():
        files.create_exclusive(os.path.join(folder, name), data, sync=False, executable=name == "script.sh")
    opened()
    files.sync_records([os.path.join(folder, name) for name in parts])
    return folder


def claim_generation(home: str, name: str, generation: int, record: ClaimRecord) -> bool:
    """Win a generation of a run, or learn that somebody else has. It must be the next one after those that were there
    when it was decided to start the run: whoever claimed in between has decided the same, and must win."""
    path = os.path.join(layout.run_dir(home, name), layout.submit_file(generation, "claim"))
    # A run that was never claimed has not ended: thousands of first claims need not be announced.
    create = files.create_exclusive if generation == 1 else files.create_in_run_dir
    return create(path, records.encode_record(record))


def submit_one(
    home: str,
    submission: Submission,
    script: bytes,
    generation: int,
    record: ClaimRecord,
    run_sbatch: Optional[Sbatch] = None,
) -> Optional[SendResult]:
    """The whole transaction for one run; None if somebody else won its generation."""
    write_intent(home, submission, script)
    if not claim_generation(home, submission.runs[0], generation, record):
        write_outcome(home, submission.token, Outcome("void", reason="another command claimed the run first"))
        return None
    return send(home, submission.token, run_sbatch=run_sbatch)


def send(
    home: str,
    token: str,
    record: Optional[SendRecord] = None,
    index: int = 0,
    environ: Optional[Mapping[str, str]] = None,
    run_sbatch: Optional[Sbatch] = None,
) -> SendResult:
    """Send a claimed submission, once, and write down what came of it.

    Without a `record` it is sent as its intent says, by whoever wrote that. `environ` is what travels with the job, by
    default the environment that the record names.
    """
    folder = layout.submission_dir(home, token)
    how = record or records.read_record(os.path.join(folder, "submission.json"), SendRecord)
    if how is None:
        return SendResult("unreached", message="%s has no submission.json" % folder)
    try:
        # Everything that it takes is read before the mark: what cannot be read has not been sent.
        script = files.read_trusted(os.path.join(folder, "script.sh"))
        travelling = stored_environment(home, how.environment) if environ is None else environ
    except PermissionError as error:
        message = "%s: %s" % (error.filename, error.strerror)
        write_outcome(home, token, Outcome("void", reason=message, refused=True), index)
        return SendResult("refused", message=message)
    files.open_umask(home)
    failpoint("before-sending")
    if not mark_sending(home, token, record, index):
        return SendResult("taken", message="another command has sent it")
    failpoint("after-sending")
    answer = (run_sbatch or slurm.sbatch)(list(how.argv), script, travelling)
    failpoint("after-sbatch")
    if answer.kind == "unclear":
        return SendResult(answer.kind, None, answer.message)
    if answer.kind == "accepted":
        outcome = Outcome("accepted", job_id=answer.job_id)
    else:
        outcome = Outcome("void", reason=answer.message, refused=answer.kind == "refused")
    failpoint("before-outcome")
    held = write_outcome(home, token, outcome, index)
    failpoint("after-outcome")
    if held.kind == "void" and answer.kind == "accepted":
        # Somebody gave this submission up while we were stopped: its job would only meet the fence.
        slurm.scancel([str(answer.job_id)], travelling)
        return SendResult("void", None, held.reason or "the submission was given up")
    return SendResult(answer.kind, answer.job_id, answer.message)


def accept_locally(home: str, token: str) -> None:
    """This machine takes what it is asked to run, and says so as Slurm does."""
    failpoint("before-sending")
    mark_sending(home, token)
    failpoint("after-sending")
    write_outcome(home, token, Outcome("accepted"))
    failpoint("after-outcome")


def mark_sending(home: str, token: str, record: Optional[SendRecord] = None, index: int = 0) -> bool:
    """From here on Slurm may know the job, whatever happens to us; False if somebody else has set the mark.

    Whoever wrote the intent, and sends it as it is, gives it a second name: no further file, and nothing to write.
    """
    folder = layout.submission_dir(home, token)
    intent, path = os.path.join(folder, "submission.json"), os.path.join(folder, layout.send_file(index))
    if record is not None:
        return files.create_exclusive(path, records.encode_record(record))
    try:
        os.link(intent, path)
    except FileExistsError:
        # Nobody else marks by link, so the same file means that an NFS client has resent our own request.
        return os.path.samefile(intent, path)
    except OSError:  # a file system without hard links
        with open(intent, "rb") as file:
            return files.create_exclusive(path, file.read())
    files.sync_records([path])
    return True


def write_outcome(home: str, token: str, outcome: Outcome, index: int = 0) -> Outcome:
    """Write what became of a send and return what holds: the first outcome written, perhaps somebody else's."""
    path = os.path.join(layout.submission_dir(home, token), layout.outcome_file(index))
    if files.create_exclusive(path, records.encode_record(outcome)):
        return outcome
    return records.read_record(path, Outcome) or outcome


def read_submission_record(home: str, token: str) -> Optional[Submission]:
    return records.read_record(os.path.join(layout.submission_dir(home, token), "submission.json"), Submission)


def outcome_of(home: str, token: str, index: int = 0) -> Optional[Outcome]:
    return records.read_record(os.path.join(layout.submission_dir(home, token), layout.outcome_file(index)), Outcome)


def last_send(home: str, token: str) -> Optional[SendRecord]:
    """With which options and environment a submission was sent, or would be if it waits; None if nothing says."""
    record = records.read_record(os.path.join(layout.submission_dir(home, token), layout.send_file(0)), SendRecord)
    if record is not None:
        return record
    intent = records.read_record(os.path.join(layout.submission_dir(home, token), "submission.json"), SendRecord)
    return intent if intent is not None and intent.argv else None


def read_sends(folder: str) -> List[Tuple[int, SendRecord, Optional[Outcome]]]:
    """Every call of sbatch of a submission, in record, with what became of it."""
    names = files.list_names(folder)
    found = []
    for index in sorted(int(match.group(1)) for match in map(_SEND_FILE.match, names) if match and not match.group(2)):
        record = records.read_record(os.path.join(folder, layout.send_file(index)), SendRecord)
        if record is not None:
            found.append(
                (index, record, records.read_record(os.path.join(folder, layout.outcome_file(index)), Outcome))
            )
    return found


def stored_environment(home: str, name: Optional[str]) -> Mapping[str, str]:
    """The environment of a submission as this user has kept it; ours, without what belongs to this job, where there is
    none. One that somebody else has put there is a PermissionError: a job would execute what its PATH says."""
    path = os.path.join(home, layout.ENVIRONMENTS_DIR, str(os.getuid()), "%s.json" % name)
    kept = files.read_json(path) if name else None
    if kept is None:
        return slurm.clean_environ(os.environ)
    if os.stat(path).st_uid != os.geteuid() and files.is_shared(home):
        raise PermissionError(errno.EPERM, "not used: an environment of another user", path)
    return kept


#: How long the ending job itself waits for Slurm to answer, and others leave it alone.
FOLLOW_UP_GRACE_S = 60.0
FOLLOW_UP_REASON = "continues as soon as Slurm answers"


def follow_up_grace_s(environ: Mapping[str, str]) -> float:
    return float(environ.get("SHOAL_OWED_S") or FOLLOW_UP_GRACE_S)


def is_follow_up_pending(
    following: Optional[FollowUp],
    ended: int,
    standing: int,
    refused: bool,
    claims: Iterable[int],
    cancels: Iterable[int],
) -> bool:
    """Whether what follows an end of generation `ended` still has to be done.

    `standing` is the newest generation whose submission was not given up, `refused` whether Slurm refused a later one:
    it would refuse it again. A person who cancelled the run since then does not want it any more.
    """
    if not following or ended != standing or refused or ended not in claims:
        return False
    return not any(generation >= ended for generation in cancels)


def is_follow_up_due(
    ended_at: float, tried_at: Optional[float], now: float, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether somebody else than the ending job may do it now: it had its time, and so had whoever tried last.

    A time far in the future was written by a clock that was wrong, and says nothing.
    """
    age_s, wait = now - max(ended_at, tried_at or 0.0), follow_up_grace_s(environ)
    return not -wait < age_s < wait
