"""Print the path of the bash functions that an experiment script sources.

  source "$(shoal shell)"      in experiments/001_example/000_pretrain_0.sh
  less "$(shoal shell)"        to read what they do

The functions are one for each step of shoal.toml, and resume. They take any sbatch flag, `--on CLUSTER`, `--again`,
`--dry-run`, `--smoke`, and after `--` arguments for the program. One that fails ends the script.
"""

from __future__ import annotations

import argparse
import os
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
        return _record_call(args.call, args.script, args.words[1:], args.modifier)
    if args.words:
        from shoal.errors import InputError

        raise InputError(f"shoal shell takes no {args.words[0]!r}", hint="shoal shell")
    print(Path(__file__).parent.parent / "describe" / "shoal.sh")
    return None


def _print_definitions(script: Path) -> None:
    from shoal.describe import find_project, function_definitions

    print(function_definitions(script, find_project(script.absolute().parent, os.environ), os.environ))


def _record_call(function: str, script: str, words: list[str], modifier: list[str]) -> int:
    from shoal.describe import BASE_VARIABLE, COLLECT_VARIABLE, StepCall, append_call, exported_settings

    env, secret = exported_settings(os.environ, os.environ.get(BASE_VARIABLE, ""))
    seed = os.environ.get("SHOAL_SEED", "")
    call = StepCall(function, words, os.path.abspath(script), int(seed) if seed.isdigit() else None, env, modifier)
    if os.environ.get(COLLECT_VARIABLE):
        append_call(os.environ[COLLECT_VARIABLE], call)
        return 0
    from shoal.cli.submit import submit_calls

    return submit_calls([call], secret=secret)
