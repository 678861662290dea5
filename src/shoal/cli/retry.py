"""Start runs that ended badly once more: from their newest checkpoint, with other resources if asked.

A run without a checkpoint, and one whose program is not known to continue from it, starts over in a new folder.

shoal retry 002_depth                          every run that failed, ran out of memory or time, or was lost
shoal retry --state failed --dry-run
shoal retry --cause oom --mem x2
shoal retry --cause failed --exclude-nodes
"""

from __future__ import annotations

import argparse
import os

from shoal.cli.options import (
    add_output,
    add_profile_flag,
    add_request,
    chosen_cluster,
    current_project,
    refuse_unused_flags,
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="*", metavar="RUN_OR_EXPERIMENT", help="only these")
    parser.add_argument("--state", metavar="STATE,...", help="only runs in one of these states")
    parser.add_argument(
        "--cause", metavar="CAUSE,...", help="oom, cuda_oom, failed, bad_result, timeout, node_fail, ..."
    )
    parser.add_argument("--mem", metavar="x2|64G", help="more memory than before, or this much")
    parser.add_argument("--time", metavar="x2|4h", help="more time than before, or this much")
    parser.add_argument(
        "--exclude-nodes", action="store_true", help="not on the node where it ended (failed ones are avoided anyway)"
    )
    parser.add_argument("--fresh", action="store_true", help="from the beginning, in a new folder")
    parser.add_argument("--dry-run", action="store_true", help="show what would be started, and stop")
    add_profile_flag(parser)
    add_request(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.cli.submit import exit_code, result_printer
    from shoal.submit import idempotency, retry, submit_runs
    from shoal.views import parse_states, select_runs, unselected_sentence

    project = current_project()
    home = str(project.home)
    causes = [word.strip() for word in (args.cause or "").split(",") if word.strip()]
    names = select_runs(home, args.which)
    change = retry.RetryChange(args.mem, args.time, args.exclude_nodes, args.fresh)
    meaning = (change, args.state, args.cause, args.on)
    given = None
    if not args.dry_run:
        given = idempotency.find_order(home, "retry", names, meaning, args.request, os.environ)
    with result_printer(args) as say:
        if given is not None and given.record is not None:
            views = retry.unstarted_runs(home, given, os.environ)
        else:
            views = [view for view, _ in retry.find_failed(home, names, parse_states(args.state), causes, os.environ)]
            left_out = retry.skipped_sentence(home, names, views, os.environ)
            for note in [*unselected_sentence(home, names), *([left_out] if left_out else [])]:
                say.note(note)
            if not views:
                say.note("no run of these ended badly")
                return 0
        cluster = chosen_cluster(project, args.on)
        refuse_unused_flags(args, cluster.is_local, "on this machine", "--exclude-nodes", "--mem")
        asked = retry.retried_runs(project, views, change)
        return exit_code(
            submit_runs(
                asked,
                project,
                cluster,
                os.environ,
                tell=say,
                follow=not args.quiet,
                dry_run=args.dry_run,
                given=given,
            )
        )
