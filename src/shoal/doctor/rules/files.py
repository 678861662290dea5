"""D, S: what the file system beside the script tells: log folders, scripts that call scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from shoal.batch import known_options, short_names
from shoal.doctor.finding import CheckFacts, RuleHit, rule, text_rule
from shoal.doctor.launchers import read_launcher
from shoal.doctor.launches import DISTRIBUTED
from shoal.doctor.rules.common import calls_srun
from shoal.doctor.script import BatchScript

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
        started = launcher.rest if launcher is not None and launcher.program in DISTRIBUTED else step.rest
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
