"""Serve this project's runs, logs, plans and results to an AI agent, by the Model Context Protocol.

shoal mcp                    tools that look: list_runs, explain_run, read_log, plan, check_scripts, ...
shoal mcp --allow-actions    also submit, retry and cancel; each shows what would happen and needs a confirmation

It speaks on standard input and output. A client starts it in the project's directory, as in
{"command": "shoal", "args": ["mcp"], "cwd": "/home/me/project"}.
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-actions", action="store_true", help="Offer submit, retry and cancel as well")


def run(args: argparse.Namespace) -> None:
    from shoal import mcp_server

    mcp_server.serve(allow_actions=args.allow_actions)
