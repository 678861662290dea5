"""What an experiment cost, what was wasted, what failed and what came out.

shoal report 001_example
shoal report last --html report.html     one file, no network needed to read it
shoal report 001_example --md >> notes.md
shoal report --csv > attempts.csv        one line per attempt of every run
shoal report 001_example --check         compare the hours of each job with sacct
shoal report 002_depth --png slots.png   GPUs against time; also --pdf and --svg (pip install 'shoal[plots]')
"""

from __future__ import annotations

import argparse

from shoal.cli.options import add_output, add_profile_flag, refuse_unused_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.views import CostReport, Format


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="*", metavar="EXPERIMENT", help="Runs or experiments to report (default: all)")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--html", metavar="FILE", help="write one self-contained HTML file; - is standard output")
    forms.add_argument("--md", action="store_true", help="print Markdown")
    for form in ("png", "pdf", "svg"):
        forms.add_argument(
            f"--{form}", metavar="FILE", help=f"draw GPUs or slots against time as {form.upper()} (needs shoal[plots])"
        )
    forms.add_argument("--csv", action="store_true", help="print CSV, one line per attempt")
    forms.add_argument(
        "--check", action="store_true", help="Compare each job with sacct; exit with code 1 if they differ"
    )
    add_profile_flag(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api

    refuse_unused_flags(args, args.json, "with --json", "--html", "--md", "--png", "--pdf", "--svg", "--csv")
    report = api.report(args.which)
    if args.check:
        from shoal.views import show_check

        return show_check(api.check_hours(report), as_json=args.json, quiet=args.quiet)
    if args.html:
        write_report(args.html, api.report_html(report).encode(), quiet=args.quiet)
    elif args.png or args.pdf or args.svg:
        _draw(report, {"png": args.png, "pdf": args.pdf, "svg": args.svg}, quiet=args.quiet)
    elif args.md or args.csv:
        from shoal.views import text

        print(text.report_markdown(report) if args.md else text.report_csv(report), end="")
    else:
        from shoal.views import detect_screen, text

        text.show_report(report, detect_screen(), as_json=args.json, quiet=args.quiet)
    return 0


def write_report(path: str, content: bytes, *, quiet: bool) -> None:
    """Write a report to a file, or to standard output for -."""
    import shlex
    import sys
    from pathlib import Path

    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        from shoal.errors import InputError

        missing = isinstance(error, FileNotFoundError)
        hint = f"mkdir -p {shlex.quote(str(Path(path).parent))}" if missing else "shoal report --html report.html"
        raise InputError(f"cannot write {path}: {error.strerror}", hint=hint) from None
    if not quiet:
        print(f"wrote {path}")


def _draw(report: CostReport, paths: Mapping[Format, str | None], *, quiet: bool) -> None:
    from shoal.views import picture

    for form, path in paths.items():
        if path:
            write_report(path, picture(report.timeline, report.title, form), quiet=quiet)
