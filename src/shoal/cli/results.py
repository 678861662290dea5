r"""What runs brought: parameters that vary, metrics over seeds as mean and standard deviation, and who is missing.

  shoal results 002_depth
  shoal results 002_depth --metric accuracy --sort accuracy --descending
  shoal results 002_depth --format latex > table.tex
  shoal results 004_routes --over route --missing 0

Mean and standard deviation are over seeds; with --over, the runs of a seed are averaged first.

Numbers come from metrics.json, metrics.jsonl, Hugging Face's, timm's and Lightning's files, TensorBoard and W&B in a
run's output folder, and from names that [steps.X] metrics = [...] declares and the log prints.
"""

from __future__ import annotations

import argparse

from shoal.cli.options import add_profile_flag, refuse_unused_flags


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="*", metavar="RUN_OR_EXPERIMENT", help="only these")
    parser.add_argument("--metric", action="append", default=[], help="only this metric; may be given again")
    parser.add_argument(
        "--over", action="append", default=[], metavar="PARAM", help="Average over this parameter first, for each seed"
    )
    parser.add_argument("--sort", metavar="NAME", help="order by a metric or a parameter")
    parser.add_argument("--descending", action="store_true", help="the largest first")
    parser.add_argument(
        "--missing",
        type=float,
        metavar="VALUE",
        help="Count runs that have ended without the metric as VALUE, such as 0",
    )
    parser.add_argument("--partial", action="store_true", help="Count runs that have not completed as well")
    parser.add_argument("--all-params", action="store_true", help="show parameters that do not vary, and derived ones")
    parser.add_argument(
        "--format",
        choices=("text", "csv", "json", "markdown", "latex"),
        default="text",
        help="Output format (default: text)",
    )
    add_profile_flag(parser)
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names of groups alone")


def run(args: argparse.Namespace) -> None:
    from shoal import api
    from shoal.views import results

    refuse_unused_flags(args, args.json or args.quiet, "with --json or -q", "--format")
    refuse_unused_flags(args, args.sort is None, "without --sort", "--descending")
    table = api.results(
        args.which,
        metrics=args.metric,
        over=args.over,
        sort=args.sort,
        descending=args.descending,
        missing_value=args.missing,
        partial=args.partial,
        all_params=args.all_params,
    )
    results.show_results(table, "json" if args.json else "names" if args.quiet else args.format)
