"""The records of a submission, typed, and the same for the commands and for jobs.

Named tuples rather than dataclasses: those would cost every job 9 ms of imports. `shoal.observe.run_files` reads the
same types with every field checked. Fields that a newer shoal adds are passed over, a newer schema is refused.
"""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from . import files, processes

SCHEMA = 1
T = TypeVar("T", bound=Tuple[Any, ...])


class RequestedResources(NamedTuple):
    """What one run of a submission asked for, resolved: `gpus`, `cpus` and `memory_mb` are per node."""

    nodes: int = 1
    gpus: int = 0
    gpu_type: Optional[str] = None
    cpus: Optional[int] = None
    memory_mb: Optional[int] = None
    partition: Optional[str] = None


class Provenance(NamedTuple):
    """What surrounded a submission: the shell's Python and its packages (the job's may differ), and whether the code
    differed from its commit."""

    shoal: str = ""
    changed: Optional[bool] = None
    python: Optional[str] = None
    packages: Optional[str] = None


class Submission(NamedTuple):
    """Intent: these runs, as one Slurm job (or array), or as processes on this machine.

    `layout` is None for a job of its own or an array; the runs of a "pack" or of "pilots" wait in a queue in there.
    `argv` and `environment` say how it is sent, which is why it can be read as a Send as well. `waits`: it is sent when
    there is room under the budget. `needs` are runs that must complete before it starts (or, with `any_end`, ended).
    `adopted`: the job was in Slurm before shoal knew of it, so `job_name` is its own name, without the token.
    `step` is that of its first run. `cluster_gpus` are those of its partition, as sinfo told.
    """

    token: str
    backend: str
    cluster: str
    job_name: str
    runs: Sequence[str]
    t: float
    host: str
    pid: int
    started: Optional[str] = None
    uid: Optional[int] = None
    slurm_cluster: Optional[str] = None
    user: str = ""
    by_hand: bool = False
    time_limit_s: Optional[int] = None
    queue: Optional[str] = None
    nodes: int = 1
    gpus: int = 0
    code: Optional[str] = None
    commit: Optional[str] = None
    asked: Optional[RequestedResources] = None
    layout: Optional[str] = None
    needs: Sequence[str] = ()
    any_end: bool = False
    waits: bool = False
    argv: Sequence[str] = ()
    environment: Optional[str] = None
    provenance: Optional[Provenance] = None
    adopted: bool = False
    step: str = ""
    cluster_gpus: Optional[int] = None

    @property
    def is_array(self) -> bool:
        """Whether each run is a task of its own; the tasks of pilots are not runs."""
        return self.layout is None and len(self.runs) > 1


class ClaimRecord(NamedTuple):
    """A generation of a run belongs to a submission. `command_id` is the user's command that it was made for; `changes`
    are fields of the run's spec that hold from here on: how it is resumed may be told after it was described."""

    token: str
    revision: int
    output_dir: str
    log_dir: str
    index: int = 0  # type: ignore[assignment]  # (a tuple's own .index is not needed)
    resume: bool = False
    switched: bool = False
    t: float = 0.0
    command_id: Optional[str] = None
    changes: Mapping[str, Any] = {}


class SendRecord(NamedTuple):
    """One call of sbatch: by whom, when, with which options, in which environment. `follows` is the job that this one
    continues, for later jobs of a queue."""

    t: float
    host: str
    pid: int
    started: Optional[str] = None
    uid: Optional[int] = None
    user: str = ""
    argv: Sequence[str] = ()
    environment: Optional[str] = None
    follows: Optional[str] = None


class Outcome(NamedTuple):
    """What became of a call of sbatch: "accepted" with the job's id, or "void". The first one written holds.

    `refused`: Slurm read it and said no, so the same again would be refused as well.
    """

    kind: str
    job_id: Optional[str] = None
    reason: Optional[str] = None
    adopted: bool = False
    refused: bool = False


class Allocation(NamedTuple):
    """Who works: a process (the guard), and the Slurm job that it is of, if any. `job_label` is what people type;
    `life` counts how often Slurm has started the job; `node` is Slurm's name of the host. `engine` is set for those
    that work through a queue."""

    host: str
    pid: int
    started: Optional[str]
    uid: Optional[int] = None
    job_id: Optional[str] = None
    job_label: Optional[str] = None
    array_job_id: Optional[str] = None
    life: Optional[int] = None
    node: Optional[str] = None
    nodes: Optional[str] = None
    engine: str = ""


class AssignedResources(NamedTuple):
    """What a run of a pack held: its slot, its GPUs by id and its share of each, its CPUs, and whose they were."""

    slot: int = 0
    gpus: Sequence[str] = ()
    share: float = 0.0
    cpus: int = 0
    engine: str = ""
    host: Optional[str] = None


class Start(NamedTuple):
    """An attempt began at `t`; where it took over a program that was running already, that began at `program_t`.

    `pid` and `started` are the guard's. `mark` is in the environment of everything that the attempt starts; `beat_s` is
    how often its lease is renewed. `life` counts how often Slurm has started the job. `allocation` is the name of the
    file about it (allocations.py).
    """

    attempt: int
    generation: int
    revision: int
    token: str
    host: str
    pid: int
    started: Optional[str]
    t: float
    output_dir: str
    log_dir: str
    uid: Optional[int] = None
    agent_pid: Optional[int] = None
    agent_started: Optional[str] = None
    mark: Optional[str] = None
    beat_s: float = 0.0
    program_t: Optional[float] = None
    job_id: Optional[str] = None
    job_label: Optional[str] = None
    array_job_id: Optional[str] = None
    life: Optional[int] = None
    node: Optional[str] = None
    nodes: Optional[str] = None
    failed_nodes: Sequence[str] = ()
    ends: Optional[float] = None
    resume_from: Optional[str] = None
    python: Optional[Dict[str, Any]] = None
    engine: str = ""
    held: Optional[AssignedResources] = None
    adopted: bool = False
    allocation: str = ""

    @property
    def place(self) -> str:
        """Where it runs, by Slurm's names: of a run of a pack its node, else all nodes of the job."""
        if self.held is not None:
            return self.held.host or self.node or self.host
        return self.nodes or self.node or self.host


class FollowUp(NamedTuple):
    """What follows an end by itself: another job of the run, because of `cause`, for the `number`th time of `limit`.

    `options` replace those of the ended job with the same names; `not_before` is a time of the cluster's clocks.
    """

    cause: str
    number: int = 1
    limit: int = 1
    options: Sequence[str] = ()
    not_before: Optional[float] = None


class End(NamedTuple):
    """How an attempt ended. `stopped_by` says who asked it to stop, if anybody did; `cause` why it was not good; `next`
    what follows by itself. `exit_code` is None where nothing tells it: of an adopted job that Slurm has forgotten.
    `checkpoint_t` is when the newest checkpoint was written that a failed attempt has left."""

    attempt: int
    generation: int
    revision: int
    token: str
    output_dir: str
    exit_code: Optional[int]
    success: bool
    began: float
    ended: float
    duration_s: float
    host: Optional[str] = None
    nodes: Optional[str] = None
    log_dir: Optional[str] = None
    job_id: Optional[str] = None
    job_label: Optional[str] = None
    signal: Optional[str] = None
    stopped_by: Optional[str] = None
    cause: Optional[str] = None
    oom: bool = False
    warned: bool = False
    check_exit: Optional[int] = None
    problem: Optional[str] = None
    expect_s: Optional[float] = None
    held: Optional[AssignedResources] = None
    data: Sequence[Dict[str, Any]] = ()
    notes: Sequence[str] = ()
    next: Optional[FollowUp] = None
    adopted: bool = False
    checkpoint_t: Optional[float] = None
    submitted: Optional[float] = None

    @classmethod
    def after(cls, start: Start, ended: float) -> "End":
        """The end of an attempt of which nothing but its time is known."""
        return cls(
            attempt=start.attempt,
            generation=start.generation,
            revision=start.revision,
            token=start.token,
            output_dir=start.output_dir,
            log_dir=start.log_dir,
            host=start.host,
            nodes=start.place,
            job_id=start.job_id,
            job_label=start.job_label,
            held=start.held,
            exit_code=None,
            success=False,
            began=start.t,
            ended=max(start.t, ended),
            duration_s=max(0.0, ended - start.t),
            adopted=start.adopted,
        )


class CommandRecord(NamedTuple):
    """A command of a user that must not be carried out twice: what it means (`digest`), and for each run the generation
    that was there before it."""

    id: str
    kind: str
    digest: str
    runs: Dict[str, int]
    t: float
    host: str
    pid: int
    started: Optional[str] = None
    uid: Optional[int] = None
    user: str = ""


#: Fields that hold a record of their own.
_NESTED: Dict[str, Any] = {
    "asked": RequestedResources,
    "provenance": Provenance,
    "held": AssignedResources,
    "next": FollowUp,
}


def new_send(argv: Sequence[str], environment: Optional[str], t: float, follows: Optional[str] = None) -> SendRecord:
    """The mark that this process sets before it calls sbatch."""
    who = processes.own_identity()
    return SendRecord(t=t, user=user_name(), argv=list(argv), environment=environment, follows=follows, **who)


def user_name() -> str:
    """Who we are: for people, and to tell one's own submissions from another's in a shared project."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in some containers
        return str(os.getuid())


def encode_record(record: Any) -> bytes:
    """A record as bytes; what has its default value is left out."""
    return files.to_json(dict(non_default_fields(record), schema=SCHEMA))


def non_default_fields(record: Any) -> Dict[str, Any]:
    """What differs from its default, for JSON."""
    defaults = record._field_defaults
    found = {name: value for name, value in record._asdict().items() if name not in defaults or value != defaults[name]}
    return {name: non_default_fields(value) if hasattr(value, "_fields") else value for name, value in found.items()}


def decode_record(data: Dict[str, Any], kind: Type[T], path: str = "a record") -> T:
    """The record that `files.read_json` has read; ValueError if it is none, or of a newer shoal."""
    try:
        is_newer = int(data.get("schema", SCHEMA)) > SCHEMA
    except (TypeError, ValueError, OverflowError):
        raise ValueError("%s is damaged: %r is no schema" % (path, data["schema"]))
    if is_newer:
        raise ValueError("%s was written by a newer shoal (schema %s)" % (path, data["schema"]))
    names: List[str] = list(kind._fields)  # type: ignore[attr-defined]
    values = {name: data[name] for name in names if name in data}
    for name, nested in _NESTED.items():
        if isinstance(values.get(name), dict) and nested is not kind:
            values[name] = decode_record(values[name], nested, path)
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError("%s is damaged: %s" % (path, error))


def read_record(path: str, kind: Type[T]) -> Optional[T]:
    """The record at `path`, or None if there is none (yet)."""
    data = files.read_json(path)
    return None if data is None else decode_record(data, kind, path)
