"""Open the connection to a cluster that [clusters.PROFILE.ssh] names; other commands then use it without any question.

shoal connect galvani
shoal connect galvani --close

ssh asks here for passwords, one-time codes and new host keys, and nowhere else. The connection stays open for 8 hours
after its last use, also after this terminal is closed; --close ends it (docs/remote.md).
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profile", metavar="PROFILE", help="Cluster profile with an [clusters.PROFILE.ssh] table")
    parser.add_argument("--close", action="store_true", help="End the connection")
    parser.add_argument("--json", action="store_true", help="Print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="Print nothing")


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.views import print_json

    changed = api.disconnect(args.profile) if args.close else api.connect(args.profile)
    if args.json:
        print_json({"profile": args.profile, "connected": not args.close, "changed": changed})
    elif not args.quiet:
        was = "closed the connection" if changed else "no open connection"
        is_open = "connected" if changed else "connected already"
        print(f"{was} to {args.profile}" if args.close else f"{is_open} to {args.profile}")
    return 0
