"""Edits that several rules propose for `--fix`: other options of the header, srun before a launch, launcher options.

Each function returns the edits, or none where the place in the text cannot be told for certain.
"""

from __future__ import annotations

import re
import shlex

from shoal.batch import ShellCommand
from shoal.doctor.finding import CheckFacts, ScriptEdit
from shoal.doctor.launchers import base_name, is_python
from shoal.doctor.launches import ScriptLaunch, SrunStep
from shoal.doctor.script import BatchScript

Edits = tuple[ScriptEdit, ...]
#: Words that stay before srun.
_PREFIXES = frozenset({"exec", "time", "nohup", "command"})
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|.)")
_FIRST_NODE = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 10000))"'
RENDEZVOUS = f"--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint={_FIRST_NODE}"

#: Waits for everything in the background and fails if one of it failed; plain `wait` returns 0 then.
WAIT_FOR_ALL = "for pid in $(jobs -p); do wait $pid || failed=1; done; exit ${failed:-0}"


def option_edit(name: str, value: str | int) -> ScriptEdit:
    """Give an option of the header this value; an empty one removes it."""
    return ScriptEdit("option", old=name, new=str(value))


def nearest_edits(facts: CheckFacts) -> Edits:
    """The request that this cluster accepts, where the script's own is refused."""
    if facts.nearest is None or facts.script is None:
        return ()
    pairs = [word.removeprefix("--").partition("=") for word in shlex.split(facts.nearest)]
    return tuple(option_edit(name, value) for name, _, value in pairs)


def tasks_edits(facts: CheckFacts, tasks: int) -> Edits:
    """This many tasks on each node, which share the CPUs that the job asked for."""
    geometry, options = facts.job.geometry, facts.job.options
    edits = [option_edit("ntasks-per-node", tasks)]
    if "ntasks" in options:
        edits.append(option_edit("ntasks", ""))
    if "nodes" not in options:
        edits.append(option_edit("nodes", geometry.n))
    if geometry.cpus_per_task and "cpus-per-task" in options:
        cpus = geometry.cpus_per_task * geometry.tasks_on_node
        edits.append(option_edit("cpus-per-task", max(1, cpus // tasks)))
    return tuple(edits)


def srun_edits(facts: CheckFacts, launch: ScriptLaunch, flags: str = "") -> Edits:
    """srun before a launch; none where another program or a quoted text stands around it."""
    words = launch.command.words
    at = next((index for index, word in enumerate(words) if word.text not in _PREFIXES), None)
    if facts.script is None or launch.srun is not None or launch.quoting or at is None:
        return ()
    word = words[at]
    if word.raw.startswith("$") or word.raw not in facts.line(word.line):
        return ()
    call = f"srun {flags}".strip()
    return (_insert_before(facts, word.line, word.raw, call),)


def launcher_edits(facts: CheckFacts, launch: ScriptLaunch, text: str) -> Edits:
    """Further options right behind the name of a launcher such as torchrun."""
    if facts.script is None or launch.quoting:
        return ()
    for word in launch.command.words:
        if base_name(word.text) == "torchrun" or (launch.has("by-module") and word.text == launch.option("by-module")):
            line = facts.line(word.line)
            return (ScriptEdit("replace", word.line, word.raw, f"{word.raw} {text}"),) if word.raw in line else ()
    return ()


def value_edits(facts: CheckFacts, launch: ScriptLaunch, names: tuple[str, ...], value: str) -> Edits:
    """Another value for an option of a launch, as it is written there."""
    words = launch.command.words
    for index, word in enumerate(words):
        name, equals, _ = word.raw.partition("=")
        if name.lstrip("-").replace("_", "-") not in names or not name.startswith("-"):
            continue
        if equals and word.raw in facts.line(word.line):
            return (ScriptEdit("replace", word.line, word.raw, f"{name}={value}"),)
        following = words[index + 1] if index + 1 < len(words) else None
        if not equals and following is not None and following.line == word.line:
            written = f"{word.raw} {following.raw}"
            return (ScriptEdit("replace", word.line, written, f"{word.raw} {value}"),)
    return ()


def background_edits(script: BatchScript, command: ShellCommand, then: str = "") -> Edits:
    """& behind a command that ends its line at the top of the script, and lines below it; none for any other."""
    number = command.last_line
    line = script.text.lines[number - 1]
    is_plain = not (command.within or command.nested or command.function or command.piped or command.condition)
    if not is_plain or command.after not in ("", "\n") or command.before not in ("", "\n") or "#" in line:
        return ()
    return (ScriptEdit("replace", number, line, f"{line.rstrip()} &" + (f"\n{then}" if then else "")),)


def task_shell_edits(script: BatchScript, step: SrunStep) -> Edits:
    """The program of an srun as the quoted text of a shell that each task starts, so that the task's variables are read
    there; none where that shell would not know a variable of the script, or the text cannot be quoted."""
    words = step.command.words
    tail = words[len(words) - len(step.rest) :]
    written = " ".join(word.raw for word in tail)
    exported = {export.name for export in script.exports if export.command.name == "export"}
    names = {match[1] for match in _VARIABLE.finditer(written)}
    is_known = all(name.startswith("SLURM_") or name in exported for name in names) and "$(" not in written
    if [word.text for word in tail] != list(step.rest) or "'" in written or not is_known:
        return ()
    if written not in script.text.lines[step.line - 1]:
        return ()
    return (ScriptEdit("replace", step.line, written, f"bash -c '{written}'"),)


def strict_edits(script: BatchScript, launch: ScriptLaunch) -> Edits:
    """set -eo pipefail right before the training: what sets up the environment may fail in harmless ways."""
    line = script.text.lines[launch.command.line - 1]
    first = launch.command.raw.split(" ")[0]
    if not first or not line.lstrip().startswith(first) or launch.command.before not in ("", "\n"):
        return (ScriptEdit("body", new="set -eo pipefail"),)
    return (ScriptEdit("before", launch.command.line, new="set -eo pipefail"),)


def starts_python(launch: ScriptLaunch) -> bool:
    """The launch is python or a launcher by its own name, and not behind a container or another wrapper."""
    names = [word.text for word in launch.command.words if word.text not in _PREFIXES]
    return bool(names) and (is_python(names[0]) or base_name(names[0]) in ("torchrun", "accelerate", "deepspeed"))


def _insert_before(facts: CheckFacts, line: int, word: str, call: str) -> ScriptEdit:
    text = facts.line(line)
    at = text.index(word)
    return ScriptEdit("replace", line, text[: at + len(word)], f"{text[:at]}{call} {word}")
