"""A page in the browser: runs, logs, metrics, reports. It listens on this machine only, and only this link opens it.

shoal ui                       prints a link, and the ssh line for a browser on another machine
shoal ui --port 8765
shoal ui --allow-actions       the page may also cancel runs and start them again
shoal ui --export copy         the page as it is now, as files to keep or to send; copy/index.html opens anywhere
shoal ui --export sweep.html   the same as one file for a mail, with the logs of the 50 runs that matter most

Everything comes from the run folders and the one answer of Slurm that all watchers share. Ctrl-C ends the page, never
a run.
"""

from __future__ import annotations

import argparse

from shoal.cli.options import refuse_unused_flags


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, help="this port instead of a free one")
    parser.add_argument("--allow-actions", action="store_true", help="let the page cancel and restart runs")
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")
    parser.add_argument("--export", metavar="FOLDER|FILE.html", help="write a copy that needs no server, and stop")
    parser.add_argument("--json", action="store_true", help="print the link as one JSON document")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the link alone")


def run(args: argparse.Namespace) -> int:
    from shoal.api import state_directory
    from shoal.views import export_dashboard, serve_dashboard

    refuse_unused_flags(args, args.export is not None, "with --export", "--port", "--allow-actions", "--open")
    if args.export is not None:
        return export_dashboard(state_directory(), args.export, as_json=args.json, quiet=args.quiet)
    return serve_dashboard(
        state_directory(),
        args.port,
        allow_actions=args.allow_actions,
        browser=args.open,
        as_json=args.json,
        quiet=args.quiet,
    )
