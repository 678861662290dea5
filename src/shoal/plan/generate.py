"""`shoal generate`: from the flags of a training launch to the text of a batch script. Nothing is written here."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import msgspec

from shoal.batch import parse_flags, refuse_line_breaks
from shoal.describe import ARGUMENT_SETS, REPLICA_PLACEHOLDERS, Cluster, Project, Step, change_mode, over, parse_word
from shoal.errors import InputError
from shoal.job import (
    ContainerError,
    build_container,
    fill_placeholders,
    merge_settings,
    placeholder_names,
    with_absolute_paths,
)
from shoal.model import ContainerSettings, LaunchSettings, Request
from shoal.names import make_slug
from shoal.plan.batch_script import launch_lines, render_script, script_header, setup_text
from shoal.plan.containers import ContainerText, container_lines
from shoal.plan.sbatch_options import ResolvedRequest, resolve_request

#: Defaults of MuLoCo's generator: the program, the request, and 8 fault-tolerant replicas on each node.
DEFAULT_COMMAND = ("python", "./torchtitan/train.py")
DEFAULT_REQUEST = Request(nodes=2, gpus=8, time="36:00:00")
DEFAULT_REPLICAS_PER_NODE = 8
DEFAULT_MAIL_TYPE = "BEGIN,END,FAIL"
_CHECKSUM = re.compile(rb"^# checksum ([0-9a-f]{16}): [^\n]*\n", re.MULTILINE)
K = TypeVar("K")


class GenerateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `shoal generate`, as they were written; None means not written."""

    config_file: str | None = None
    step: str | None = None
    command: str | None = None
    extra_args: str = ""
    use_ddp: bool = False
    launch: str | None = None
    container: str | None = None
    replicas_per_node: int | None = None
    nodes_per_replica: int | None = None
    job_name: str | None = None
    qos: str | None = None
    partition: str | None = None
    account: str | None = None
    nodes: str | None = None
    gpus_per_node: str | None = None
    ntasks_per_node: int | None = None
    cpus_per_node: str | None = None
    mem: str | None = None
    time: str | None = None
    mail_user: str | None = None
    mail_type: str | None = None
    output: str | None = None
    error: str | None = None


class GeneratedScript(msgspec.Struct, frozen=True, kw_only=True):
    """The script, and what is worth knowing about it. `log_folders` must exist before the job starts."""

    script: str
    job_name: str
    resolved: ResolvedRequest
    launch: str
    command: tuple[str, ...]
    log_folders: tuple[str, ...]
    notes: tuple[str, ...]


def generate_script(options: GenerateOptions, project: Project, cluster: Cluster) -> GeneratedScript:
    """Decide header, set-up and launch. InputError for anything that could not work."""
    step = None if options.step is None else project.step(options.step)
    launch, settings, notes = _launch(options, step)
    command = _command(options, step)
    _refuse_unfilled([*settings.args, *settings.env.values()], "the launch settings", REPLICA_PLACEHOLDERS)
    real_name = options.job_name or options.step or _stem(options.config_file) or "job"
    name = make_slug(real_name)
    resolved = _resolve(options, step, project, cluster, launch, settings)
    notes += _task_notes(options, resolved)
    logs = [options.output or f"{cluster.logs}.out", options.error or f"{cluster.logs}.err"]
    for flag, path in zip(("--output", "--error"), logs, strict=True):
        _check_log(flag, path)
    folders = tuple(dict.fromkeys(os.path.dirname(path) or "." for path in logs))
    sbatch_options = [
        ("job-name", name),
        *resolved.options,
        ("output", logs[0]),
        ("error", logs[1]),
        # A requeued job starts the script again: without append it would wipe the log of the first time.
        ("open-mode", "append"),
        ("requeue", None),
    ]
    comments = [
        f"Written by shoal generate for cluster {cluster.name}. Submit it with sbatch.",
        *([f"The job's full name: {real_name}"] if name != real_name else []),
        f"The log folder must exist before the job starts: {' '.join(shlex.quote(folder) for folder in folders)}",
    ]
    text = render_script(
        script_header(sbatch_options, comments),
        setup_text(resolved.cluster, _without_placeholders(step.env, f"`env` of step {step.name!r}") if step else None),
        launch_lines(launch, command, resolved.request, settings, _container(options, step, project, resolved)),
    )
    return GeneratedScript(
        script=text,
        job_name=name,
        resolved=resolved,
        launch=launch,
        command=command,
        log_folders=folders,
        notes=(*notes, *resolved.notes, *([f"the job is called {name}"] if name != real_name else [])),
    )


def _task_notes(options: GenerateOptions, resolved: ResolvedRequest) -> list[str]:
    """MuLoCo counts a task for its lighthouse; shoal's scripts compute tasks and their CPUs from the launch."""
    asked, tasks = options.ntasks_per_node, resolved.geometry.tasks
    if asked is None or asked == tasks:
        return []
    if asked < 1:
        raise InputError(f"--ntasks-per-node must be at least 1 (got {asked})")
    return [f"--ntasks-per-node {asked} has no effect: this launch mode has {tasks} tasks per node"]


def with_checksum(script: str) -> bytes:
    """The bytes of a script file, with a line that tells whether it was edited since."""
    data = script.encode("utf-8", "surrogateescape")
    first, _, rest = data.partition(b"\n")
    line = f"# checksum {_digest(data)}: shoal generate overwrites this file only while it is unedited\n"
    return first + b"\n" + line.encode() + rest


def is_unedited(data: bytes) -> bool:
    """Whether a file is as `with_checksum` made it."""
    found = _CHECKSUM.search(data)
    return found is not None and found[1].decode() == _digest(data[: found.start()] + data[found.end() :])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _container(
    options: GenerateOptions, step: Step | None, project: Project, resolved: ResolvedRequest
) -> ContainerText:
    """The container of the flag, over the step's, over the profile's."""
    flag = ContainerSettings() if options.container is None else parse_word(options.container, "--container")
    settings = over(flag, step.container if step else ContainerSettings())
    try:
        one = build_container(merge_settings(settings.record(), resolved.cluster.container.record()))
        if one is not None:
            one = with_absolute_paths(one, str(project.root))
        as_root, gpus = os.getuid() == 0, bool(resolved.request.gpus)
        return container_lines(one, resolved.cluster.scratch, gpus=gpus, as_root=as_root)
    except ContainerError as error:
        raise InputError(error.message, hint=error.hint, place="container") from None


def _launch(options: GenerateOptions, step: Step | None) -> tuple[str, LaunchSettings, list[str]]:
    """Mode and settings: those of the flags, else the step's, else MuLoCo's replicas."""
    if options.use_ddp:
        if options.launch not in (None, "torchrun"):
            raise InputError(
                f"--use-ddp cannot be used with --launch {options.launch}", hint="remove --use-ddp or --launch"
            )
        return (
            "torchrun",
            LaunchSettings(),
            [f"{flag} has no effect with --use-ddp" for flag in _replica_flags(options)],
        )
    mode, settings = (step.launch, step.launch_settings) if step else ("process", LaunchSettings())
    if options.launch is not None:
        mode, settings = change_mode(options.launch, mode, settings)
    if not _uses_replica_flags(options):
        return mode, settings, []
    if options.launch not in (None, "replicas"):
        flag = _replica_flags(options)[0]
        raise InputError(f"{flag} has no effect with --launch {options.launch}", hint=f"remove {flag} or --launch")
    notes = []
    per_node, over_nodes = options.replicas_per_node, options.nodes_per_replica
    if (over_nodes or 1) > 1:
        if per_node is not None:
            notes.append(f"--num-ft-replicas-per-node has no effect with --nodes-per-replica {over_nodes}")
        per_node = None
    elif per_node is None and step is None:
        per_node = DEFAULT_REPLICAS_PER_NODE
    chosen = msgspec.structs.replace(settings, replicas_per_node=per_node, nodes_per_replica=over_nodes)
    if options.config_file is not None and not chosen.args:
        # The trainer behind a config file takes these among its overrides.
        chosen = msgspec.structs.replace(chosen, args=list(ARGUMENT_SETS["muloco"]))
    return "replicas", chosen, notes


def _replica_flags(options: GenerateOptions) -> list[str]:
    given = (
        ("--num-ft-replicas-per-node", options.replicas_per_node),
        ("--nodes-per-replica", options.nodes_per_replica),
    )
    return [flag for flag, value in given if value is not None]


def _uses_replica_flags(options: GenerateOptions) -> bool:
    """Whether the flags ask for replicas: they name their number, or name no launch mode at all."""
    return bool(_replica_flags(options)) or (options.step is None and options.launch is None)


def _command(options: GenerateOptions, step: Step | None) -> tuple[str, ...]:
    """The program, its config file as --job.config_file, and the extra words, as overrides where there is a config."""
    if options.step is None and options.config_file is None:
        raise InputError("say what to train: --config-file CONFIG, or --step NAME of shoal.toml")
    words = list(step.command if step else DEFAULT_COMMAND)
    if options.command is not None:
        words = _split("--command", options.command)
        if not words:
            raise InputError("the command is empty", place="--command")
    extra = _split("--extra-args", options.extra_args)
    if options.config_file is not None:
        words += ["--job.config_file", options.config_file]
        has_replicas = not options.use_ddp and (_uses_replica_flags(options) or options.launch == "replicas")
        extra = ["--cfg_options", *extra] if extra or has_replicas else []
    return tuple(_without_placeholders(dict(enumerate([*words, *extra])), "the command").values())


def _without_placeholders(words: Mapping[K, str], where: str) -> dict[K, str]:
    """Words without placeholders; a plain batch script fills none."""
    _refuse_unfilled(words.values(), where)
    return {key: fill_placeholders(word, {}) for key, word in words.items()}


def _refuse_unfilled(words: Iterable[str], where: str, known: Collection[str] = ()) -> None:
    for name in placeholder_names(words):
        if name not in known:
            raise InputError(
                f"{where} has {{{name}}}, which nothing fills in a plain batch script",
                hint=f"use --command with the value in it, or {{{{{name}}}}} for the braces; shoal submit fills it",
            )


def _split(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"cannot be split into words: {str(error).lower()}: {text!r}", place=flag) from None


def _resolve(
    options: GenerateOptions,
    step: Step | None,
    project: Project,
    cluster: Cluster,
    launch: str,
    settings: LaunchSettings,
) -> ResolvedRequest:
    """The written flags are sbatch's own, so they are read as sbatch reads them."""
    default = step.request if step else DEFAULT_REQUEST
    if step is None and cluster.time is not None:
        default = msgspec.structs.replace(default, time=cluster.time)
    mail_type = options.mail_type or (DEFAULT_MAIL_TYPE if options.mail_user and not cluster.mail_type else None)
    written = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "nodes": options.nodes,
        "gpus-per-node": options.gpus_per_node,
        "cpus-per-task": options.cpus_per_node,
        "mem": options.mem,
        "time": options.time,
        "mail-user": options.mail_user,
        "mail-type": mail_type,
    }
    flags = parse_flags([f"--{name}={value}" for name, value in written.items() if value is not None])
    return resolve_request(
        default, flags, cluster, project.clusters, whole_nodes=True, launch=launch, settings=settings
    )


def _stem(path: str | None) -> str | None:
    return None if path is None else os.path.splitext(os.path.basename(path))[0] or None


def _check_log(flag: str, path: str) -> None:
    """A path that Slurm would misread ends the job at once, without any log to say why."""
    refuse_line_breaks(path, flag)
    if path.startswith("~") or "$" in path or "\\" in path:
        raise InputError(
            f"{path!r} has ~, $ or a backslash, which Slurm does not expand in log paths",
            hint=f'let the shell expand it: {flag} "$HOME/logs/%j.out"',
            place=flag,
        )
    if not path.strip() or path.endswith("/"):
        raise InputError(f"{path!r} is not a file", hint=f"{flag} logs/%j.out", place=flag)
