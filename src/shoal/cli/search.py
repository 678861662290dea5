"""Show the searches of experiments, or write one as an Optuna journal.

shoal search show 002_lr                     best trial, best so far, importance of each parameter
shoal search export 002_lr -o lr.journal     for optuna-dashboard; needs pip install 'shoal[search]'
"""

from __future__ import annotations

import argparse

from shoal.cli.options import add_output


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("show", "export"))
    parser.add_argument("which", nargs="*", metavar="EXPERIMENT", help="Runs or experiments (default: all)")
    parser.add_argument("-o", "--output", metavar="FILE", help="Journal to write (default: EXPERIMENT.journal)")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    if args.action == "export":
        return _export(args)
    from shoal import api
    from shoal.views import print_json, search_document, search_lines

    searches = api.searches(args.which)
    if args.json:
        print_json({"searches": [search_document(one) for one in searches]})
    elif args.quiet:
        print("\n".join(one.best.name for one in searches if one.best is not None))
    else:
        print("\n\n".join("\n".join(search_lines(one, {})) for one in searches))
    return 0


def _export(args: argparse.Namespace) -> int:
    from pathlib import Path

    from shoal import api
    from shoal.views import print_json

    path, count = api.export_search(args.which, Path(args.output) if args.output else None)
    if args.json:
        print_json({"path": str(path), "trials": count})
    elif not args.quiet:
        print(f"wrote {count} trials to {path}")
    return 0
