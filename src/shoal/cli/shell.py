"""Print the path of the bash functions that an experiment script sources.

  source "$(shoal shell)"      in experiments/001_example/000_pretrain_0.sh
  less "$(shoal shell)"        to read what they do

The functions are one for each step of shoal.toml, and resume. They take any sbatch flag, `--on CLUSTER`, `--rerun`,
`--dry-run`, `--smoke`, and after `--` arguments for the program. One that fails ends the script.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    # The sourced file itself calls these two; nobody types them.
    parser.add_argument("--define", metavar="SCRIPT", help=argparse.SUPPRESS)
    parser.add_argument("--call", metavar="STEP", help=argparse.SUPPRESS)
    parser.add_argument("--script", help=argparse.SUPPRESS)
    parser.add_argument("--modifier", nargs=2, default=[], help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int | None:
    if args.define is not None:
        _print_definitions(Path(args.define))
        return None
    if args.call is not None:
        return _submit_call(args)
    if args.words:
        from shoal.errors import InputError

        raise InputError(f"shoal shell takes no {args.words[0]!r}", hint="shoal shell")
    print(Path(__file__).parent.parent / "describe" / "shoal.sh")
    return None


def _print_definitions(script: Path) -> None:
    from shoal import api

    print(api.step_functions(script))


def _submit_call(args: argparse.Namespace) -> int:
    from shoal import api

    call = api.read_step_call(args.call, args.words[1:], args.script, args.modifier)
    if api.note_step_call(call):
        return 0
    from shoal.cli.submit import exit_code, result_printer

    with result_printer(argparse.Namespace(json=False, quiet=False)) as say:
        return exit_code(api.submit_step_call(call, tell=say))
