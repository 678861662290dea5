"""The page in the browser: who may ask, what a hostile client gets, and the page itself in a real Chromium."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_results import event_file, wandb_file

from browsing import END, ENTER, ESCAPE, Album, Browser, chromium
from made_up import MadeUp, picture
from shoal.clusters import QueueState
from shoal.views.web import server as web_server
from shoal.views.web.api import DashboardData, run_id
from shoal.views.web.serve import open_browser
from shoal.views.web.server import DashboardServer
from waiting import wait_until


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return picture(tmp_path / "project")


def start(made: MadeUp, **options: Any) -> DashboardServer:
    server = DashboardServer(DashboardData(made.home, lambda environ, newer: QueueState({})), **options)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


@pytest.fixture
def server(made: MadeUp) -> Iterator[DashboardServer]:
    server = start(made)
    yield server
    server.shutdown()
    server.server_close()


class Answer:
    def __init__(
        self, server: DashboardServer, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=300)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        self.code, self.headers, self.body = answer.status, answer.headers, answer.read()
        connection.close()

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]


def ask(server: DashboardServer, path: str, *, cookie: str | None = None, method: str = "GET",
        body: bytes | None = None, **headers: str) -> Answer:  # fmt: skip
    """As the page does, which has both secrets."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    secrets = {"Cookie": cookie, "X-Shoal-Key": server.guard.key} if cookie else {}
    return Answer(server, method, path, {**secrets, **named}, body)


def log_in(server: DashboardServer) -> str:
    """The cookie that the one-time link gives."""
    answer = ask(server, f"/?token={server.guard.token}")
    assert answer.code == 303
    return answer.headers["Set-Cookie"].split(";")[0]


def test_without_the_cookie_nothing_is_shown_not_even_the_page(server: DashboardServer) -> None:
    for path in ("/", "/app.js", "/api/runs", "/report", "/api/log?run=x", "/nothing", "/?token=wrong", "/?token="):
        answer = ask(server, path)
        assert answer.code == 403 and b"001_lr" not in answer.body, path
    assert ask(server, "/", cookie=f"{server.guard.cookie_name}=guess").code == 403
    assert ask(server, "/", cookie="a=b; ;;=; \x01").code == 403


def test_the_link_works_once_and_gives_a_cookie_that_scripts_and_other_sites_cannot_use(
    server: DashboardServer,
) -> None:
    link = f"/?token={server.guard.token}"
    answer = ask(server, link)
    assert answer.code == 303 and answer.headers["Location"] == f"/#key={server.guard.key}"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and len(cookie.split(";")[0]) > 50
    assert ask(server, link).code == 403
    page = ask(server, "/", cookie=cookie.split(";")[0])
    assert page.code == 200 and b'<script type="module" src="/app.js">' in page.body
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff" and page.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in page.headers and "Python" not in str(page.headers)


@pytest.mark.parametrize("key", ["", "guess", "\xe9"])
def test_a_stolen_cookie_is_worth_nothing_without_the_key(made: MadeUp, key: str) -> None:
    """A browser sends the cookie to every port of the host; another server that gets it can neither read nor act."""
    acted: list[list[str]] = []

    def act(names: list[str], more: str | None) -> str:
        acted.append(names)
        return "ok"

    server = start(made, actions={"cancel": act})
    try:
        cookie, host = log_in(server), f"http://127.0.0.1:{server.server_address[1]}"
        for path in (
            "/api/runs",
            "/api/ticket",
            "/report",
            "/report?ticket=",
            "/report?ticket=guess",
            "/api/log?run=x",
        ):
            answer = ask(server, path, cookie=cookie, X_Shoal_Key=key)
            assert answer.code == 403 and b"001_lr" not in answer.body, path
        body = json.dumps({"runs": [run_id("001_lr/000_train_6")]}).encode()
        sent = ask(server, "/api/cancel", cookie=cookie, method="POST", body=body, Origin=host,
                   Content_Type="application/json", X_Shoal_Key=key)  # fmt: skip
        assert sent.code == 403 and acted == []
        page = ask(server, "/", cookie=cookie, X_Shoal_Key=key)
        assert page.code == 200 and server.guard.key.encode() not in page.body
        ticket = ask(server, "/api/ticket", cookie=cookie).json["ticket"]
        assert ask(server, f"/report?ticket={ticket}", X_Shoal_Key=key).code == 403, "a ticket alone is not enough"
        assert ask(server, f"/report?ticket={ticket}", cookie=cookie, X_Shoal_Key=key).code == 200
        assert ask(server, f"/report?ticket={ticket}", cookie=cookie, X_Shoal_Key=key).code == 403, "it works once"
    finally:
        server.shutdown()
        server.server_close()


def test_it_listens_on_loopback_only(server: DashboardServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil:1", "", "10.0.0.1:80"]
)
def test_a_foreign_host_is_refused_even_with_the_cookie(server: DashboardServer, host: str) -> None:
    assert ask(server, "/api/runs", cookie=log_in(server), Host=host).code == 403


def test_the_host_rule_knows_our_own_names() -> None:
    assert all(
        web_server.is_local_host({"Host": host})
        for host in ("127.0.0.1:8000", "localhost:1", "LOCALHOST:22", "[::1]:9")
    )
    assert not any(
        web_server.is_local_host({"Host": host}) for host in ("[::2]:9", "localhost:x", "a@localhost:1", "127.1:80")
    )


@pytest.mark.slow
def test_another_site_can_neither_read_nor_act_through_this_browser(made: MadeUp) -> None:
    acted: list[list[str]] = []

    def act(names: list[str], more: str | None) -> str:
        acted.append(names)
        return "ok"

    server = start(made, actions={"cancel": act})
    try:
        cookie, host = log_in(server), f"127.0.0.1:{server.server_address[1]}"
        assert ask(server, "/api/runs", cookie=cookie, Sec_Fetch_Site="cross-site").code == 403
        body = json.dumps({"runs": [run_id("001_lr/000_train_6")]}).encode()
        base: dict[str, Any] = {"cookie": cookie, "method": "POST", "body": body, "Content_Type": "application/json"}
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://{host}"):
            assert ask(server, "/api/cancel", Origin=origin, **base).code == 403, origin
        assert ask(server, "/api/cancel", **base).code == 403
        assert ask(server, "/api/cancel", Origin=f"http://{host}", Sec_Fetch_Site="cross-site", **base).code == 403
        assert (
            ask(server, "/api/cancel", **{**base, "Origin": f"http://{host}", "Content_Type": "text/plain"}).code == 415
        )
        assert acted == []
        assert ask(server, "/api/cancel", Origin=f"http://{host}", **base).code == 200
        assert acted == [["001_lr/000_train_6"]]
        for wrong in (b'{"runs": ["../../etc"]}', b'{"runs": "all"}', b"[]", body[:-1] + b', "more": "--mem=1"}'):
            assert ask(server, "/api/cancel", **{**base, "body": wrong, "Origin": f"http://{host}"}).code == 404, wrong
        assert ask(server, "/api/retry", Origin=f"http://{host}", **base).code == 403
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_that_may_only_look_cannot_act(server: DashboardServer) -> None:
    host = f"http://127.0.0.1:{server.server_address[1]}"
    answer = ask(server, "/api/cancel", cookie=log_in(server), method="POST", body=b'{"runs": ["x"]}', Origin=host,
                 Content_Type="application/json")  # fmt: skip
    assert answer.code == 403 and "--allow-actions" in answer.json["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../server.py", "/app.js/../guard.py", "//etc/passwd",
        "/api/log?run=../../etc/passwd",
        "/api/log?run=001_lr/000_train_3", "/api/run?run=%00",
        "/report?experiment=../..", "/api/log", "/server.py", "/api/../app.js",
    ],
)  # fmt: skip
def test_no_url_reaches_a_file(server: DashboardServer, path: str) -> None:
    answer = ask(server, path, cookie=log_in(server))
    assert answer.code == 404 and b"root:" not in answer.body


def test_a_log_comes_in_slices_as_harmless_text(made: MadeUp, server: DashboardServer) -> None:
    evil = b"10%\r99%\rend \x1b]0;x\x07\x1b[31m<script>alert(1)</script>\xff\0\n"
    made.run("003_evil/000_train_0", "completed", out=b"x" * 99 + b"\n" + evil)
    cookie, run = log_in(server), run_id("003_evil/000_train_0")
    found = ask(server, f"/api/log?run={run}&stream=out&offset=100", cookie=cookie).json
    assert found["text"] == "end <script>alert(1)</script>\ufffd\n" and found["next"] == found["size"]
    assert ask(server, f"/api/log?run={run}&stream=../x", cookie=cookie).code == 404
    assert ask(server, f"/api/log?run={run}&stream=out&offset=99999999999", cookie=cookie).json["text"] == ""
    assert ask(server, f"/api/log?run={run}&attempt=77", cookie=cookie).code == 409
    big = Path(made.root, "outputs/003_evil/000_train_0/attempt-1.out")
    with big.open("r+b") as file:
        file.truncate(10 << 30)
    answer = ask(server, f"/api/log?run={run}&stream=out&offset=0", cookie=cookie)
    assert answer.code == 200 and len(answer.body) < 3 << 20


def test_the_log_of_a_rank_or_replica_can_be_asked_for(made: MadeUp, server: DashboardServer) -> None:
    launch = made.run("001_lr/000_train_8", "running") / "attempt-1.launch"
    launch.mkdir()
    for name in (
        "replica-0.attempt-1.out",
        "replica-0.attempt-2.out",
        "replica-1.attempt-1.out",
        "replica-1.attempt-1.rank-1.out",
    ):
        (launch / name).write_text(f"{name} speaks\n")
    cookie, run = log_in(server), run_id("001_lr/000_train_8")
    found = ask(server, f"/api/log?run={run}", cookie=cookie).json
    assert found["parts"] == ["rank 0", "replica 0", "replica 1", "replica 1 rank 1"]
    assert (
        found["part"] == "replica 0" and found["text"] == "replica-0.attempt-2.out speaks\n" and found["attempts"] == 2
    )
    (launch.parent / "attempt-1.out").write_text("the run itself\n")
    assert ask(server, f"/api/log?run={run}", cookie=cookie).json["text"] == "the run itself\n"
    other = ask(server, f"/api/log?run={run}&part=replica+1+rank+1&offset=0&most=19", cookie=cookie).json
    assert other["text"] == "replica-1.attempt-1" and other["size"] == 38
    for part in ("rank+9", "..%2Fattempt-1", "replica-0.attempt-1.out"):
        assert ask(server, f"/api/log?run={run}&part={part}", cookie=cookie).code == 404


def test_only_what_changed_is_sent_again(made: MadeUp, server: DashboardServer) -> None:
    cookie = log_in(server)
    first = ask(server, "/api/runs", cookie=cookie).json
    assert first["complete"] and len(first["runs"]) == 12 and first["counts"]["failed"] == 2 and first["actions"] == []
    server.feed._looked_at = 0.0
    again = ask(server, f"/api/runs?since={first['version']}", cookie=cookie).json
    assert not again["complete"] and again["runs"] == []
    made.run("001_lr/000_train_6", "failed", err=b"ValueError: x\n")
    server.feed._looked_at = 0.0
    third = ask(server, f"/api/runs?since={first['version']}", cookie=cookie).json
    assert [run["name"] for run in third["runs"]] == ["001_lr/000_train_6"]
    assert ask(server, "/api/runs?since=999999", cookie=cookie).json["complete"]
    assert ask(server, "/api/runs?since=abc", cookie=cookie).code == 200


def test_a_run_its_metrics_and_reasons_can_be_asked_for(made: MadeUp, server: DashboardServer) -> None:
    output = made.run("001_lr/000_train_8", "failed", err=b"KeyError: 'x'\n")
    lines = [
        "{broken",
        "[1]",
        *(json.dumps({"step": n, "loss": 1 / (n + 1), "bad": float("inf")}) for n in range(2000)),
    ]
    (output / "metrics.jsonl").write_text("\n".join(lines))
    cookie, run = log_in(server), run_id("001_lr/000_train_8")
    series = ask(server, f"/api/metrics?run={run}", cookie=cookie).json["series"]
    assert set(series) == {"loss"} and len(series["loss"]) <= 601 and series["loss"][-1][0] == 1999
    assert "KeyError: 'x'" in ask(server, f"/api/why?run={run}", cookie=cookie).json["headline"]
    (output / "events.out.tfevents.1.host").write_bytes(event_file(("loss", 9.0), ("eval/acc", 0.5)))
    tracked = output / "wandb" / "offline-run-1"
    tracked.mkdir(parents=True)
    (tracked / "run-x.wandb").write_bytes(wandb_file({"_step": 3, "lr": 0.1, "loss": 7}, {"_step": 5, "lr": 0.2}))
    series = ask(server, f"/api/metrics?run={run}", cookie=cookie).json["series"]
    assert set(series) == {"loss", "eval/acc", "lr"} and series["lr"] == [[3, 0.1], [5, 0.2]]
    assert series["loss"][-1][0] == 1999 and series["eval/acc"] == [[7, 0.5]], "the program's own file wins"
    detail = ask(server, f"/api/run?run={run}", cookie=cookie).json
    assert [one["attempt"] for one in detail["attempts"]] == [1] and "#SBATCH" in detail["script"] and detail["events"]
    ticket = ask(server, "/api/ticket", cookie=cookie).json["ticket"]
    report = ask(server, f"/report?experiment=001_lr&ticket={ticket}", cookie=cookie)
    assert report.code == 200 and "sandbox" in report.headers["Content-Security-Policy"] and b"<svg" in report.body


@pytest.mark.slow
def test_slow_and_silent_clients_do_not_keep_others_waiting(server: DashboardServer) -> None:
    cookie = log_in(server)
    slow = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(20)]
    try:
        for one in slow:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        assert ask(server, "/api/runs", cookie=cookie).code == 200
        more = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(30)]
        slow += more
        for one in more:
            one.sendall(b"G")
        # Beyond the limit the oldest of those that have not shown the cookie give way, here and to the page.
        wait_until(lambda: any(_is_closed(one) for one in slow[:20]), 20, "the oldest are closed")
        for _ in range(5):
            assert ask(server, "/api/runs", cookie=cookie).code == 200
        assert not all(_is_closed(one) for one in slow), "some still wait, and hold nobody up"
    finally:
        for one in slow:
            one.close()


def _is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_too_large_requests_are_refused(server: DashboardServer) -> None:
    cookie = log_in(server)
    assert ask(server, "/" + "a" * 70000, cookie=cookie).code == 414
    host = f"http://127.0.0.1:{server.server_address[1]}"
    answer = ask(server, "/api/cancel", cookie=cookie, method="POST", body=b"", Origin=host, Content_Length="99999999",
                 Content_Type="application/json")  # fmt: skip
    assert answer.code == 413


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root to become another user")
def test_a_second_user_of_the_machine_sees_nothing(made: MadeUp, server: DashboardServer) -> None:
    port = server.server_address[1]
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/api/runs').status)"
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd="/")
    assert done.returncode != 0 and "403" in done.stderr


def test_the_link_is_in_no_command_that_others_can_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with TemporaryDirectory(dir=tmp_path) as folder:
        open_browser("http://127.0.0.1:1/?token=secret", folder)
        assert "secret" not in opened[0] and Path(folder).stat().st_mode & 0o077 == 0
        assert "url=http://127.0.0.1:1/?token=secret" in Path(opened[0].removeprefix("file://")).read_text()


# ---- in a real Chromium ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.mark.slow
def test_the_page_shows_runs_follows_a_log_and_is_driven_by_keys(
    made: MadeUp, server: DashboardServer, browser: Browser
) -> None:
    hostile = b"<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\n"
    out = made.run("001_lr/000_train_6", "running", out=hostile, progress="82/200", began=-1200) / "attempt-1.out"
    browser.open(server.link)
    wait_until(lambda: browser.js("document.querySelectorAll('.row').length") == 12, 20, "twelve rows")
    assert browser.js("location.search") == "" and browser.js("document.cookie") == ""
    assert browser.js("document.querySelector('#counts').innerText.includes('2 failed')")
    browser.press("j", ENTER)
    wait_until(lambda: "onerror=" in browser.text("#pane"), 20, "the log is there")
    with out.open("ab") as file:
        file.write(b"another line\n")
    wait_until(lambda: "another line" in browser.text("#pane"), 20, "it is followed")
    assert browser.js("document.title") == "project - shoal"
    assert browser.js("document.querySelectorAll('#pane img, #pane script').length") == 0
    launch = out.parent / "attempt-1.launch"
    launch.mkdir()
    (launch / "rank-1.out").write_text("another rank\n")
    choice = "document.querySelector('select[aria-label=\"rank or replica\"]')"
    browser.wait(f"!{choice}.hidden", "the rank that came is offered")
    browser.js(f"({choice}.value = 'rank 1', {choice}.dispatchEvent(new Event('change')))")
    wait_until(lambda: "another rank" in browser.text("#pane"), 20, "its log")
    assert "another line" not in browser.text("#pane")
    (launch / "rank-1.restart-1.out").write_text("started again\n")
    wait_until(lambda: "started again" in browser.text("#pane"), 20, "the log of its next attempt")
    browser.press("4")
    wait_until(lambda: "it is running" in browser.text("#pane"), 20, "why")
    browser.press(ESCAPE, "/", *"state:failed")
    wait_until(lambda: browser.js("document.querySelectorAll('.row').length") == 2, 20, "the filter holds")
    browser.press(ESCAPE)
    wait_until(lambda: browser.js("document.querySelectorAll('.row').length") == 12, 20, "the filter is cleared")
    before = browser.js("document.documentElement.dataset.theme")
    browser.press("t")
    assert browser.js("document.documentElement.dataset.theme") != before
    browser.press("r")
    wait_until(lambda: not browser.js("document.querySelector('#report').hidden"), 20, "the report opens")
    with browser.frame("report-frame"):
        wait_until(lambda: "GPU-hours" in browser.body(), 60, "the report")
    browser.press(ESCAPE)
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_page_marks_adopted_runs(made: MadeUp, server: DashboardServer, browser: Browser) -> None:
    made.run("adopted/train-265438", "completed", end={"adopted": True}, job_id="265438")
    browser.open(server.link)
    browser.wait("document.querySelectorAll('.row').length > 1", "the rows")
    browser.press("/", *"adopted/")
    wait_until(lambda: browser.js("document.querySelectorAll('.row').length") == 1, 20, "one row")
    assert "adopted" in browser.js("document.querySelector('.row').innerText")
    browser.press(ESCAPE)


@pytest.mark.slow
def test_a_copy_of_the_page_opens_without_a_server(made: MadeUp, browser: Browser, tmp_path: Path) -> None:
    hostile = b"</script><script>document.title='owned'</script>\n"
    made.run("001_lr/000_train_6", "running", out=hostile, progress="82/200", began=-1200)
    shoal = Path(sys.executable).with_name("shoal")
    words: list[str | Path] = [shoal, "ui", "--export", tmp_path / "copy", "--json"]
    done = subprocess.run(words, cwd=made.root, capture_output=True, text=True, timeout=300, check=True)
    page = Path(json.loads(done.stdout)["page"])
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "index.html", "report-001_lr.html", "report-002_new.html", "report.html"]  # fmt: skip
    browser.open(page.as_uri())
    wait_until(lambda: browser.js("document.querySelectorAll('.row').length") == 12, 20, "twelve rows")
    assert "copy of" in browser.text("#facts")
    browser.press("j", ENTER)
    wait_until(lambda: "owned" in browser.text("#pane"), 20, "the log is there")
    assert browser.js("document.title") == "project - shoal"
    browser.press("j", "2")
    wait_until(lambda: "CUDA out" in browser.text("#pane"), 20, "its error")
    browser.press("r")
    with browser.frame("report-frame"):
        wait_until(lambda: "GPU-hours" in browser.body(), 60, "the report")
    assert browser.complaints() == []
    for target, problem in (
        (page / "x", "cannot write"),
        (page.parent / "report.html", f"{page.parent}/report.html exi"),
    ):
        occupied = subprocess.run(
            [*words[:3], target, "-q"], cwd=made.root, capture_output=True, text=True, timeout=300
        )
        assert occupied.returncode == 2 and occupied.stderr.startswith(f"error: --export: {problem}"), occupied.stderr


@pytest.mark.slow
def test_five_thousand_runs_keep_the_page_small_and_quick(tmp_path: Path, browser: Browser) -> None:
    made = MadeUp(tmp_path / "project", now=time.time())
    made.many(5000)
    server = start(made)
    try:
        browser.open(server.link)
        wait_until(lambda: "5,000 runs" in browser.text("#shown"), 60, "all are known")
        assert browser.js("document.querySelectorAll('.row').length") < 60
        browser.press(END)
        wait_until(lambda: browser.js("document.querySelector('#rows').scrollTop") > 100000, 20, "the end is shown")
        browser.press("/", *"lr07 state:completed")
        wait_until(lambda: "of 5,000" in browser.text("#shown"), 20, "filtered")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_actions_ask_first_and_name_the_run(made: MadeUp, browser: Browser) -> None:
    acted: list[list[str | None]] = []

    def act(names: list[str], more: str | None) -> str:
        acted.append([*names, more])
        return "ok"

    server = start(made, actions={"cancel": act, "retry": act})
    try:
        browser.open(server.link)
        wait_until(lambda: browser.js("document.querySelectorAll('.row').length") == 12, 20, "rows")
        browser.press("j", ENTER)
        wait_until(lambda: browser.js("!!document.querySelector('#acts .danger')"), 20, "a button")
        browser.js("document.querySelector('#acts .danger').click()")
        assert browser.text("#question") == "cancel 001_lr/000_train_6 (running)?"
        browser.js("document.querySelector('#confirm button[value=no]').click()")
        browser.js("document.querySelector('#acts .danger').click()")
        browser.js("document.querySelector('#confirm button[value=yes]').click()")
        wait_until(lambda: acted == [["001_lr/000_train_6", None]], 20, "it was cancelled once")
        browser.press("j")
        wait_until(lambda: browser.text("#acts") == "retry", 20, "another run")
        browser.js("document.querySelector('#acts button').click()")
        browser.js("document.querySelector('#confirm button[value=memory]').click()")
        wait_until(lambda: acted[1:] == [["001_lr/000_train_3", "memory"]], 20, "it was started with more memory")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_the_table_has_parameters_and_metric_and_its_address_can_be_sent(tmp_path: Path, browser: Browser) -> None:
    made = MadeUp(tmp_path / "project", now=time.time())
    hostile = "<img src=x onerror=alert(1)>"
    for lr in (0.1, 0.01, 0.03):
        for seed in range(2):
            output = made.run(
                f"001_sweep/000_train_lr{lr}_{seed}", params={"optimizer.lr": lr, "note": hostile + str(lr)}
            )
            (output / "metrics.jsonl").write_text(json.dumps({"step": 1, "val_loss": 1 - lr + seed / 100}) + "\n")
    made.run("002_other/000_train_0")
    server = start(made)
    first = "(document.querySelector('.row') || {innerText: ''}).innerText"
    try:
        with browser.window(1400, 900):
            browser.open(server.link)
            browser.wait("document.querySelectorAll('.row').length === 7", "seven rows")
            address = str(browser.js("location.href")).partition("#")[0]
            browser.driver.get(f"{address}#exp=001_sweep&sort=last")
            browser.driver.refresh()
            browser.wait("document.querySelectorAll('.row').length === 6", "the experiment's rows")
            heads = browser.js("[...document.querySelectorAll('#head button')].map(one => one.dataset.column)")
            assert {"param:optimizer.lr", "seed", "last", "best"} <= set(heads)
            browser.wait(f"{first}.includes('★') && {first}.includes('lr0.1_0')", "the best run is first, and marked")
            assert browser.js("document.querySelectorAll('.row img').length") == 0
            Album(browser, tmp_path).take("experiment-1400")
            browser.js("document.querySelector('#head [data-column=\"param:optimizer.lr\"]').click()")
            browser.wait(f"{first}.includes('lr0.01_0')", "sorted by value")
            browser.js("document.querySelector('.row').click()")
            browser.press("3")
            browser.wait("document.querySelector('#pane figure') !== null", "its curves")
            sent = str(browser.js("location.href"))
            assert "key=" not in sent and "tab=metrics" in sent and "sort=param%3Aoptimizer.lr" in sent
            browser.js("history.back()")
            browser.wait("document.querySelector('#detail').hidden", "back closes the run")
            browser.driver.get("about:blank")
            browser.driver.get(sent)
            browser.wait("document.querySelector('#pane figure') !== null", "the link shows the same again")
            assert "lr0.01_0" in browser.text("#run-name")
        with browser.window(390, 800):
            browser.driver.get("about:blank")
            browser.driver.get(f"{address}#exp=001_sweep&sort=last")
            browser.wait(f"{first}.includes('★')", "the metric is there on a phone, too")
            wide = "document.documentElement.scrollWidth <= innerWidth"
            browser.wait(wide, "nothing is wider than the window")
            Album(browser, tmp_path).take("experiment-390")
        browser.js("localStorage.clear()")
        browser.driver.refresh()
        browser.wait("document.querySelector('#warning').innerText.includes('no key')", "it says what is missing")
    finally:
        server.shutdown()
        server.server_close()
