"""Ask a Slurm cluster what it has and allows: only what the caller names, each question with a time limit.

Everything may be absent: no programs, no controller, no accounting. A question without an answer leaves the defaults
and a sentence in `ClusterFacts.silent`, never an error.

Commands that submit keep answers for 5 minutes (`ClusterAnswers`), because partitions, settings and limits change
seldom. The file is in the state directory, one for each user. An answer is used as long as slurm.conf, where it can be
read, is the same file; answers of programs that failed are not kept. Nothing is refused on the word of a kept answer:
whoever would refuse forgets them and asks again. When sbatch refuses a job, all are forgotten.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from shoal.clusters import parse
from shoal.clusters.facts import UNKNOWN, Association, ClusterFacts
from shoal.clusters.queries import ask
from shoal.kernel import make_dir, replace

KEPT_S = 300.0
CONF_PATHS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")

#: What can be asked, and which program answers:
#:   name          slurm.conf, else scontrol show config
#:   nodes         sinfo: partitions with name, default and time limit, and their kinds of node
#:   settings      scontrol show config: version, largest array, KillWait, what is enforced
#:   partitions    scontrol show partition: all about partitions; the cluster's defaults where settings are asked too
#:   reservations  scontrol show reservation
#:   user          sacctmgr show user: associations and default account
#:   accounts      sacctmgr show assoc: the tree of accounts and their limits
#:   qos           sacctmgr show qos: limits, of those named in `qos`, or of all
Part = Literal["name", "nodes", "settings", "partitions", "reservations", "user", "accounts", "qos"]


def read_cluster(
    environ: Mapping[str, str],
    *parts: Part,
    user: str | None = None,
    qos: Sequence[str] = (),
    known: ClusterFacts = UNKNOWN,
    answers: ClusterAnswers | None = None,
) -> ClusterFacts:
    """`known` and what the cluster that answers here says to these questions; each costs one program of Slurm, unless
    `answers` has it.

    `user` is whose associations are asked, by default those of this process.
    """
    name = user or getpass.getuser()
    questions: dict[Part, list[str]] = {
        "nodes": ["sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}"],
        "settings": ["scontrol", "show", "config"],
        "partitions": ["scontrol", "--oneliner", "show", "partition"],
        "reservations": ["scontrol", "--oneliner", "show", "reservation"],
        "user": _accounting("user", name, "withassoc", fields=parse.USER_FIELDS),
        "accounts": _accounting("assoc", "where", "user=", fields=parse.ACCOUNT_FIELDS),
        "qos": _accounting("qos", *([",".join(qos)] if qos else []), fields=parse.QOS_FIELDS),
    }
    silent: list[str] = []
    asked = {part: argv for part, argv in questions.items() if part in parts}
    texts = dict(zip(asked, _ask_at_once(list(asked.values()), environ, answers, silent), strict=True))
    facts = known
    if "nodes" in texts:
        partitions, kinds = parse.parse_sinfo(texts["nodes"])
        facts = facts._replace(partitions=partitions, node_kinds=kinds)
    if "name" in parts:
        facts = facts._replace(name=cluster_name(environ))
        silent += ["scontrol: no ClusterName"] if facts.name is None else []
    settings: dict[str, str] = {}
    if "settings" in texts:
        settings = parse.parse_config(texts["settings"])
        facts = _with_settings(facts, settings)
    if "partitions" in texts:
        partitions = tuple(parse.parse_partitions(texts["partitions"], settings))
        facts = facts._replace(partitions=partitions or facts.partitions)
    if "reservations" in texts:
        reservations = tuple(parse.parse_reservations(texts["reservations"]))
        facts = facts._replace(reservations=reservations, read_at_s=time.time())
    if "user" in texts:
        associations, default = parse.parse_user(texts["user"], name)
        facts = facts._replace(associations=associations, default_account=default)
    if "accounts" in texts:
        facts = facts._replace(parent_accounts=parse.parse_accounts(texts["accounts"]))
    if "qos" in texts:
        facts = facts._replace(qos_limits=parse.parse_qos(texts["qos"]))
    return facts._replace(silent=(*facts.silent, *silent))


def _accounting(*words: str, fields: Sequence[str]) -> list[str]:
    return ["sacctmgr", "--noheader", "--parsable2", "show", *words, f"format={','.join(fields)}"]


def _ask_at_once(
    questions: Sequence[Sequence[str]],
    environ: Mapping[str, str],
    answers: ClusterAnswers | None,
    silent: list[str],
) -> list[str]:
    """The answers, empty where there is none. Programs of accounting take a third of a second each, which is waiting:
    several are started at once."""
    problems: list[list[str]] = [[] for _ in questions]

    def answer(argv: Sequence[str], problem: list[str]) -> str:
        return (ask(argv, environ, silent=problem) if answers is None else answers.ask(argv, problem)) or ""

    if len(questions) < 2:
        texts = [answer(*pair) for pair in zip(questions, problems, strict=True)]
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(questions)) as pool:
            texts = list(pool.map(answer, questions, problems))
    silent += [sentence for problem in problems for sentence in problem]
    return texts


def _with_settings(facts: ClusterFacts, settings: Mapping[str, str]) -> ClusterFacts:
    return facts._replace(
        version=parse.parse_version(settings.get("SLURM_VERSION", "")),
        max_array_size=parse.parse_number(settings.get("MaxArraySize", "")),
        kill_wait_s=parse.parse_number(settings.get("KillWait", "").split(" ")[0]),
        kills_invalid_dependencies="kill_invalid_depend" in settings.get("DependencyParameters", ""),
        enforces_limits=parse.enforces_limits(settings),
    )


def cluster_name(environ: Mapping[str, str]) -> str | None:
    """Slurm's ClusterName: from the text of slurm.conf, which costs nothing, else from the controller."""
    asked = environ.get("SLURM_CONF")
    for path in (asked,) if asked else CONF_PATHS:
        try:
            text = Path(path).read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if (name := parse.parse_cluster_name(text)) is not None:
            return name
    return parse.parse_cluster_name(ask(["scontrol", "show", "config"], environ) or "")


class _Answer(msgspec.Struct, frozen=True):
    t: float
    argv: list[str]
    text: str


class _KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """`conf` says which Slurm answered: the path of its slurm.conf, and the state of that file."""

    conf: str
    answers: list[_Answer]
    schema: int = 1


class ClusterAnswers:
    """Asks questions about the cluster, or takes an answer that a command of this user got a short time ago."""

    def __init__(self, home: str, environ: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._folder = os.path.join(home, "cache")
        self._path = os.path.join(self._folder, f"cluster-{os.getuid()}.json")
        self._environ, self._clock = environ, clock
        self._answers: dict[tuple[str, ...], _Answer] | None = None
        self._has_used_kept = False
        self._lock = threading.Lock()

    def ask(self, argv: Sequence[str], silent: list[str]) -> str | None:
        """As `queries.ask`; from several threads too."""
        with self._lock:
            kept = self._read().get(tuple(argv))
        now = self._clock()
        if kept is not None and 0 <= now - kept.t < KEPT_S:
            self._has_used_kept = True
            return kept.text
        text = ask(argv, self._environ, silent=silent)
        if text:
            with self._lock:
                self._read()[tuple(argv)] = _Answer(now, list(argv), text)
                self._write()
        return text

    def forget(self) -> bool:
        """Ask anew from now on; whether an answer that had been kept was used before."""
        was_used, self._has_used_kept, self._answers = self._has_used_kept, False, {}
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        return was_used

    def _read(self) -> dict[tuple[str, ...], _Answer]:
        if self._answers is None:
            self._answers = {}
            with contextlib.suppress(OSError, msgspec.MsgspecError), open(self._path, "rb") as file:  # noqa: PTH123
                if os.fstat(file.fileno()).st_uid == os.getuid():
                    kept = msgspec.json.decode(file.read(), type=_KeptFile)
                    if kept.schema == 1 and kept.conf == _slurm_conf(self._environ):
                        self._answers = {tuple(one.argv): one for one in kept.answers}
        return self._answers

    def _write(self) -> None:
        if not os.path.isdir(os.path.dirname(self._folder)):
            return  # Nothing was submitted yet, and `plan` does not make the state directory.
        fresh = [one for one in self._read().values() if 0 <= self._clock() - one.t < KEPT_S]
        with contextlib.suppress(OSError):
            make_dir(self._folder)
            kept = _KeptFile(conf=_slurm_conf(self._environ), answers=fresh)
            replace(self._path, msgspec.json.encode(kept), sync=False)


def _slurm_conf(environ: Mapping[str, str]) -> str:
    asked = environ.get("SLURM_CONF")
    for path in (asked,) if asked else CONF_PATHS:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            return f"{path} {found.st_mtime_ns} {found.st_size} {found.st_ino}"
    return asked or ""


class SubmitLimit(NamedTuple):
    """The smallest limit, and whose jobs count: those of this account and of these QOS, joined by commas."""

    max_jobs: int
    account: str
    qos: str


def read_submit_limit(
    environ: Mapping[str, str],
    user: str,
    account: str | None,
    qos: str | None,
    partition: str | None,
    known: ClusterFacts = UNKNOWN,
    answers: ClusterAnswers | None = None,
) -> SubmitLimit | None:
    """How many jobs this user may have in Slurm's hands, by the association, the accounts above it and the QOS; None if
    nothing limits them, or limits are recorded but not enforced.

    Asks nothing where `known` holds the settings and they say that no limit is enforced, as without accounting.
    """
    if known.version is not None and not known.enforces_limits:
        return None
    # Several partitions in one request have no one QOS.
    has_partition = bool(partition) and "," not in (partition or "")
    parts: tuple[Part, ...] = ("user", "accounts", "qos")
    more: tuple[Part, ...] = ("partitions",) if has_partition else ()
    facts = read_cluster(environ, *parts, *more, user=user, known=known, answers=answers)
    mine = associations_of(facts, account)
    if not mine:
        return None
    partition_qos = next((one.qos for one in facts.chosen(partition)), None) if has_partition else None
    names = [name.lower() for name in (qos or mine[0].default_qos, partition_qos) if name]
    facts = facts._replace(qos_limits=tuple(one for one in facts.qos_limits if one.name.lower() in names))
    limits = submit_limits(facts, mine)
    if limits and facts.version is None:
        facts = read_cluster(environ, "settings", known=facts, answers=answers)
    if not limits or not facts.enforces_limits:
        return None
    return SubmitLimit(min(limits), mine[0].account, ",".join(names))


def associations_of(facts: ClusterFacts, account: str | None) -> list[Association]:
    """The user's associations with an account, or with the default account: one for each partition that has its own."""
    wanted = account or facts.default_account
    return [association for association in facts.associations if wanted in (association.account, None)]


def submit_limits(facts: ClusterFacts, mine: Sequence[Association]) -> list[int]:
    """Every limit on jobs of these associations: their own, of their account and those above it, and of the QOS."""
    parents = {account.account: account for account in facts.parent_accounts}
    chain: list[str] = []
    account = mine[0].account
    while account in parents and account not in chain:
        chain.append(account)
        account = parents[account].parent
    limits = [association.submit_limits for association in (*mine, *(parents[name] for name in chain))]
    limits += [qos.submit_limits for qos in facts.qos_limits]
    return [limit for several in limits for limit in several]
