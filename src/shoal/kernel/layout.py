"""Every file name under the state folder, in one place.

.shoal/
  .gitignore                        keeps all of it out of git
  project.json                      a random id of this project
  agent/<hash>.pyz                  the agent, as one file; queued jobs keep the one they were submitted with. In a
                                    shared project agent/<uid>/<hash>.pyz: everybody executes their own
  notify.json                       whom jobs tell about an end or a failure
  notices/<experiment>.<event>.<n>  it is told by the first writer, who adds .told afterwards; .again<k>: told again,
                                    because .told did not come
  cache/squeue-<uid>.json           the last answer of Slurm, shared by all who watch
  cache/views-<uid>/, summaries-<uid>/  what looks know of ended runs, one file per experiment (observe/cache_file.py)
  submissions/<token>/
    submission.json                 intent, before anything is sent: who, when, which runs, which code and packages
    script.sh                       the batch script, for people and for Slurm
    send.<i>                        from here on Slurm may know the job: who sent it, when, with which options; send.0
                                    may be a second name of submission.json, which says the same. Later jobs of a pack
                                    have i from 1, and their name ends with <token>-<i>
    send.<i>.outcome                accepted with a job id, or void; the first writer decides
    pack.json                       the queue of a pack, and how it is worked through
    claimed                         every run of a pack on this machine is claimed that will be
    engine.<host-pid>.json|lease|end    an engine of a pack: what it has, that it lives, how it ended
    allocation.<job>.<r>.<pid>      what Slurm granted the job when it started it for the r-th time, its begin and its
                                    end (allocations.py)
    account.<job>.<t>               what Slurm said of the job that it started at t after it had ended
    slurm-*.out                     what Slurm and the set-up lines printed
    job.json                        of an adopted job: what Slurm said about it when it was adopted
    attempt-<k>.out|err             of an adopted job: links to what it prints; .err where errors have their own file
  commands/<id>.json|done           a command that must not be carried out twice, and that it was
  owed/<token>                      an end of this submission could not be followed by what it owes (submission.py)
  queue/<cluster>/                  the budget, and the submissions that wait for room under it (job/admission.py)
  environments/<uid>/<hash>.json    an environment without secrets, as it was when something was submitted; for that
                                    person's eyes only
  snapshots/<tree>/                 the code as it was when something was submitted; .json and .diff beside it. In a
                                    shared project snapshots/<uid>/<tree>/. One that came over ssh has its list of
                                    files beside it, .files
  requests/<id>/                    an order that came over ssh, and its answer (remote/stub.py)
  scripts/<hash>/<name>             a batch script as it was when it was submitted. In a shared project
                                    scripts/<uid>/<hash>/<name>
  objects/<uid>/<ab>/<hash>.json|pkl   calls of Python functions, and their arguments; for that person's eyes only
  packages/<hash>.json              the packages of a Python that attempts or submissions used
  sweeps/<experiment>/<base>.<n>.json   what the names of a sweep's runs rest on
  early_stopping/<experiment>/<kind>.<engine>.jsonl   what runs had at the rungs of early stopping, as one engine saw it
  search/<experiment>/<trial>.json  the parameters of a trial of a search, bound once (trials.py)
  runs/<experiment>/<stem>/
    spec.<r>.json                   what the run is; r counts the times it was started over
    submit.<n>.claim                generation n belongs to the submission it names (written before sending, or by a
                                    replacement that takes the run over)
    submit.<n>.cancel               somebody asked to stop generation n
    submit.<n>.verdict<k>           Slurm's last word on attempt k's job, kept because Slurm forgets
    attempt.<k>.start               one execution: the record of its start, then of its end; k is never used twice
    attempt.<k>.live.<n>            the same file while it runs, renewed n times      } of these names it has
    attempt.<k>.end                 the same file: it ended, the record says how      } exactly one; every change
    attempt.<k>.lost.<n>            the same file: somebody else closed it            } is a rename (lease.py)
    attempt.<k>.node<m>             the same file: its further node m may run processes of it (lease.py)
    attempt.<k>.node<m>.live.<n>    the same file: the guard of node m renewed its lease n times
    attempt.<k>.handover            Slurm has started another job for this run, which waits for this one to end
    attempt.<k>.use                 what it used: memory, processors, GPUs, over its time
    attempt.<k>.use<n>              the same on a further node of the run
  cache/watch-<host>-<uid>.json     leases that this host has seen silent, and since when
"""

import os
import re
from typing import Dict, Hashable, Iterable, List, Mapping, NamedTuple, Optional, Tuple

#: Names that an attempt's file may have.
ATTEMPT_STATES = ("start", "live", "end", "lost")
#: Letters of a submission's token: none that people confuse.
TOKEN_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # noqa: S105
TOKEN_LENGTH = 12
ENVIRONMENTS_DIR = "environments"
#: A tree is 16 letters and digits, and no user has so long a number.
_SNAPSHOT_OWNER = re.compile(r"/snapshots/(\d{1,10})/[0-9a-f]{16}/")
_SNAPSHOT = re.compile(r"/snapshots/(?:\d{1,10}/)?[0-9a-f]{16}(?=/)/")
#: In the folder of a working directory: where the program starts, which code is there, and that not all of it is.
CWD_NAME, CODE_NAME, FILLING_NAME = ".cwd", ".code", ".filling"
_NUMBERED_FILE = re.compile(r"(spec|submit|attempt)\.(\d+)\.(\w+)(?:\.(\d+))?\Z")
_NODE_FILE = re.compile(r"attempt\.(\d+)\.node(\d+)(?:\.live\.(\d+))?\Z")


def submissions_dir(home: str) -> str:
    return os.path.join(home, "submissions")


def submission_dir(home: str, token: str) -> str:
    return os.path.join(home, "submissions", token)


def send_file(index: int) -> str:
    return "send.%d" % index


def outcome_file(index: int = 0) -> str:
    return "send.%d.outcome" % index


def runs_dir(home: str) -> str:
    return os.path.join(home, "runs")


def run_dir(home: str, name: str) -> str:
    """State folder of a run; `name` is "experiment/stem", both already safe as file names."""
    return os.path.join(home, "runs", *name.split("/"))


def early_stopping_dir(home: str, name: str) -> str:
    """Where early stopping notes what runs of an experiment had at its rungs."""
    return os.path.join(home, "early_stopping", name.split("/")[0])


def trial_file(home: str, experiment: str, trial: str) -> str:
    """The parameters of a trial, such as 000_train_t007."""
    return os.path.join(home, "search", experiment, "%s.json" % trial)


def snapshots_dir(home: str, shared: bool) -> str:
    """Where this user's snapshots of code stand; in a shared project nobody executes those of others."""
    return os.path.join(home, "snapshots", *([str(os.getuid())] if shared else []))


def kept_script(home: str, digest: str, name: str, shared: bool) -> str:
    """The copy of a batch script; in a shared project everybody executes their own."""
    return os.path.join(home, "scripts", *([str(os.getuid())] if shared else []), digest, name)


def objects_dir(home: str) -> str:
    """Where this user's calls of functions and their arguments are, by content."""
    return os.path.join(home, "objects", str(os.getuid()))


def is_own_snapshot(path: str) -> bool:
    """Whether a folder of a snapshot is not another user's; in a private project they have no user in their path."""
    whose = _SNAPSHOT_OWNER.search(path + "/")
    return whose is None or os.stat(path).st_uid == os.getuid() == int(whose.group(1))


def snapshot_of(code: str) -> str:
    """The whole snapshot that a project's folder in it belongs to; its record stands beside it."""
    for found in _SNAPSHOT.finditer(code + "/"):
        if os.path.isfile(code[: found.end() - 1] + ".json"):
            return code[: found.end() - 1]
    raise ValueError("%s is not in a snapshot" % code)


def work_dir(output_dir: str) -> str:
    """Where the working directory of a run stands (job/workdir.py)."""
    return os.path.join(output_dir, "work")


def link_cwd(output_dir: str, other: str) -> None:
    """Let a run in `other` start in the same place of its working directory as the one in `output_dir`."""
    cwd = os.path.join(work_dir(output_dir), CWD_NAME)
    if os.path.islink(cwd) and not os.path.lexists(os.path.join(work_dir(other), CWD_NAME)):
        os.makedirs(work_dir(other), exist_ok=True)
        os.symlink(os.readlink(cwd), os.path.join(work_dir(other), CWD_NAME))


def written_dirs(output_dir: str) -> List[str]:
    """Folders in which a run may have left something: its output folder, and where its program started."""
    cwd = os.path.join(work_dir(output_dir), CWD_NAME)
    return [output_dir, os.path.realpath(cwd)] if os.path.islink(cwd) else [output_dir]


def copy_mtime_ns(mtime_ns: int) -> int:
    """The time of a copy of a file of the code: in whole seconds, because some file systems keep no more."""
    return mtime_ns // 10**9 * 10**9


def is_code_copy(found: os.stat_result, size: int, mtime_ns: int) -> bool:
    """Whether a file in a working directory is still the copy of a file of the code that has this size and time."""
    return found.st_size == size and found.st_mtime_ns == copy_mtime_ns(mtime_ns)


class OwnFiles:
    """Tells what a run wrote from the code that is in its working directory while it runs, or that a killed attempt has
    left there: files of the snapshot, and links that the code has."""

    def __init__(self, output_dir: str) -> None:
        self._work = os.path.join(work_dir(output_dir), "")
        try:
            self._code: Optional[str] = os.readlink(os.path.join(self._work, CODE_NAME))
        except OSError:
            self._code = None  # as of most runs that have ended: everything there is theirs
            return
        self._real_work = os.path.join(os.path.realpath(self._work), "")
        self._cwd = os.path.realpath(os.path.join(self._work, CWD_NAME))
        try:
            self._top = os.path.join(snapshot_of(self._code), "")
        except ValueError:
            self._top = os.path.join(self._code, "")
        self._is_code_gone = not os.path.isdir(self._top)
        self._put_ns = _mtime_ns(os.path.join(self._work, CODE_NAME)) or 0
        self._filling_ns = _mtime_ns(os.path.join(self._work, FILLING_NAME))

    def __contains__(self, path: str) -> bool:
        """Whether the run wrote this file of its output folder, or something in this folder."""
        if self._code is None:
            return True
        if path.startswith(self._work):
            path = self._real_work + path[len(self._work) :]
        if not path.startswith(self._real_work):
            return True
        inside = os.path.relpath(path, self._cwd)
        parts = inside.split("/")
        for part in ("/".join(parts[:count]) for count in range(1, len(parts) + 1)):
            original = os.path.normpath(os.path.join(self._code, part))
            is_of_code = os.path.islink(original) or not original.startswith(self._top)
            if is_of_code and os.path.islink(os.path.join(self._cwd, part)):
                return False
        original = os.path.normpath(os.path.join(self._code, inside))
        if os.path.isdir(path):
            if os.path.isdir(original):
                return any(os.path.join(top, name) in self for top, _, names in os.walk(path) for name in names)
            return not self._is_code_gone or (_mtime_ns(path) or 0) > self._put_ns
        return self._is_own_file(path, original)

    def _is_own_file(self, path: str, original: str) -> bool:
        try:
            found = os.stat(path)
        except OSError:
            return False
        if self._filling_ns is not None and found.st_mtime_ns >= self._filling_ns:
            return False
        if self._is_code_gone:  # nobody can tell any more what older files are
            return found.st_mtime_ns > self._put_ns
        try:
            known = os.stat(original)
        except OSError:
            return True
        return not is_code_copy(found, known.st_size, known.st_mtime_ns)


def _mtime_ns(path: str) -> Optional[int]:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return None


def state_dir_of(run_dir: str) -> str:
    """The state folder that a run's folder stands in."""
    return os.path.dirname(os.path.dirname(os.path.dirname(run_dir)))


def run_name_of(run_dir: str) -> str:
    """The run whose state folder this is: "experiment/stem"."""
    return "/".join(run_dir.rstrip("/").split("/")[-2:])


def spec_file(revision: int) -> str:
    return "spec.%d.json" % revision


def submit_file(generation: int, kind: str) -> str:
    return "submit.%d.%s" % (generation, kind)


def verdict_kind(attempt: int) -> str:
    """Slurm's word is about one time the job ran: after a requeue another attempt gets another verdict."""
    return "verdict%d" % attempt


def log_file(log_dir: str, attempt: int) -> str:
    """What an attempt printed: its output and its errors in one file, in the order in which they came."""
    return os.path.join(log_dir, "attempt-%d.out" % attempt)


def error_log_file(log_dir: str, attempt: int) -> str:
    """What an attempt of an adopted job printed to standard error, where that is a file of its own."""
    return os.path.join(log_dir, "attempt-%d.err" % attempt)


def log_files(log_dir: str, attempt: int) -> List[str]:
    """All that an attempt printed: one file, or two of an adopted job that separates its errors."""
    errors = error_log_file(log_dir, attempt)
    return [log_file(log_dir, attempt), *([errors] if os.path.lexists(errors) else [])]


def attempt_file(attempt: int, kind: str) -> str:
    return "attempt.%d.%s" % (attempt, kind)


def lease_file(attempt: int, state: str, renewals: int) -> str:
    """`state` is live or lost. Always six digits, so that a renewal never needs a longer directory entry."""
    return "attempt.%d.%s.%06d" % (attempt, state, renewals)


def node_file(attempt: int, node: int, renewals: Optional[int] = None) -> str:
    """A name for a further node of a run: the permanent one, or with `renewals` that of its lease."""
    return "attempt.%d.node%d%s" % (attempt, node, "" if renewals is None else ".live.%06d" % renewals)


class RunNames(NamedTuple):
    """What a listing of a run's state folder says, before any file is opened: kind of file -> its numbers, sorted.

    `renewals` counts how often the lease of an attempt was renewed, as its name says: (attempt, live or lost) -> n.
    `nodes` are the further nodes on which processes of an attempt may run: attempt -> node -> how often its lease was
    renewed, None if a listing shows no lease.
    """

    specs: List[int]
    submits: Dict[str, List[int]]
    attempts: Dict[str, List[int]]
    renewals: Mapping[Tuple[int, str], int] = {}
    nodes: Mapping[int, Mapping[int, Optional[int]]] = {}

    @property
    def revision(self) -> int:
        return self.specs[-1] if self.specs else 0

    @property
    def generation(self) -> int:
        return self.submits["claim"][-1] if self.submits.get("claim") else 0

    @property
    def attempt(self) -> int:
        """The newest attempt, whatever became of it."""
        return max((self.attempts[kind][-1] for kind in ATTEMPT_STATES if self.attempts.get(kind)), default=0)

    def state(self, attempt: int) -> str:
        """live, end or lost. A listing made during a rename may show no state, or two; then it is live, or over.

        One whose first node was lost is live while one of its further nodes may run it.
        """
        if self.has_attempt(attempt, "end"):
            return "end"
        return "lost" if self.has_attempt(attempt, "lost") and not self.nodes.get(attempt) else "live"

    def is_live(self, attempt: int) -> bool:
        return attempt > 0 and self.state(attempt) == "live"

    def may_run(self, attempt: int) -> bool:
        """Whether processes of an attempt may run, on any of its nodes: nobody may begin the next one."""
        return self.is_live(attempt) or bool(self.nodes.get(attempt))

    def lease_names(self, attempt: int) -> Hashable:
        """Changes with each renewal of a lease of the attempt, on whichever node."""
        return self.renewals.get((attempt, "live")), tuple(sorted(self.nodes.get(attempt, {}).items()))

    @property
    def over(self) -> List[int]:
        """Attempts that have ended or were lost, oldest first."""
        return [number for number in self.attempts.get("start", []) if self.state(number) != "live"]

    def has_submit(self, generation: int, kind: str) -> bool:
        return generation in self.submits.get(kind, ())

    def has_attempt(self, attempt: int, kind: str) -> bool:
        return attempt in self.attempts.get(kind, ())


def parse_names(names: Iterable[str]) -> RunNames:
    """Sort a listing into numbers; names that are not ours (temporary files, stray ones) are passed over."""
    found: Dict[str, Dict[str, List[int]]] = {"spec": {}, "submit": {}, "attempt": {}}
    renewals: Dict[Tuple[int, str], int] = {}
    nodes: Dict[int, Dict[int, Optional[int]]] = {}
    for name in names:
        match = _NODE_FILE.match(name)
        if match is not None:
            known = nodes.setdefault(int(match.group(1)), {})
            node, newest = int(match.group(2)), known.get(int(match.group(2)))
            known[node] = newest if match.group(3) is None else max(int(match.group(3)), newest or 0)
            continue
        match = _NUMBERED_FILE.match(name)
        if match is None:
            continue
        of, number, kind, count = match.groups()
        found[of].setdefault(kind, []).append(int(number))
        if count is not None:
            key = (int(number), kind)
            renewals[key] = max(int(count), renewals.get(key, 0))
    for kinds in found.values():
        for numbers in kinds.values():
            numbers.sort()
    return RunNames(found["spec"].get("json", []), found["submit"], found["attempt"], renewals, nodes)
