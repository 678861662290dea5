"""What the page and the report look like in a real Chromium. SHOAL_TEST_PICTURES=/tmp/look keeps the pictures there."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browsing import ENTER, ESCAPE, Album, Browser, chromium
from made_up import MadeUp, picture, usage
from shoal.clusters import QueueState
from shoal.views import web
from shoal.views.report.gather import gather_report
from shoal.views.report.page import STYLE
from shoal.views.report.page import report_page as report_page
from shoal.views.web.api import DashboardData
from shoal.views.web.server import DashboardServer

pytestmark = pytest.mark.slow

LONG = "004_a_rather_long_name_of_an_experiment_that_somebody_chose_on_a_friday"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeUp:
    """The project of the snapshots, and what is hard to draw: long names and causes, curves, ranks, an odd log."""
    made = picture(tmp_path_factory.mktemp("pictures") / "vision", now=time.time())
    log = b"".join(b"step %d/200 loss %.4f\n" % (step, 2 / (1 + step / 8)) for step in range(1, 83))
    odd = "\x1b[31mred\x1b[0m <script>alert(1)</script> naïve 漢字 \n".encode() + b"10%\r60%\r100%|#####|\n\xff\0\n"
    output = made.run("001_lr/000_train_6", "running", out=odd + log, progress="82/200", began=-1200, use=usage())
    ranks = output / "attempt-1.launch"
    ranks.mkdir()
    for rank in (1, 2, 3):
        (ranks / f"rank-{rank}.out").write_text(f"rank {rank} speaks\n")
    points = ({"step": step, "loss": 2 / (1 + step / 8), "accuracy": 1 - math.exp(-step / 40)} for step in range(82))
    (output / "metrics.jsonl").write_text("\n".join(map(json.dumps, points)))
    for seed in range(2):
        error = b"Traceback (most recent call last):\nValueError: " + b"a_word_without_any_space" * 12 + b"\n"
        made.run(f"{LONG}/000_train_learningrate0.0001_batchsize4096_warmup2000_{seed}", "failed", err=error)
    made.many(60, "003_sweep")
    return made


@pytest.fixture(scope="module")
def server(made: MadeUp) -> Iterator[DashboardServer]:
    server = DashboardServer(DashboardData(made.home, lambda environ, newer: QueueState({})))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def album(browser: Browser, tmp_path: Path) -> Album:
    return Album(browser, tmp_path)


def rows(count: int) -> str:
    return f"document.querySelectorAll('.row').length === {count}"


def pane(words: str) -> str:
    return f"document.querySelector('#pane').innerText.includes({words!r})"


@pytest.mark.parametrize("dark", [False, True], ids=["bright", "dark"])
def test_the_page_is_drawn_whole_in_all_its_states(server: DashboardServer, album: Album, dark: bool) -> None:
    browser, kind = album.browser, "dark" if dark else "bright"
    with browser.window(1280, 800, dark=dark):
        browser.open(server.link)
        browser.wait("document.querySelector('#shown').innerText === '74 runs'", "all runs")
        album.take(f"{kind}-1-experiments", dark=dark)
        browser.press("/", *"state:failed,oom", ENTER, "s")
        browser.wait(rows(8), "failed runs only, sorted by why")
        album.take(f"{kind}-2-filtered-sorted", dark=dark)
        browser.press("/", ESCAPE, "/", *"train_6 state:running", ENTER, ENTER)
        browser.wait(pane("step 82/200"), "the live log")
        album.take(f"{kind}-3-log", dark=dark)
        browser.press("3")
        browser.wait("document.querySelectorAll('#pane figure.plot').length >= 4", "curves")
        album.take(f"{kind}-4-metrics", dark=dark)
        browser.press("4")
        browser.wait(pane("it is running"), "why")
        album.take(f"{kind}-5-why", dark=dark)
        browser.press("r")
        with browser.frame("report-frame"):
            browser.wait("document.querySelector('svg.gantt')", "the report with its timeline")
        album.take(f"{kind}-6-report", dark=dark)
        browser.press(ESCAPE, ESCAPE, "/", *" nothing like this")
        browser.wait("!document.querySelector('#none').hidden", "no run matches")
        album.take(f"{kind}-7-nothing", dark=dark)
    assert browser.complaints() == []


def test_the_page_fits_a_narrow_window(server: DashboardServer, album: Album) -> None:
    browser = album.browser
    with browser.window(400, 700):
        browser.open(server.link)
        browser.wait("document.querySelector('#shown').innerText === '74 runs'", "all runs")
        album.take("narrow-1-runs")
        browser.press("/", *"learningrate", ENTER, ENTER)
        browser.wait(rows(2), "long names")
        album.take("narrow-2-long-names")
        browser.press("2")
        browser.wait(pane("ValueError"), "its error")
        album.take("narrow-3-error")
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["bright", "dark"])
def test_the_report_is_drawn_whole_on_screens_of_both_kinds(
    made: MadeUp, album: Album, tmp_path: Path, dark: bool
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(gather_report(made.home, [])))
    for width in (1280, 400):
        with album.browser.window(width, 900, dark=dark):
            album.browser.open(file.as_uri())
            album.take(f"report-{'dark' if dark else 'bright'}-{width}", dark=dark)
    assert album.browser.complaints() == []


def test_the_report_fits_on_paper_and_is_bright_there(made: MadeUp, album: Album, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_page(gather_report(made.home, ["001_lr"])))
    with album.browser.window(794, 1123, dark=True, media="print"):  # A4 at 96 dots per inch
        album.browser.open(file.as_uri())
        album.take("paper")
    paper = album.browser.paper()
    (album.folder / "paper.pdf").write_bytes(paper)
    assert paper.startswith(b"%PDF") and 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 3


def test_choosing_dark_here_darkens_the_report_too(server: DashboardServer, album: Album) -> None:
    browser = album.browser
    with browser.window(1280, 800):
        browser.open(server.link)
        browser.wait("document.querySelector('#shown').innerText === '74 runs'", "all runs")
        browser.press("t", "r")
        with browser.frame("report-frame"):
            browser.wait("document.querySelector('svg.gantt')", "the report")
        album.take("dark-by-choice", dark=True)
        browser.press("t")
        album.take("bright-by-choice")
    assert browser.complaints() == []


def test_state_colours_can_be_read_on_their_paper() -> None:
    """4.5 to 1 is what WCAG asks of text. The page and the report have the same colours."""
    page = (Path(web.__file__).parent / "static" / "style.css").read_text()
    for theme in (0, 1):
        ours, reports = palettes(page)[theme], palettes(STYLE)[theme]
        assert {name: ours[name] for name in reports} == reports
        for name in ("ink", "soft", "completed", "running", "wait", "bad", "odd", "off"):
            for paper in ("paper", "card"):
                assert contrast(ours[name], ours[paper]) >= 4.5, f"{name} on {paper}, theme {theme}"


def palettes(style: str) -> list[dict[str, str]]:
    """The bright colours, then the dark ones."""
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", style)
    return [dict(re.findall(r"--(\w+):(#\w+)", block)) for block in blocks]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(letter * 2 for letter in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
