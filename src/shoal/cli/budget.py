"""Show or change what runs may hold on a cluster at once: jobs, nodes, GPUs; the attempts of a run; who is sent first.

shoal budget                                               limits and what is in use
shoal budget jobs=20,gpus=32                               the whole project
shoal budget evaluate_b2d jobs=32,attempts=6,priority=-1   all runs of a step
shoal budget 001_example none                              no limit for an experiment
shoal budget '020_b2d_*' max_parallel=8                    arrays in the queue (ArrayTaskThrottle)

A change holds at once, also for runs that wait or run. Of the waiting runs, those with a higher priority are sent first
(default: 0); a job that Slurm has keeps its place in Slurm's queue.
"""

from __future__ import annotations

import argparse
import json

from shoal.cli.options import add_output, add_profile_flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.api import BudgetChange, BudgetReport


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[SCOPE] LIMITS",
        help="A step or an experiment (default: the project), then its limits, or none",
    )
    add_profile_flag(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> None:
    from shoal import api
    from shoal.errors import InputError

    if len(args.words) > 2 or (len(args.words) == 1 and not ("=" in args.words[0] or args.words[0] == "none")):
        raise InputError(f"invalid budget {' '.join(args.words)!r}", hint="shoal budget train jobs=20")
    if args.words:
        scope, limits = args.words if len(args.words) == 2 else ("", *args.words)
        change = api.set_budget(limits, scope, on=args.on)
        if not args.quiet and not args.json:
            print(_sentence(change, scope, limits))
    if not args.words or args.json:
        _show(api.budget(on=args.on), as_json=args.json)


def _sentence(change: BudgetChange, scope: str, limits: str) -> str:
    if change.arrays is not None:
        number = limits.partition("=")[2]
        arrays = ", ".join(change.arrays)
        return f"at most {number} tasks of {arrays} run at once" if arrays else "no array in the queue"
    sentence = f"{scope or 'project'} on {change.cluster}: {limits}"
    return sentence + (f"; {len(change.admitted)} waiting runs submitted" if change.admitted else "")


def _show(report: BudgetReport, *, as_json: bool) -> None:
    from shoal.api import HELD_KINDS, SCOPE_KINDS

    if as_json:
        document = {**report._asdict(), "scopes": [scope._asdict() for scope in report.scopes]}
        print(json.dumps({"schema": 1, **document}))
        return
    if report.problem:
        print(f"cannot read the queue of {report.cluster}: {report.problem}")
    if not report.scopes:
        print(f"no budget on {report.cluster}")
    for scope, limits, used in report.scopes:
        words = [
            f"{kind} {used.get(kind, 0)} of {limits[kind]}" if kind in HELD_KINDS else f"{kind} {limits[kind]}"
            for kind in SCOPE_KINDS
            if kind in limits
        ]
        print(f"{scope or 'project'}\t{', '.join(words)}")
