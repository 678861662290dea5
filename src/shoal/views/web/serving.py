"""Start the server, tell the person how to reach it, and stop on Ctrl-C."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.errors import InputError
from shoal.views import actions
from shoal.views.polling import QueueCache
from shoal.views.render import print_json
from shoal.views.web.feed import DashboardData, project_name
from shoal.views.web.server import DashboardServer, RunAction


def serve_dashboard(
    home: str,
    port: int,
    *,
    allow_actions: bool = False,
    browser: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Serve until Ctrl-C, which is the normal end: 0."""
    allowed: Mapping[str, RunAction] = (
        {"cancel": lambda names, more: actions.cancel_active(home, names), "retry": partial(actions.retry_runs, home)}
        if allow_actions
        else {}
    )
    try:
        server = DashboardServer(DashboardData(home, QueueCache(home)), port=port, actions=allowed)
    except (OSError, OverflowError) as error:
        what = error.strerror if isinstance(error, OSError) else "ports are numbers up to 65535"
        raise InputError(f"cannot listen on port {port}: {what}", hint="shoal ui   # takes a free port") from None
    tunnel = tunnel_command(server.server_address[1])
    if as_json:
        print_json({"link": server.link, "ssh": tunnel, "actions": sorted(allowed)})
    elif quiet:
        print(server.link)
    else:
        print(f"{server.link}\nfrom another machine, first: {tunnel}")
        print("the link works once; " + ("it may act on runs; " if allow_actions else "") + "Ctrl-C ends the page")
        server.on_new_link = lambda link: print(f"opened; for another browser: {link}", flush=True)
    sys.stdout.flush()
    with ExitStack() as stack:
        stack.callback(server.server_close)
        if browser:
            open_browser(server.link, stack.enter_context(TemporaryDirectory(prefix="shoal-ui-")))
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            sys.stderr.write("\nthe page is closed; the runs go on\n")
    return 0


def open_browser(link: str, folder: str) -> None:
    """Open this machine's browser by way of a file in a folder that nobody else can enter: the words of a command are
    seen by every user of the machine, and the link is worth a login."""
    import webbrowser

    page = Path(folder) / "open.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><title>shoal</title>\n')
    webbrowser.open(page.as_uri())


def export_dashboard(home: str, folder: str, *, as_json: bool = False, quiet: bool = False) -> int:
    """`--export`: no server, only files."""
    from shoal.views.web.export import export_page

    page = export_page(DashboardData(home, QueueCache(home)), folder, project_name(home))
    if as_json:
        print_json({"page": page})
    else:
        print(page if quiet else f"wrote {page}")
    return 0


def tunnel_command(port: int) -> str:
    """An ssh command for the person's own machine that brings the page there, under the same port."""
    return f"ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.getfqdn()}"
