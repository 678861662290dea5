"""Values that no program reads: a seed, a checkpoint to start from, or a swept parameter that ends at a shell."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.agent.environment import BUILT_IN, placeholders, text_of
from shoal.config.project import Project
from shoal.errors import InputError
from shoal.model import RunSpec
from shoal.plan.sources import file_that_reads

#: Enough of a program to see whether it reads the environment; a data file among the words is not read whole.
_MOST_BYTES = 1 << 20
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
#: Programs that start the words behind them.
_AROUND = frozenset(
    {"apptainer", "conda", "docker", "env", "exec", "ionice", "mamba", "micromamba", "nice", "nohup", "numactl", "pixi"}
    | {"podman", "poetry", "setsid", "singularity", "srun", "stdbuf", "taskset", "time", "timeout", "uv", "xvfb-run"}
)
_ALL_ARGUMENTS = re.compile(r"\$[@*#]|\$\{[@*#!]|\bshift\b|\bgetopts\b|BASH_ARGV|SHOAL_PARAMS")
_ARGUMENT = re.compile(r"\$(\d)|\$\{(\d+)")
_SOURCE = re.compile(r"(?:^|[;&|])\s*(?:source|\.)\s", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#SBATCH\s+-", re.MULTILINE)
_SHEBANG = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")


class _Shell(NamedTuple):
    """A shell in a command: the text that it executes, and where its arguments begin. The first of a `-c` is $0."""

    text: str
    first: int
    is_inline: bool


def unread_seeds(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each sweep whose seeds are in no argument, and whose program does not seem to read them itself."""
    first: dict[tuple[object, ...], int] = {}
    settled: dict[str, str | None] = {}
    for spec in specs:
        if spec.sweep is None or spec.seed is None or spec.sweep in settled:
            continue
        words = _words(spec)
        if first.setdefault((spec.sweep, words, repr(spec.params)), spec.seed) == spec.seed:
            continue
        heard = _hears(spec, ("seed",), "SHOAL_SEED")
        remark = f"no argument of {spec.sweep} has the seed: put {{seed}} into its command, or read $SHOAL_SEED"
        settled[spec.sweep] = None if heard else remark
    return [remark for remark in settled.values() if remark]


def unread_starts(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each step whose runs start from a checkpoint that nothing seems to load."""
    settled: dict[tuple[object, ...], str | None] = {}
    for spec in specs:
        if spec.start_from is None and spec.start_parent is None:
            continue
        key = (spec.step_kind, _words(spec))
        if key not in settled:
            heard = _hears(spec, ("start_from", "parent_dir"), "SHOAL_START_FROM", "SHOAL_PARENT_DIR")
            settled[key] = None if heard else spec.name
    names = [name for name in settled.values() if name]
    more = f" (and {len(names) - 1} others like it)" if len(names) > 1 else ""
    told = (
        "may not load the checkpoint that it starts from: put {start_from} into its command, or read $SHOAL_START_FROM"
    )
    return [f"{names[0]}{more} {told}"] if names else []


def unread_params(specs: Iterable[RunSpec], project: Project) -> list[str]:
    """A remark for each sweep whose step passes no parameters, whose words have not all, and whose program does not
    seem to read them itself."""
    settled: dict[str, str | None] = {}
    for spec in specs:
        step = project.steps.get(spec.step_kind)
        if spec.sweep is None or spec.sweep in settled or step is None or step.params:
            continue
        silent = [name for name in spec.params if name not in spec.derived and not _has(spec, name)]
        remark = f"no argument of {spec.sweep} has {', '.join(silent)}: put {{{'}, {'.join(silent)}}} into its command"
        settled[spec.sweep] = (
            f"{remark}, or read $SHOAL_PARAMS" if silent and not _hears(spec, (), "SHOAL_PARAMS") else None
        )
    return [remark for remark in settled.values() if remark]


def swallowed(specs: Iterable[RunSpec]) -> list[str]:
    """Refuse a run whose arguments end at a shell that does not pass them on: bash -c 'python train.py' --lr=0.1. A
    remark where another file, which the shell sources, might use them."""
    seen: set[tuple[object, ...]] = set()
    remarks: dict[str, None] = {}
    for spec in specs:
        key = (tuple(spec.command), len(spec.args))
        if key in seen:
            continue
        seen.add(key)
        shell = _shell_of(spec.command, spec.cwd)
        if shell is None:
            continue
        own = spec.command[shell.first :]
        given = [*(bool(set(placeholders([word])) - set(BUILT_IN)) for word in own), *(True for _ in spec.args)]
        for number, (word, counts) in enumerate(
            zip([*own, *spec.args], given, strict=True), 0 if shell.is_inline else 1
        ):
            if not counts or _uses(shell.text, number):
                continue
            problem = _problem(spec, shell, word, number)
            if shell.is_inline or not _SOURCE.search(shell.text):
                raise problem
            remarks[f"{problem.message} (unless a file that it sources does)"] = None
    return list(remarks)


def unread_directives(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each step that starts a batch script, whose #SBATCH lines nobody reads then."""
    remarks: dict[str, None] = {}
    seen: set[tuple[str, ...]] = set()
    for spec in specs:
        if (key := tuple(spec.command)) in seen:
            continue
        seen.add(key)
        shell = _shell_of(spec.command, spec.cwd)
        if shell is not None and not shell.is_inline and _DIRECTIVE.search(shell.text):
            script, step = spec.command[shell.first - 1], spec.step_kind
            remarks[f"#SBATCH lines of {script} are not read: the request is that of step {step!r} and of its call"] = (
                None
            )
    return list(remarks)


def _problem(spec: RunSpec, shell: _Shell, word: str, number: int) -> InputError:
    what = "the script of its `bash -c`" if shell.is_inline else f"its script {spec.command[shell.first - 1]}"
    if number == 0 and _uses(shell.text, 1):
        return InputError(
            f'{word!r} does not reach the program of {spec.name}: it is $0 of {what}, and "$@" begins at $1',
            hint='add a word after the script, such as bash: ["bash", "-c", "... \\"$@\\"", "bash"]',
        )
    return InputError(
        f"{word!r} does not reach the program of {spec.name}: {what} does not use its arguments",
        hint='add "$@" to it: ["bash", "-c", "python train.py \\"$@\\"", "bash"]; or {name} where the value belongs'
        if shell.is_inline
        else 'add "$@" to the command in it, or read $SHOAL_PARAMS',
    )


def _shell_of(command: Sequence[str], cwd: str) -> _Shell | None:
    """The shell that a command is, or starts at once; None where there is none or its text is not known."""
    start = 0
    if os.path.basename(command[0]) in _AROUND:
        start = next((at for at, word in enumerate(command) if os.path.basename(word) in _SHELLS), 0)
    if os.path.basename(command[start]) not in _SHELLS:
        text = _text_of(command[0], cwd)
        is_script = text is not None and (command[0].endswith(".sh") or _SHEBANG.match(text))
        return _Shell(text, 1, False) if text is not None and is_script else None
    at, inline = start + 1, False
    while at < len(command) and command[at][:1] in ("-", "+") and command[at] not in ("-", "--"):
        word = command[at]
        inline = inline or (not word.startswith("--") and "c" in word[1:])
        takes_value = word in ("--rcfile", "--init-file") or (not word.startswith("--") and word[-1] in "oO")
        at += 2 if takes_value else 1
    at += at < len(command) and command[at] == "--"
    if at >= len(command):
        return None
    text = command[at] if inline else _text_of(command[at], cwd)
    return None if text is None else _Shell(text, at + 1, inline)


def _uses(text: str, number: int) -> bool:
    """Whether a shell's text uses the argument of that number."""
    if number > 0 and _ALL_ARGUMENTS.search(text):
        return True
    return "SHOAL_PARAMS" in text or any(int(one or two) == number for one, two in _ARGUMENT.findall(text))


def _words(spec: RunSpec) -> tuple[str, ...]:
    return (*spec.command, *spec.args, *spec.env.values())


def _hears(spec: RunSpec, names: Sequence[str], *variables: str) -> bool:
    """Whether a placeholder, or one of these variables, stands in a word of the run or in a file of its program."""
    words = _words(spec)
    if set(placeholders(words)) & set(names) or any(variable in word for word in words for variable in variables):
        return True
    return any(file_that_reads(variable, Path(spec.cwd), words) for variable in variables)


def _has(spec: RunSpec, name: str) -> bool:
    """Whether a word of the run has the parameter: as a placeholder, or its value, which was put in already."""
    text = text_of(spec.params[name])
    return name in placeholders(_words(spec)) or any(text in re.split(r"[=:,\s]", word) for word in _words(spec))


def _text_of(word: str, cwd: str) -> str | None:
    """The beginning of the file that a word names, if it names one."""
    try:
        with open(os.path.join(cwd, word), "rb") as file:  # noqa: PTH123
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
