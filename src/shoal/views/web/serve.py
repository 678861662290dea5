"""Start the server of `shoal ui`, print how to reach it, stop on Ctrl-C; and `--export FOLDER` or `--export FILE.html`.

An export is the current page as files that open without a server: in a mail, on a file share. index.html holds style,
scripts and data, and may load nothing else; the reports are beside it, or in FILE.html too. Of runs beyond the first
thousand, in a file the first fifty (failed ones come first), it has table and curves, and no logs.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shoal.describe import find_root, read_status_settings
from shoal.errors import InputError
from shoal.model import ACTIVE_STATES, FAILED_STATES
from shoal.observe import QueueCache
from shoal.redaction import redact, redact_page, secret_values
from shoal.views import actions
from shoal.views.render import print_json
from shoal.views.web.api import DashboardData, project_name
from shoal.views.web.bundle import experiment_responses, join_scripts
from shoal.views.web.server import SCRIPTS, DashboardServer, RunAction

_STATIC_DIRECTORY = Path(__file__).with_name("static")
_MAX_DETAILS = 1000
#: One file for a mail holds the logs of so many runs.
_MAX_MAILED = 50
_LOG_BYTES = 16 << 10
_KEPT = b'<script type="application/json" id="kept">'


def export_page(feed: DashboardData, target: str, project: str) -> str:
    """Write the copy and return the path of its page; an existing file that is not ours to replace is an InputError.
    A `target` that ends in .html is one file with everything, for mails; any other one is a folder."""
    is_file = target.endswith(".html")
    if is_file and os.path.isfile(target) and _KEPT not in Path(target).read_bytes():
        raise InputError(
            f"{target} exists and is no copy of the page", hint="choose another name, or remove it", place="--export"
        )
    found = feed.runs()
    kept: dict[str, Any] = {"/api/runs": {**found, "actions": [], "project": project, "snapshot": True}}
    experiments = ("", *dict.fromkeys(run["experiment"] for run in found["runs"]))
    kept.update(experiment_responses(feed, experiments, found["runs"]))
    for run in _runs_to_export(found["runs"])[: _MAX_MAILED if is_file else _MAX_DETAILS]:
        kept.update(_run_responses(feed, run))
    secrets = secret_values(os.environ)
    reports = {report_name(experiment): feed.report(experiment) for experiment in experiments}
    page = target if is_file else os.path.join(target, "index.html")
    try:
        os.makedirs(os.path.dirname(page) or ".", exist_ok=True)
        if is_file:
            kept["reports"] = {name: redact_page(text, secrets) for name, text in reports.items()}
        else:
            for name, text in reports.items():
                _write(os.path.join(target, name), text)
        data = {key: value if key == "reports" else _redacted(value, secrets) for key, value in kept.items()}
        _write(page, _single_file(data))
    except OSError as error:
        raise InputError(
            f"cannot write {error.filename}: {error.strerror}", hint="shoal ui --export /tmp/copy", place="--export"
        ) from None
    return page


def _redacted(value: Any, secrets: Mapping[str, str]) -> Any:
    """The same without secrets that a program printed: others will read this copy."""
    if isinstance(value, dict):
        return {key: _redacted(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(inner, secrets) for inner in value]
    return redact(value, secrets) if isinstance(value, str) else value


def report_name(experiment: str) -> str:
    """The same in app.js."""
    return f"report{f'-{experiment}' if experiment else ''}.html"


def _runs_to_export(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def rank(run: dict[str, Any]) -> tuple[int, float]:
        return 0 if run["state"] in FAILED_STATES else 1 if run["state"] in ACTIVE_STATES else 2, -(
            run["started"] or 0.0
        )

    return sorted(runs, key=rank)[:_MAX_DETAILS]


def _run_responses(feed: DashboardData, run: dict[str, Any]) -> dict[str, Any]:
    """What the page would ask about a run, by the address it would ask under; why a run waits only Slurm knows."""
    one = run["id"]
    kept = {f"/api/run {one}": feed.run(one), f"/api/metrics {one}": feed.metrics(one)}
    kept[f"/api/log {one} out"] = feed.log(one, "out", None, -_LOG_BYTES)
    if run["state"] not in ACTIVE_STATES or run["state"] == "running":
        kept[f"/api/why {one}"] = feed.why(one)
    return kept


def _single_file(kept: dict[str, Any]) -> str:
    """One file: scripts are named by their hash in its policy, so nothing else in it can run."""
    script = join_scripts({name: (_STATIC_DIRECTORY / name).read_text("utf-8") for name in SCRIPTS})
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    icon = "data:image/svg+xml;base64," + base64.b64encode((_STATIC_DIRECTORY / "icon.svg").read_bytes()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; frame-src *"
    data = json.dumps(kept, separators=(",", ":")).replace("<", "\\u003c")
    text = (_STATIC_DIRECTORY / "index.html").read_text("utf-8")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    text = text.replace(
        '<link rel="stylesheet" href="/style.css">',
        f"<style>{(_STATIC_DIRECTORY / 'style.css').read_text('utf-8')}</style>",
    )
    text = text.replace('<script type="module" src="/app.js"></script>\n', "").replace("<head>\n", f"<head>\n{head}", 1)
    text = text.replace("/icon.svg", icon)
    end = f"{_KEPT.decode()}{data}</script>\n<script>{script}</script>\n</body>"
    return text.replace("</body>", end)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)


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
        server = DashboardServer(_project_data(home), port=port, actions=allowed)
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


def _project_data(home: str) -> DashboardData:
    """The project's runs, compared by the metric that its settings name."""
    settings = read_status_settings(find_root(os.getcwd()), os.environ)
    return DashboardData(home, QueueCache(home), metric=settings.metric)


def open_browser(link: str, folder: str) -> None:
    """Open this machine's browser by way of a file in a folder that nobody else can enter: the words of a command are
    seen by every user of the machine, and the link is worth a login."""
    import webbrowser

    page = Path(folder) / "open.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><title>shoal</title>\n')
    webbrowser.open(page.as_uri())


def export_dashboard(home: str, folder: str, *, as_json: bool = False, quiet: bool = False) -> int:
    """`--export`: no server, only files."""

    page = export_page(_project_data(home), folder, project_name(home))
    if as_json:
        print_json({"page": page})
    else:
        print(page if quiet else f"wrote {page}")
    return 0


def tunnel_command(port: int) -> str:
    """An ssh command for the person's own machine that brings the page there, under the same port."""
    return f"ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.getfqdn()}"
