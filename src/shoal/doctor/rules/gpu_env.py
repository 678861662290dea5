"""X, G: variables and settings around GPUs, threads, trackers and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    is_native,
    rule,
    step_nodes,
    step_tasks_per_node,
    uses_lightning,
)
from shoal.doctor.job import JobFacts, ShellExport
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.redaction import has_secret, is_secret
from shoal.units import plural

_LIST = re.compile(r"\d+(?:,\d+)*")
_WORKERS = re.compile(r"(?:^|[._-])(?:num[_-]?)?workers\Z")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)
_TOKEN_LIKE = re.compile(r"[A-Za-z0-9_\-+/=]{16,}\Z")


@rule("X01", "warning", "CUDA_VISIBLE_DEVICES set by the script", lower=("hint",))
def visible_devices(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if job.kind != "batch" or not job.header:
        return
    for export in job.exports:
        value = export.value
        if (name := _VARIABLE.fullmatch(value)) is not None:
            value = job.values.get(name[1], value)
        asked = job.geometry.gpus_per_node
        if export.name == "CUDA_VISIBLE_DEVICES" and "nvidia-smi" in value:
            yield RuleHit(
                export.line,
                "the script chooses GPUs by nvidia-smi, which may show those of other jobs",
                "it takes another job's GPU, or one of several that it was given",
                "leave it out; Slurm sets CUDA_VISIBLE_DEVICES",
            )
        if export.name != "CUDA_VISIBLE_DEVICES" or not _LIST.fullmatch(value):
            continue
        prefix = bool(export.command.words) and export.command.name not in ("export", "declare")
        many = len(value.split(","))
        more = f", {many} of them where the job has {asked}" if asked and many > asked else ""
        if asked and not more and max(int(number) for number in value.split(",")) >= asked:
            more = f", and the job has {plural(asked, 'GPU')}, counted from 0"
        idle = prefix and asked is not None and many < asked and _is_only_work(job, export)
        alone = facts.line(export.line).strip() in (export.raw, f"export {export.raw}")
        yield RuleHit(
            export.line,
            f"the script sets CUDA_VISIBLE_DEVICES to {value}{more}",
            "it overrides what Slurm gave: other jobs' GPUs, invalid device ordinals, or GPUs that stand idle",
            "leave it out; Slurm sets it",
            "hint"
            if (prefix and not more and not idle) or (_is_permutation(value) and asked in (many, None))
            else None,
            (ScriptEdit("drop", export.line),) if alone and not prefix else (),
        )


def _is_only_work(job: JobFacts, export: ShellExport) -> bool:
    """The variable stands before the one training of the job, so no other one uses the rest of the GPUs."""
    return (
        len(job.work) == 1
        and job.work[0].command is export.command
        and not (export.command.background or export.command.within)
    )


def _is_permutation(value: str) -> bool:
    """The list names the GPUs from 0 on, in whatever order: right wherever Slurm hides those of other jobs."""
    numbers = value.split(",")
    return {int(number) for number in numbers} == set(range(len(numbers)))


@rule("X02", "warning", "a GPU mask carried into a container")
def container_mask(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if not any(launch.in_container for launch in job.launches):
        return
    for export in job.exports:
        carried = re.fullmatch(r"(?:SINGULARITYENV_|APPTAINERENV_)?(?:CUDA|NVIDIA)_VISIBLE_DEVICES", export.name)
        if carried and _LIST.fullmatch(export.value) and not _is_permutation(export.value):
            yield RuleHit(
                export.line,
                f"{export.name}={export.value} is carried into the container",
                "inside, the GPUs that Slurm gave are numbered from 0: No CUDA GPUs are available",
                f"leave {export.name} out",
            )


@rule("X03", "warning", "threads that do not fit the CPUs of a task", lower=("hint",))
def thread_count(facts: CheckFacts) -> Iterator[RuleHit]:
    job, cpus = facts.job, facts.job.geometry.cpus_per_task
    exports = [export for export in job.exports if export.name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
    for export in exports:
        number = as_number(export.value, job.values)
        if number and cpus and number > cpus:
            yield RuleHit(
                export.line,
                f"{export.name}={number} is more than the {plural(cpus, 'CPU')} of a task",
                "threads fight for CPUs, and everything gets slower",
                f"export {export.name}=$SLURM_CPUS_PER_TASK",
            )
    native = next((launch for launch in job.work if is_native(launch)), None)
    if (
        not exports
        and native is not None
        and (step_tasks_per_node(native, job) or 1) > 1
        and "OMP_NUM_THREADS" not in native.raw
    ):
        yield RuleHit(
            native.line,
            "OMP_NUM_THREADS is not set",
            "each of the processes may start as many threads as the node has CPUs",
            'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
            "hint",
        )


def _process_count(facts: CheckFacts, launch: ScriptLaunch) -> int:
    """Processes that a launch starts, as far as the script says; 1 when nothing says more."""
    job, nodes = facts.job, facts.job.geometry.n
    if launch.processes is not None:
        replicas = sum(one.replicas or 0 for one in job.lighthouses) or 1
        return launch.processes * (step_nodes(launch, job) or nodes) * replicas
    if launch.launcher == "torchrun":
        each = as_number(launch.option("nproc-per-node"), job.values) or job.geometry.gpus_per_node or 1
        return each * nodes
    if launch.launcher in ("accelerate", "deepspeed"):
        return (job.geometry.gpus_per_node or 1) * nodes
    return (step_tasks_per_node(launch, job) or 1) * nodes if launch.srun is not None else 1


@rule("X04", "warning", "a tracker started by every rank")
def tracker_per_rank(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        hints = facts.job.hints(launch)
        if hints is None or hints.wandb_line is None or hints.is_lightning or _process_count(facts, launch) < 2:
            continue
        yield RuleHit(
            launch.line,
            f"{launch.program} calls wandb.init (line {hints.wandb_line}) without looking at its rank",
            f"{_process_count(facts, launch)} runs appear in the tracker instead of one",
            "if rank == 0: wandb.init(...)",
        )


@rule("X05", "hint", "another batch size than before")
def effective_batch(facts: CheckFacts) -> Iterator[RuleHit]:
    size, rate = facts.batch_size, facts.learning_rate
    if size is None and rate is None:
        return
    for launch in facts.job.work[:1]:
        world = _process_count(facts, launch)
        if world < 2:
            continue
        batch = f"{world} x {size} = {world * size}" if size else f"{world} times that of one process"
        also = f"; the learning rate stays {rate:g}" if rate is not None else ""
        yield RuleHit(
            launch.line,
            f"the effective batch size is {batch}{also}",
            "fewer steps per epoch and another optimum: results are not comparable with those of one GPU",
            f"a smaller batch per process, or a learning rate of {rate * world:g} (linear rule) with warm-up"
            if rate is not None
            else "state it with the results; adapt learning rate and warm-up",
        )


@rule("X06", "error", "a job name that Lightning takes for an interactive job", lower=("warning",))
def interactive_job_name(facts: CheckFacts) -> Iterator[RuleHit]:
    option = facts.job.options.get("job-name")
    if option is None or option.value not in ("bash", "interactive"):
        return
    for launch in facts.job.work:
        is_lightning, certain = uses_lightning(facts.job, launch)
        several = (step_tasks_per_node(launch, facts.job) or 1) > 1 or facts.job.geometry.n > 1
        if is_lightning and several and launch.srun is not None:
            yield RuleHit(
                option.line,
                f"Lightning does not look for Slurm in a job that is called {option.value}",
                "each task trains on its own: copies instead of one distributed run",
                "#SBATCH --job-name=train",
                None if certain else "warning",
                (ScriptEdit("replace", option.line, option.value or "", "train"),),
            )
            return


@rule("X07", "warning", "a secret in the script")
def secret_in_script(facts: CheckFacts) -> Iterator[RuleHit]:
    for export in facts.job.exports:
        value = export.value
        is_literal = _TOKEN_LIKE.fullmatch(value) and "$" not in value and "/" not in value[:1]
        if is_secret(export.name if is_literal else "", value):
            yield RuleHit(
                export.line,
                f"{export.name} holds what looks like a secret",
                "anyone who can read the script, its copies in Slurm or the repository can use it",
                f"keep it in a file of your own: export {export.name}=$(cat ~/.config/{export.name.lower()})",
            )
    for command in facts.job.commands:
        words = command.texts
        login = words[:2] in (["wandb", "login"], ["huggingface-cli", "login"], ["hf", "auth"])
        key = next((word for word in words[2:] if len(word) >= 20 and _TOKEN_LIKE.fullmatch(word)), None)
        if (login and key) or (not login and has_secret(" ".join(words[1:])) and command.name != "export"):
            yield RuleHit(
                command.line,
                f"{' '.join(words[:2])} has what looks like a secret among its words",
                "it is in the script, in Slurm's copy of it, and in the process list of the node",
                "log in once on the login node; the key is then read from your home",
            )


@rule("X08", "hint", "a launcher that has a successor")
def old_launcher(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.launches:
        if launch.options.get("by-module") == "torch.distributed.launch":
            yield RuleHit(
                launch.line,
                "torch.distributed.launch is deprecated",
                "it passes --local_rank as an argument, which newer programs do not take",
                "torchrun ..., and LOCAL_RANK from the environment",
            )


@rule("G18", "warning", "more loader workers than CPUs")
def too_many_workers(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if not job.geometry.cpus_per_task:
        return
    for launch in job.work:
        # What no srun starts has the CPUs of all tasks that the node was given.
        alone = launch.srun is None and job.kind == "batch"
        cpus = job.geometry.cpus_per_task * (job.geometry.tasks_on_node if alone else 1)
        number = _worker_count(launch) or facts.workers
        if number is None:
            hints = job.hints(launch)
            number = hints.max_workers if hints is not None else None
        processes = 1
        if launch.is_distributed:
            processes = launch.processes or max(1, _process_count(facts, launch) // job.geometry.n)
        if number and number * processes > cpus:
            total = f"{processes} x {number} = {number * processes}" if processes > 1 else str(number)
            yield RuleHit(
                launch.line,
                f"{total} loader workers share the {plural(cpus, 'CPU')} of the {'job on a node' if alone else 'task'}",
                "the workers slow each other down, and may freeze or run out of memory",
                f"{max(1, cpus // processes - 1)} workers per process, or --cpus-per-task={(number + 1) * processes}",
            )


def _worker_count(launch: ScriptLaunch) -> int | None:
    words = list(launch.args)
    for index, word in enumerate(words):
        key, equals, value = word.partition("=")
        if _WORKERS.search(key.lower()):
            text = value if equals else words[index + 1] if index + 1 < len(words) and word.startswith("-") else ""
            if text.isdigit():
                return int(text)
    return None


@rule("G19", "warning", "workers counted from the node's CPUs")
def workers_from_cpu_count(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        hints = facts.job.hints(launch)
        if hints is not None and hints.cpu_count_line is not None:
            yield RuleHit(
                launch.line,
                f"{launch.program} (line {hints.cpu_count_line}) counts the CPUs of the node, not those of the job",
                "far too many workers on a shared node",
                "len(os.sched_getaffinity(0))",
            )


@rule("G21", "warning", "one process for several GPUs")
def single_process_many_gpus(facts: CheckFacts) -> Iterator[RuleHit]:
    gpus = facts.job.geometry.gpus_per_node or 0
    for launch in facts.job.work:
        hints = facts.job.hints(launch)
        if gpus < 2 or launch.command.background or hints is None:
            continue
        alone = launch.launcher == "python" and step_tasks_per_node(launch, facts.job) == 1
        if alone and hints.uses_hf_trainer and "CUDA_VISIBLE_DEVICES" not in launch.raw:
            yield RuleHit(
                launch.line,
                f"{launch.program} uses the Trainer of transformers and is started once for {gpus} GPUs",
                f"one process drives {gpus} GPUs with nn.DataParallel, slowly, with {gpus} times the batch per device",
                f"torchrun --nproc-per-node={gpus} {launch.program} ...",
                "warning",
            )
        shows_one = "CUDA_VISIBLE_DEVICES" in launch.raw or uses_lightning(facts.job, launch)[0]
        if alone and hints.inits_group and not hints.starts_processes and not shows_one:
            yield RuleHit(
                launch.line,
                f"{launch.program} joins a process group and is started once, without a launcher, for {gpus} GPUs",
                "it fails for want of RANK and WORLD_SIZE, or trains on one GPU while the others are paid for",
                f"torchrun --standalone --nproc-per-node={gpus} {launch.program} ...",
            )
        if not hints.trains_alone:
            continue
        if alone or (launch.processes == 1 and not facts.job.lighthouses):
            yield RuleHit(
                launch.line,
                f"{launch.program} is started once for {gpus} GPUs, and nothing in it speaks of more than one",
                f"1 of {gpus} GPUs trains, and the others are paid for",
                f'launch = "torchrun" in shoal.toml (torchrun --nproc-per-node={gpus} in a script) and DDP in the'
                " program, or ask for 1 GPU",
            )
