"""D, S: exit codes, environments and directories in the script; log directories and scripts next to it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise

from shoal.batch import SbatchOption, ShellCommand, known_options, parse_shell, short_names
from shoal.doctor.edits import WAIT_FOR_ALL, strict_edits
from shoal.doctor.finding import CheckFacts, RuleHit, ScriptEdit, calls_srun, rule, text_rule
from shoal.doctor.launchers import CONTAINERS, base_name, read_launcher, read_srun, unwrap
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.script import BatchScript
from shoal.job import TORCH_LAUNCHERS

_STATUS_NEUTRAL_COMMANDS = frozenset({"wait", "exit", "trap", "set", "unset", "}", "return", "exec"})
_STATUS = re.compile(r"\$\{?(?:\?|PIPESTATUS|rc\b|ret\b|status\b|exit_code\b|code\b|EXIT)", re.IGNORECASE)
_SPOOL_DIRECTORY = re.compile(
    r"dirname\s+[\"']?\$\{?(?:0|BASH_SOURCE)|(?:readlink|realpath)[^|;)]*\$\{?(?:0|BASH_SOURCE)|\$\{(?:0|BASH_SOURCE)%"
)
_CONDA_READY = re.compile(
    r"conda\.sh|mamba\.sh|shell\.bash hook|shell hook|conda\.csh|\.bashrc|\.bash_profile|\.profile"
)


#: Modules that bring conda's shell function with them, on the sites that have such modules.
_CONDA_MODULE = re.compile(r"conda|mamba|miniforge|python|jupyter|pytorch|tensorflow|\bml\b.*ai", re.IGNORECASE)


#: Modules that a toolchain built (Python/3.8.6-GCCcore-10.2.0) bring a Python, and no conda.
_TOOLCHAIN = re.compile(r"\S+-(?:GCC|foss|intel|gompi|iimpi|fosscuda|gcc)\w*-?[\w.-]*")
_NEXT_BRANCH = re.compile(r"\s*(?:else|elif)\b|.*;;\s*\Z")
_END_OF_BRANCHES = re.compile(r"\s*(?:fi|esac)\b")


def _checks_status(script: BatchScript, launch: ScriptLaunch) -> bool:
    """The launch's exit code is looked at: || exit, if train; then, rc=$?, a trap on ERR."""
    command = launch.command
    if command.after in ("||", "&&") or command.condition or command.background or command.nested:
        return True
    if any(one.name == "trap" and "ERR" in one.texts for one in script.commands):
        return True
    behind = [
        one
        for one in script.commands
        if one.line >= command.line and one is not command and not _in_other_branch(script, command, one)
    ]
    # $? is that of the command right before it.
    return bool(behind) and _STATUS.search(behind[0].raw) is not None


@text_rule("S01", "warning", "a failed training that ends as COMPLETED")
def lost_exit_code(script: BatchScript) -> Iterator[RuleHit]:
    yield from _waits_for_all(script)
    yield from _discarded_status(script)
    work = [launch for launch in script.work if launch.command.function is None and not launch.command.background]
    if not work and not script.launches:
        yield from _after_other_script(script)
    if not work or script.sets("e"):
        return
    last = work[-1]
    yield from _only_the_last_counts(script, work)
    if _checks_status(script, last):
        return
    neutral = _STATUS_NEUTRAL_COMMANDS
    if not any(one.background for one in script.commands):
        neutral = neutral - {"wait"}  # it waits for nothing, and succeeds
    after = [
        one
        for one in script.top
        if one.line > last.command.last_line
        and one.name not in neutral
        and (one.words or one.assigns)
        and not _in_other_branch(script, last.command, one)
    ]
    piped = last.command.piped
    if after and not piped:
        yield RuleHit(
            after[-1].line,
            f"the script continues after the training of line {last.line} even if that failed",
            "a crash is reported as COMPLETED with exit code 0, and follow-up jobs start",
            "set -eo pipefail   # before the training, or exit $? behind it",
            None,
            strict_edits(script, last),
        )


_WORK_SCRIPT = re.compile(r"(?:.*/)?[\w.-]*(?:train|run|launch|main|tune|exp|job)[\w.-]*\.sh", re.IGNORECASE)


def _after_other_script(script: BatchScript) -> Iterator[RuleHit]:
    """The work is another script, such as ./run.sh, and commands stand behind it."""
    top = script.top
    called = [one for one in top if any(_WORK_SCRIPT.fullmatch(word) for word in _called(one))]
    if not called or script.sets("e") or not script.header:
        return
    last = called[-1]
    after = [one for one in top if one.line > last.last_line and one.name not in _STATUS_NEUTRAL_COMMANDS and one.words]
    looked_at = last.after in ("||", "&&") or last.condition or last.background or last.piped or last.within
    if after and not looked_at and not any(_STATUS.search(one.raw) for one in after):
        yield RuleHit(
            after[-1].line,
            f"the script continues after the script of line {last.line} even if that failed",
            "a crash is reported as COMPLETED with exit code 0, and follow-up jobs start",
            "set -eo pipefail   # below the #SBATCH lines",
            None,
            (ScriptEdit("body", new="set -eo pipefail"),),
        )


def _called(command: ShellCommand) -> list[str]:
    """The script that a command runs: its own name, or the word behind bash."""
    return command.texts[1:2] if command.name in ("bash", "sh") else command.texts[:1]


_KEEPS_STATUS = re.compile(r"pipefail|PIPESTATUS")
_TEE = re.compile(r"\|&?\s*tee\b")
_VALUE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)
_COLLECT = "|| failed=1   # behind each training, and exit ${failed:-0} as the last line"


def _only_the_last_counts(script: BatchScript, work: list[ScriptLaunch]) -> Iterator[RuleHit]:
    """Trainings in a row, or in a loop: the script's exit code is that of the last one."""
    for index, launch in enumerate(work):
        command = launch.command
        if command.piped or _checks_status(script, launch) or launch.has("node-rank", "machine-rank"):
            continue  # ranks of one training in a row are S15's
        if launch.launcher == "other" and _WORK_SCRIPT.fullmatch(launch.program) is None:
            continue  # a step that cleans up or prepares
        again = [
            one
            for one in work[index + 1 :]
            if one.command is not command
            and not _in_other_branch(script, command, one.command)
            and (one.program == launch.program or (_is_training(one) and _is_training(launch)))
        ]
        looped = "loop" in command.within
        if looped or again:
            yield RuleHit(
                launch.line,
                "this training runs in a loop, and only the last one decides the job's exit code"
                if looped
                else f"the training of line {again[-1].line} runs even if this one failed, and decides the exit code",
                "a crash before the last one is reported as COMPLETED with exit code 0",
                _COLLECT,
            )
            return  # it holds for the other ones as well


_TRAINING_NAME = re.compile(r"(?:pre_?|fine_?)?(?:train|tune)|run_(?:clm|mlm|glue)", re.IGNORECASE)


def _is_training(launch: ScriptLaunch) -> bool:
    """Not a step that only prepares: a launcher of many processes, or a program that is called so."""
    return launch.is_distributed or _TRAINING_NAME.match(base_name(launch.program)) is not None


def _waits_for_all(script: BatchScript) -> Iterator[RuleHit]:
    """`wait` without a process returns 0, whatever those in the background returned; set -e does not see them."""
    work = [launch for launch in script.work if launch.command.function is None]
    if not work or not all(launch.command.background for launch in work):
        return
    behind = [one for one in script.commands if one.line >= work[0].line]
    waits = [one for one in behind if one.name == "wait"]
    if not waits or any(len(one.words) > 1 for one in waits) or any(_STATUS.search(one.raw) for one in behind):
        return
    yield RuleHit(
        waits[-1].line,
        "wait returns 0 even if a training in the background failed",
        "a crash is reported as COMPLETED with exit code 0, and follow-up jobs start",
        WAIT_FOR_ALL,
    )


def _discarded_status(script: BatchScript) -> Iterator[RuleHit]:
    """`train || true`: what stands behind || succeeds always."""
    for launch in script.work:
        command = launch.command
        if command.after != "||" or command.nested or command.condition or command.function is not None:
            continue
        if launch.launcher == "other" and _WORK_SCRIPT.fullmatch(launch.program) is None:
            continue  # a step that cleans up or prepares
        behind = next((one for one in script.top if one.line >= command.line and one.before == "||"), None)
        if behind is None or behind.within != command.within or behind.after in ("&&", "||"):
            continue
        if behind.name in ("true", ":", "echo", "printf"):
            yield RuleHit(
                behind.line,
                f"{behind.name} runs in the place of a failed training, and succeeds",
                "a crash is reported as COMPLETED with exit code 0, and follow-up jobs start",
                f"remove || {behind.name}, or write || exit 1",
            )
            return


def _in_other_branch(script: BatchScript, command: ShellCommand, later: ShellCommand) -> bool:
    """Whether an else, elif or ;; stands between two commands of one if or case."""
    if not command.within or not later.within:
        return False
    between = script.text.lines[command.last_line : later.line - 1]
    return any(_NEXT_BRANCH.match(line) for line in between) and not any(
        _END_OF_BRANCHES.match(line) for line in between
    )


@text_rule("S02", "warning", "an exit code lost in a pipe")
def pipe_hides_exit_code(script: BatchScript) -> Iterator[RuleHit]:
    for launch in script.work:
        # The shell of bash -c does not take over pipefail from the script.
        if launch.quoting and _TEE.search(launch.command.raw) and not _KEEPS_STATUS.search(launch.command.raw):
            yield RuleHit(
                launch.line,
                "the exit code of the pipe in bash -c is that of tee",
                "a crash is reported as COMPLETED with exit code 0",
                "set -o pipefail;   # as the first command of bash -c",
            )
            return
    if script.sets("pipefail") or any("PIPESTATUS" in command.raw for command in script.commands):
        return
    piped = [launch.command for launch in script.work if launch.command.piped and not launch.command.nested]
    for command in piped or _piped_to_tee(script):
        yield RuleHit(
            command.line,
            "the exit code of this pipe is that of its last program",
            "a crash is reported as COMPLETED with exit code 0",
            "set -o pipefail   # below the #SBATCH lines",
            None,
            (ScriptEdit("body", new="set -o pipefail"),),
        )
        return  # it holds for every other pipe as well


def _piped_to_tee(script: BatchScript) -> list[ShellCommand]:
    """Commands whose output goes to tee, which is done with the work; also in a text that eval runs."""
    top = script.top
    started = {launch.command for launch in script.launches}
    found = [one for one, behind in pairwise(top) if one.piped and behind.name == "tee" and one in started]
    for command in top:
        value = _VALUE.fullmatch(command.texts[1]) if command.name == "eval" and len(command.words) == 2 else None
        text = script.values.get(value[1], "") if value is not None else ""
        if any(one.piped for one in parse_shell(text).commands) and _TEE.search(text):
            found.append(command)
    return found


@text_rule("S03", "error", "exit 0 whatever happened")
def always_exit_zero(script: BatchScript) -> Iterator[RuleHit]:
    top = script.top
    if not top or not script.work or script.sets("e"):
        return
    end = top[-1]
    if end.name != "exit" or end.texts[1:] != ["0"] or end.within:
        return
    last = script.work[-1]
    if last.line > end.line or last.command.after in ("||", "&&") or last.command.condition:
        return
    others = [one for one in script.commands if one.name == "exit" and one is not end and one.line >= last.line]
    if any(one.texts[1:] != ["0"] for one in others) or any(
        one.name == "trap" and "ERR" in one.texts for one in script.commands
    ):
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


@text_rule("S07", "error", "conda activate in a shell that has no conda", lower=("warning",))
def conda_not_initialized(script: BatchScript) -> Iterator[RuleHit]:
    if script.is_login or script.kind == "experiment" or script.language != "bash":
        return
    for index, command in enumerate(script.commands):
        if command.name not in ("conda", "mamba", "micromamba") or command.texts[1:2] != ["activate"]:
            continue
        before = script.commands[:index]
        if any(_CONDA_READY.search(one.raw) for one in before) or script.functions & {"conda", "mamba"}:
            return
        if any(one.name in ("source", ".", "eval", "spack") for one in before):
            return  # what such a file defines cannot be seen from here
        modules = [one for one in before if one.name in ("module", "ml")]
        if any(_CONDA_MODULE.search(_TOOLCHAIN.sub("", one.raw)) for one in modules) or "i" in script.shebang_flags:
            return
        yield RuleHit(
            command.line,
            f"{command.name} activate needs a shell function that a batch job's shell does not have",
            "it fails, and without set -e the script continues with another Python",
            f'eval "$({command.name} shell.bash hook)"   # before it'
            if command.name != "micromamba"
            else 'eval "$(micromamba shell hook --shell bash)"   # before it',
            "warning" if modules else None,
            _conda_edits(script, command),
        )
        return


def _conda_edits(script: BatchScript, command: ShellCommand) -> tuple[ScriptEdit, ...]:
    line = script.text.lines[command.line - 1]
    if not line.lstrip().startswith(command.name) or command.name == "micromamba":
        return ()
    return (ScriptEdit("before", command.line, new=f'eval "$({command.name} shell.bash hook)"'),)


@text_rule("S08", "warning", "module in a shell that may not have it", lower=("hint",))
def module_not_initialized(script: BatchScript) -> Iterator[RuleHit]:
    export = (script.options["export"].value if "export" in script.options else "") or ""
    bare = export.upper() in ("NONE", "NIL") or script.language in ("sh", "dash")
    if not bare or script.is_login or "get-user-env" in script.options:
        return
    for command in script.commands:
        if command.name in ("source", ".") and re.search(r"modules|lmod|profile|/init", command.raw):
            return
        if command.name in ("module", "ml"):
            yield RuleHit(
                command.line,
                f"module is a shell function, and {'--export=NONE' if export else script.language} does not have it",
                "command not found, and the script continues without the module",
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
    if any(re.search(r"SLURM_SUBMIT_DIR|/spool|Command=", command.raw) for command in script.commands):
        return  # the script knows where it is run, and looks elsewhere
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


_JOB_PATTERN = re.compile(r"%\d*[AajJNtns]")
_REQUEST_OPTIONS = frozenset({"gres", "partition", "account", "qos", "nodes", "ntasks", "ntasks-per-node",
                   "cpus-per-task", "gpus", "gpus-per-node", "mem", "array", "dependency", "job-name",
                   "constraint", "exclude"})  # fmt: skip
_SRUN = re.compile(r"^[^#\n]*(?:^|[\s;&|(])srun\s", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#SBATCH\s+-", re.MULTILINE)


@rule("D07", "error", "the log folder does not exist", lower=("warning",))
def missing_log_directory(facts: CheckFacts) -> Iterator[RuleHit]:
    if facts.job.kind != "batch":
        return
    base = facts.job.options.get("chdir")
    for name in ("output", "error"):
        option = facts.job.options.get(name)
        value = option.value or "" if option else ""
        folder = os.path.dirname(value)
        if option is None or not option.is_literal or not folder or folder.startswith("~"):
            continue
        folder = _expand_known_patterns(folder, facts)
        if "%" in folder:
            yield from _directory_per_job(option, folder)
            continue
        if base is not None and base.value and base.is_literal and not os.path.isabs(folder):
            folder = os.path.join(base.value, folder)
        exists = facts.files.folder_exists(folder)
        if exists is not False or (facts.cluster is None and _is_elsewhere(folder, facts)):
            continue
        made = any(one.name == "mkdir" and folder.strip("./") in " ".join(one.texts) for one in facts.job.commands)
        certain = facts.cluster is not None
        yield RuleHit(
            option.line,
            f"the folder {folder} of --{name} does not exist" + (" yet; the script makes it too late" if made else ""),
            "the job fails at once (0:53) and leaves no log at all; Slurm makes no folders",
            f"mkdir -p {folder}   # before sbatch",
            None if certain else "warning",
            (ScriptEdit("mkdir", new=folder),),
        )


def _expand_known_patterns(folder: str, facts: CheckFacts) -> str:
    """%x and %u stand for names that are known before the job has its number."""
    option = facts.job.options.get("job-name")
    name = option.value if option and option.value else os.path.basename(facts.job.path)
    return folder.replace("%x", name).replace("%u", os.environ.get("USER", "%u"))


def _directory_per_job(option: SbatchOption, folder: str) -> Iterator[RuleHit]:
    """A directory named after the job's number cannot have been made before the job has one."""
    if _JOB_PATTERN.search(folder) is None:
        return
    value = option.value or ""
    parts = value.split("/")
    first = next(index for index, part in enumerate(parts) if _JOB_PATTERN.search(part))
    better = "/".join([*parts[:first], "-".join(parts[first:])])
    yield RuleHit(
        option.line,
        f"the folder {os.path.dirname(value)} of --{option.name} is named after the job, and Slurm makes no folders",
        "the job fails at once (0:53) and leaves no log at all",
        f"--{option.name}={better}",
        None,
        (ScriptEdit("replace", option.line, value, better),),
    )


def _is_elsewhere(folder: str, facts: CheckFacts) -> bool:
    """An absolute path of another machine: even its second part, such as /home/ann, does not exist here."""
    parts = folder.strip("/").split("/")
    return os.path.isabs(folder) and not facts.files.folder_exists("/" + "/".join(parts[:2]))


@text_rule("D08", "error", "sbatch options behind the script's name", lower=("warning",))
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
            outer_tasks = as_number(step.options.get("ntasks"), facts.job.values) or facts.job.geometry.tasks
            name = next((word.raw for word in step.command.words if base_name(word.text) == "srun"), "")
            # Each task of the outer step would start the inner one: with several, only a person knows what is meant.
            edit = ScriptEdit("replace", step.line, name, f"{name} --overlap")
            yield RuleHit(
                step.line,
                f"{what} calls srun inside this srun",
                "the inner one waits for resources that the outer one holds: step creation temporarily disabled",
                "srun --overlap ... on this line, or the command without this srun"
                if outer_tasks == 1
                else f"the command without this srun, which starts it {outer_tasks} times",
                None,
                (edit,) if outer_tasks == 1 and name and name in facts.line(step.line) else (),
            )


#: Variables that Slurm sets only for one option of the header, the option, and what is always set.
_OPTION_VARIABLES = {
    "SLURM_GPUS_PER_NODE": ("gpus-per-node", "SLURM_GPUS_ON_NODE"),
    "SLURM_GPUS": ("gpus", "SLURM_GPUS_ON_NODE"),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task", "SLURM_GPUS_ON_NODE"),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node", "SLURM_NTASKS"),
}
_OPTION_VARIABLE = re.compile(r"\$(?:\{(SLURM_\w+)\}|(SLURM_\w+)\b)")


@rule("S17", "error", "a variable that Slurm does not set for this request", lower=("warning",))
def unset_variable(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if facts.script is not None:
        yield from _index_without_array(facts.script)
    if job.kind != "batch" or not job.header or not job.geometry.wants_gpus:
        return
    own = {export.name for export in job.exports}
    seen: set[str] = set()
    for command in job.commands:
        for match in _OPTION_VARIABLE.finditer(command.raw):
            name = match[1] or match[2]
            option, always = _OPTION_VARIABLES.get(name, ("", ""))
            if not option or option in job.options or name in own or name in seen or command.condition:
                continue
            # Another option says the same number, so nobody gives this one on the command line as well.
            rival = {"gres", "gpus", "gpus-per-node", "gpus-per-task"} if "GPUS" in name else {"ntasks"}
            if not rival & set(job.options):
                continue
            seen.add(name)
            starts = any(launch.line <= command.line <= launch.command.last_line for launch in job.launches)
            yield RuleHit(
                command.line,
                f"Slurm sets ${name} only with --{option}, which the header does not have",
                "it is empty, and the launcher fails or reads the next word as its value" if starts else "it is empty",
                f"${always}, or #SBATCH --{option} in the place of --{sorted(rival & set(job.options))[0]}",
                None if starts else "warning",
                _variable_edits(facts, command, match[0], always) if always == "SLURM_GPUS_ON_NODE" else (),
            )


def _index_without_array(script: BatchScript) -> Iterator[RuleHit]:
    """$SLURM_ARRAY_TASK_ID in a script whose header has no --array, and no comment that names it."""
    name = "SLURM_ARRAY_TASK_ID"
    if script.kind != "batch" or not script.header or "array" in script.options:
        return
    if any("--array" in line or f"{{{name}:" in line or f"{name}=" in line for line in script.text.lines):
        return
    used = [one for one in script.commands if re.search(rf"\$\{{?{name}\b", one.raw)]
    if any(one.condition or one.name in ("[", "[[", "test", "case") for one in used):
        return
    work = [one for one in used if one.name not in ("echo", "printf")]
    if work:
        yield RuleHit(
            work[0].line,
            f"Slurm sets ${name} only in an array, and the header has no --array",
            "it is empty: the first element of a list is taken for every run, or the command fails",
            "#SBATCH --array=0-N%K with the numbers that are meant",
            "warning",
        )


def _variable_edits(facts: CheckFacts, command: ShellCommand, written: str, better: str) -> tuple[ScriptEdit, ...]:
    numbers = range(command.line, command.last_line + 1)
    at = next((number for number in numbers if written in facts.line(number)), None)
    return (ScriptEdit("replace", at, written, f"${better}"),) if at is not None else ()


@text_rule("S18", "error", "srun in another job")
def foreign_job_id(script: BatchScript) -> Iterator[RuleHit]:
    for step in script.steps:
        number = step.options.get("jobid")
        if number is not None and number.isdigit():
            edits = tuple(
                ScriptEdit("replace", step.line, written, "")
                for written in (f" --jobid={number}", f" --jobid {number}")
                if written in script.text.lines[step.line - 1]
            )
            yield RuleHit(
                step.line,
                f"--jobid={number} starts this step in job {number}, and not in the job that this script becomes",
                "srun fails when that job has ended; until then the step uses that job's GPUs, and this job's are idle",
                "srun without --jobid",
                None,
                edits,
            )


_ASKS = re.compile(
    r"^(?:conda|mamba|micromamba) (?:install|create|update|upgrade|remove)\b|^(?:python3? -m )?pip3? uninstall\b"
    r"|^(?:sudo )?apt(?:-get)? (?:install|upgrade|remove)\b"
)
_ANSWERED = re.compile(
    r"(?:^|\s)(?:-[a-z]*y[a-z]*|--yes|--assume-yes|-qq)(?:\s|$)|\s--(?:dry-run|help|download-only)\b"
)


@text_rule("S19", "warning", "a command that asks a question")
def unanswered_question(script: BatchScript) -> Iterator[RuleHit]:
    if script.kind != "batch" or not script.header:
        return
    if any(name in one.raw for one in script.commands for name in ("CONDA_ALWAYS_YES", "always_yes")):
        return
    for command in script.commands:
        text = " ".join(command.texts)
        if _ASKS.search(text) is None or _ANSWERED.search(text):
            continue
        if command.before in ("|", "|&") or any(one.operator.startswith("<") for one in command.redirects):
            continue  # the answer comes from there
        yield RuleHit(
            command.line,
            f"{' '.join(command.texts[:2])} asks before it changes anything, and no one answers in a batch job",
            "it gives up, and the script continues without the packages",
            f"{' '.join(command.texts[:2])} -y ...; better on the login node, before the job",
        )
        return


@text_rule("S22", "error", "a shell that has nothing to do")
def idle_shell(script: BatchScript) -> Iterator[RuleHit]:
    """`singularity exec image.sif bash`, and the commands for it below: they run outside when it has ended."""
    if not script.header:
        return
    for command in script.top:
        passed, rest = unwrap(command.texts)
        if base_name(command.name) == "srun" and "--pty" in command.texts:
            passed, rest = unwrap(read_srun(command.texts[1:]).rest)
            passed.append("srun --pty")
        asks_shell = command.texts[1:2] == ["shell"] and base_name(command.name) in ("singularity", "apptainer")
        is_shell = len(rest) <= 2 and base_name(rest[0] if rest else "") in ("bash", "sh", "zsh")
        is_bare = is_shell and all(word in ("-l", "-i", "--login") for word in rest[1:])
        if not asks_shell and not (is_bare and ({*passed} & {*CONTAINERS, "srun --pty"})):
            continue
        if command.before in ("|", "|&") or any(one.operator.startswith("<") for one in command.redirects):
            continue
        if not any(launch.line > command.line for launch in script.launches):
            continue
        yield RuleHit(
            command.line,
            "this shell gets no commands: those below it are not for it",
            "it ends at once, and what follows runs outside of it, without the container's programs",
            f"{' '.join(command.texts[:2])} ... bash -c '...', with the commands below in the quotes",
        )
        return


_CHANGES_ENVIRONMENT = re.compile(r"^(?:conda|mamba|micromamba) (?:env )?(?:create|install|update)\b")


@text_rule("S23", "warning", "array tasks that change one environment")
def environment_in_array(script: BatchScript) -> Iterator[RuleHit]:
    if (script.geometry.array_size or 0) < 2:
        return
    for command in script.top:
        if (
            not _CHANGES_ENVIRONMENT.match(" ".join(command.texts))
            or "SLURM_" in command.raw
            or "TMPDIR" in command.raw
        ):
            continue
        if command.within or command.before in ("||", "&&"):
            continue  # only where it is missing
        yield RuleHit(
            command.line,
            f"each of {script.geometry.array_size} array tasks runs {' '.join(command.texts[:2])}, on one environment",
            "tasks that start together overwrite each other's packages, and some fail on import",
            "make the environment once, before the job",
        )
        return


_ONLY_REDIRECT = re.compile(r"\s*1?>{1,2}\s*[^\s;|&]+\s+2>\s*\S+\s*")


def _lost_redirect(script: BatchScript) -> Iterator[RuleHit]:
    """`> log 2>&1` on a line of its own, below a training whose last line lacks the backslash."""
    for number in sorted({launch.command.last_line + 1 for launch in script.launches}):
        lines = script.text.lines[number - 2 : number]
        if len(lines) < 2 or lines[0].endswith("\\") or not _ONLY_REDIRECT.fullmatch(lines[1]):
            continue
        yield RuleHit(
            number,
            "this redirect is a command of its own: the line above does not end in \\",
            "the file stays empty, and the redirect's success hides a failure of the training",
            "end the line above in \\",
            None,
        )


@text_rule("S20", "error", "a command that was cut off", lower=("warning",))
def cut_off_command(script: BatchScript) -> Iterator[RuleHit]:
    yield from _lost_redirect(script)
    for command in script.top:
        is_option = re.match(r"--?[A-Za-z]", command.name) is not None and "{" not in command.name
        # Without a folder bash looks for it in PATH, where no one keeps a train.py; an indented one belongs above.
        line = script.text.lines[command.line - 1]
        is_file = re.fullmatch(r"\w+\.py", command.name) is not None and line[:1] in " \t" and not command.within
        if command.before != "\n" or not (is_option or is_file):
            continue
        above = script.text.lines[command.line - 2] if command.line > 1 else ""
        has_blank = re.search(r"\\[ \t]+$", above) is not None
        reason = "a blank stands behind the \\ of the line above" if has_blank else "the line above does not end in \\"
        yield RuleHit(
            command.line,
            f"{command.name} begins a command of its own: {reason}",
            "what stands above runs without this line and those below it, and bash says: command not found",
            "remove the blank behind the \\" if has_blank else "end the line above in \\",
            None if is_option else "warning",
            (ScriptEdit("replace", command.line - 1, above, above.rstrip()),) if has_blank else (),
        )
        return


@text_rule("S21", "warning", "a comma between the elements of an array")
def comma_in_array(script: BatchScript) -> Iterator[RuleHit]:
    for export in script.exports:
        if _COMMA_IN_ARRAY.match(export.value):
            yield RuleHit(
                export.line,
                f"bash separates the elements of {export.name} by blanks, so each comma is part of an element",
                "names and numbers have a comma behind them: files are not found, or values are wrong",
                "remove the commas",
            )


_COMMA_IN_ARRAY = re.compile(r"""\(\s*(?:"[^"$]*"|'[^']*'|[\w.+-]+),\s+(?:"[^"]*"|'[^']*'|[\w.+-]+),?[\s)]""")
