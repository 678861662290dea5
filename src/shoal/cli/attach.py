"""A shell inside the allocation of a running run: its node, its environment, its working directory.

shoal attach 000_pretrain_0
shoal attach 000_pretrain_0 -- nvidia-smi       one command instead of a shell
shoal attach 000_pretrain_0 --node node7        another node of the run
shoal attach 265438                             any job of yours that Slurm runs

The shell shares the run's CPUs and memory. Leaving it changes nothing; when the job ends, it ends.
"""

from __future__ import annotations

import argparse
import os
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|JOB_ID")
    parser.add_argument("--node", help="this node of the run instead of its first")
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="instead of a shell")


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.cli.options import exit_on_sigterm_for_job

    exit_on_sigterm_for_job(args.run)
    with api.run_or_job(args.run, "shoal attach") as found:
        attempt = api.running_attempt(found, args.node)
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        words = api.attach_command(found.home, attempt, args.command, terminal=terminal)
        if not args.command:
            sys.stderr.write(f"attached to {attempt.run} on {attempt.place}; exit leaves it running\n")
        return _execute(words)


def _execute(words: list[str]) -> int:
    """Run it to its end with our terminal. Ctrl-C is for it alone."""
    import signal
    import subprocess

    from shoal.errors import SchedulerError
    from shoal.kernel import slurm

    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.call(words, env=slurm.clean_environ(os.environ))
    except FileNotFoundError:
        raise SchedulerError(f"{words[0]} is not on this machine", hint="run this on a login node") from None
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
