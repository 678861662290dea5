"""A batch script, read once: the job that it asks for and starts, and the text in which it says so."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.batch import (
    ParsedScript,
    SbatchOption,
    ScriptDirectives,
    ScriptText,
    ShellCommand,
    SyntaxProblem,
    parse_option_words,
    parse_shell,
    read_directives,
)
from shoal.doctor.geometry import RequestGeometry, read_geometry
from shoal.doctor.job import JobFacts, LighthouseCall, ShellExport, read_programs
from shoal.doctor.launches import as_number, find_launches, literal_values
from shoal.doctor.python_file import PythonHints, search_directories

_SHEBANG = re.compile(r"#!\s*(\S+)(?:\s+(.*))?")
_SHELLS = frozenset({"bash", "sh", "zsh", "ksh", "dash", "ash"})
_SHOAL_SOURCE_LINE = re.compile(r"\$\(\s*shoal\s+shell\s*\)|`shoal shell`")
_SHOAL_STEPS = frozenset({"train", "posttrain", "evaluate", "resume"})
_EXPORT_COMMANDS = frozenset({"export", "declare", "typeset"})
_MIN_REPLICAS = re.compile(r"torchft_lighthouse.*?--min_replicas[ =](\S+)")
_EMPTY_SCRIPT = ParsedScript((), (), (), frozenset())


class BatchScript(JobFacts, frozen=True, kw_only=True):
    """The job of a batch script, and the text that says it. `language` is the interpreter's name; commands are known
    only for shells."""

    text: ScriptText
    language: str
    is_login: bool
    directives: ScriptDirectives
    functions: frozenset[str]
    problems: tuple[SyntaxProblem, ...]

    @property
    def is_shell(self) -> bool:
        return self.language in _SHELLS

    @property
    def top(self) -> list[ShellCommand]:
        """Commands that run in the script's own order: not inside functions or substitutions."""
        return [command for command in self.commands if not command.nested and command.function is None]

    def sets(self, flag: str) -> bool:
        """Whether `set -e`, `-u` or `-o pipefail` is on anywhere at the top: flag is e, u or pipefail."""
        return any(_sets_flag(command, flag) for command in self.top) or (
            flag != "pipefail" and flag in self.shebang_flags
        )

    @property
    def shebang_flags(self) -> str:
        match = _SHEBANG.match(self.text.lines[0]) if self.text.lines else None
        words = (match[2] or "").split() if match is not None else []
        return "".join(word[1:] for word in words if word.startswith("-") and not word.startswith("--"))


def _sets_flag(command: ShellCommand, flag: str) -> bool:
    if command.name != "set":
        return False
    words = command.texts[1:]
    long = {"e": "errexit", "u": "nounset"}.get(flag, flag)
    for index, word in enumerate(words):
        if word.startswith("-") and not word.startswith("--"):
            if len(flag) == 1 and flag in word[1:]:
                return True
            if "o" in word[1:] and index + 1 < len(words) and words[index + 1] == long:
                return True
    return False


def read_batch_script(
    text: ScriptText,
    path: str,
    *,
    steps: frozenset[str] = _SHOAL_STEPS,
    find: Callable[[Path], PythonHints] | None = None,
) -> BatchScript:
    """Facts of one script. `find` reads a Python file (a test gives its own); nothing else is read here."""
    lines = text.lines
    language, is_login = _language(lines)
    is_experiment = any(_SHOAL_SOURCE_LINE.search(line) for line in lines[:400])
    shell = language in _SHELLS and text.encoding != "binary"
    parsed = parse_shell(text.body) if shell else _EMPTY_SCRIPT
    directives = read_directives(lines, parsed.heredocs)
    options = directives.last()
    if is_experiment:
        options = {**options, **_step_call_flags(parsed, steps)}  # the flags of a call win
    launches, srun_steps = find_launches(parsed.commands)
    exports = tuple(_exports(parsed.commands))
    return BatchScript(
        path=path,
        text=text,
        kind="experiment" if is_experiment else "opaque" if text.encoding == "binary" or not lines else "batch",
        language=language,
        is_login=is_login,
        directives=directives,
        header=directives.options,
        options=options,
        is_het=directives.is_het,
        commands=parsed.commands,
        functions=parsed.functions,
        launches=tuple(launches),
        steps=tuple(srun_steps),
        exports=exports,
        lighthouses=tuple(_lighthouses(parsed.commands, exports)),
        values=literal_values(parsed.commands),
        geometry=RequestGeometry() if directives.is_het else read_geometry(options),
        problems=parsed.problems,
        python=read_programs(launches, _folders(path, options.get("chdir"), parsed.commands), find),
    )


def started_programs(text: ScriptText, path: str) -> frozenset[str]:
    """The programs and modules that a script starts, as it writes them; empty where it starts none that is known."""
    launches = read_batch_script(text, path, find=lambda _: PythonHints()).launches
    named = (launch.option("module") or launch.program for launch in launches)
    return frozenset(name for name in named if name)


def _language(lines: tuple[str, ...]) -> tuple[str, bool]:
    """(interpreter, whether it is a login shell); a script without a shebang is read as bash, which people mean."""
    match = _SHEBANG.match(lines[0].lstrip("\ufeff")) if lines else None
    if match is None:
        return "bash", False
    program, rest = os.path.basename(match[1]), (match[2] or "").split()
    if program == "env" and rest:
        rest = rest[1:] if rest[0] == "-S" else rest
        program, rest = os.path.basename(rest[0]) if rest else "bash", rest[1:]
    name = re.sub(r"[\d.]+\Z", "", program)
    return name, any(
        word in ("-l", "--login") or (word[:1] == "-" and "l" in word and word[1:2] != "-") for word in rest
    )


def _step_call_flags(parsed: ParsedScript, steps: frozenset[str]) -> dict[str, SbatchOption]:
    """The sbatch flags behind the step functions of one of our experiment scripts."""
    found: dict[str, SbatchOption] = {}
    for command in parsed.commands:
        if command.name in steps:
            words = command.texts[1:]
            words = words[: words.index("--")] if "--" in words else words
            options, _ = parse_option_words(words, command.line)
            found.update({option.name: option for option in options})
    return found


def _exports(commands: tuple[ShellCommand, ...]) -> list[ShellExport]:
    found: list[ShellExport] = []
    for command in commands:
        found += [ShellExport(one.name, one.value, one.raw, one.line, command) for one in command.assigns]
        if command.name in _EXPORT_COMMANDS:
            for word in command.words[1:]:
                name, equals, value = word.text.partition("=")
                if equals and name.isidentifier():
                    found.append(ShellExport(name, value, word.raw, word.line, command))
        elif command.name == "setenv" and len(command.words) == 3:
            found.append(ShellExport(command.texts[1], command.texts[2], command.raw, command.line, command))
    return found


def _lighthouses(commands: tuple[ShellCommand, ...], exports: tuple[ShellExport, ...]) -> Iterator[LighthouseCall]:
    replicas = next((one.value for one in exports if one.name in ("NUM_REPLICA_GROUPS", "NUM_REPLICAS")), "")
    for command in commands:
        if "torchft_lighthouse" not in command.raw:
            continue
        match = _MIN_REPLICAS.search(command.raw)
        min_replicas = match[1].strip("\"'") if match is not None else ""
        needs_all = bool(min_replicas) and (
            min_replicas == replicas or (min_replicas.startswith("$") and "REPLICA" in min_replicas)
        )
        yield LighthouseCall(command.line, as_number(replicas, {}), as_number(min_replicas, {}), needs_all)


def _folders(path: str, chdir: SbatchOption | None, commands: tuple[ShellCommand, ...]) -> list[Path]:
    moves = [command.texts[1] for command in commands if command.name == "cd" and len(command.words) == 2]
    return list(search_directories(Path(path), chdir.value if chdir else None, moves))
