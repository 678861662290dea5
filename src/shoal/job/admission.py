"""Submit runs that wait for room under the project's budget: whoever frees room sends the next ones.

    queue/<cluster>/limits.json       the budget: jobs, nodes, gpus; can be changed at any time; submit: the account's;
                                      attempts: the maximum number of attempts of a run, whatever its step says;
                                      scopes: the same for a step or an experiment, and its priority; declared: those
                                      of shoal.toml, where a number may be the path of a file that holds it
    queue/<cluster>/<order>.<token>.<uid>   a waiting submission of that user, with what it needs; sent in this order
    queue/<cluster>/turn.<n>          who submits waiting runs at the moment; turn.<n>.end when that is finished

Called by a job that ends and by shoal's own commands, so that no service has to run. Room is the budget less what one
squeue shows. Without an answer of squeue nothing may be assumed to have ended: a job that ends then hands over its own
room and no more.

The line is ordered by priority and then by time. A submission that has no room under the limit of its step or
experiment holds up others of that scope only; one that has no room under the project's limit holds up all behind it.

In a shared project the budget counts the jobs of all its users, and each of them sends only their own submissions: a
job of one would run as that user, with that user's rights.

Slurm's accounting may limit the submitted jobs of a user, account or QOS further. The controller prints limit and use
together, `GrpSubmitJobs=50(4)`, which counts other people's jobs and other projects. An entry that was never used is
not shown there, so a limit that is known from elsewhere still has to be kept.
"""

import getpass
import json
import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ..kernel import files, layout, processes, records, slurm, submission
from . import job_constraints

_SUBMIT_LIMIT = re.compile(r"(\w*SubmitJobs\w*)=(\d+)\((\d+)\)")
_ASSOCIATION = re.compile(r"Account=(\S*) UserName=([^\s(]*)")


def slurm_room(account: Optional[str], qos: str) -> Optional[int]:
    """What is left under every limit that the controller shows; None where it shows none, or does not answer."""
    if not account:
        return None
    user = getpass.getuser()
    argv = ["scontrol", "show", "assoc_mgr", "flags=assoc,qos", "users=%s" % user, "accounts=%s" % account]
    argv += ["qos=%s" % qos] if qos else []
    done = slurm.run_command(argv, slurm.QUERY_TIMEOUT_S, os.environ)
    return parse_slurm_room(done.stdout, user, os.getuid(), account, qos.split(","))


def parse_slurm_room(text: str, user: str, uid: int, account: str, qos: List[str]) -> Optional[int]:
    """The least that any limit leaves. An account's own line tells its users' limit too, which is not its own."""
    left: List[int] = []
    counts: Tuple[str, ...] = ()  # beginnings of the names of limits that hold for us, where we are in the text
    inside = False
    for line in text.splitlines():
        words = line.split()
        owner = _ASSOCIATION.search(line)
        if owner is not None:
            mine = owner.group(1) == account and owner.group(2) in ("", user)
            counts = (("Grp", "Max") if owner.group(2) else ("Grp",)) if mine else ()
        elif line.startswith("QOS="):
            inside = line[4:].partition("(")[0] in qos
            counts = ("Grp",) if inside else ()
        elif words in (["Account", "Limits"], ["User", "Limits"]):
            counts = ()
        elif len(words) == 1 and "=" not in line:
            # The name of an account, or a user as a number or with one, above its limits within the QOS.
            counts = ("Max",) if inside and words[0] in (account, str(uid), "%s(%d)" % (user, uid)) else ()
        for name, maximum, used in _SUBMIT_LIMIT.findall(line):
            if name.startswith(counts):
                left.append(int(maximum) - int(used))
    return min(left) if left else None


_ENTRY = re.compile(r"(\d{20})\.([%s]+)(?:\.(\d+))?\Z" % layout.TOKEN_LETTERS)
_LOCK_FILE = re.compile(r"turn\.(\d+)(\.end)?\Z")
_TOKEN = re.compile(r"\.([%s]{%d})(?:-\d+)?\Z" % (layout.TOKEN_LETTERS, layout.TOKEN_LENGTH))
_RESOURCES = ("jobs", "nodes", "gpus")
_MAX_FOREIGN_LOCK_S = 120.0

ResourceCounts = Dict[str, int]
#: By scope: the name of a step or an experiment; "" is the whole project.
ScopedCounts = Dict[str, ResourceCounts]
PROJECT = ""


class AdmissionResult(NamedTuple):
    """What one round did: names let in, how many still wait, and why no more could be let in if squeue failed."""

    admitted: List[str]
    waiting: int
    problem: Optional[str] = None


def queue_dir(home: str, queue: str) -> str:
    return os.path.join(home, "queue", queue)


def waiting_entries(home: str, queue: str) -> List[Tuple[str, str]]:
    """(file name, token) of this user's submissions that wait, the first first."""
    folder = queue_dir(home, queue)
    found = []
    for name in files.list_names(folder):
        match = _ENTRY.match(name)
        if match and int(match.group(3) or _owner(os.path.join(folder, name))) == os.getuid():
            found.append((name, match.group(2)))
    return sorted(found)


def _owner(path: str) -> int:
    """Whose entry it is that an older shoal has written; nobody's if it has just gone."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return -1


def limits(home: str, queue: str) -> ScopedCounts:
    """What each scope may hold; of the project also `submit`, the account's own limit on jobs, where it is known."""
    found = {PROJECT: _pick(_read_limits(home, queue), (*_RESOURCES, "submit"))}
    for scope, values in scope_settings(home, queue).items():
        found[scope] = _pick(values, _RESOURCES)
    return {scope: counts for scope, counts in found.items() if counts}


def scope_settings(home: str, queue: str) -> Dict[str, Dict[str, int]]:
    """What was set for steps and experiments: by a command, or else in shoal.toml. A file that holds no number stands
    for 0, so that nothing more is sent until it does."""
    record = _read_limits(home, queue)
    found: Dict[str, Dict[str, int]] = {}
    for kind in ("declared", "scopes"):
        for scope, values in (record.get(kind) or {}).items():
            for name, value in values.items():
                found.setdefault(scope, {})[name] = value if isinstance(value, int) else read_number(value) or 0
    return found


def read_number(path: str) -> Optional[int]:
    """The whole number that a file holds, or None."""
    try:
        with open(path) as file:
            text = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if re.match(r"-?\d{1,9}\Z", text) else None


def _read_limits(home: str, queue: str) -> Dict[str, Any]:
    return files.read_json(os.path.join(queue_dir(home, queue), "limits.json")) or {}


def _pick(values: Dict[str, Any], kinds: Tuple[str, ...]) -> ResourceCounts:
    return {kind: int(values[kind]) for kind in kinds if values.get(kind) is not None}


def scopes_of(run: str, step: str) -> Tuple[str, ...]:
    """The scopes of a run, the narrower first: its step, its experiment."""
    return (step, run.split("/")[0])


def max_retries(home: str, token: str, times: int) -> int:
    """How often a submission's runs are tried again after a failure: as their step said, or as the budget says now."""
    intent = submission.read_submission_record(home, token)
    queue = (intent.queue if intent else None) or "-"
    settings = scope_settings(home, queue)
    found = [settings.get(scope, {}) for scope in (scopes_of(intent.runs[0], intent.step) if intent else ())]
    attempts = [values.get("attempts") for values in [*found, _read_limits(home, queue)]]
    return next((int(number) - 1 for number in attempts if number is not None), times)


def enqueue(home: str, queue: str, token: str, need: ResourceCounts) -> None:
    """Put a submission, whose folder is complete, at the end of the line."""
    folder = queue_dir(home, queue)
    files.make_dir(folder)
    name = "%020d.%s.%d" % (time.time_ns(), token, os.getuid())
    files.create_exclusive(os.path.join(folder, name), files.to_json(dict(need)))


def submission_counts(intent: records.Submission) -> ResourceCounts:
    """What a whole submission holds: its jobs, and what each has."""
    tasks = [word for word in intent.argv if word.startswith("--array=0-")] if intent.layout else []
    jobs = int(tasks[0][len("--array=0-") :].split("%")[0]) + 1 if tasks else 1
    return {"jobs": jobs, "nodes": jobs * intent.nodes, "gpus": jobs * intent.gpus}


class _Waiting(NamedTuple):
    """A submission in the line."""

    file: str
    token: str
    need: ResourceCounts
    scopes: Tuple[str, ...]
    needs: Tuple[str, ...]
    run: str


def _line(home: str, queue: str) -> List[_Waiting]:
    """This user's submissions that wait, in the order in which they are sent."""
    settings = scope_settings(home, queue)
    found = []
    for name, token in waiting_entries(home, queue):
        intent = submission.read_submission_record(home, token)
        need = files.read_json(os.path.join(queue_dir(home, queue), name)) or {}
        run = intent.runs[0] if intent is not None else ""
        scopes = scopes_of(run, intent.step) if intent is not None else ()
        priority = next((settings[scope]["priority"] for scope in scopes if "priority" in settings.get(scope, {})), 0)
        found.append((-priority, _Waiting(name, token, need, scopes, tuple(intent.needs) if intent else (), run)))
    return [waiting for _, waiting in sorted(found, key=lambda pair: (pair[0], pair[1].file))]


def admit(
    home: str, queue: str, ending: Optional[str] = None, freed: Optional[ResourceCounts] = None, wait_s: float = 10.0
) -> AdmissionResult:
    """Send this user's submissions that have room, in order. `ending`: a job that ends now; `freed`: what it held."""
    if not waiting_entries(home, queue):
        return AdmissionResult([], 0)
    turn = take_lock(home, queue, wait_s)
    if turn is None:
        return AdmissionResult([], len(waiting_entries(home, queue)), "another command is letting runs in")
    try:
        maxima = limits(home, queue)
        used, problem = project_usage(home, queue, ending)
        if problem is not None:
            used = _as_if_full(maxima, freed or {})
            if not freed or "submit" in maxima.get(PROJECT, {}) or set(maxima) - {PROJECT}:
                return AdmissionResult([], len(waiting_entries(home, queue)), problem)
        return AdmissionResult(_send_fitting(home, queue, used, maxima), len(waiting_entries(home, queue)), problem)
    finally:
        release_lock(home, queue, turn)


def _as_if_full(maxima: ScopedCounts, freed: ResourceCounts) -> ScopedCounts:
    """Without an answer of squeue: everything is in use but for what the ending job held."""
    whole = maxima.get(PROJECT, {})
    return {PROJECT: {kind: whole.get(kind, 0) - freed.get(kind, 0) for kind in _RESOURCES}}


def _send_fitting(home: str, queue: str, used: ScopedCounts, maxima: ScopedCounts) -> List[str]:
    admitted: List[str] = []
    blocked: Set[str] = set()
    line = _line(home, queue)
    unsent = {waiting.run for waiting in line}
    for waiting in line:
        full = full_scopes(waiting.need, used, maxima, waiting.scopes)
        if blocked.intersection((PROJECT, *waiting.scopes)) or full or unsent.intersection(waiting.needs):
            blocked.update(full)
            continue
        admitted += _send(home, waiting.token)
        _remove(os.path.join(queue_dir(home, queue), waiting.file))
        unsent.discard(waiting.run)
        used = add_usage(used, waiting.need, waiting.scopes)
    return admitted


def full_scopes(
    need: ResourceCounts, used: ScopedCounts, maxima: ScopedCounts, scopes: Tuple[str, ...] = ()
) -> List[str]:
    """The scopes under whose limits there is no room."""
    after = add_usage(used, need, scopes)
    return [
        scope
        for scope in (PROJECT, *scopes)
        if any(after[scope].get(kind, 0) > number for kind, number in maxima.get(scope, {}).items())
    ]


def add_usage(used: ScopedCounts, need: ResourceCounts, scopes: Tuple[str, ...] = ()) -> ScopedCounts:
    """What is held when this joins; for Slurm's own limit every job counts."""
    after = dict(used)
    for scope in (PROJECT, *scopes):
        before = used.get(scope, {})
        after[scope] = {kind: before.get(kind, 0) + int(need.get(kind, 0)) for kind in _RESOURCES}
        after[scope]["submit"] = before.get("submit", 0) + int(need.get("jobs", 0))
    return after


def project_usage(home: str, queue: str, ending: Optional[str] = None) -> Tuple[ScopedCounts, Optional[str]]:
    """What this project's jobs hold or wait for in Slurm, the ending one left out; or why squeue did not say.

    `submit` is what counts towards Slurm's own limit: this user's jobs of any project, the ending one too, and where
    the controller tells it, other people's under the same account.
    """
    others = [uid for uid in submitting_users(home) if uid != os.getuid()]
    record = _read_limits(home, queue)
    rows, problem = slurm.squeue(os.environ, [str(os.getuid()), *map(str, others)] if others else ())
    if problem is not None:
        return {PROJECT: dict.fromkeys((*_RESOURCES, "submit"), 0)}, problem
    used: ScopedCounts = {}
    submitted = 0
    held: Dict[str, Tuple[ResourceCounts, Tuple[str, ...]]] = {}
    for row in rows:
        token = _TOKEN.search(row.name)
        if row.has_ended:
            continue
        ours = row.uid == os.getuid() or not others
        submitted += ours and row.account == record.get("account", row.account)
        if token is None or row.job_id == ending:
            continue
        if token.group(1) not in held:
            held[token.group(1)] = _run_counts(home, queue, token.group(1))
        used = add_usage(used, *held[token.group(1)])
    if "submit" in record:
        left = slurm_room(record.get("account"), record.get("qos") or "")
        submitted = max(submitted, int(record["submit"]) - left if left is not None else 0)
    whole = used.get(PROJECT, dict.fromkeys(_RESOURCES, 0))
    return dict(used, **{PROJECT: dict(whole, submit=submitted)}), None


def _run_counts(home: str, queue: str, token: str) -> Tuple[ResourceCounts, Tuple[str, ...]]:
    """What one run of a submission holds, and its scopes; nothing if the submission is another project's."""
    intent = submission.read_submission_record(home, token)
    if intent is None or intent.queue != queue:
        return dict.fromkeys(_RESOURCES, 0), ()
    return {"jobs": 1, "nodes": intent.nodes, "gpus": intent.gpus}, scopes_of(intent.runs[0], intent.step)


def _send(home: str, token: str) -> List[str]:
    """Send one waiting submission of this user, if its run is still wanted. The first to mark it sends it."""
    intent = submission.read_submission_record(home, token)
    if intent is None or not intent.waits or not processes.is_own_record(intent._asdict()):
        return []
    if not _is_wanted(home, intent.runs[0], token):
        return []
    waits = job_constraints.dependency_option(home, list(intent.needs), any_end=intent.any_end)
    if waits.problem is not None:
        reason = "it builds on a run that is not under way: %s" % waits.problem
        submission.write_outcome(home, token, records.Outcome("void", reason=reason))
        return []
    argv = [*intent.argv, *(["--dependency=%s" % waits.waits] if waits.waits else [])]
    sent = submission.send(home, token, records.new_send(argv, intent.environment, time.time()))
    return [intent.runs[0]] if sent.kind == "accepted" else []


def _is_wanted(home: str, name: str, token: str) -> bool:
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    if not names.generation or names.has_submit(names.generation, "cancel"):
        return False
    claim = files.read_json(os.path.join(run_dir, layout.submit_file(names.generation, "claim"))) or {}
    return claim.get("token") == token


def take_lock(home: str, queue: str, wait_s: float) -> Optional[int]:
    """The number of our turn, or None if somebody else's does not end in time. A dead holder's turn is over."""
    folder = queue_dir(home, queue)
    files.make_dir(folder)
    deadline = time.monotonic() + wait_s
    while True:
        locks = [match for name in files.list_names(folder) for match in [_LOCK_FILE.match(name)] if match]
        newest = max([int(match.group(1)) for match in locks], default=0)
        ended = any(match.group(2) and int(match.group(1)) == newest for match in locks)
        if newest == 0 or ended or not _is_lock_held(os.path.join(folder, "turn.%d" % newest)):
            mine = dict(processes.own_identity(), t=time.time())
            if files.create_exclusive(os.path.join(folder, "turn.%d" % (newest + 1)), files.to_json(mine)):
                return newest + 1
            continue
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)


def release_lock(home: str, queue: str, turn: int) -> None:
    folder = queue_dir(home, queue)
    try:
        files.create_exclusive(os.path.join(folder, "turn.%d.end" % turn), b"{}\n")
        for name in files.list_names(folder):
            match = _LOCK_FILE.match(name)
            if match and int(match.group(1)) < turn:
                _remove(os.path.join(folder, name))
    except OSError:
        pass  # The turn ends by itself when this process does.


def _is_lock_held(path: str) -> bool:
    holder = files.read_json(path)
    if holder is None:
        return False
    alive = processes.is_process_alive(holder)
    return alive if alive is not None else time.time() - float(holder.get("t", 0)) < _MAX_FOREIGN_LOCK_S


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def store_environment(home: str, env: Dict[str, str]) -> str:
    """Keep an environment, which holds no secrets any more, for this user's eyes, once; returns its name."""
    import hashlib

    data = json.dumps(env, sort_keys=True).encode("utf-8", "surrogatepass")
    name = hashlib.sha256(data).hexdigest()[:16]
    folder = os.path.join(home, layout.ENVIRONMENTS_DIR, str(os.getuid()))
    files.make_private_dir(folder)
    path = os.path.join(folder, "%s.json" % name)
    if not os.path.exists(path):
        files.create_exclusive(path, data + b"\n")
    return name


def submitting_users(home: str) -> List[int]:
    """Everybody who has submitted something of this project and still has an account here."""
    import pwd

    found = []
    for name in files.list_names(os.path.join(home, layout.ENVIRONMENTS_DIR)):
        try:
            found.append(pwd.getpwuid(int(name)).pw_uid)
        except (KeyError, ValueError):
            pass  # an environment of an older shoal, or somebody who has left
    return sorted(found)
