"""Bring files of a run's output directory from a cluster over ssh to this machine: checkpoints, logs, metrics.

shoal pull 000_pretrain_0 --on galvani                      the whole directory, to its place below outputs/
shoal pull 000_pretrain_0 '*.ckpt' 'attempt-*.out' --on galvani
shoal pull 000_pretrain_0 --to /tmp/look --on galvani
shoal pull 000_pretrain_0 --dry-run --on galvani            what would come, and what is here already

Given again after a lost connection, it continues. Each file is compared by its SHA-256; one that is here and different
is not replaced without --overwrite. Links are not pulled (docs/remote.md).
"""

from __future__ import annotations

import argparse
import json

from shoal.cli.options import add_output, add_profile_flag, refuse_unused_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.api import PullReport, RemoteTarget
    from shoal.cli.over_ssh import TerminalOutput


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("pattern", nargs="*", metavar="PATTERN", help="Only files like this (default: all)")
    parser.add_argument("--to", metavar="DIR", help="Target directory (default: the same place below outputs/)")
    parser.add_argument("--overwrite", action="store_true", help="Replace files that are here with other content")
    parser.add_argument("--dry-run", action="store_true", help="Show what would come without writing anything")
    parser.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    add_profile_flag(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Without a cluster over ssh: the list that the other side of a pull asks for."""
    from shoal import api
    from shoal.errors import InputError

    if not args.list:
        raise InputError(
            "shoal pull brings files from a cluster over ssh, and none was named",
            hint=f"shoal pull {args.run} --on PROFILE   # one with [clusters.PROFILE.ssh] in shoal.toml",
        )
    print(json.dumps(api.output_files(args.run)._asdict()))
    return 0


def pull_from(target: RemoteTarget, args: argparse.Namespace, out: TerminalOutput) -> int:
    from shoal import api
    from shoal.cli.over_ssh import KeptOutput

    refuse_unused_flags(args, args.dry_run, "with --dry-run", "--overwrite")
    kept = KeptOutput(out)
    words = ["pull", "--list", *(["--json"] if args.json else []), "--", args.run]
    code = api.execute_there(target, words, kept, with_code=False, orders=False)
    if code != 0:
        out.write("out", kept.out)
        return code
    listing = api.parse_listing(kept.out, target.cluster.name)
    report = api.pull(
        target,
        listing,
        args.pattern,
        to=args.to,
        overwrite=args.overwrite,
        dry_run=args.dry_run,
        note=out.note,
    )
    return _show(report, args)


def _show(report: PullReport, args: argparse.Namespace) -> int:
    from shoal.units import format_bytes, plural
    from shoal.views import print_json, safe_line

    changed = [one for one in report.files if one.state == "changed"]
    if args.json:
        print_json({**report._asdict(), "files": [one._asdict() for one in report.files]})
    elif not args.quiet:
        for one in report.files:
            if one.state != "same" or args.dry_run:
                print(f"{one.state}\t{format_bytes(one.size)}\t{safe_line(one.path)}")
        same = sum(one.state == "same" for one in report.files)
        some = f", {same} here already" if same else ""
        links = f"; left out: {plural(report.left_out, 'link')} or special files"
        where = "would come to" if args.dry_run else "in"
        print(f"{plural(len(report.files), 'file')} {where} {report.target}{some}{links if report.left_out else ''}")
    if changed:
        from shoal.errors import ShoalError

        raise ShoalError(
            f"{plural(len(changed), 'file')} changed on {report.cluster} while being copied, for example "
            f"{safe_line(changed[0].path)}",
            hint="run the same command again",
        )
    return 0
