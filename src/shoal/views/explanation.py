"""What `shoal why` says about a run in any state, and why a failed run failed.

A failure is explained from Slurm's state, the end record and the end of the log together. When a collective operation
of several ranks timed out, the output of NCCL's watchdog in the logs of the ranks tells the cause: a rank that exited,
one that never arrived, ranks that are out of step, or the network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shoal.kernel import KIND_OF_STATE, KIND_TEXTS, checkpoints, layout, list_names
from shoal.model import ACTIVE_STATES, FAILED_STATES, RunSpec
from shoal.observe import (
    End,
    RequestedResources,
    RunFiles,
    RunReader,
    RunView,
    Verdict,
    derive_attempt_state,
    run_files,
    usage,
)
from shoal.units import format_duration, format_memory, format_memory_short, format_slurm_time, shorten_list
from shoal.views.error_groups import LogError, error_sentence, failure_logs, find_error
from shoal.views.log_files import last_text, real_log
from shoal.views.render import state_word

_MAX_ATTEMPTS = 5


class SmallerRequest(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    flag: str
    start: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is as it is. `headline` is one sentence, `evidence` what it rests on, `next` commands to paste."""

    run: str
    state: str
    headline: str
    evidence: list[str] = []
    next: list[str] = []
    kind: str | None = None
    slurm_reason: str | None = None
    start_estimate: float | None = None
    estimate_note: str | None = None
    sooner: list[SmallerRequest] = []
    log_lines: list[str] = []
    log_path: str | None = None
    adopted: bool = False


def elapsed_text(view: RunView, now: float | None = None) -> str:
    end = view.ended or now
    if view.started is None or end is None:
        return "it never started"
    limit = f" of {format_duration(view.time_limit_s)}" if view.time_limit_s else ""
    return f"attempt {view.attempt}, {format_duration(max(0.0, end - view.started))}{limit} long"


def earlier_attempts(home: str, view: RunView) -> list[str]:
    """How the attempts before this one ended, oldest first: one that was preempted or lost with its node is explained
    although the run goes on."""
    reader, folder = RunReader(home), layout.run_dir(home, view.name)
    files = reader.run(view.name)
    names = files.names
    numbers = [
        number
        for number in names.attempts.get("start", [])
        if not names.is_live(number) and (number < view.attempt or view.state in ACTIVE_STATES)
    ]
    found = []
    for number in numbers[-_MAX_ATTEMPTS:]:
        try:
            end = run_files.read_end(folder, names, number)
        except run_files.DamagedRecord:
            end = None
        if end is not None:
            found.append(_attempt_sentence(home, files, end, run_files.read_verdict(folder, names, end)))
    left = len(numbers) - _MAX_ATTEMPTS
    return [f"{left} earlier attempts are not listed; shoal logs {view.name} --all shows them"] * (left > 0) + found


def _attempt_sentence(home: str, files: RunFiles, end: End, verdict: Verdict | None) -> str:
    following = run_files.read_start(layout.run_dir(home, files.name), end.attempt + 1)
    one = derive_attempt_state(files, end, verdict, following)
    how = error_sentence(one, find_error(home, one)) if one.state == "failed" else one.reason or one.state
    span = format_duration(max(0.0, end.ended - end.began))
    return f"attempt {end.attempt} on {one.node}, {span} long: {how}"


def resubmit_command(home: str, run: str) -> str:
    """The command that submits a run once more: its script, the folder where it comes from a sweep, or retry where
    nothing describes it, as after `shoal pack -- COMMAND`."""
    root = os.path.dirname(home)
    named = [os.path.join("experiments", f"{run}{suffix}") for suffix in (".sh", ".py", ".toml")]
    for path in (*named, os.path.join("experiments", run.split("/")[0])):
        if os.path.exists(os.path.join(root, path)):
            return f"shoal submit {path}"
    return f"shoal retry {run}"


_COLLECTIVE_TIMEOUT = re.compile(
    r"\[(?:PG [^]]*)?Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: \w+\(SeqNum=(?P<number>\d+), "
    r"OpType=(?P<operation>\w+).*?Timeout\(ms\)=(?P<limit_ms>\d+)"
)


class RankWait(NamedTuple):
    """A rank that waited for others in its collective operation `number` until the limit was over."""

    rank: int
    number: int
    operation: str
    limit_s: float


class CollectiveStall(NamedTuple):
    """What became of the ranks. `absent` ones did not wait: they were somewhere else, hung, or were killed."""

    waits: list[RankWait]
    absent: list[int]

    @property
    def is_same_operation(self) -> bool:
        return len({(wait.number, wait.operation) for wait in self.waits}) == 1


def read_stall(view: RunView) -> CollectiveStall | None:
    """The ranks that waited, by the first time-out that each of them reports; None if none did."""
    waits: dict[int, RankWait] = {}
    for path in failure_logs(view):
        for line in last_text(path, 2000, 1 << 19):
            for match in _COLLECTIVE_TIMEOUT.finditer(line):
                rank = int(match["rank"])
                limit_s = int(match["limit_ms"]) / 1000
                waits.setdefault(rank, RankWait(rank, int(match["number"]), match["operation"], limit_s))
    if not waits:
        return None
    world = _world_size(view) or max(waits) + 1
    return CollectiveStall(
        [waits[rank] for rank in sorted(waits)], [rank for rank in range(world) if rank not in waits]
    )


def explain_stall(stall: CollectiveStall) -> list[str]:
    """Sentences: who waited in what, and what that says about the others."""
    first = min(stall.waits, key=lambda wait: wait.number)
    limit = f"{first.limit_s:.0f} s"
    if stall.absent:
        return [
            f"{_format_ranks([wait.rank for wait in stall.waits])} waited {limit} "
            f"in {first.operation} number {first.number}",
            f"{_format_ranks(stall.absent)} did not join: dead, hung, or busy with something that the others do not do",
        ]
    if stall.is_same_operation:
        return [
            f"all {len(stall.waits)} ranks waited {limit} in {first.operation} number {first.number}: none is dead or"
            " behind, so the network or a GPU between them stood still"
        ]
    last = max(stall.waits, key=lambda wait: wait.number)
    return [
        f"the ranks are out of step: rank {first.rank} waited in {first.operation} number {first.number}, rank"
        f" {last.rank} in {last.operation} number {last.number}",
        f"rank {first.rank} has done less: uneven batches, or code that only some ranks run",
    ]


def stall_remedies(view: RunView, stall: CollectiveStall | None, start_again: str) -> list[str]:
    """Commands that lead on: the log of the rank in question, or another node where the network is in doubt."""
    if stall is None or (stall.is_same_operation and not stall.absent):
        return [
            f"shoal retry {view.name} --exclude-nodes   # NCCL_DEBUG=INFO in its environment shows which link is used"
        ]
    rank = stall.absent[0] if stall.absent else min(stall.waits, key=lambda wait: wait.number).rank
    has_log = any(f"rank-{rank}." in os.path.basename(path) for path in failure_logs(view))
    where = f"shoal logs {view.name} --rank {rank}" if has_log or rank == 0 else f"shoal logs {view.name} -n 0"
    return [f"{where}   # what rank {rank} did last", f"{start_again}   # once it is fixed"]


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {shorten_list(map(str, ranks), 8)}"


def _world_size(view: RunView) -> int | None:
    """How many ranks the launch started, as they noted it."""
    folder = os.path.join(view.log_dir or "", f"attempt-{view.attempt}.launch")
    for name in list_names(folder):
        if re.fullmatch(r"rank-\d+\.json", name):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH123
                    return int(json.load(file)["world_size"])
            except (OSError, ValueError, KeyError):
                continue
    return None


#: A path in an error message, quoted or not.
_PATH = re.compile(r"['\"]((?:~|/)[^'\"]+)['\"]|(?<![\w/])((?:~|/)[\w./+~-]+)")
#: A part of the path, or of the traceback's files, that tells whose cache is full -> the variable that moves it.
_CACHE_VARIABLES = {
    "huggingface": "HF_HOME",
    "torch/hub": "TORCH_HOME",
    "torch_extensions": "TORCH_EXTENSIONS_DIR",
    "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "triton": "TRITON_CACHE_DIR",
    "matplotlib": "MPLCONFIGDIR",
    "wandb": "WANDB_CACHE_DIR",
}


class FailedRun(NamedTuple):
    """A run that failed, and what is known about it. `kind` is Slurm's or the kernel's word before the log's."""

    home: str
    view: RunView
    kind: str | None
    fault: LogError
    spec: RunSpec | None
    asked: RequestedResources | None
    peak_memory_mb: float | None
    stall: CollectiveStall | None

    @property
    def checkpoint(self) -> str | None:
        """The newest one that it left."""
        if self.spec is None or not self.spec.checkpoint or not self.view.output_dir:
            return None
        return checkpoints.newest_checkpoint(self.view.output_dir, self.spec.checkpoint)

    @property
    def damaged(self) -> str | None:
        """The checkpoint that it could not read: the one it continued from, or else its newest."""
        return (self.view.resume_from or self.checkpoint) if self.kind == "checkpoint" else None

    @property
    def again(self) -> str:
        return self.resume() if self.checkpoint else resubmit_command(self.home, self.view.name)

    def resume(self, flags: str = "") -> str:
        """The command that continues it; where its program is not known to do that, a person has to say so."""
        known = self.spec is not None and (self.spec.resumes or self.spec.resume_args is not None)
        yes = "" if known else " --yes"
        comment = "" if known else "   # if its program reads SHOAL_RESUME_FROM; a copy of the checkpoint is kept"
        return f"shoal resume {self.view.name}{yes}{flags}{comment}"


def explain_failure(home: str, view: RunView, spec: RunSpec | None, asked: RequestedResources | None) -> Explanation:
    """Why a run failed or was stopped: the verdict, the end record and the end of its log together."""
    fault = find_error(home, view)
    kind = _failure_kind(view, fault)
    sample = usage.read_usage(home, view.name, view.attempt) if view.attempt else None
    stall = read_stall(view) if kind is not None and kind.startswith("nccl") else None
    failure = FailedRun(home, view, kind, fault, spec, asked, sample.peak_memory_mb if sample else None, stall)
    return Explanation(
        run=view.name,
        state=view.state,
        headline=_failure_headline(failure),
        evidence=_failure_evidence(failure),
        next=_failure_remedies(failure),
        kind=kind,
        slurm_reason=view.slurm_state,
        log_lines=fault.window[-16:],
        log_path=real_log(fault.path) if fault.path else None,
    )


def _failure_kind(view: RunView, fault: LogError) -> str | None:
    """Slurm's and the kernel's word comes before the log's: a run that was killed for memory may print anything."""
    if view.state in KIND_OF_STATE:
        return KIND_OF_STATE[view.state]
    return fault.cause.kind if fault.cause is not None and view.state in FAILED_STATES else None


def _failure_headline(failure: FailedRun) -> str:
    kind, cause = failure.kind, failure.fault.cause
    if kind is None or kind not in KIND_TEXTS:
        return failure.fault.line if failure.view.state == "failed" else failure.view.reason or failure.view.state
    if cause is None or kind != cause.kind:
        return KIND_TEXTS[kind]
    return cause.line if KIND_TEXTS[kind].lower() in cause.line.lower() else f"{KIND_TEXTS[kind]}: {cause.line}"


def _failure_evidence(failure: FailedRun) -> list[str]:
    view, asked, peak_mb = failure.view, failure.asked, failure.peak_memory_mb
    found = [f"{state_word(view.state)}: {view.reason}"] if view.reason else []
    found += [elapsed_text(view)] if view.started else []
    if view.node:
        found.append(f"on {view.node}" + (f", job {view.job_id}" if view.job_id else ""))
    if peak_mb and asked is not None and asked.memory_mb:
        found.append(
            f"it used up to {format_memory_short(peak_mb)} of {format_memory_short(asked.memory_mb)} of memory"
        )
    found += explain_stall(failure.stall) if failure.stall is not None else []
    found += [f"it was reading {failure.damaged}"] if failure.damaged else []
    return found


def _failure_remedies(failure: FailedRun) -> list[str]:
    """Commands that work when pasted; a comment behind # says what to change first where no command can."""
    view, kind, again = failure.view, failure.kind, failure.again
    fresh = resubmit_command(failure.home, view.name)
    if kind == "host_oom":
        return [_more_memory_remedy(failure)]
    if kind == "time_limit":
        more = f"--time={format_slurm_time(view.time_limit_s * 2)}" if view.time_limit_s else "--time=LONGER"
        if failure.checkpoint:
            return [failure.resume(f" -- {more}")]
        return [f"{fresh}   # with {more}; nothing to resume from was saved"]
    if kind == "nccl_timeout":
        return stall_remedies(view, failure.stall, again)
    if kind == "gpu_error" and view.node:
        return [f"shoal retry {view.name} --exclude-nodes"]
    if kind in ("preempted", "node", "nccl", "gpu_error", "port"):
        return [again]
    if kind == "cuda_oom":
        return [f"{again}   # with a smaller batch, or GPUs with more memory"]
    if kind == "cuda_assert":
        return [f"{fresh}   # CUDA_LAUNCH_BLOCKING=1 in its environment makes the traceback name the line"]
    if kind == "shared_gpu":
        return [f'{fresh}   # with one rank for each GPU: launch = "torchrun" or "srun" counts them itself']
    if kind == "unfinished_group":
        return [
            f"{fresh}   # with gc.collect() and torch.distributed.destroy_process_group() at its end, outside of main()"
        ]
    if kind == "disk":
        return _disk_full_remedies(failure)
    if kind == "checkpoint":
        return _older_checkpoint_remedies(failure)
    if view.state == "stopped":
        return [
            f"shoal results {view.experiment}",
            f"shoal retry {view.name} --state stopped   # let it go on after all",
        ]
    if view.state == "cancelled":
        return [again]
    if any("HYDRA_FULL_ERROR" in line for line in failure.fault.window):
        return [f"{again}   # HYDRA_FULL_ERROR=1 in the env of its step shows the whole traceback"]
    where = "" if view.started is not None else " --slurm"
    return [f"shoal logs {view.name}{where}", f"{again}   # once it is fixed"]


def _more_memory_remedy(failure: FailedRun) -> str:
    """Twice what it had, where that is known; else twice what it was seen to use."""
    view, asked = failure.view, failure.asked
    if view.job_id is None:
        return f"{failure.again}   # it ran on this machine: use less memory, or a cluster with --on"
    if asked is not None and asked.memory_mb:
        return f"shoal retry {view.name} --mem x2"
    used_mb = failure.peak_memory_mb or 0.0
    more = format_memory(max(1024, 1024 * round(2 * used_mb / 1024)))
    return f"shoal retry {view.name} --mem {more}   # it set no --mem; it used up to {format_memory_short(used_mb)}"


def _disk_full_remedies(failure: FailedRun) -> list[str]:
    """Which file system is full, and if a cache filled it, how to move that."""
    line = failure.fault.line
    match = _PATH.search(line)
    path = (match[1] or match[2]) if match else None
    shown = " ".join([line, *failure.fault.window])
    cache = next((variable for part, variable in _CACHE_VARIABLES.items() if part in shown), None)
    if cache is None and path is not None and "/.cache/" in path:
        cache = "XDG_CACHE_HOME"
    if cache is not None:
        folder = path.partition("/.cache/")[0] + "/.cache" if path and "/.cache/" in path else "~/.cache"
        return [
            f"du -xh --max-depth=1 {folder} | sort -h   # a cache in the home directory has filled its quota",
            f"{failure.again}   # with {cache} in the env of its step, on a larger file system",
        ]
    place = shlex.quote(path.rpartition("/")[0] or "/") if path else failure.view.output_dir or "."
    return [f"df -h {place}   # free some space, then: {failure.again}"]


def _older_checkpoint_remedies(failure: FailedRun) -> list[str]:
    """Put the damaged checkpoint aside under a name that is passed over, and continue from the one before it."""
    view, spec, damaged = failure.view, failure.spec, failure.damaged
    if damaged is None or spec is None or not spec.checkpoint or not view.output_dir:
        return [f"shoal logs {view.name}", f"{failure.again}   # once it is fixed"]
    before = checkpoints.previous_checkpoint(view.output_dir, spec.checkpoint, damaged)
    quoted = shlex.quote(damaged)
    if before is None:
        return [f"shoal retry {view.name} --fresh   # no checkpoint before {damaged} is left"]
    return [f"mv {quoted} {quoted}.incomplete && {failure.resume()}   # continues from {before}"]
