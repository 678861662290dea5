"""Take up Slurm jobs that shoal did not submit, so that status, watch, why, logs, report and switch know them as runs.

shoal adopt 265438
shoal adopt 123_4 124                 a task of an array; every task of an array
shoal adopt my-training               jobs of yours in the queue with this name
shoal adopt --mine                    every job of yours in the queue that shoal did not submit
shoal adopt 265438 --name baselines/resnet50

Nothing about the jobs is changed. A run is called adopted/NAME-ID; a job that was adopted before stays the same run.
"""

from __future__ import annotations

import argparse
import sys

from shoal.cli.options import add_output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.api import AdoptedRun


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="job ids, tasks of arrays, or names of your jobs")
    parser.add_argument("--mine", action="store_true", help="every job of yours in the queue")
    parser.add_argument("--name", metavar="EXPERIMENT/RUN", help="name of the run (default: adopted/NAME-ID)")
    parser.add_argument("--dry-run", action="store_true", help="show which runs the jobs would be, and stop")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api

    found = api.adopt(args.jobs, mine=args.mine, name=args.name, dry_run=args.dry_run)
    _show(found, as_json=args.json, quiet=args.quiet)
    return 0


def _show(found: Sequence[AdoptedRun], *, as_json: bool, quiet: bool) -> None:
    from shoal.views import print_json, safe_line

    if as_json:
        print_json({"runs": [one._asdict() for one in found]})
        return
    words = {"known": "adopted before:", "own": "own run:"}
    for one in found:
        line = f"{words.get(one.did, one.did)} {one.name} ({one.state}, job {one.job_id})"
        print(one.name if quiet else safe_line(line))
        for note in one.notes if not quiet else ():
            sys.stderr.write(f"note: {safe_line(note)}\n")
    if not found and not quiet:
        print("nothing to adopt: no job of yours in the queue that shoal did not submit")
