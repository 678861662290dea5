"""The records that cross package borders, frozen.

Run:        one (experiment, step, parameters, seed); `RunSpec` is what matters about it, `digest` makes it comparable
Request:    portable resources, in no cluster's dialect
State:      the states that `shoal status` shows; STATE_TABLE says what each of them means
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.errors import InputError
from shoal.units import format_memory, format_slurm_time, parse_duration_s, parse_memory_mb

SCHEMA = 1
#: Variables that LEAD's scripts and programs read: names of the run, so no part of its identity.
EXPERIMENT_VARIABLES = (
    "EXPERIMENT_NAME", "SCRIPT_NAME", "EXPERIMENT_SEED", "SLURM_JOB_DATE", "EXPERIMENT_RUN_ID", "EXPERIMENT_RUN_DIR",
    "TRAINING_OUTPUT_DIR", "EVALUATION_OUTPUT_DIR",
)  # fmt: skip


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Resources per node (`gpus`, `cpus`, `memory`), nodes, and time. None means: whatever the next layer says.

    `gpus = 0.25` is one GPU and a `gpu_share` of it: the rest is for other runs of a pack, or idle in a job alone.
    """

    nodes: int | None = None
    gpus: int | None = None
    gpu_share: float | None = None
    gpu_type: str | None = None
    cpus: int | None = None
    memory: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.gpus, float) and 0 < self.gpus < 1:
            msgspec.structs.force_setattr(self, "gpu_share", self.gpus)
            msgspec.structs.force_setattr(self, "gpus", 1)
        if self.gpu_share is not None and not 0 < self.gpu_share < 1:
            raise InputError(f"a share of a GPU is between 0 and 1, not {self.gpu_share}")
        for name, minimum in (("nodes", 1), ("gpus", 0), ("cpus", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"a request cannot have {name} = {value}")
        if self.gpu_type is not None and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.gpu_type) is None:
            raise InputError(f"{self.gpu_type!r} is not the name of a GPU type")
        # Canonical words, so that two spellings of one request compare equal.
        if self.memory is not None:
            msgspec.structs.force_setattr(self, "memory", format_memory(parse_memory_mb(self.memory)))
        if self.time is not None:
            msgspec.structs.force_setattr(self, "time", format_slurm_time(parse_duration_s(self.time)))

    @property
    def memory_mb(self) -> int | None:
        return None if self.memory is None else parse_memory_mb(self.memory)

    @property
    def time_limit_s(self) -> int | None:
        return None if self.time is None else parse_duration_s(self.time)

    def over(self, base: Request) -> Request:
        """This request on top of another: what this one leaves open comes from `base`."""
        changes = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.gpus is not None:
            changes["gpu_share"] = self.gpu_share
        return msgspec.structs.replace(base, **changes)


class LaunchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How a launch mode is tuned; None means: its default (`job/launch/geometry.DEFAULTS`).

    `processes` are per node. `args` and `env` are given to each replica with {replica}, {replicas}, {lighthouse} filled
    in; `options` go to the launcher's own command line (accelerate, deepspeed).
    """

    processes: int | None = None
    max_restarts: int | None = None
    interface: str | None = None
    independent: bool | None = None
    options: list[str] = []
    replicas_per_node: int | None = None
    nodes_per_replica: int | None = None
    min_replicas: int | None = None
    min_finished: int | None = None
    restarts: int | None = None
    run_restarts: int | None = None
    backoff_s: float | None = None
    hang_s: float | None = None
    quorum_tick_ms: int | None = None
    join_timeout_ms: int | None = None
    heartbeat_timeout_ms: int | None = None
    args: list[str] = []
    env: dict[str, str] = {}

    def record(self) -> dict[str, Any]:
        """What was said, as the agent reads it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class ContainerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A container as far as one place describes it (a step, an experiment, a cluster); the rest comes from the others.

    `runtime` "none" means: no container, whatever the cluster says. `job/launch/container.py` makes words of it.
    """

    runtime: str | None = None
    image: str | None = None
    binds: list[str] = []
    gpu: str | None = None
    options: list[str] = []
    workdir: str | None = None

    def __bool__(self) -> bool:
        """Whether anything was said."""
        return bool(self.record())

    def record(self) -> dict[str, Any]:
        """What was said, as the agent reads it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that makes a run what it is. `request` and `flags` say where it runs and are not part of its identity.

    `step` is the word in the script's name (pretrain1); `step_kind` is the step of shoal.toml that it calls (train).
    `command` is the step's, whose {placeholders} the agent fills in; `args` are the user's and arrive as they are.
    `env` holds only what the experiment itself set; the rest of the environment is the machine's business.
    `checkpoint` is how its checkpoints are named, `resume_args` what a resume adds to the command, and `resumes` how it
    is known that the program continues from a checkpoint; empty: it is not known. These are no part of its identity,
    and what its step says about them later holds for later attempts.
    `start_from` is the checkpoint that the user named as input, as in post-training; a run that they named instead is
    `start_parent`, because its newest checkpoint may be another one tomorrow.
    `metrics` are names that its log prints with a value; `metric` is the one that its sweep file compares runs by, with
    its `mode` if that says one.
    `sweep` is the base name of the sweep that the run belongs to; `derived` names the `params` that follow from others;
    `cost` is its relative duration and `early_stopping` how losers are stopped, both for packs; `search` is set for a
    trial of a search, whose `params` are completed when it starts (job/sampler.py); `recovery` is the
    step's policy for what clusters do.
    `parents` are runs that must complete first; `start_parent` is the one of them to start from.
    `script` is set for a batch script: what the job needs to know of it (describe/script_runs.py).
    `function` is set for a Python function: which one, the digest of its code, its defaults (functions/call_runs.py).
    `subdir` is where in the project its command starts, for one that was given in a directory below the root.
    `adopted`: its command is the script of a job that shoal did not submit, and starts in `cwd` itself, never in a copy
    of the code.
    `smoke` says after how many steps a smoke run has passed; `replacement` which run it takes over, and after which
    step.
    """

    experiment: str
    stem: str
    number: int | None = None
    step: str
    step_kind: str
    seed: int | None
    command: list[str]
    cwd: str
    output: str
    subdir: str = ""
    args: list[str] = []
    params: dict[str, Any] = {}
    env: dict[str, str] = {}
    checkpoint: str | None = None
    resume_args: list[str] | None = None
    resumes: str = ""
    metrics: list[str] = []
    metric: dict[str, str] = {}
    start_from: str | None = None
    launch: str = "process"
    launch_settings: LaunchSettings = LaunchSettings()
    container: ContainerSettings = ContainerSettings()
    title: str | None = None
    request: Request = Request()
    flags: list[str] = []
    sweep: str | None = None
    derived: list[str] = []
    cost: float | None = None
    early_stopping: dict[str, Any] = {}
    search: dict[str, Any] = {}
    recovery: dict[str, Any] = {}
    parents: list[str] = []
    start_parent: str | None = None
    data: dict[str, dict[str, str]] = {}
    smoke: dict[str, Any] = {}
    replacement: dict[str, Any] = {}
    script: dict[str, Any] = {}
    function: dict[str, Any] = {}
    adopted: bool = False
    revision: int = 1
    tracker_id: str = ""
    schema: int = SCHEMA

    @property
    def all_params(self) -> dict[str, Any]:
        """The parameters as tables show them: with the defaults of a function, which are no part of its runs' names."""
        return {**self.function.get("defaults", {}), **self.params}

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.stem}"

    @property
    def start_dir(self) -> str:
        """Where its command starts, before its code is copied."""
        return os.path.join(self.cwd, self.subdir)

    @property
    def in_place(self) -> bool:
        """Whether its command starts in the user's own directory, never in a copy of the code: a batch script does."""
        return bool(self.script) or self.adopted

    @property
    def digest(self) -> str:
        """Hash of what matters, not of resources: equal digests mean the same run asked for twice."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        # Settings join only where there are some, so that runs of before are still themselves.
        settings = self.launch_settings.record()
        return {
            **({"launch_settings": settings} if settings else {}),
            **({"parents": [*self.parents, self.start_parent]} if self.parents else {}),
            **({"subdir": self.subdir} if self.subdir and not self.function else {}),
            "name": self.name,
            "step_kind": self.step_kind,
            "seed": self.seed,
            "command": self.command,
            "args": self.args,
            # What a search has chosen is no part of what was asked for.
            "params": {n: v for n, v in self.params.items() if n not in searched_names(self.search)},
            "env": {name: value for name, value in self.env.items() if name not in EXPERIMENT_VARIABLES},
            "start_from": self.start_from,
            "launch": self.launch,
            **({"data": self.data} if self.data else {}),
            **({"image": self.container.image} if self.container.image else {}),
            **({"script": self.script["digest"], "cwd": self.cwd, "command": []} if self.script else {}),
            # Not its interpreter and not the bytes of a pickle: those differ between two kernels that run one cell.
            **({"command": [], "function": self.function["name"]} if self.function else {}),
        }

    def work(self) -> str:
        """What a run does, whatever its name, its seed, its GPUs and what it starts from."""

        def words(text: str) -> list[str]:
            return without_seed(text.replace(self.name, "{run}").replace(self.stem, "{stem}").split())

        env = {key: words(value) for key, value in self.env.items() if "seed" not in key.lower()}
        args = without_seed([word.replace(self.stem, "{stem}") for word in self.args])
        found = [self.step_kind, self.command, args, self.params, env, bool(self.smoke)]
        return json.dumps(found, sort_keys=True, default=str)

    def starts(self) -> tuple[str, str]:
        """What a run starts from; and the same without its seed and the number that goes with it: 011_pretrain_1 is for
        seed 1 what 010_pretrain_0 is for seed 0."""
        start = re.sub(r"\b\d{8}_\d{6}\b", "{time}", f"{self.start_from or ''} {self.start_parent or ''}".strip())
        if not start or self.seed is None:
            return start, start
        seeded = re.sub(  # a pattern of its own for each seed, which takes long to compile
            rf"(?<!\d)(\d+)(_[^/]*)_{self.seed}(?=/|\Z)",
            lambda match: f"{int(match[1]) - (self.seed or 0)}{match[2]}_{{seed}}",
            start,
        )
        return start, seeded


def searched_names(search: Mapping[str, Any]) -> set[str]:
    """The parameters of a trial that are known when it starts."""
    return {*search.get("space", ()), *search.get("drawn", {}).get("derived", ())}


def have_same_start(starts: Sequence[tuple[str, str]]) -> bool:
    """Whether runs start from the same, or each from what belongs to its seed."""
    return len({raw for raw, _ in starts}) <= 1 or len({seeded for _, seeded in starts}) <= 1


def without_seed(words: Sequence[str]) -> list[str]:
    """The words without `seed=3`, `--seed=3` and `--seed 3`."""
    found, skip = [], False
    for word in words:
        key, equals, _ = word.partition("=")
        names_seed = key.lstrip("-").rpartition(".")[2].lower().endswith("seed")
        if not skip and not (names_seed and (equals or word.startswith("-"))):
            found.append(word)
        skip = names_seed and not equals and word.startswith("-")
    return found


class StateTraits(NamedTuple):
    """What a state of a run means.

    active:           the run may still do something by itself
    in_slurm_queue:   its job waits in Slurm
    needs_attention:  active, but perhaps not without a person
    ended:            nothing more happens, unless a command or Slurm starts it again
    failed:           it ended as no command asked for. A person cancels, early stopping stops: those are meant
    as_meant:         it ended as whoever submitted it wanted
    by_exit_code:     its program ended by itself, and its exit code decided which state it is
    interrupted:      a person or the cluster ended it in the middle, so nothing is known about its program
    may_return:       it may go on without a command: Slurm starts its job again, or it was only out of sight
    """

    active: bool = False
    in_slurm_queue: bool = False
    needs_attention: bool = False
    ended: bool = False
    failed: bool = False
    as_meant: bool = False
    by_exit_code: bool = False
    interrupted: bool = False
    may_return: bool = False


#: Every state of a run, in the order in which they are counted. All sets of states are made from this table.
STATE_TABLE = {
    "new": StateTraits(),
    "pending": StateTraits(active=True, in_slurm_queue=True),
    "waiting": StateTraits(active=True),
    "running": StateTraits(active=True),
    "blocked": StateTraits(active=True, in_slurm_queue=True, needs_attention=True),
    "unknown": StateTraits(active=True, needs_attention=True),
    "cancelled": StateTraits(ended=True, interrupted=True),
    "completed": StateTraits(ended=True, as_meant=True, by_exit_code=True),
    "failed": StateTraits(ended=True, failed=True, by_exit_code=True),
    "lost": StateTraits(ended=True, failed=True, interrupted=True, may_return=True),
    "node_fail": StateTraits(ended=True, failed=True, interrupted=True),
    "oom": StateTraits(ended=True, failed=True),
    "preempted": StateTraits(ended=True, failed=True, interrupted=True, may_return=True),
    "stopped": StateTraits(ended=True, as_meant=True),
    "timeout": StateTraits(ended=True, failed=True),
}
RUN_STATES = tuple(STATE_TABLE)
ACTIVE_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.active)
QUEUED_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.in_slurm_queue)
ATTENTION_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.needs_attention)
ENDED_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.ended)
#: Shown as an error, and what `retry` starts again unless it is told otherwise.
FAILED_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.failed)
SUCCESSFUL_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.as_meant)
EXIT_CODE_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.by_exit_code)
INTERRUPTED_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.interrupted)
#: Ended for good, so that what belongs to the run may be cleaned up.
FINAL_STATES = frozenset(state for state, traits in STATE_TABLE.items() if traits.ended and not traits.may_return)
#: What `retry --state` may name.
RETRYABLE_STATES = ENDED_STATES - {"completed"}
#: Words of --state that stand for several states; `failed` is every failed state, and --cause selects one of them.
STATE_GROUPS = {"active": ACTIVE_STATES, "ended": ENDED_STATES, "failed": FAILED_STATES}
#: Causes that an end record tells apart where the state of the run is `failed` (job/recovery.py).
PROGRAM_CAUSES = ("cuda_oom", "bad_result")
#: Every cause, the class of a failure: what `status --json` shows and `retry --cause` takes. The state of a failed run,
#: or one of the finer PROGRAM_CAUSES.
CAUSES = (*(state for state in STATE_TABLE if state in FAILED_STATES), *PROGRAM_CAUSES)


def state_verb(state: str) -> str:
    """A state as the verb of a sentence about a run: "failed", "is pending"."""
    return state if state in EXIT_CODE_STATES else f"is {state}"
