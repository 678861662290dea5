"""Where a script starts its work: each launch with the srun, the wrappers and the launcher around the program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.batch import ShellCommand, parse_shell
from shoal.doctor.launchers import CONTAINERS, MPI_STARTERS, LauncherCall, base_name, read_launcher, read_srun, unwrap
from shoal.job import TORCH_LAUNCHERS

_WHOLE_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|([A-Za-z_]\w*))\Z", re.ASCII)
_ANY_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|([A-Za-z_]\w*))", re.ASCII)
_DEFAULT = re.compile(r"\$\{[A-Za-z_]\w*:?[-=]([^{}$]*)\}\Z", re.ASCII)
_APPENDS = re.compile(r"[A-Za-z_]\w*\+=", re.ASCII)
_DASH_C = re.compile(r"-[a-z]*c")
_CONTROL_STEP = frozenset(
    {"hostname", "nvidia-smi", "echo", "true", "ls", "mkdir", "rm", "cp", "rsync", "tar", "df", "cat", "env", "date",
     "pip", "pip3", "conda", "mamba", "git", "wget", "curl", "sudo", "apt-get"}
)  # fmt: skip
#: Programs under Python that prepare or look, and are not the work.
_UTILITY_MODULES = frozenset(
    {"pip", "venv", "ensurepip", "site", "json.tool", "torch.utils.collect_env", "http.server"}
)
_MAX_DEPTH = 4
_MAX_TEXT = 20_000


class ScriptLaunch(NamedTuple):
    """One start of work. `quoting` is "single" or "double" when it stands in the text of `bash -c`, else empty.

    `processes` are those that shoal lays over the GPUs of each node; a script says them in the launcher's options.
    """

    launcher: str
    line: int
    command: ShellCommand
    options: Mapping[str, str | None]
    program: str
    args: tuple[str, ...]
    srun: Mapping[str, str | None] | None = None
    wrappers: tuple[str, ...] = ()
    quoting: str = ""
    raw: str = ""
    processes: int | None = None

    @property
    def is_distributed(self) -> bool:
        return self.launcher in TORCH_LAUNCHERS

    @property
    def by_mpi(self) -> bool:
        return bool(MPI_STARTERS & set(self.wrappers))

    @property
    def in_container(self) -> bool:
        return bool(CONTAINERS & set(self.wrappers)) or bool(
            self.srun is not None and {"container-image", "container-name"} & set(self.srun)
        )

    def option(self, *names: str) -> str | None:
        """The value of the first of these options that was given."""
        return next((self.options[name] for name in names if name in self.options), None)

    def has(self, *names: str) -> bool:
        return any(name in self.options for name in names)


class SrunStep(NamedTuple):
    """Any srun, whatever it starts."""

    line: int
    command: ShellCommand
    options: Mapping[str, str | None]
    rest: tuple[str, ...]

    @property
    def is_utility(self) -> bool:
        """A short step that looks or prepares, such as srun hostname."""
        words = unwrap(self.rest)[1]
        return bool(words) and base_name(words[0]) in _CONTROL_STEP


def find_launches(commands: Sequence[ShellCommand]) -> tuple[list[ScriptLaunch], list[SrunStep]]:
    """All launches and all sruns, in order; variables with literal values are followed."""
    launches: list[ScriptLaunch] = []
    steps: list[SrunStep] = []
    values: dict[str, str] = {}
    for command in commands:
        _assign(command, values)
        words = list(_expand(command, values))
        if not words:
            continue
        for found in _read_launch(words, command, values, 0):
            if isinstance(found, SrunStep):
                steps.append(found)
            else:
                launches.append(found)
    return launches, steps


def launches_of(command: ShellCommand, srun: LauncherCall | None = None) -> tuple[list[ScriptLaunch], list[SrunStep]]:
    """The same for one command whose words no shell expands, in a step of Slurm or not."""
    found = list(_read_launch(command.texts, command, {}, 0, srun))
    return [one for one in found if isinstance(one, ScriptLaunch)], [one for one in found if isinstance(one, SrunStep)]


def literal_values(commands: Sequence[ShellCommand]) -> dict[str, str]:
    """Variables that a script sets, with the last value of each, as written."""
    values: dict[str, str] = {}
    for command in commands:
        _assign(command, values)
    return values


def _assign(command: ShellCommand, values: dict[str, str]) -> None:
    """Give variables the values that a command assigns; += appends to a text or an array."""
    for assign in command.assigns:
        if assign.name in values and re.match(rf"\$\{{{assign.name}:?[-=]", assign.value):
            continue  # N=${N:-4} gives a value only where there is none
        before = values.get(assign.name, "") if _APPENDS.match(assign.raw) else ""
        if before.startswith("(") and before.endswith(")") and assign.value.startswith("("):
            values[assign.name] = f"{before[:-1]} {assign.value[1:]}"
        else:
            values[assign.name] = before + assign.value
    if command.name in ("export", "declare", "readonly", "local", "typeset"):
        for word in command.words[1:]:
            name, equals, value = word.text.partition("=")
            if equals and name.isidentifier():
                values[name] = value


def as_number(text: str | None, values: Mapping[str, str], depth: int = 0) -> int | None:
    """A whole number that is written out, or that a variable of the script holds; None when only Slurm knows."""
    if text is None or depth > 3:
        return None
    text = text.strip().strip("\"'")
    if text.isascii() and text.isdigit() and len(text) < 8:
        return int(text)
    if (whole := _WHOLE_VARIABLE.fullmatch(text)) is not None:
        name = whole[1] or whole[2]
        return None if name.startswith("SLURM_") else as_number(values.get(name), values, depth + 1)
    if (default := _DEFAULT.fullmatch(text)) is not None:
        return as_number(default[1], values, depth + 1) if not text.startswith("${SLURM_") else None
    return None


def _expand(command: ShellCommand, values: Mapping[str, str]) -> Iterator[str]:
    """The words of a command; a word that is only a variable of the script becomes the words it holds."""
    for word in command.words:
        whole = _WHOLE_VARIABLE.fullmatch(word.text)
        name = (whole[1] or whole[2]) if whole is not None else ""
        quoted = word.raw.startswith(("'", '"')) and "[@]" not in word.raw
        if name in values and not quoted:
            yield from _split(values[name], values)
        else:
            yield word.text


def _split(value: str, values: Mapping[str, str], depth: int = 0) -> list[str]:
    """The words of a value; those that are only a variable again become the words that it holds."""
    if value.startswith("(") and value.endswith(")"):
        value = value[1:-1]
    words: list[str] = []
    for command in parse_shell(value, depth=99).commands:
        for word in [*(assign.raw for assign in command.assigns), *command.texts]:
            whole = _WHOLE_VARIABLE.fullmatch(word)
            inner = values.get(whole[1] or whole[2]) if whole is not None and depth < _MAX_DEPTH else None
            words += [word] if inner is None else _split(inner, values, depth + 1)
    return words or [value]


def _read_launch(
    words: list[str],
    command: ShellCommand,
    values: Mapping[str, str],
    depth: int,
    srun: LauncherCall | None = None,
    quoting: str = "",
) -> Iterator[ScriptLaunch | SrunStep]:
    passed, rest = unwrap(words)
    if not rest or depth > _MAX_DEPTH:
        return
    if "eval" in passed:
        written = list(command.texts)  # a value that was split into words has lost its ; and &&
        text = " ".join(written[written.index("eval") + 1 :] if "eval" in written else rest)
        yield from _read_inner_shell(_expand_all(text, values), "'", command, values, depth, srun)
        return
    name = base_name(rest[0])
    if name == "srun":
        call = read_srun(rest[1:])
        if not quoting and srun is None:
            yield SrunStep(command.line, command, call.options, call.rest)
        yield from _read_launch(list(call.rest), command, values, depth + 1, call, quoting)
        return
    if name in ("bash", "sh", "zsh") and any(_DASH_C.fullmatch(word) for word in rest[1:3]):
        at = next(index for index, word in enumerate(rest) if _DASH_C.fullmatch(word))
        if at + 1 < len(rest):
            raw = next((word.raw for word in command.words if word.text == rest[at + 1]), "")
            yield from _read_inner_shell(rest[at + 1], raw, command, values, depth, srun)
        return
    if name in ("bash", "sh") and srun is not None and (body := _stdin(command)):
        yield from _read_inner_shell(body[0], "'" if body[1] else '"', command, values, depth, srun)
        return
    launcher = read_launcher(rest)
    if launcher is None and srun is not None and name.endswith(".sh") and read_launcher(rest[1:]) is not None:
        # A script that sets up the environment and then starts the rest of its words.
        passed, launcher = [*passed, name], read_launcher(rest[1:])
    if launcher is None:
        if srun is not None and name not in _CONTROL_STEP:
            yield _make_launch("other", command, LauncherCall(name, {}, tuple(rest)), srun, passed, quoting)
        return
    if launcher.program == "python" and _is_utility(launcher):
        return
    yield _make_launch(launcher.program, command, launcher, srun, passed, quoting)


def _stdin(command: ShellCommand) -> tuple[str, bool] | None:
    for redirect in command.redirects:
        if redirect.heredoc is not None:
            return redirect.heredoc.body, redirect.heredoc.quoted
    return None


def _read_inner_shell(
    text: str, raw: str, command: ShellCommand, values: Mapping[str, str], depth: int, srun: LauncherCall | None
) -> Iterator[ScriptLaunch | SrunStep]:
    """The text of bash -c, as commands of its own."""
    quoting = "single" if raw.startswith("'") else "double"
    whole = _WHOLE_VARIABLE.fullmatch(text)
    if quoting == "double" or whole is not None:
        # An array that joins here is a list of words; every other value is put in as it stands.
        text = _ANY_VARIABLE.sub(lambda match: _plain_value(match, values), text)
    for inner in parse_shell(text, command.line, depth=3).commands:
        if inner.nested:
            continue  # $(...), which is among the script's own commands
        kept = inner._replace(line=command.line, background=command.background or inner.background)
        for found in _read_launch(list(_expand(kept, values)), kept, values, depth + 1, srun, quoting):
            if isinstance(found, ScriptLaunch):
                yield found._replace(command=command)
            else:
                yield found


def _expand_all(text: str, values: Mapping[str, str]) -> str:
    """A text with the values of its variables, and with those that stand in them."""
    for _ in range(_MAX_DEPTH):
        longer = _ANY_VARIABLE.sub(lambda match: _plain_value(match, values), text)
        if longer == text or len(longer) > _MAX_TEXT:
            break
        text = longer
    return text


def _plain_value(match: re.Match[str], values: Mapping[str, str]) -> str:
    value = values.get(match[1] or match[2])
    if value is None or "\n" in match[0]:
        return match[0]
    return value[1:-1] if value.startswith("(") and value.endswith(")") else value


def _is_utility(call: LauncherCall) -> bool:
    module = call.options.get("module")
    if "code" in call.options or module in _UTILITY_MODULES or (not call.rest and not module):
        return True
    return call.rest[:1] in (("--version",), ("-",)) or "V" in call.options


def _make_launch(
    launcher: str, command: ShellCommand, call: LauncherCall, srun: LauncherCall | None, passed: list[str], quoting: str
) -> ScriptLaunch:
    rest = call.rest
    program, args = (rest[0], rest[1:]) if rest else ("", ())
    return ScriptLaunch(
        launcher=launcher,
        line=command.line,
        command=command,
        options=call.options,
        program=program,
        args=tuple(args),
        srun=None if srun is None else srun.options,
        wrappers=tuple(passed),
        quoting=quoting,
        raw=command.raw,
    )
