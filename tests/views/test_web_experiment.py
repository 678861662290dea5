"""The experiment view in a real Chromium: questions about a sweep are answered from an address, by clicks and keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_views_web import ask, log_in, start

from browsing import ENTER, ESCAPE, Album, Browser, chromium
from made_up import MadeUp
from shoal.clusters import QueueState
from shoal.views.web.api import DashboardData, run_id
from shoal.views.web.server import DashboardServer
from sweep_project import metric_lines, sweep

LIVE = "001_sweep/000_train_lr0.03_width256_2"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeUp:
    return sweep(tmp_path_factory.mktemp("sweep") / "vision", time.time())


@pytest.fixture(scope="module")
def server(made: MadeUp) -> Iterator[DashboardServer]:
    server = DashboardServer(DashboardData(made.home, lambda environ, newer: QueueState({})))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def curves(server: DashboardServer, cookie: str, **query: Any) -> Any:
    from urllib.parse import quote

    return ask(server, f"/api/curves?q={quote(json.dumps(query))}", cookie=cookie)


def test_a_run_tells_attempts_provenance_and_files_but_sends_no_file(made: MadeUp, server: DashboardServer) -> None:
    cookie, run = log_in(server), run_id("001_sweep/000_train_lr0.3_width256_1")
    output = Path(made.root, "outputs/001_sweep/000_train_lr0.3_width256_1")
    (output / "link").symlink_to("/etc")
    (output / "deep").mkdir()
    (output / "deep" / "<b>\x1b[31m.pt").write_text("x")
    files = ask(server, f"/api/files?run={run}", cookie=cookie).json
    names = [name for name, _, _ in files["files"]]
    assert {"metrics.jsonl", "link", "deep/<b>.pt"} <= set(names) and not any("passwd" in name for name in names)
    about = ask(server, f"/api/run?run={run}", cookie=cookie).json
    assert about["attempts"][0]["exit_code"] == 1 and about["commands"]["retry"].endswith("lr0.3_width256_1")
    assert about["commands"]["repeat"].startswith(f"cd {made.root} && true")
    found = ask(server, f"/api/provenance?run={run}", cookie=cookie).json
    assert found["cluster"] == "local" and found["commit"] is None and found["packages"] == []
    for path in ("files", "provenance"):
        assert ask(server, f"/api/{path}?run=../../etc", cookie=cookie).code == 404


def test_curves_of_runs_and_groups_can_be_asked_for(server: DashboardServer) -> None:
    cookie = log_in(server)
    runs = ask(server, "/api/runs", cookie=cookie).json["runs"]
    found = ask(server, "/api/experiment?experiment=001_sweep", cookie=cookie).json
    assert [one[0] for one in found["metrics"]] == ["val_loss", "accuracy", "train_loss"] and len(found["groups"]) == 8
    best = next(group for group in found["groups"] if group["is_best"])
    assert best["params"]["optimizer.lr"][0] == "0.03" and best["n"] == 3 and len(best["runs"]) == 3
    ids = [run["id"] for run in runs]
    answer = curves(server, cookie, metrics=["val_loss"], runs=ids, groups={best["id"]: best["runs"]}).json
    assert len(answer["curves"]) == 25 and answer["unread"] == 0 and answer["left_out"] == 0
    mean = answer["curves"][-1]
    assert mean["id"] == best["id"] and max(mean["n"]) == 3 and len(mean["std"]) == len(mean["x"])
    again = curves(server, cookie, metrics=["val_loss"], runs=ids, since=answer["version"]).json
    assert again["curves"] == [], "only what has grown is sent again"
    hours = curves(server, cookie, metrics=["val_loss"], runs=ids[:1], x="hours").json["curves"][0]
    assert 0 < hours["x"][0] < hours["x"][-1] < 1
    values = ask(server, "/api/values?experiment=001_sweep&metric=accuracy", cookie=cookie).json
    assert len(values["values"]) == 24 and values["mode"] == "max"
    assert curves(server, cookie, metrics=["none"], runs=["../x", ids[0]]).json["curves"] == []
    for wrong in ('{"metrics": 1}', "", "[]", '{"metrics": [], "x": "y"}', '{"metrics": [], "z": 1}'):
        assert ask(server, f"/api/curves?q={wrong}".replace(" ", "%20"), cookie=cookie).code == 400, wrong
    assert ask(server, "/api/curves?q={}").code == 403


# ---- in a real Chromium ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def page(server: DashboardServer, browser: Browser) -> str:
    """The address of the page, whose window is logged in."""
    browser.open(server.link)
    browser.wait("document.querySelectorAll('.row').length > 0", "rows")
    return str(browser.js("location.href")).partition("#")[0]


def visit(browser: Browser, address: str) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(address)


def click(browser: Browser, selector: str) -> None:
    browser.js(f"document.querySelector({selector!r}).click()")


def labels(browser: Browser) -> str:
    """What each plot says to those who do not see it."""
    return str(browser.js("[...document.querySelectorAll('canvas.over')].map(one => one.ariaLabel).join('\\n')"))


def type_metrics(browser: Browser, words: str) -> None:
    field = "document.querySelector('#curves input[type=search]')"
    browser.js(f"({field}.value = {words!r}, {field}.dispatchEvent(new Event('input')))")


SEARCH, AXIS = "document.querySelector('#pane input[type=search]')", "document.querySelector('#curves select')"
FIRST = "(document.querySelector('.row') || {innerText: ''}).innerText"
HOVER = """(() => { const one = document.querySelector('canvas.over'), box = one.getBoundingClientRect();
    const place = {clientX: box.left + box.width / 2, clientY: box.top + 60};
    one.dispatchEvent(new PointerEvent('pointermove', place)); })()"""
FITS = "document.documentElement.scrollWidth <= innerWidth"


ROWS = "[...document.querySelectorAll('.row')].map(row => row.innerText)"
GUTTER = "document.querySelector('#list').clientWidth - document.querySelector('#head').clientWidth"
_IS_CUT = "name => name.scrollWidth > name.clientWidth + 1"
CUT_NAMES = f"[...document.querySelectorAll('.row .name')].filter({_IS_CUT}).length"


@pytest.mark.slow
@pytest.mark.parametrize("scrollbar", [0, 15])
def test_rows_stay_different_at_any_width(page: str, browser: Browser, tmp_path: Path, scrollbar: int) -> None:
    album = Album(browser, tmp_path)
    for width in (1400, 700, 390, 360, 320):
        with browser.window(width, 1000), browser.scrollbars(scrollbar):
            for address, count in (("exp=001_sweep", 24), ("exp=001_sweep&group=seeds", 8), ("", 24)):
                visit(browser, f"{page}#{address}&sort=last")
                browser.wait(f"document.querySelectorAll('.row').length === {count}", "the rows")
                browser.wait(f"new Set({ROWS}).size === {count}", f"rows differ at {width} px: {browser.js(ROWS)}")
                assert browser.js(CUT_NAMES) == 0, f"a name is cut at its end at {width} px"
                assert browser.js(GUTTER) == scrollbar, "the window is as the test wants it"
                if width >= 360 and address:
                    assert all(title in browser.text("#head") for title in ("lr", "width", "val_loss")), width
            album.take(f"rows-{width}-scrollbar-{scrollbar}")


@pytest.mark.slow
def test_names_without_parameters_are_cut_where_they_are_alike(browser: Browser, tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project", now=time.time())
    for kind in ("small", "large"):
        for number in range(6):
            made.run(f"001_many/000_{kind}_data_v{number}_x")
    made.run("002_other/000_a")
    server = start(made)
    try:
        for width in (1400, 390, 320):
            with browser.window(width, 800):
                browser.open(server.link)
                browser.wait("document.querySelectorAll('.row').length === 13", "rows")
                names = browser.js("[...document.querySelectorAll('.row .name')].map(name => name.innerText)")
                assert len(set(names)) == 13 and browser.js(CUT_NAMES) == 0, names
                assert ("…" in "".join(names)) == (width < 1000), names
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scrollbar"), [(1400, 15), (390, 15), (390, 0)])
def test_which_setting_is_best_and_how_two_groups_compare(
    page: str, server: DashboardServer, browser: Browser, tmp_path: Path, width: int, scrollbar: int
) -> None:
    album = Album(browser, tmp_path)
    with browser.window(width, 850), browser.scrollbars(scrollbar):
        visit(browser, f"{page}#exp=001_sweep")
        browser.wait("document.querySelectorAll('.row').length > 20", "the runs")
        click(browser, "#group")
        browser.wait("document.querySelectorAll('.row').length === 8", "eight settings")
        click(browser, "#head [data-column=last]")
        browser.wait(f"{FIRST}.includes('★') && {FIRST}.includes('0.03')", "the best setting is first, and marked")
        assert "±" in browser.js(FIRST), "with its deviation over seeds"
        assert {"lr", "width"} <= set(browser.text("#head").split()), "both parameters are seen"
        for row in (1, 2):
            click(browser, f".row:nth-child({row}) input")
        click(browser, "#views [value=curves]")
        browser.wait("document.querySelectorAll('#curves figure').length === 3", "a plot for each metric")
        wait_label = "document.querySelector('canvas.over').ariaLabel.includes('2 curves')"
        browser.wait(wait_label, "two groups are drawn")
        assert "val_loss over step" in labels(browser) and "lr=0.03" in labels(browser)
        browser.js(HOVER)
        tip = browser.text(".tip")
        assert tip.count("±") == 2 and "(n=" in tip and "step" in tip, tip
        album.take(f"compare-{width}")
        browser.wait(FITS, "nothing is wider than the window")
        browser.js("document.querySelector('canvas.over').focus()")
        browser.press("+")
        browser.wait("[...document.querySelectorAll('#curves .tools button')].pop().hidden === false", "zoomed")
        browser.press("0")
        sent = str(browser.js("location.href"))
        assert "group=seeds" in sent and "view=curves" in sent and sent.count("g") > 2
        visit(browser, sent)
        browser.wait(f"document.querySelector('canvas.over') && {wait_label}", "the link shows the same")
        click(browser, "#views [value=params]")
        browser.wait("document.querySelector('.heat td.best') !== null", "a heat map")
        assert browser.text("#params .say").startswith("5 runs") or browser.text("#params .say").startswith("6 runs")
        browser.wait("document.querySelector('.parallel canvas').ariaLabel.includes('best: 001_sweep')", "coordinates")
        album.take(f"parameters-{width}")
        browser.press("t")
        album.take(f"parameters-dark-{width}", dark=True)
        browser.press("t", ESCAPE)
        browser.wait("document.querySelector('#side').hidden", "Esc closes the plots")
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_what_failed_and_why_when_it_is_done_and_what_was_wasted(
    page: str, browser: Browser, tmp_path: Path, width: int
) -> None:
    album = Album(browser, tmp_path)
    with browser.window(width, 850):
        visit(browser, f"{page}#exp=001_sweep")
        browser.wait("document.querySelector('#facts').innerText.includes('ends ~')", "when it is done")
        click(browser, "#counts .failed")
        browser.wait("document.querySelectorAll('.row').length === 2", "the failed runs")
        click(browser, ".row")
        browser.wait("document.querySelector('.first') !== null", "what went wrong stands above the log")
        assert "CUDA out of memory" in browser.text(".first") and "failed" in browser.text("#run-line")
        browser.wait("document.querySelector('#lines code') !== null", "the command to repeat it")
        assert browser.text("#lines").splitlines()[:2] == ["repeat", "retry"] and "cd " in browser.text("#lines code")
        browser.js("(one => { one.value = 'cuda'; one.dispatchEvent(new Event('input')); })(" + SEARCH + ")")
        browser.wait("document.querySelector('#pane .tools').innerText.includes('1 of 4 lines')", "the search counts")
        album.take(f"failed-{width}")
        for number, words in (("3", "figure.plot"), ("6", "table.list"), ("7", "dl.facts"), ("8", "table.list")):
            browser.js("document.activeElement.blur()")
            browser.press(number)
            browser.wait(f"document.querySelector('#pane {words}') !== null", f"tab {number}")
        assert "metrics.jsonl" in browser.text("#pane") and "attempt-1.out" in browser.text("#pane")
        album.take(f"files-{width}")
        browser.press("w", "3")
        browser.wait("location.hash.includes('wide=1') && location.hash.includes('tab=metrics')", "its own address")
        browser.wait("document.querySelectorAll('#pane figure.plot').length >= 6", "curves, GPU, CPUs and memory")
        album.take(f"run-{width}")
        browser.press("w", ESCAPE, "r")
        with browser.frame("report-frame"):
            browser.wait("(document.body || {innerText: ''}).innerText.includes('wasted')", "what was wasted")
        browser.press(ESCAPE)
        browser.wait(FITS, "nothing is wider than the window")
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_the_cluster_view_shows_the_answer_that_watchers_share(
    page: str, made: MadeUp, browser: Browser, tmp_path: Path, width: int
) -> None:
    gpus = {"partition": "main", "kind": "h100", "total": 64, "free": 12, "closed": 8, "nodes": 8, "whole_nodes": 1}
    queue = {"partition": "main", "running": 31, "pending": 210, "reasons": [["jobs are ahead", "Priority", 200]]}
    share = {"account": "<b>lab", "shares": 0.2, "usage": 0.31, "factor": 0.42}
    limit = {"what": "QOS long", "max_time_s": 259200, "max_gpus": 16, "max_jobs": None}
    shown = {"name": "alps", "asked": time.time(), "gpus": [gpus], "queue": [queue], "fair_shares": [share]}
    kept = {
        "t": time.time(),
        "conf": os.environ.get("SLURM_CONF", ""),
        "cluster": {**shown, "limits": [limit], "silent": []},
    }
    Path(made.home, "cache").mkdir(exist_ok=True)
    Path(made.home, "cache", f"cluster-{os.getuid()}.json").write_text(json.dumps(kept))
    with browser.window(width, 850):
        visit(browser, f"{page}#exp=001_sweep&view=cluster")
        browser.wait("document.querySelector('#cluster table') !== null", "the cluster")
        text = browser.text("#cluster")
        for words in (
            "Cluster alps",
            "12 of 64",
            "8 GPUs",
            "200 × jobs are ahead (Priority)",
            "<b>lab",
            "0.42",
            "3d00h",
        ):
            assert words in text, words
        Album(browser, tmp_path).take(f"cluster-{width}")
        browser.wait(FITS, "nothing is wider than the window")
        browser.press("q")
        browser.wait("document.querySelector('#side').hidden", "the key closes it")
    assert browser.complaints() == []


@pytest.mark.slow
def test_one_file_to_mail_holds_table_curves_and_reports_without_secrets(
    made: MadeUp, browser: Browser, tmp_path: Path
) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    Path(made.root, "outputs/001_sweep/000_train_lr0.3_width256_0/attempt-1.out").write_bytes(secret.encode() + b"\n")
    words: list[str | Path] = [Path(sys.executable).with_name("shoal"), "ui", "--export", tmp_path / "sweep.html", "-q"]
    environ = {**os.environ, "HF_TOKEN": secret}
    done = subprocess.run(words, cwd=made.root, capture_output=True, text=True, timeout=200, check=True, env=environ)
    file = Path(done.stdout.strip())
    text = file.read_text()
    assert list(tmp_path.iterdir()) == [file] and secret not in text and file.stat().st_size < 3 << 20
    assert "http-equiv" in text and "connect-src" not in text and 'src="/' not in text
    with browser.window(1400, 850):
        browser.open(f"{file.as_uri()}#exp=001_sweep&view=curves&group=seeds&sort=last")
        browser.wait("document.querySelectorAll('.row').length === 8", "eight settings")
        browser.wait("/8 curves;/.test((document.querySelector('canvas.over') || {}).ariaLabel)", "their curves")
        browser.js("(one => { one.value = 'hours'; one.dispatchEvent(new Event('change')); })(" + AXIS + ")")
        browser.wait("/over hours since start, 8/.test(document.querySelector('canvas.over').ariaLabel)", "over hours")
        click(browser, "#views [value=params]")
        browser.wait("document.querySelector('.heat td.best') !== null", "parameters")
        browser.js("document.activeElement.blur()")
        browser.press("r")
        with browser.frame("report-frame"):
            browser.wait("(document.body || {innerText: ''}).innerText.includes('GPU-hours')", "the report")
        browser.press(ESCAPE)
        assert browser.js("document.querySelector('#cluster-button').hidden") and browser.text("#acts") == ""
        assert browser.complaints() == []


@pytest.mark.slow
def test_curves_change_with_the_controls_and_a_live_run_grows(
    page: str, made: MadeUp, server: DashboardServer, browser: Browser
) -> None:
    output = Path(made.root, "outputs", LIVE)
    with browser.window(1400, 850):
        visit(browser, f"{page}#exp=001_sweep&view=curves&pick={run_id(LIVE)[:9]}&curves=hours,1,0.5,loss")
        browser.wait("document.querySelectorAll('#curves figure').length === 2", "two metrics have such a name")
        browser.wait(
            "/over hours since start, 1 curve;/.test(document.querySelector('canvas.over').ariaLabel)", "hours"
        )
        assert browser.js("document.querySelector('#curves .tools button').ariaPressed") == "true"
        before = labels(browser)
        with (output / "metrics.jsonl").open("a") as file:
            file.write(
                metric_lines(0.03, 256, 2, 200, made.now - 3600).partition('{"step": 1210')[2].partition("\n")[2]
            )
        browser.wait(f"document.querySelector('canvas.over').ariaLabel !== {before.splitlines()[0]!r}", "it grows")
        type_metrics(browser, "nothing-like-this")
        browser.wait(
            "document.querySelector('#curves .say').innerText.includes('no metric has such a name')", "it is told"
        )
        assert browser.complaints() == []


@pytest.mark.slow
def test_five_hundred_metrics_hostile_names_and_runs_that_vanish(browser: Browser, tmp_path: Path) -> None:
    made, hostile = MadeUp(tmp_path / "project", now=time.time()), "<img src=x onerror=alert(1)>"
    for seed in range(3):
        output = made.run(f"001_many/000_train_a{hostile[1:4]}_{seed}", params={"name": f"{hostile}{seed}"})
        numbers = {f"metric/{number}": number + seed for number in range(500)}
        rows = [{"step": step, **numbers, hostile: float("nan") if step == 1 else step} for step in range(3)]
        (output / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    made.run("001_many/000_train_none_9", params={"name": "none"})
    server = start(made)
    try:
        browser.open(server.link)
        browser.wait("document.querySelectorAll('.row').length === 4", "rows")
        browser.press("c")
        browser.wait(
            "document.querySelector('#curves .say').innerText.includes('of 501 metrics')", "some of the metrics"
        )
        type_metrics(browser, "img")
        browser.wait("document.querySelectorAll('#curves figure').length === 1", "one plot")
        browser.wait("document.querySelector('canvas.over').ariaLabel.includes('3 curves')", "with three curves")
        assert browser.text("#curves figcaption b") == hostile and "1 without it" in browser.text("#curves figcaption")
        assert browser.js("document.querySelectorAll('#main img').length") == 0
        shutil.rmtree(made.root / "outputs")
        shutil.rmtree(Path(made.home, "runs", "001_many", "000_train_none_9"))
        browser.wait("document.querySelectorAll('.row').length === 3", "the run that was removed is gone")
        browser.press("p")
        browser.wait("document.querySelector('#params .say').innerText.length > 0", "the parameters")
        browser.press("j", ENTER)
        browser.wait("!document.querySelector('#detail').hidden", "a run whose output is gone opens")
        assert [one for one in browser.complaints() if "404" not in one] == []
    finally:
        server.shutdown()
        server.server_close()
