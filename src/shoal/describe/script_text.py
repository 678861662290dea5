"""What the text of an experiment script tells before it is executed: its calls, and its #SBATCH lines as a request.

Read with the shell reader of shoal.batch, so that here-documents, comments and quoted text are not taken for commands.
Flags of a call override the #SBATCH lines.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shoal.batch import RESERVED_OPTIONS, ParsedScript, ShellCommand, parse_flags, parse_shell
from shoal.errors import InputError

#: Programs that act on a cluster.
SCHEDULER_COMMANDS = (
    "qsub",
    "qdel",
    "bsub",
    "condor_submit",
    "sbatch",
    "srun",
    "salloc",
    "scancel",
    "scontrol",
    "scrontab",
)
#: Programs that start the words behind them, by PATH and not by bash's functions.
_WRAPPERS = frozenset(
    {"chrt", "command", "doas", "env", "eval", "exec", "flock", "ionice", "nice", "nohup", "numactl", "parallel"}
    | {"setsid", "ssh", "stdbuf", "sudo", "taskset", "timeout", "unbuffer", "watch", "xargs"}
)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_SOURCE_COMMANDS = ("source", ".")
_MAX_DEPTH = 3
#: The ways in which a script names its own folder.
_SCRIPT_DIRECTORY = re.compile(
    r"""\$\(dirname\s+(?:--\s+)?"?\$(?:0|\{?BASH_SOURCE(?:\[0\])?\}?)"?\)|\$\{BASH_SOURCE(?:\[0\])?%/\*\}"""
)
#: What differs from seed to seed; and the characters of a word that bash takes as they are.
_SEED_VARIABLES = (
    "SHOAL_SEED", "SHOAL_RUN", "EXPERIMENT_SEED", "SCRIPT_NAME", "EXPERIMENT_RUN_ID", "EXPERIMENT_RUN_DIR",
)  # fmt: skip
_PLAIN_WORD = re.compile(r"[\w ./=:,+@%\"-]*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
#: What may differ from one reading to the next, or read a variable without its name.
_DYNAMIC_EXPANSION = re.compile(r"\$\(|`|[<>]\(|\$\[|\$\{!|\$\$|RANDOM|SECONDS|EPOCH|BASHPID")
#: Variables that a run has and its script does not, without a default.
_RUN_VARIABLES = re.compile(r"\$\{?(SHOAL_(?:OUTPUT_DIR|RESUME_FROM|START_FROM|PARENT_DIR|ATTEMPT|PROGRESS))(?![\w:-])")
#: Builtins that cannot carry the seed from one place to another.
_READ_ONLY_COMMANDS = frozenset(
    {"[", "[[", ":", "cd", "declare", "echo", "exit", "export", "false", "local", "printf", "readonly", "return"}
    | {"set", "shift", "shopt", "test", "true", "umask", "unset"}
)


class ScriptFile(NamedTuple):
    """A script or a file that it sources or starts; `is_sourced` also for the script itself."""

    path: Path
    text: str
    parsed: ParsedScript
    is_sourced: bool


def read_script(script: Path, environ: Mapping[str, str]) -> list[ScriptFile]:
    """The script, and the shell files that it names, as far as their paths can be told."""
    return list(_read(script, script, environ, True, _MAX_DEPTH, set()))


def _read(
    path: Path, script: Path, environ: Mapping[str, str], is_sourced: bool, depth: int, seen: set[Path]
) -> Iterator[ScriptFile]:
    if path in seen:
        return
    seen.add(path)
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    file = ScriptFile(path, text, parse_shell(text), is_sourced)
    yield file
    for command in file.parsed.commands if depth else ():
        word, sources = _file_word(command)
        found = _find_file(word, path, script, environ) if word else None
        if found is not None:
            yield from _read(found, script, environ, is_sourced and sources, depth - 1, seen)


def _file_word(command: ShellCommand) -> tuple[str, bool]:
    """The word of a shell file that a command names, and whether the file is sourced; "" where it names none."""
    name, texts = command.name, command.texts
    if name in _SOURCE_COMMANDS:
        return (texts[1] if len(texts) > 1 else ""), True
    if os.path.basename(name) in _SHELLS:
        return next((text for text in texts[1:] if not text.startswith("-")), ""), False
    return (name if "/" in name and name.endswith(".sh") else ""), False


def _find_file(word: str, named_in: Path, script: Path, environ: Mapping[str, str]) -> Path | None:
    """The file that a word names: from where we are, or from the folder of the file that has the word."""
    text = _SCRIPT_DIRECTORY.sub(lambda match: str(named_in.parent.absolute()), word)
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: environ.get(match.group(1), match.group(0)), text)
    folders = dict.fromkeys([named_in.parent, script.parent, *list(script.absolute().parents)[1:4]])
    return next((path for path in (Path(text), *(folder / text for folder in folders)) if path.is_file()), None)


def sources_functions(files: Sequence[ScriptFile]) -> bool:
    """Whether the script, or a file that it sources, sources the step functions."""
    return any(_is_source_line(command) for file in files if file.is_sourced for command in file.parsed.commands)


def _is_source_line(command: ShellCommand) -> bool:
    return command.name in _SOURCE_COMMANDS and "shoal shell" in " ".join(command.texts[1:2])


def scheduler_calls(files: Sequence[ScriptFile]) -> dict[str, Path]:
    """Programs that act on a cluster and that bash's functions of these names would not catch, each with its file:
    named by a path, or started by another program."""
    return {
        name: file.path for file in files for command in file.parsed.commands for name in _scheduler_calls_in(command)
    }


def _scheduler_calls_in(command: ShellCommand, depth: int = 2) -> Iterator[str]:
    words = command.texts
    if words and "/" in words[0] and os.path.basename(words[0]) in SCHEDULER_COMMANDS:
        yield os.path.basename(words[0])
    around = os.path.basename(command.name)
    if around not in _WRAPPERS | _SHELLS or words[1:2] in (["-v"], ["-V"]):
        return
    for word in words[1:]:
        if os.path.basename(word) in SCHEDULER_COMMANDS:
            yield os.path.basename(word)
        elif depth and re.search(r"\s", word):
            for inner in parse_shell(word).commands:
                if os.path.basename(inner.name) in SCHEDULER_COMMANDS:
                    yield os.path.basename(inner.name)
                yield from _scheduler_calls_in(inner, depth - 1)


def only_passes_seed(files: Sequence[ScriptFile], steps: Collection[str]) -> bool:
    """Whether the text proves that the seed does nothing but stand in words of step calls, as it is.

    Then the calls for one seed are those for another with that seed in place. In doubt False: a branch, a computation
    or a program could turn the seed into anything.
    """
    return all(file.is_sourced and _file_only_passes_seed(file, steps) for file in files)


def _file_only_passes_seed(file: ScriptFile, steps: Collection[str]) -> bool:
    text = file.text.replace('"$(shoal shell)"', "").replace("$(shoal shell)", "")
    if file.parsed.problems or _DYNAMIC_EXPANSION.search(text):
        return False
    assigned: list[tuple[str, str]] = []
    passed: list[str] = []
    for command in file.parsed.commands:
        if command.nested or _is_source_line(command):  # nested is only `shoal shell` itself
            continue
        raws = [word.raw for word in command.words]
        if command.name in steps or command.name == "echo":
            passed += raws
        elif command.name == "export":
            assigned += [(match[1], match[2]) for raw in raws[1:] if (match := _ASSIGNMENT.fullmatch(raw))]
        elif command.name and command.name not in _READ_ONLY_COMMANDS and command.name not in file.parsed.functions:
            return False
        if not command.name:
            assigned += [(match[1], match[2]) for one in command.assigns if (match := _ASSIGNMENT.fullmatch(one.raw))]
    names: set[str] = set()
    more = set(_SEED_VARIABLES)
    while more - names:  # also of variables that are the seed, or have it as a part
        names |= more
        more = {name for name, value in assigned if _plain_uses(value, names)}
    own = sum(name in names for name, _ in assigned)
    plain = sum(_plain_uses(raw, names) for raw in (*passed, *(value for _, value in assigned)))
    return own + plain == len(re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", text))


def _plain_uses(raw: str, names: Collection[str]) -> int:
    """How often a word has one of these variables; 0 if anything else in it is not taken as it is."""
    either = "|".join(map(re.escape, names))
    rest, count = re.subn(rf"\$(?:(?:{either})(?!\w)|\{{(?:{either})\}})", "", raw)
    return count if _PLAIN_WORD.fullmatch(rest) else 0


def run_variables(text: str, steps: Collection[str]) -> dict[str, int]:
    """Variables that exist only in a run and that a call of a step expands, each with its line."""
    return {
        match[1]: command.line
        for command in parse_shell(text).commands
        if command.name in steps
        for word in command.words
        for match in _RUN_VARIABLES.finditer(re.sub(r"'[^']*'", "", word.raw))
    }


def unused_modifiers(text: str, modifiers: Collection[str], steps: Collection[str]) -> list[int]:
    """Lines of a script on which `resume RUN` or `posttrain RUN` stands with no step behind it."""
    commands = parse_shell(text).commands
    callers = {*steps, *_SOURCE_COMMANDS, "eval"}  # other files, and text that is put together first, might call a step
    while more := {one.function for one in commands if one.function and one.name in callers} - callers:
        callers |= more
    calls = [at for at, one in enumerate(commands) if one.name in callers and not _is_source_line(one)]
    return [
        one.line
        for at, one in enumerate(commands)
        if one.name in modifiers
        and not (calls if one.function or "loop" in one.within else [call for call in calls if call > at])
    ]


#: Where shoal has its own way and nothing is lost by it; told, because old scripts have them in nearly every header.
_IGNORED_DIRECTIVES = ("job-name", "output", "error", "open-mode", "parsable", "quiet", "verbose")


class ScriptRequest(NamedTuple):
    """sbatch flags, as a call of a step takes them, and remarks on lines that are not among them."""

    flags: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def script_request(script: str) -> ScriptRequest:
    """What the directives of a script ask for. InputError for what cannot be taken over, with its line."""
    from shoal.batch import read_text

    text = read_text(Path(script))
    return (
        _read_directive_flags(text.lines, os.path.relpath(script)) if "sbatch" in text.body.lower() else ScriptRequest()
    )


@lru_cache(maxsize=8)  # a script is described once for each seed
def _read_directive_flags(lines: tuple[str, ...], shown: str) -> ScriptRequest:
    from shoal.batch import read_directives

    parsed = parse_shell("\n".join(lines))
    found = read_directives(lines, parsed.heredocs)
    texts = [(word.line, word.raw) for command in parsed.commands for word in command.words]
    texts += [(one.line, one.raw) for command in parsed.commands for one in command.assigns]
    quoted = {line + offset for line, raw in texts for offset in range(1, raw.count("\n") + 1)}
    if found.is_het:
        raise InputError(
            "#SBATCH lines of a heterogeneous job are not supported", hint=f"sbatch {shlex.quote(shown)}", place=shown
        )
    flags: list[str] = []
    remarks: list[str] = []
    for line in found.ignored:
        if line.line in quoted:  # the text of an argument
            continue
        if line.why == "late":
            raise InputError(
                f"{line.text.strip()!r} stands after the first command, where sbatch does not read it",
                hint=f"move the line above line {found.first_command}, or remove it",
                place=f"{shown}:{line.line}",
            )
        if line.why != "disabled":
            remarks.append(f"{shown}:{line.line}: {line.text.strip()!r} is not read as an #SBATCH line")
    for stray in found.strays:
        raise InputError(
            f"{stray.word!r} belongs to no option of sbatch",
            hint="remove it; a value with blanks needs quotes",
            place=f"{shown}:{stray.line}",
        )
    for option in found.options:
        flag = f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"
        if option.name in _IGNORED_DIRECTIVES or flag == "--export=ALL":
            why = (
                RESERVED_OPTIONS[option.name][0]
                if option.name in RESERVED_OPTIONS
                else "it only changes what sbatch prints"
            )
            remarks.append(f"{shown}:{option.line}: #SBATCH {flag} is not used: {why}")
            continue
        try:
            parse_flags([flag])
        except InputError as error:
            message = error.message.removeprefix(f"{error.place}: ")
            raise InputError(f"#SBATCH {flag}: {message}", hint=error.hint, place=f"{shown}:{option.line}") from None
        flags.append(flag)
    return ScriptRequest(tuple(flags), tuple(remarks))
