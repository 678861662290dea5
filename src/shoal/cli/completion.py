"""Completion of commands, flags, runs and states for your shell, without ever calling Slurm.

eval "$(shoal completion bash)"                              in ~/.bashrc
shoal completion zsh > ~/.zfunc/_shoal                       a folder of $fpath
shoal completion fish > ~/.config/fish/completions/shoal.fish
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="bash|zsh|fish", help="print the lines for this shell")
    # What those lines call, with the words of the command line; nobody types it.
    parser.add_argument("--complete", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from shoal.cli.completing import SHELL_SCRIPTS, candidates
    from shoal.errors import InputError, ShoalError

    if args.complete is None:
        if len(args.words) != 1 or args.words[0] not in SHELL_SCRIPTS:
            raise InputError("which shell: bash, zsh or fish?", hint='eval "$(shoal completion bash)"')
        print(SHELL_SCRIPTS[args.words[0]], end="")
        return 0
    from shoal.describe import home_here

    try:
        home = home_here()
    except ShoalError:
        home = None
    print("\n".join(candidates(args.words, args.complete, home)))
    return 0
