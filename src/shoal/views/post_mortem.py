"""What a run that did not end well died of: the verdict, its end record and the end of its log, read together."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from shoal.kernel import KIND_OF_STATE, KIND_TEXTS, checkpoints
from shoal.model import FAILED_STATES, RunSpec
from shoal.observe import RequestedResources, RunView
from shoal.units import format_memory, format_memory_short, format_slurm_time
from shoal.views import collectives, usage
from shoal.views.explanation import Explanation, elapsed_text, resubmit_command
from shoal.views.faults import LogError, find_error
from shoal.views.render import state_word

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
    stall: collectives.CollectiveStall | None

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
        said = "" if known else " --yes"
        told = "" if known else "   # if its program reads SHOAL_RESUME_FROM; a copy of the checkpoint is kept"
        return f"shoal resume {self.view.name}{said}{flags}{told}"


def explain_failure(home: str, view: RunView, spec: RunSpec | None, asked: RequestedResources | None) -> Explanation:
    """What a run that did not end well died of: the verdict, the end record and the end of its log together."""
    fault = find_error(home, view)
    kind = _failure_kind(view, fault)
    sample = usage.read_usage(home, view.name, view.attempt) if view.attempt else None
    stall = collectives.read_stall(view) if kind is not None and kind.startswith("nccl") else None
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
        log_path=fault.path,
    )


def _failure_kind(view: RunView, fault: LogError) -> str | None:
    """Slurm's and the kernel's word comes before the log's: a run that was killed for memory may print anything."""
    if view.state in KIND_OF_STATE:
        return KIND_OF_STATE[view.state]
    return fault.cause.kind if fault.cause is not None and view.state in FAILED_STATES else None


def _failure_headline(failure: FailedRun) -> str:
    kind, cause = failure.kind, failure.fault.cause
    if kind is None or kind not in KIND_TEXTS:
        return failure.fault.line if failure.view.state == "failed" else failure.view.cause or failure.view.state
    if cause is None or kind != cause.kind:
        return KIND_TEXTS[kind]
    return cause.line if KIND_TEXTS[kind].lower() in cause.line.lower() else f"{KIND_TEXTS[kind]}: {cause.line}"


def _failure_evidence(failure: FailedRun) -> list[str]:
    view, asked, peak_mb = failure.view, failure.asked, failure.peak_memory_mb
    found = [f"{state_word(view.state)}: {view.cause}"] if view.cause else []
    found += [elapsed_text(view)] if view.started else []
    if view.node:
        found.append(f"on {view.node}" + (f", job {view.job_id}" if view.job_id else ""))
    if peak_mb and asked is not None and asked.memory_mb:
        found.append(
            f"it used up to {format_memory_short(peak_mb)} of {format_memory_short(asked.memory_mb)} of memory"
        )
    found += collectives.explain_stall(failure.stall) if failure.stall is not None else []
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
        return collectives.stall_remedies(view, failure.stall, again)
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
