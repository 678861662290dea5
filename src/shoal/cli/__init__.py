"""The command line: find the command, let its module parse and act, turn errors into two lines and an exit code.

Each command is one module here, named like the command, with `configure(parser)` and `run(args) -> int | None`;
options.py has the flags that several of them share, parser.py the argument parser. A command's docstring is its help.
The table below is the only list of commands, so that `shoal --help` prints without importing any of them: argparse and
this table cost a third of what a larger command-line library costs before it starts (docs/decisions/001-argparse.md).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

COMMANDS: dict[str, dict[str, str]] = {
    "start": {
        "init": "write a first shoal.toml from what this cluster tells",
        "demo": "run a small example on this machine, no Slurm needed",
        "shell": "print the path of the bash functions that experiment scripts source",
        "sandbox": "a real Slurm cluster on this machine: up, down, status",
        "connect": "open the connection to a cluster over ssh; the only command that may ask for a password",
        "completion": "lines that let bash, zsh or fish complete commands and runs",
    },
    "run": {
        "plan": "show runs, requests and scripts without submitting",
        "submit": "submit a batch script, a command or an experiment, exactly once",
        "run": "submit, then follow to the end",
        "pack": "run many commands in one allocation, a few at a time, longest first",
        "generate": "write a batch script from flags, for plain sbatch",
        "resume": "continue a run from its newest checkpoint, in its own folder",
        "retry": "start failed runs again, with other resources if asked",
        "adopt": "make runs of jobs that shoal did not submit; nothing about the jobs changes",
        "cancel": "stop runs that are waiting, pending or running",
        "budget": "limits of jobs, GPUs and attempts for the project, a step or an experiment",
    },
    "look": {
        "status": "what every run is doing",
        "why": "why a run waits, or why it failed",
        "watch": "follow runs to their end, full-screen or line by line",
        "logs": "what runs printed, and the errors among it",
        "attach": "a shell inside the allocation of a running run",
        "forward": "a port of a running run's node on this machine: TensorBoard, Jupyter",
        "pull": "bring files of a run's output directory from a cluster to this machine",
        "results": "metrics over seeds: mean, deviation, count, and who is missing",
        "report": "what an experiment cost, wasted and brought: text, HTML, CSV",
        "search": "best trials of a search, and their export for Optuna",
        "ui": "a page in the browser: runs, live logs, metrics, reports",
    },
    "check": {
        "doctor": "check batch scripts before they cost a place in the queue",
        "switch": "keep a running job, or switch to more GPUs: advice with numbers, and the switch itself",
        "clean": "find what can go, move it to a backup, and back",
        "clusters": "cluster profiles: list, show, detect, test",
    },
    "data": {
        "data": "Shard, verify, stage and benchmark datasets",
    },
    "agents": {
        "mcp": "Serve runs, logs, plans and results to an AI agent (Model Context Protocol)",
    },
}


#: Commands that finish their work even if their output cannot be written. `submit`, `resume`, `retry` and `run` do so
#: themselves: they print while they work, and `run` ends when its output is closed.
FAILSAFE_COMMANDS = frozenset(
    {"adopt", "budget", "cancel", "clean", "clusters", "data", "generate", "init", "pack", "switch"}
)
#: Commands that change something unless --dry-run is given; refused in a script that is only read.
ACTING_COMMANDS = frozenset(
    {
        "adopt",
        "budget",
        "cancel",
        "clean",
        "demo",
        "init",
        "pack",
        "resume",
        "retry",
        "run",
        "sandbox",
        "submit",
        "switch",
    }
)


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; never lets a traceback out unless --debug is given."""
    words = sys.argv[1:] if argv is None else argv
    debug = "--debug" in words or bool(os.environ.get("SHOAL_DEBUG"))
    words = [word for word in words if word != "--debug"] if "--" not in words else _take_own_flag(words, "--debug")
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help_text())
        return 0
    if words[0] == "--version":
        from shoal import __version__

        print(f"shoal {__version__}")
        return 0
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`shoal status | head`): nothing more to say, and nothing went wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        from shoal.kernel import failsafe_output

        with failsafe_output():
            return _print_error(error, as_json="--json" in words)


def _dispatch(words: list[str]) -> int:
    name = words[0]
    if not any(name in group for group in COMMANDS.values()):
        from shoal.errors import InputError

        raise InputError(f"there is no command {name!r}{_nearest_command(name)}", hint="shoal --help")
    if name in ACTING_COMMANDS and os.environ.get("SHOAL_COLLECT") and "--dry-run" not in words:
        from shoal.api import refuse_while_collecting

        refuse_while_collecting(f"shoal {name}", os.environ)
    from shoal.cli.parser import CommandParser

    module = import_module(f"shoal.cli.{name}")
    parser = CommandParser(f"shoal {name}", module.__doc__)
    module.configure(parser)
    args = parser.parse_args(words[1:])
    if getattr(args, "on", None) or os.environ.get("SHOAL_ON"):
        from shoal.cli.over_ssh import run_over_ssh

        if (code := run_over_ssh(name, words[1:], args)) is not None:
            return code
    if name not in FAILSAFE_COMMANDS:
        return module.run(args) or 0
    from shoal.kernel import failsafe_output

    with failsafe_output():  # what was begun is carried out, whether or not anybody reads about it
        return module.run(args) or 0


def _help_text() -> str:
    lines = ["usage: shoal COMMAND ...", "", "Many ML training experiments, on Slurm clusters or on this machine.", ""]
    for group, commands in COMMANDS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<10} {text}" for name, text in commands.items()]
    lines += ["", "shoal COMMAND --help shows its flags and examples. Most commands take --json and -q.", ""]
    return "\n".join(lines)


def _print_error(error: Exception, *, as_json: bool) -> int:
    from shoal.api import as_disk_error
    from shoal.errors import ShoalError

    if isinstance(error, OSError) and (disk := as_disk_error(error)) is not None:
        error = disk
    if not isinstance(error, ShoalError):
        error = ShoalError(
            f"shoal broke: {type(error).__name__}: {error}", hint="add --debug to the command for the traceback"
        )
    if as_json:
        import json

        document = {"code": type(error).__name__, "message": error.message, "hint": error.hint}
        print(json.dumps({"schema": 1, "error": document}))
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"\nhint: {error.hint}\n")
    return error.exit_code


def _nearest_command(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [command for group in COMMANDS.values() for command in group], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _take_own_flag(words: list[str], flag: str) -> list[str]:
    """Remove a flag of ours, but never one that stands after `--` and so belongs to the user's program."""
    end = words.index("--")
    return [word for word in words[:end] if word != flag] + words[end:]
