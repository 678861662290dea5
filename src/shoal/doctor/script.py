"""Everything that the rules ask about one script, gathered once: header, commands, launches, variables, program."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shoal.batch import Command, Directives, Option, Parsed, Problem, Text, parse_shell, parse_words, read_directives
from shoal.doctor.geometry import Geometry, read_geometry
from shoal.doctor.launches import Launch, Step, find_launches, literal_values
from shoal.doctor.python_file import PythonHints, find_program, folders_of, read_program

_SHEBANG = re.compile(r"#!\s*(\S+)(?:\s+(.*))?")
_SHELLS = frozenset({"bash", "sh", "zsh", "ksh", "dash", "ash"})
_OUR_SOURCE = re.compile(r"\$\(\s*shoal\s+shell\s*\)|`shoal shell`")
_OUR_STEPS = frozenset({"train", "posttrain", "evaluate", "resume"})
_EXPORTING = frozenset({"export", "declare", "typeset"})
_NOTHING = Parsed((), (), (), frozenset())


class Export(NamedTuple):
    """A variable that the script sets; `raw` is the whole word as written."""

    name: str
    value: str
    raw: str
    line: int
    command: Command


class Script(NamedTuple):
    """`kind`: batch (any script for sbatch), experiment (ours), or opaque (nothing in it can be read).

    `language` is the interpreter's name; commands are known only for shells.
    """

    path: str
    text: Text
    kind: str
    language: str
    is_login: bool
    directives: Directives
    options: Mapping[str, Option]
    commands: tuple[Command, ...]
    functions: frozenset[str]
    launches: tuple[Launch, ...]
    steps: tuple[Step, ...]
    exports: tuple[Export, ...]
    values: Mapping[str, str]
    geometry: Geometry
    problems: tuple[Problem, ...]
    python: Mapping[str, PythonHints]

    @property
    def is_shell(self) -> bool:
        return self.language in _SHELLS

    @property
    def top(self) -> list[Command]:
        """Commands that run in the script's own order: not inside functions or substitutions."""
        return [command for command in self.commands if not command.nested and command.function is None]

    @property
    def work(self) -> list[Launch]:
        """The launches that are the job's purpose; helpers beside a distributed or srun launch are left out."""
        heavy = [one for one in self.launches if one.is_distributed or one.srun is not None or "train" in one.raw]
        return heavy or list(self.launches)

    def hints(self, launch: Launch) -> PythonHints | None:
        """What the launch's Python file tells, or None when it was not found or not understood."""
        found = self.python.get(launch.program if launch.program else "")
        return None if found is None or found.unread else found

    def sets(self, flag: str) -> bool:
        """Whether `set -e`, `-u` or `-o pipefail` is on anywhere at the top: flag is e, u or pipefail."""
        return any(_sets(command, flag) for command in self.top) or (flag != "pipefail" and flag in self._shebang_flags)

    @property
    def _shebang_flags(self) -> str:
        match = _SHEBANG.match(self.text.lines[0]) if self.text.lines else None
        words = (match[2] or "").split() if match is not None else []
        return "".join(word[1:] for word in words if word.startswith("-") and not word.startswith("--"))


def _sets(command: Command, flag: str) -> bool:
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


def read_script(
    text: Text, path: str, *, steps: frozenset[str] = _OUR_STEPS, find: Callable[[Path], PythonHints] | None = None
) -> Script:
    """Facts of one script. `find` reads a Python file (a test gives its own); nothing else is read here."""
    lines = text.lines
    language, is_login = _language(lines)
    is_experiment = any(_OUR_SOURCE.search(line) for line in lines[:400])
    shell = language in _SHELLS and text.encoding != "binary"
    parsed = parse_shell(text.body) if shell else _NOTHING
    directives = read_directives(lines, parsed.heredocs)
    options = directives.last()
    if is_experiment:
        options = {**options, **_called(parsed, steps)}  # the flags of a call win
    launches, srun_steps = find_launches(parsed.commands)
    return Script(
        path=path,
        text=text,
        kind="experiment" if is_experiment else "opaque" if text.encoding == "binary" or not lines else "batch",
        language=language,
        is_login=is_login,
        directives=directives,
        options=options,
        commands=parsed.commands,
        functions=parsed.functions,
        launches=tuple(launches),
        steps=tuple(srun_steps),
        exports=tuple(_exports(parsed.commands)),
        values=literal_values(parsed.commands),
        geometry=Geometry() if directives.is_het else read_geometry(options),
        problems=parsed.problems,
        python=_programs(launches, Path(path), options.get("chdir"), parsed.commands, find or _cached_program),
    )


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


def _called(parsed: Parsed, steps: frozenset[str]) -> dict[str, Option]:
    """The sbatch flags behind the step functions of one of our experiment scripts."""
    found: dict[str, Option] = {}
    for command in parsed.commands:
        if command.name in steps:
            words = command.texts[1:]
            words = words[: words.index("--")] if "--" in words else words
            options, _ = parse_words(words, command.line)
            found.update({option.name: option for option in options})
    return found


def _exports(commands: tuple[Command, ...]) -> list[Export]:
    found: list[Export] = []
    for command in commands:
        found += [Export(one.name, one.value, one.raw, one.line, command) for one in command.assigns]
        if command.name in _EXPORTING:
            for word in command.words[1:]:
                name, equals, value = word.text.partition("=")
                if equals and name.isidentifier():
                    found.append(Export(name, value, word.raw, word.line, command))
        elif command.name == "setenv" and len(command.words) == 3:
            found.append(Export(command.texts[1], command.texts[2], command.raw, command.line, command))
    return found


def _programs(
    launches: list[Launch],
    path: Path,
    chdir: Option | None,
    commands: tuple[Command, ...],
    find: Callable[[Path], PythonHints],
) -> dict[str, PythonHints]:
    wanted = {launch.program: launch.option("module") for launch in launches if launch.program}
    if not wanted:
        return {}
    moves = [command.texts[1] for command in commands if command.name == "cd" and len(command.words) == 2]
    folders = list(folders_of(path, chdir.value if chdir else None, moves))
    found: dict[str, PythonHints] = {}
    for program, module in wanted.items():
        if (file := find_program(program, module, folders)) is not None:
            found[program] = find(file)
    return found


def _cached_program(path: Path) -> PythonHints:
    return _read_once(str(path.resolve()))


@lru_cache(maxsize=256)
def _read_once(path: str) -> PythonHints:
    return read_program(Path(path))
