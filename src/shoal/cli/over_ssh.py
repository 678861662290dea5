"""--on PROFILE where the profile is reached over ssh: the command is executed there, and its output appears here.

Flags are parsed here first, so that a mistake needs no connection; the command's own questions are asked here, because
nobody could answer them there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import NamedTuple

from shoal.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.api import RemoteTarget


class _RemoteRules(NamedTuple):
    """How a command is executed on a cluster. `acts`: as an order, unless --dry-run is given, or if this argument is
    given; `code`: with the project's code; `follows`: it watches runs until they end, or does so with one of these
    flags; `file_flag`: names a file of this machine that gets its output; `only_here`: flags that are refused, and
    why."""

    acts: bool | str = False
    code: bool = False
    follows: bool | tuple[str, ...] = False
    file_flag: str | None = None
    only_here: tuple[tuple[str, ...], str] = ((), "")


_COMMANDS = {
    "status": _RemoteRules(follows=("--watch",)),
    "watch": _RemoteRules(follows=True, only_here=(("--notify",), "the bell of this terminal is not rung from there")),
    "report": _RemoteRules(
        file_flag="--html", only_here=(("--png", "--pdf", "--svg"), "shoal has no matplotlib on clusters; use --html")
    ),
    "doctor": _RemoteRules(
        code=True, only_here=(("--fix", "--smoke", "--write-baseline"), "files are written on this machine alone")
    ),
    "budget": _RemoteRules(acts="words"),
    "switch": _RemoteRules(acts="apply", code=True),
    "resume": _RemoteRules(acts=True, code=True),
    "pack": _RemoteRules(acts=True, code=True),
    "why": _RemoteRules(),
    "logs": _RemoteRules(follows=("--follow",)),
    "results": _RemoteRules(),
    "plan": _RemoteRules(code=True),
    "submit": _RemoteRules(acts=True, code=True),
    "run": _RemoteRules(acts=True, code=True, follows=True),
    "retry": _RemoteRules(acts=True, code=True),
    "cancel": _RemoteRules(acts=True),
}
#: Commands without --on that would show this machine's runs to somebody who works on a cluster (SHOAL_ON).
_ABOUT_RUNS = ("adopt", "attach", "forward", "search", "ui")
#: Commands whose --on means another machine: here they are about recorded runs, wherever those run, or about files.
_NEEDS_SSH = ("status", "watch", "why", "logs", "results", "report", "cancel", "doctor", "switch")
#: Commands that ask before several runs are submitted or cancelled.
_CONFIRMED = ("submit", "run", "retry", "cancel")
#: What would happen on the login node, or needs a terminal there.
_NOT_THERE = ("--smoke-here", "--pager", "--no-snapshot")


def run_over_ssh(name: str, words: list[str], args: argparse.Namespace) -> int | None:
    """The exit code of the command on the cluster that --on or SHOAL_ON names; None if it is to be executed here."""
    from shoal import api

    target = api.remote_target(getattr(args, "on", None))
    if target is None:
        _refuse_without_ssh(name, args)
        return None
    if name == "pull":
        from shoal.cli.pull import pull_from

        return pull_from(target, args, TerminalOutput())
    rules = _COMMANDS.get(name)
    if rules is None:
        if not hasattr(args, "on") and name not in _ABOUT_RUNS:
            return None
        given = f"--on {args.on}" if getattr(args, "on", None) else f"SHOAL_ON={target.cluster.name}"
        raise InputError(
            f"shoal {name} cannot be used over ssh yet ({given})",
            hint=f"ssh {target.cluster.ssh.host}   # and run it in {target.cluster.ssh.directory}",
        )
    _refuse_flags_there(name, words, args, rules)
    return _execute(name, _words_there(name, words, args, target, rules), args, target, rules)


def _refuse_without_ssh(name: str, args: argparse.Namespace) -> None:
    on = getattr(args, "on", None)
    if on == "local" and os.environ.get("SHOAL_ON"):
        return
    if on and name in _NEEDS_SSH and not os.environ.get("SHOAL_ROOT"):
        raise InputError(
            f"--on {on} has no effect on shoal {name}: no [clusters.{on}.ssh] that leads to another machine",
            hint="remove --on, or add host and directory to that table (docs/remote.md)",
        )


def _execute(name: str, words: list[str], args: argparse.Namespace, target: RemoteTarget, rules: _RemoteRules) -> int:
    from shoal import api
    from shoal.views import SCREEN_VARIABLE, describe_screen, detect_screen

    follows = rules.follows if isinstance(rules.follows, bool) else bool(args.given & set(rules.follows))
    wanted = rules.acts if isinstance(rules.acts, bool) else bool(getattr(args, rules.acts))
    acts = wanted and not getattr(args, "dry_run", False)
    variables = {SCREEN_VARIABLE: describe_screen(detect_screen())}
    agreed = _ask_here(name, words, args, target, variables, rules) if acts else words
    if agreed is None:
        return 0
    file = _output_file(args, rules)
    sink = TerminalOutput() if file is None else KeptOutput(TerminalOutput())
    code = api.execute_there(
        target,
        [name, *agreed],
        sink,
        with_code=rules.code,
        orders=acts or follows,
        follows=follows,
        command_id=getattr(args, "command_id", None),
        identified=acts and hasattr(args, "command_id"),
        variables=variables,
    )
    if isinstance(sink, KeptOutput) and file is not None and code == 0:
        from shoal.cli.report import write_report

        write_report(file, sink.out, quiet=args.quiet)
    return code


def _refuse_flags_there(name: str, words: list[str], args: argparse.Namespace, rules: _RemoteRules) -> None:
    for flag in _NOT_THERE:
        if flag in args.given:
            raise InputError(f"{flag} has no effect over ssh", hint=f"remove {flag}")
    flags, reason = rules.only_here
    for flag in flags:
        if flag in args.given:
            import shlex

            line = shlex.join(["shoal", name, *_without_profile(words)])
            raise InputError(f"{flag} cannot be used over ssh: {reason}", hint=f"SHOAL_ON= {line}   # on this machine")


def _words_there(
    name: str, words: list[str], args: argparse.Namespace, target: RemoteTarget, rules: _RemoteRules
) -> list[str]:
    """The command line for the cluster: without --on, with paths as they are in the project, and with the output that
    belongs into a file of this machine on standard output."""
    from shoal import api

    end = words.index("--") if "--" in words else len(words)
    own, rest = _without_profile(words[:end]), words[end:]
    paths = {str(path): _path_there(name, path) for path in getattr(args, "file", ())}
    if name == "pack":
        # Without a profile a pack runs on the machine where it is started: on the login node.
        own = [f"--on={api.profile_there(target) or 'slurm'}", *own]
        paths |= {word: os.path.relpath(word) for word in args.words[:1] if not rest and os.path.exists(word)}
    if getattr(args, "baseline", None) is not None:
        paths[str(args.baseline)] = os.path.relpath(args.baseline)
    kept = [paths.get(word, word) for word in own]
    if _output_file(args, rules) is not None:
        flag = rules.file_flag or ""
        at = next(at for at, word in enumerate(kept) if word.partition("=")[0] == flag)
        kept[at : at + (1 if "=" in kept[at] else 2)] = [f"{flag}=-"]
    return [*kept, *rest]


def _without_profile(words: list[str]) -> list[str]:
    """Words of a command line before `--` without --on PROFILE."""
    kept, skip = list[str](), False
    for at, word in enumerate(words):
        if word == "--":
            return [*kept, *words[at:]]
        if skip or word.startswith("--on="):
            skip = False
        elif word == "--on":
            skip = True
        else:
            kept.append(word)
    return kept


def _output_file(args: argparse.Namespace, rules: _RemoteRules) -> str | None:
    """The file of this machine that the command's output belongs into."""
    name = getattr(args, rules.file_flag[2:]) if rules.file_flag else None
    return None if name in (None, "-") else str(name)


def _path_there(name: str, path: os.PathLike[str]) -> str:
    """A file of the project relative to the current directory, which is the same on the cluster."""
    from pathlib import Path

    from shoal import api

    if name != "doctor" and Path(path).exists() and not api.is_experiment_source(Path(path)):
        raise InputError(
            f"{path} is not an experiment file: batch scripts cannot be submitted over ssh yet",
            hint="shoal submit --on PROFILE -- COMMAND   # or describe it in experiments/",
        )
    return os.path.relpath(path)


def _ask_here(
    name: str,
    words: list[str],
    args: argparse.Namespace,
    target: RemoteTarget,
    variables: dict[str, str],
    rules: _RemoteRules,
) -> list[str] | None:
    """Before several runs are submitted or cancelled, the person at this terminal is asked; None: the answer is no."""
    from shoal import api
    from shoal.views import confirm

    is_silent = name not in _CONFIRMED or getattr(args, "yes", True) or args.json or args.quiet
    if is_silent or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return words
    dry = "submit" if name == "run" else name
    kept = KeptOutput()
    code = api.execute_there(
        target, [dry, "--dry-run", "--json", *words], kept, with_code=rules.code, orders=False, variables=variables
    )
    if code != 0:
        return words  # the command itself says what is wrong
    document = json.loads(kept.out)
    runs = document["runs"] if name == "cancel" else [run for one in document["submissions"] for run in one["runs"]]
    if len(runs) < 2:
        return words
    if not confirm(f"{'cancel' if name == 'cancel' else 'submit'} {len(runs):,} runs on {target.cluster.name}?"):
        return None
    return ["--yes", *words] if name == "cancel" else words


class TerminalOutput:
    """Prints what comes from the cluster. On a terminal control sequences other than colours are removed: nothing that
    a cluster sends moves, renames or asks this terminal."""

    def __init__(self) -> None:
        from shoal.views import ControlSequenceFilter, detect_screen

        colour = detect_screen().colour
        self._streams = {"out": sys.stdout, "err": sys.stderr}
        self._filters = {
            name: ControlSequenceFilter(colour) for name, stream in self._streams.items() if stream.isatty()
        }

    def write(self, stream: str, data: bytes) -> None:
        if stream not in self._streams:
            return
        out = self._streams[stream]
        out.flush()
        out.buffer.write(self._filters[stream].feed(data) if stream in self._filters else data)
        out.buffer.flush()

    def note(self, text: str) -> None:
        from shoal.views import safe_line

        sys.stderr.write(f"note: {safe_line(text)}\n")


class KeptOutput:
    """Keeps what a command prints on standard output; the rest goes to `others`, if they want it."""

    def __init__(self, others: TerminalOutput | None = None) -> None:
        self.out, self._others = b"", others

    def write(self, stream: str, data: bytes) -> None:
        if stream == "out":
            self.out += data
        elif self._others is not None:
            self._others.write(stream, data)

    def note(self, text: str) -> None:
        if self._others is not None:
            self._others.note(text)
