"""What a run that did not end well died of: the verdict, its end record and the end of its log, read together."""

from __future__ import annotations

from shoal.kernel import checkpoints
from shoal.model import RunSpec
from shoal.store.fold import RunView
from shoal.store.records import Asked
from shoal.units import format_memory, format_slurm_time, memory_words
from shoal.views import usage
from shoal.views.causes import KIND_OF_STATE, WORDS, Cause
from shoal.views.details import cause_in_log
from shoal.views.explanation import Explanation, lasted, start_again
from shoal.views.faults import look
from shoal.views.render import state_word


def post_mortem(home: str, view: RunView, spec: RunSpec | None, asked: Asked | None) -> Explanation:
    """What a run that did not end well died of: the verdict, the end record and the end of its log together."""
    fault = look(view)
    cause = cause_in_log(view) if view.log_dir and view.attempt else None
    kind = _kind(view, cause)
    sample = usage.read(home, view.name, view.attempt) if view.attempt else None
    evidence = [f"{state_word(view.state)}: {view.cause}"] if view.cause else []
    evidence += [lasted(view)] if view.started else []
    if view.node:
        evidence.append(f"on {view.node}" + (f", job {view.job_id}" if view.job_id else ""))
    if sample is not None and sample.peak_memory_mb and asked is not None and asked.memory_mb:
        most, room = memory_words(sample.peak_memory_mb), memory_words(asked.memory_mb)
        evidence.append(f"it used up to {most} of {room} of memory")
    said = "" if cause is None or kind not in (cause.kind, "python") else f": {cause.line}"
    if kind in WORDS:
        repeats = cause is not None and WORDS[kind].lower() in cause.line.lower()
        headline = said.removeprefix(": ") if said and repeats else f"{WORDS[kind]}{said}"
    else:
        headline = view.cause or view.state
    return Explanation(
        run=view.name,
        state=view.state,
        headline=headline,
        evidence=evidence,
        next=_remedies(home, view, kind, spec, asked),
        kind=kind,
        slurm_reason=view.slurm_state,
        log_lines=fault.window[-12:],
        log_path=fault.path,
    )


def _kind(view: RunView, cause: Cause | None) -> str | None:
    """Slurm's and the kernel's word comes before the log's: a run that was killed for memory may print anything."""
    if view.state in KIND_OF_STATE:
        return KIND_OF_STATE[view.state]
    return cause.kind if cause is not None and view.state in ("failed", "lost") else None


def _remedies(home: str, view: RunView, kind: str | None, spec: RunSpec | None, asked: Asked | None) -> list[str]:
    """Commands that work when pasted; a comment behind # says what to change first where no command can."""
    again = start_again(home, view.name)
    resume = f"shoal resume {view.name}" if _checkpoint(view, spec) else None
    if kind == "host_oom":
        more = f"--mem={format_memory(asked.memory_mb * 2)}" if asked and asked.memory_mb else "--mem=MORE"
        return [f"{resume} -- {more}" if resume else f"{again}   # with {more} in the script"]
    if kind == "time_limit":
        more = f"--time={format_slurm_time(view.time_limit_s * 2)}" if view.time_limit_s else "--time=LONGER"
        return [f"{resume} -- {more}" if resume else f"{again}   # with {more}; nothing to resume from was saved"]
    if kind in ("preempted", "node", "nccl", "gpu_error", "port"):
        if kind == "gpu_error" and view.node:
            return [f"shoal retry {view.name} --exclude-nodes"]
        return [resume or again]
    if kind == "cuda_oom":
        return [f"{resume or again}   # with a smaller batch, or GPUs with more memory"]
    if kind == "cuda_assert":
        return [f"{again}   # CUDA_LAUNCH_BLOCKING=1 in its environment makes the traceback name the line"]
    if kind == "shared_gpu":
        return [f'{again}   # with one rank for each GPU: launch = "torchrun" or "srun" counts them itself']
    if kind == "unfinished_group":
        return [
            f"{again}   # with gc.collect() and torch.distributed.destroy_process_group() at its end, outside of main()"
        ]
    if kind == "disk":
        return [f"df -h {view.output_dir or '.'}   # free some space, then: {resume or again}"]
    if view.state == "stopped":
        return [
            f"shoal results {view.experiment}",
            f"shoal retry {view.name} --state stopped   # let it go on after all",
        ]
    if view.state == "cancelled":
        return [resume or again]
    return [f"shoal logs {view.name} --err", f"{resume or again}   # once it is fixed"]


def _checkpoint(view: RunView, spec: RunSpec | None) -> str | None:
    if spec is None or not spec.checkpoint or not view.output_dir:
        return None
    return checkpoints.newest(view.output_dir, spec.checkpoint)
