"""D, S: exit codes, environments and directories in the script; log directories and scripts next to it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from shoal.batch import known_options, short_names
from shoal.doctor.finding import CheckFacts, RuleHit, ScriptEdit, calls_srun, rule, text_rule
from shoal.doctor.launchers import read_launcher
from shoal.doctor.launches import ScriptLaunch
from shoal.doctor.script import BatchScript
from shoal.job import TORCH_LAUNCHERS

_STATUS_NEUTRAL_COMMANDS = frozenset({"wait", "exit", "trap", "set", "unset", "}", "return", "exec"})
_STATUS = re.compile(r"\$\{?(?:\?|PIPESTATUS|rc\b|ret\b|status\b|exit_code\b|code\b|EXIT)", re.IGNORECASE)
_SPOOL_DIRECTORY = re.compile(
    r"dirname\s+[\"']?\$\{?(?:0|BASH_SOURCE)|(?:readlink|realpath)[^|;)]*\$\{?(?:0|BASH_SOURCE)|\$\{(?:0|BASH_SOURCE)%"
)
_CONDA_READY = re.compile(
    r"conda\.sh|mamba\.sh|shell\.bash hook|shell hook|conda\.csh|\.bashrc|\.bash_profile|\.profile|conda init"
)


def _checks_status(script: BatchScript, launch: ScriptLaunch) -> bool:
    """The launch's exit code is looked at: || exit, if train; then, rc=$?, a trap on ERR."""
    command = launch.command
    if command.after in ("||", "&&") or command.condition or command.background or command.nested:
        return True
    if any(one.name == "trap" and "ERR" in one.texts for one in script.commands):
        return True
    behind = [one for one in script.commands if one.line >= command.line and one is not command]
    return any(_STATUS.search(one.raw) for one in behind[:12])


@text_rule("S01", "warning", "a failed training that ends as COMPLETED")
def lost_exit_code(script: BatchScript) -> Iterator[RuleHit]:
    work = [launch for launch in script.work if launch.command.function is None and not launch.command.background]
    if not work or script.sets("e"):
        return
    last = work[-1]
    if _checks_status(script, last):
        return
    after = [
        one
        for one in script.top
        if one.line > last.command.last_line and one.name not in _STATUS_NEUTRAL_COMMANDS and (one.words or one.assigns)
    ]
    piped = last.command.piped
    if after and not piped:
        yield RuleHit(
            after[-1].line,
            f"the script goes on after the training of line {last.line} whatever came of it",
            "a crash is reported as COMPLETED with exit code 0, and follow-up jobs start",
            "set -euo pipefail   # below the #SBATCH lines, or exit $? behind the training",
        )


@text_rule("S02", "warning", "an exit code lost in a pipe")
def pipe_hides_exit_code(script: BatchScript) -> Iterator[RuleHit]:
    if script.sets("pipefail") or any("PIPESTATUS" in command.raw for command in script.commands):
        return
    for launch in script.work:
        if launch.command.piped and not launch.command.nested:
            yield RuleHit(
                launch.line,
                "the exit code of this pipe is that of its last program",
                "a crash is reported as COMPLETED with exit code 0",
                "set -o pipefail   # below the #SBATCH lines",
                None,
                (ScriptEdit("body", new="set -o pipefail"),),
            )


@text_rule("S03", "error", "exit 0 whatever happened")
def always_exit_zero(script: BatchScript) -> Iterator[RuleHit]:
    top = script.top
    if not top or not script.work or script.sets("e"):
        return
    end = top[-1]
    if end.name != "exit" or end.texts[1:] != ["0"] or end.within:
        return
    last = script.work[-1]
    if last.line > end.line or _checks_status(script, last):
        return
    before = top[-2] if len(top) > 1 else None
    direct = before is not None and before.line == last.command.line
    yield RuleHit(
        end.line,
        "the script ends with exit 0, whatever came of the training",
        "every run is reported as COMPLETED, and follow-up jobs start",
        "leave it out, or set -e below the #SBATCH lines",
        None,
        (ScriptEdit("drop", end.line),) if direct and script.text.lines[end.line - 1].strip() == "exit 0" else (),
    )


@text_rule("S07", "error", "conda activate in a shell that has no conda")
def conda_not_initialized(script: BatchScript) -> Iterator[RuleHit]:
    if script.is_login or script.kind == "experiment" or script.language != "bash":
        return
    for index, command in enumerate(script.commands):
        if command.name not in ("conda", "mamba", "micromamba") or command.texts[1:2] != ["activate"]:
            continue
        before = script.commands[:index]
        if any(_CONDA_READY.search(one.raw) for one in before) or script.functions & {"conda", "mamba"}:
            return
        maybe = any(one.name in ("source", ".", "module", "ml", "eval") for one in before)
        yield RuleHit(
            command.line,
            f"{command.name} activate needs a shell function that a batch job's shell does not have",
            "it fails, and without set -e the script goes on with another Python",
            f'eval "$({command.name} shell.bash hook)"   # before it'
            if command.name != "micromamba"
            else 'eval "$(micromamba shell hook --shell bash)"   # before it',
            "warning" if maybe else None,
        )
        return


@text_rule("S08", "warning", "module in a shell that may not have it")
def module_not_initialized(script: BatchScript) -> Iterator[RuleHit]:
    export = (script.options["export"].value if "export" in script.options else "") or ""
    bare = export.upper() in ("NONE", "NIL") or script.language in ("sh", "dash")
    if not bare or script.is_login:
        return
    for command in script.commands:
        if command.name in ("source", ".") and re.search(r"modules|lmod|profile|/init", command.raw):
            return
        if command.name in ("module", "ml"):
            yield RuleHit(
                command.line,
                f"module is a shell function, and {'--export=NONE' if export else script.language} does not have it",
                "command not found, and the script goes on without the module",
                "#!/bin/bash -l",
                # Where sh is bash, exported functions do arrive.
                None if export.upper() in ("NONE", "NIL") else "hint",
            )
            return


@rule("S09", "error", "--export=NONE with srun")
def export_none_with_srun(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    option = job.options.get("export")
    if option is None or (option.value or "").upper() not in ("NONE", "NIL"):
        return
    if any(one.name == "SLURM_EXPORT_ENV" for one in job.exports) or any(
        one.name == "unset" and "SLURM_EXPORT_ENV" in one.texts for one in job.commands
    ):
        return
    for step in job.steps:
        if "export" not in step.options:
            yield RuleHit(
                option.line,
                f"--export=NONE also holds for the srun of line {step.line}",
                "its tasks get no PATH and no variable of this script: execve, no such file",
                "srun --export=ALL ..., or export SLURM_EXPORT_ENV=ALL before it",
                None,
                (ScriptEdit("body", new="export SLURM_EXPORT_ENV=ALL"),),
            )
            return


@rule("S10", "error", "--export that drops the environment")
def partial_export(facts: CheckFacts) -> Iterator[RuleHit]:
    option = {one.name: one for one in facts.job.header}.get("export")
    value = option.value or "" if option else ""
    if option is None or not value or value.upper() in ("NONE", "NIL", "ALL"):
        return
    if not any(part.strip().upper() == "ALL" for part in value.split(",")):
        yield RuleHit(
            option.line,
            f"--export={value} passes on these variables and nothing else",
            "PATH and everything else of your shell are missing in the job",
            f"--export=ALL,{value}",
            None,
            (ScriptEdit("replace", option.line, f"--export={value}", f"--export=ALL,{value}"),),
        )


@text_rule("S11", "warning", "the folder of the script, which is Slurm's spool")
def spool_directory(script: BatchScript) -> Iterator[RuleHit]:
    if script.kind != "batch" or not script.header:
        return
    if any("SLURM_SUBMIT_DIR" in command.raw for command in script.commands):
        return  # who knows this variable also knows why
    for command in script.commands:
        if not command.nested and _SPOOL_DIRECTORY.search(command.raw):
            yield RuleHit(
                command.line,
                "Slurm runs a copy of the script, so its own path leads into Slurm's spool folder",
                "files beside the script are not found",
                'cd "$SLURM_SUBMIT_DIR"',
            )
            return


@text_rule("S12", "hint", "a job that submits jobs")
def nested_sbatch(script: BatchScript) -> Iterator[RuleHit]:
    if script.kind != "batch" or not script.header:
        return
    if any(one.name == "unset" and "SLURM" in one.raw for one in script.commands):
        return
    for command in script.commands:
        if command.name == "sbatch":
            yield RuleHit(
                command.line,
                "sbatch inside a job inherits the job's SLURM_ variables",
                "the new job may be refused (memory options mutually exclusive) or bound to wrong CPUs",
                "env -u SLURM_MEM_PER_NODE -u SLURM_MEM_PER_CPU -u SLURM_CPU_BIND sbatch ...",
            )
            return


@text_rule("S16", "hint", "an environment that depends on the login files")
def login_file_dependency(script: BatchScript) -> Iterator[RuleHit]:
    for command in script.commands:
        if command.name in ("source", ".") and re.search(r"\.(?:bashrc|bash_profile|profile)\b", command.raw):
            yield RuleHit(
                command.line,
                "the job's environment comes from a login file, which often returns early without a terminal",
                "the environment differs between people and between shells",
                "set up what the job needs in the script",
            )
            return


_REQUEST_OPTIONS = frozenset({"gres", "partition", "account", "qos", "nodes", "ntasks", "ntasks-per-node",
                   "cpus-per-task", "gpus", "gpus-per-node", "mem", "array", "dependency", "job-name",
                   "constraint", "exclude"})  # fmt: skip
_SRUN = re.compile(r"^[^#\n]*(?:^|[\s;&|(])srun\s", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#SBATCH\s+-", re.MULTILINE)


@rule("D07", "error", "the log folder does not exist")
def missing_log_directory(facts: CheckFacts) -> Iterator[RuleHit]:
    if facts.job.kind != "batch":
        return
    base = facts.job.options.get("chdir")
    for name in ("output", "error"):
        option = facts.job.options.get(name)
        value = option.value or "" if option else ""
        folder = os.path.dirname(value)
        if option is None or not option.is_literal or not folder or "%" in folder or folder.startswith("~"):
            continue
        if base is not None and base.value and base.is_literal and not os.path.isabs(folder):
            folder = os.path.join(base.value, folder)
        exists = facts.files.folder_exists(folder)
        if exists is not False:
            continue
        made = any(one.name == "mkdir" and folder.strip("./") in " ".join(one.texts) for one in facts.job.commands)
        certain = facts.cluster is not None and os.path.isabs(folder)
        yield RuleHit(
            option.line,
            f"the folder {folder} of --{name} does not exist" + (" yet; the script makes it too late" if made else ""),
            "the job fails at once (0:53) and leaves no log at all; Slurm makes no folders",
            f"mkdir -p {folder}   # before sbatch",
            None if certain else "warning",
        )


@text_rule("D08", "error", "sbatch options behind the script's name")
def options_after_script(script: BatchScript) -> Iterator[RuleHit]:
    for command in script.commands:
        if command.name != "sbatch":
            continue
        words = command.texts[1:]
        at = _script_index(words)
        behind = [word for word in words[at + 1 :] if word.startswith("--")] if at is not None else []
        for word in behind:
            name = word[2:].partition("=")[0]
            if name in known_options():
                yield RuleHit(
                    command.line,
                    f"{word} stands behind the script's name",
                    "sbatch passes it to the script as an argument and does not act on it",
                    f"sbatch {word} {words[at or 0]}",
                    None if name in _REQUEST_OPTIONS else "warning",
                )


def _script_index(words: list[str]) -> int | None:
    """Where the script's name stands in the words behind sbatch."""
    takes, letters = known_options(), short_names()
    index = 0
    while index < len(words):
        word = words[index]
        if word.startswith("--"):
            index += 2 if "=" not in word and takes.get(word[2:]) == 2 else 1
        elif word.startswith("-") and len(word) > 1:
            index += 2 if len(word) == 2 and takes.get(letters.get(word[1], ""), 0) == 2 else 1
        else:
            return index
        if word.startswith("--wrap"):
            return None
    return None


@rule("D24", "warning", "a batch script that is run instead of submitted")
def run_not_submitted(facts: CheckFacts) -> Iterator[RuleHit]:
    for command in facts.job.commands if facts.script is not None else ():
        words = command.texts
        target = (
            words[0] if words and "/" in words[0] else words[1] if len(words) > 1 and words[0] in ("bash", "sh") else ""
        )
        if not target.endswith((".sh", ".slurm", ".sbatch", ".sub")) or "$" in target:
            continue
        text = facts.files.text(target)
        if text is not None and _DIRECTIVE.search(text):
            yield RuleHit(
                command.line,
                f"{target} has #SBATCH lines, and is run here instead of submitted",
                "to bash they are comments: it runs here, with the resources of this script or of the login node",
                f"sbatch {target}",
            )


@rule("S06", "error", "srun inside srun")
def nested_srun(facts: CheckFacts) -> Iterator[RuleHit]:
    for step in facts.job.steps:
        words = " ".join(step.rest)
        inner = "overlap" not in step.options and "--overlap" not in words and calls_srun(step.rest)
        launcher = read_launcher(step.rest)
        started = launcher.rest if launcher is not None and launcher.program in TORCH_LAUNCHERS else step.rest
        script = next((word for word in started[:3] if word.endswith((".sh", ".bash")) and "$" not in word), None)
        text = facts.files.text(script) if script else None
        reads = text is not None and bool(_SRUN.search(text)) and "--overlap" not in text
        tool = "--launcher slurm" in words.replace("=", " ") and "deepspeed" in words
        if inner or reads or tool:
            what = script if reads else "deepspeed --launcher slurm" if tool else "the command"
            yield RuleHit(
                step.line,
                f"{what} calls srun inside this srun",
                "the inner one waits for resources that the outer one holds: step creation temporarily disabled",
                "leave out the outer srun, or srun --overlap inside",
            )
