"""Make a port of a running run's node reachable on this machine: TensorBoard, Jupyter, a debugger.

shoal forward 000_pretrain_0 6006               http://127.0.0.1:6006 is then port 6006 of its node
shoal forward 000_pretrain_0 8888 --local 9000
shoal forward 000_pretrain_0 6006 --node node7  another node of the run

It lasts until Ctrl-C or the end of the job. Other users of this machine can connect to the port as well: keep the
password or token of the program.
"""

from __future__ import annotations

import argparse
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("port", type=_port_number, metavar="PORT", help="of the run's node")
    parser.add_argument("--local", type=_port_number, metavar="PORT", help="of this machine (default: the same)")
    parser.add_argument("--node", help="this node of the run instead of its first")


def run(args: argparse.Namespace) -> int:
    from shoal import api

    found = api.find_run(args.run)
    attempt = api.running_attempt(found, args.node)
    if attempt.job_id is None and args.local in (None, args.port):
        print(f"{attempt.run} runs on this machine: http://127.0.0.1:{args.port}")
        return 0

    def opened(port: int) -> None:
        print(f"http://127.0.0.1:{port} is port {args.port} of {attempt.place}; Ctrl-C ends it", flush=True)

    def failed(reason: str) -> None:
        sys.stderr.write(f"port {args.port} of {attempt.place}: {reason}\n")

    api.forward_port(found.home, attempt, args.port, args.local, opened=opened, failed=failed)
    sys.stderr.write(f"the job of {attempt.run} has ended\n")
    return 0


def _port_number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)
