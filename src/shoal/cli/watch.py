"""Watch runs until they have all ended: a full-screen view on a terminal, one line per change off it.

shoal watch                          everything that is not over yet
shoal watch 001_example --exit-status && shoal report 001_example
shoal watch last --simple            the table of status, redrawn in place
shoal watch --json                   one JSON line per change, for scripts

The full-screen view needs the extra: pip install 'shoal[tui]'. Ctrl-C (or q) stops the watching, never a run. All
watchers of a project together ask Slurm once every ten seconds; SHOAL_POLL_S changes that.
"""

from __future__ import annotations

import argparse

from shoal.cli.status import add_filters, refuse_table_flags, shows_everything, status_filter, table_choice


def configure(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    parser.add_argument("--exit-status", action="store_true", help="Exit with 4 if a run failed or was cancelled")
    parser.add_argument("--simple", action="store_true", help="the table of status, without the full-screen view")
    parser.add_argument("--notify", action="store_true", help="ring the terminal's bell at the end")


def run(args: argparse.Namespace) -> int:
    from shoal import api

    refuse_table_flags(args)
    home = api.state_directory()
    # Who asks for an exit code or a bell waits for the end; the full-screen view has none, and columns of its own.
    plain = args.simple or args.exit_status or args.notify or args.json or args.quiet or args.tty is not None
    plain = plain or args.tasks or args.columns
    if not plain and _full_screen_works():
        from shoal.views import run_app

        return run_app(
            home,
            status_filter(args),
            everything=args.all,
            choice=table_choice(args, home, tty=True),
            observe_runs=api.observe_and_follow_up,
        )
    return watch_runs(args, home)


def watch_runs(args: argparse.Namespace, home: str) -> int:
    """Also `shoal status -w`."""
    from shoal import api
    from shoal.views import WatchOptions, detect_screen, watch_runs

    screen = detect_screen(force=args.tty)
    choice = table_choice(args, home, screen.tty)
    options = WatchOptions(
        args.json,
        args.quiet,
        shows_everything(args, choice),
        args.tasks,
        choice,
        args.exit_status,
        getattr(args, "notify", False),
    )
    return watch_runs(home, status_filter(args), options, screen, observe_runs=api.observe_and_follow_up)


def _full_screen_works() -> bool:
    """A real terminal on both sides, nobody who needs plain lines, and the extra installed."""
    import importlib.util
    import os
    import sys

    from shoal.views import can_redraw, detect_screen

    if not sys.stdin.isatty() or not can_redraw(detect_screen(), os.environ):
        return False
    return importlib.util.find_spec("textual") is not None
