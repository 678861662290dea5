"""Completion of commands, flags, runs and states for your shell, without ever calling Slurm.

eval "$(shoal completion bash)"                              in ~/.bashrc
shoal completion zsh > ~/.zfunc/_shoal                       a folder of $fpath
shoal completion fish > ~/.config/fish/completions/shoal.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="bash|zsh|fish", help="print the lines for this shell")
    # What those lines call, with the words of the command line; nobody types it.
    parser.add_argument("--complete", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from shoal.errors import InputError

    if args.complete is None:
        if len(args.words) != 1 or args.words[0] not in SHELL_SCRIPTS:
            raise InputError("which shell: bash, zsh or fish?", hint='eval "$(shoal completion bash)"')
        print(SHELL_SCRIPTS[args.words[0]], end="")
        return 0
    print("\n".join(candidates(args.words, args.complete, _runs_here)))
    return 0


def _runs_here() -> list[str] | None:
    from shoal.api import run_names
    from shoal.errors import ShoalError

    try:
        return run_names()
    except ShoalError:
        return None


#: Commands whose words are runs or experiments, and those whose words are files.
_RUN_COMMANDS = frozenset({"status", "why", "watch", "logs", "pull", "report", "cancel", "resume", "retry", "switch"})
_MAX_RUNS = 2000

SHELL_SCRIPTS = {
    "bash": """_shoal() {
    local IFS=$'\\n'
    COMPREPLY=($(shoal completion --complete "$COMP_CWORD" -- "${COMP_WORDS[@]}" 2>/dev/null))
}
complete -o default -F _shoal shoal
""",
    "zsh": """#compdef shoal
_shoal() {
    local -a found
    found=("${(@f)$(shoal completion --complete $((CURRENT - 1)) -- "${words[@]}" 2>/dev/null)}")
    if [[ -n "${found[*]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
# As a file of $fpath this text is itself the function, called for the first completion; else it is evaluated.
if [[ "${funcstack[1]}" == _shoal ]]; then _shoal "$@"; else compdef _shoal shoal; fi
""",
    "fish": """function __shoal_complete
    set -l words (commandline -opc)
    shoal completion --complete (count $words) -- $words (commandline -ct) 2>/dev/null
end
complete -c shoal -a '(__shoal_complete)'
""",
}


def candidates(words: Sequence[str], at: int, list_runs: Callable[[], list[str] | None]) -> list[str]:
    """Words that fit at place `at` of a command line (0 is `shoal` itself); none means files, which the shell knows.
    `list_runs` gives all runs, or None where no project is."""
    from shoal.cli import COMMANDS

    commands = [name for group in COMMANDS.values() for name in group]
    current = words[at] if at < len(words) else ""
    if at <= 1:
        return [name for name in [*commands, "--help", "--version"] if name.startswith(current)]
    command = words[1]
    if command not in commands:
        return []
    before = words[at - 1]
    if before in ("--state", "--cause", "--columns"):
        return _list_items(current, before)
    if current.startswith("-"):
        return [flag for flag in _command_flags(command) if flag.startswith(current)]
    names = list_runs() if command in _RUN_COMMANDS else None
    return [] if names is None else _run_names(names, current)


def _list_items(current: str, flag: str) -> list[str]:
    """One more name of a comma-separated list."""
    if flag in ("--state", "--cause"):
        from shoal.model import CAUSES, RUN_STATES, STATE_GROUPS

        names: Sequence[str] = CAUSES if flag == "--cause" else tuple(dict.fromkeys((*RUN_STATES, *STATE_GROUPS)))
    else:
        from shoal.views import COLUMNS_BY_NAME

        names = list(COLUMNS_BY_NAME)
    done, comma, part = current.rpartition(",")
    sign = part[:1] if part[:1] in ("+", "-") and flag == "--columns" else ""
    return [f"{done}{comma}{sign}{name}" for name in names if name.startswith(part.removeprefix(sign))]


def _command_flags(command: str) -> list[str]:
    from importlib import import_module

    parser = argparse.ArgumentParser(prog=command)
    import_module(f"shoal.cli.{command}").configure(parser)
    hidden = argparse.SUPPRESS
    found = [flag for action in parser._actions if action.help != hidden for flag in action.option_strings]
    return sorted(flag for flag in found if flag.startswith("--"))


def _run_names(names: Sequence[str], current: str) -> list[str]:
    experiments = list(dict.fromkeys(name.split("/")[0] for name in names))
    if "/" in current:
        return [name for name in names if name.startswith(current)][:_MAX_RUNS]
    fit = [name for name in (*experiments, "last") if name.startswith(current)]
    # A stem alone is what people type, where it means one run.
    stems = [name.split("/")[1] for name in names if name.split("/")[1].startswith(current)] if current else []
    if len(fit) == 1 and fit[0] != "last":
        fit += [name for name in names if name.startswith(f"{fit[0]}/")]
    return list(dict.fromkeys([*fit, *stems]))[:_MAX_RUNS]
