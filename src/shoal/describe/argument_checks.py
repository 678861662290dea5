"""Values that a program ignores or misreads: a seed, a start checkpoint, a swept parameter, placeholders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shoal.describe.locate import code_path
from shoal.describe.program_source import find_reader
from shoal.describe.project import Project
from shoal.describe.sweep_runs import near_placeholder
from shoal.errors import InputError
from shoal.job import BUILT_IN_PLACEHOLDERS, format_value, placeholder_names
from shoal.model import RunSpec

#: Enough of a program to see whether it reads the environment; a data file among the words is not read whole.
_MAX_BYTES = 1 << 20
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
#: Programs that start the words behind them.
_WRAPPERS = frozenset(
    {"apptainer", "conda", "docker", "env", "exec", "ionice", "mamba", "micromamba", "nice", "nohup", "numactl", "pixi"}
    | {"podman", "poetry", "setsid", "singularity", "srun", "stdbuf", "taskset", "time", "timeout", "uv", "xvfb-run"}
)
_ALL_ARGUMENTS = re.compile(
    r"\$[@*#]|\$\{[@*#!]|\bshift\b|\bgetopts\b|BASH_ARGV|SHOAL_PARAMS|\bfor\s+\w+\s*[;\n]\s*do\b"
)
#: Quoted parts of a word: what is in double quotes is kept, less what is escaped there.
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|\\.|\$?\'[^\']*\'', re.DOTALL)
_PRINT_COMMANDS = frozenset({"echo", "printf"})
#: Builtins that start no program.
_SILENT_BUILTINS = frozenset(
    {"set", "shift", "cd", "export", "true", ":", "exit", "return", "shopt", "umask", "ulimit", "unset"}
)
_ARGUMENT = re.compile(r"\$(\d)|\$\{(\d+)")
_SOURCE = re.compile(r"(?:^|[;&|])\s*(?:source|\.)\s", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#SBATCH\s+-", re.MULTILINE)
_SHEBANG = re.compile(r"#!.*\b(?:ba|da|z|k)?sh\b")


class _ShellProgram(NamedTuple):
    """A shell in a command: the text that it executes, and where its arguments begin. The first of a `-c` is $0."""

    text: str
    first: int
    is_inline: bool


def check_arguments(specs: Sequence[RunSpec], project: Project) -> list[str]:
    """Remarks on the words of runs, each once; InputError for values that reach no program."""
    return [
        *unused_seeds(specs),
        *refuse_dropped_arguments(specs),
        *unused_parameters(specs, project),
        *refuse_braces_in_values(specs),
        *bool_parameters_as_text(specs),
        *unused_checkpoints(specs),
        *ignored_directives(specs),
    ]


def unused_seeds(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each sweep whose seeds are in no argument, and whose program does not seem to read them itself."""
    first: dict[tuple[object, ...], int] = {}
    settled: dict[str, str | None] = {}
    for spec in specs:
        if spec.sweep is None or spec.seed is None or spec.sweep in settled:
            continue
        words = _words(spec)
        if first.setdefault((spec.sweep, words, repr(spec.params)), spec.seed) == spec.seed:
            continue
        is_read = _reads_any(spec, ("seed",), "SHOAL_SEED")
        remark = f"no argument of {spec.sweep} has the seed: put {{seed}} into its command, or read $SHOAL_SEED"
        settled[spec.sweep] = None if is_read else remark
    return [remark for remark in settled.values() if remark]


def unused_checkpoints(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each step whose runs start from a checkpoint that nothing seems to load."""
    settled: dict[tuple[object, ...], str | None] = {}
    for spec in specs:
        if spec.start_from is None and spec.start_parent is None:
            continue
        key = (spec.step_kind, _words(spec))
        if key not in settled:
            is_read = _reads_any(spec, ("start_from", "parent_dir"), "SHOAL_START_FROM", "SHOAL_PARENT_DIR")
            settled[key] = None if is_read else spec.name
    names = [name for name in settled.values() if name]
    more = f" (and {len(names) - 1} others like it)" if len(names) > 1 else ""
    sentence = (
        "may not load the checkpoint that it starts from: put {start_from} into its command, or read $SHOAL_START_FROM"
    )
    return [f"{names[0]}{more} {sentence}"] if names else []


def unused_parameters(specs: Iterable[RunSpec], project: Project) -> list[str]:
    """A remark for each sweep whose step passes no parameters, whose words have not all, and whose program does not
    seem to read them itself."""
    sweeps: dict[str, list[RunSpec]] = {}
    for spec in specs:
        step = project.steps.get(spec.step_kind)
        if spec.sweep is not None and step is not None and not step.params:
            sweeps.setdefault(spec.sweep, []).append(spec)
    remarks = []
    for sweep, runs in sweeps.items():
        names = dict.fromkeys(name for spec in runs for name in spec.params if name not in spec.derived)
        silent = [name for name in names if not _has_parameter(runs, name)]
        filled = set(placeholder_names(_words(runs[0])))
        silent += [name for name in runs[0].search.get("space", ()) if name not in filled and name not in names]
        if silent and not _reads_any(runs[0], (), "SHOAL_PARAMS"):
            wanted = "{" + "}, {".join(silent) + "}"
            remarks.append(
                f"no argument of {sweep} has {', '.join(silent)}: put {wanted} into its command, or read $SHOAL_PARAMS"
            )
    return remarks


def refuse_braces_in_values(specs: Iterable[RunSpec]) -> list[str]:
    """Refuse a parameter whose value is, or nearly is, a placeholder that shoal fills: in a value nothing is filled in.
    A remark for other names in braces, such as those of a prompt, which the program gets as they are."""
    remarks: dict[str, None] = {}
    for spec in specs:
        known = {*BUILT_IN_PLACEHOLDERS, *spec.params}
        for name, value in spec.params.items():
            if not isinstance(value, str) or "{" not in value or name in spec.derived:
                continue
            inside = placeholder_names([value])
            near = near_placeholder(value, known)
            meant = next((one for one in inside if one in known), near[1] if near else None)
            if meant is not None:
                raise InputError(
                    f"{value!r}, a value of {name} in {spec.name}, has braces that nothing fills in a value",
                    hint=f'args = ["--{name}={{{meant}}}"]   # without {name} in the sweep; {{{{x}}}} is {{x}}',
                )
            if inside:
                remarks[f"{value!r}, a value of {name}, reaches the program with its braces"] = None
    return list(remarks)


def bool_parameters_as_text(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each swept true or false that arrives as text at a program whose argparse takes any text as true."""
    settled: dict[tuple[str, str], str | None] = {}
    for spec in specs:
        for name, value in spec.params.items():
            word = f"--{name}={format_value(value)}"
            if value is not False or spec.sweep is None or (spec.sweep, name) in settled or word not in spec.args:
                continue
            file = find_reader("type=bool", Path(spec.start_dir), _words(spec))
            sentence = f"{spec.sweep} passes {word}, and {file} has type=bool: argparse takes any text as true"
            settled[spec.sweep, name] = sentence if file else None
    return [remark for remark in settled.values() if remark]


def refuse_dropped_arguments(specs: Iterable[RunSpec]) -> list[str]:
    """Refuse a run whose arguments end at a shell that does not pass them on: bash -c 'python train.py' --lr=0.1. A
    remark where another file, which the shell sources, might use them."""
    seen: set[tuple[object, ...]] = set()
    remarks: dict[str, None] = {}
    for spec in specs:
        key = (tuple(spec.command), len(spec.args))
        if key in seen:
            continue
        seen.add(key)
        shell = _shell_of(spec.command, spec.start_dir)
        if shell is None:
            continue
        own = spec.command[shell.first :]
        given = [
            *(bool(set(placeholder_names([word])) - set(BUILT_IN_PLACEHOLDERS)) for word in own),
            *(True for _ in spec.args),
        ]
        for number, (word, counts) in enumerate(
            zip([*own, *spec.args], given, strict=True), 0 if shell.is_inline else 1
        ):
            if not counts or _uses(shell.text, number):
                continue
            problem = _dropped_argument_error(spec, shell, word, number)
            if _mentions(shell.text, number):
                sentence = "uses its arguments only in comments, quotes, functions and what it prints"
                remarks[problem.message.replace("does not use its arguments", sentence)] = None
            elif shell.is_inline or not _SOURCE.search(shell.text):
                raise problem
            else:
                remarks[f"{problem.message} (unless a file that it sources does)"] = None
    return list(remarks)


def ignored_directives(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each step that starts a batch script, whose #SBATCH lines nobody reads then."""
    remarks: dict[str, None] = {}
    seen: set[tuple[str, ...]] = set()
    for spec in specs:
        if spec.in_place or (key := tuple(spec.command)) in seen:
            continue
        seen.add(key)
        shell = _shell_of(spec.command, spec.start_dir)
        if shell is not None and not shell.is_inline and _DIRECTIVE.search(shell.text):
            script, step = spec.command[shell.first - 1], spec.step_kind
            remarks[f"#SBATCH lines of {script} are not read: the request is that of step {step!r} and of its call"] = (
                None
            )
    return list(remarks)


def _dropped_argument_error(spec: RunSpec, shell: _ShellProgram, word: str, number: int) -> InputError:
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


def _shell_of(command: Sequence[str], cwd: str) -> _ShellProgram | None:
    """The shell that a command is, or starts at once; None where there is none or its text is not known."""
    start, cwd = 0, code_path(cwd, os.environ)
    if os.path.basename(command[0]) in _WRAPPERS:
        start = next((at for at, word in enumerate(command) if os.path.basename(word) in _SHELLS), 0)
    if os.path.basename(command[start]) not in _SHELLS:
        text = _text_of(command[0], cwd)
        is_script = text is not None and (command[0].endswith(".sh") or _SHEBANG.match(text))
        return _ShellProgram(text, 1, False) if text is not None and is_script else None
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
    return None if text is None else _ShellProgram(text, at + 1, inline)


def _mentions(text: str, number: int) -> bool:
    """Whether a text has the argument of that number, if only in a comment, in quotes or in a function."""
    if number > 0 and _ALL_ARGUMENTS.search(text):
        return True
    return "SHOAL_PARAMS" in text or any(int(one or two) == number for one, two in _ARGUMENT.findall(text))


def _uses(text: str, number: int) -> bool:
    """Whether a shell's text uses the argument of that number."""
    return "SHOAL_PARAMS" in text or _mentions(_used_text(text), number)


@lru_cache(maxsize=64)
def _used_text(text: str) -> str:
    """The words of a shell's text in which its own arguments stand for themselves: those of a function are others, and
    those of comments and single quotes are none. What is only printed counts where nothing else is started."""
    from shoal.batch import parse_shell, tokenize

    parsed, tokens = parse_shell(text), tokenize(text)[0]
    inside = {(token.line, token.word.raw): token.word.inside for token in tokens if token.word is not None}
    starts = any(
        one.name and one.name not in _PRINT_COMMANDS and one.name not in _SILENT_BUILTINS for one in parsed.commands
    )
    kept = [heredoc.body for heredoc in parsed.heredocs if not heredoc.quoted]
    in_commands: set[tuple[int, str]] = set()
    for command in parsed.commands:
        words = [(word.line, word.raw) for word in command.words]
        words += [(assign.line, assign.raw) for assign in command.assigns]
        in_commands.update(words)
        if command.function is not None:
            continue
        if command.name in ("eval", "trap"):
            kept += command.texts
        elif command.name not in _PRINT_COMMANDS or command.piped or command.nested or command.redirects or not starts:
            kept += [_unquote(raw, inside.get((line, raw), ())) for line, raw in words]
    for token in tokens:  # heads of loops and cases, targets of redirects
        if token.word is not None and (token.line, token.word.raw) not in in_commands:
            next_command = next((one for one in parsed.commands if one.line >= token.line), None)
            if next_command is None or next_command.function is None:
                kept.append(_unquote(token.word.raw, token.word.inside))
    return "\n".join(kept)


def _unquote(raw: str, inside: Iterable[tuple[str, int]]) -> str:
    """A word without its single quotes, and without the commands inside it, which are looked at by themselves."""
    for source, _ in inside:
        raw = raw.replace(source, "")
    return _QUOTED.sub(lambda match: re.sub(r"(?s)\\.", "", match[1] or ""), raw)


def _words(spec: RunSpec) -> tuple[str, ...]:
    return (*spec.command, *spec.args, *spec.env.values())


def _reads_any(spec: RunSpec, names: Sequence[str], *variables: str) -> bool:
    """Whether a placeholder, or one of these variables, stands in a word of the run or in a file of its program."""
    words = _words(spec)
    if set(placeholder_names(words)) & set(names) or any(variable in word for word in words for variable in variables):
        return True
    return any(find_reader(variable, Path(spec.start_dir), words) for variable in variables)


def _has_parameter(runs: Sequence[RunSpec], name: str) -> bool:
    """Whether the words of runs have a parameter: as a placeholder, or its value, which was put in already. Runs with
    the same words and different values do not have it, even where a word happens to be such a value."""
    values: dict[tuple[str, ...], str] = {}
    for spec in runs:
        if name not in spec.params or name in placeholder_names(words := _words(spec)):
            continue
        text = format_value(spec.params[name])
        if values.setdefault(words, text) != text:
            return False
        if not any(text in re.split(r"[=:,\s]", word) for word in words):
            return False
    return True


def _text_of(word: str, cwd: str) -> str | None:
    """The beginning of the file that a word names, if it names one."""
    try:
        with open(os.path.join(cwd, word), "rb") as file:  # noqa: PTH123
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
