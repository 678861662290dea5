"""The views: status of a thousand and of ten thousand runs, the page with five thousand, a key of the full-screen view.

python -m benchmarks views
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from made_up import MadeUp

SHOAL = Path(sys.executable).with_name("shoal")


def main() -> None:
    print("| what | wall | processor | baseline | ratio | goal |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        bare = median(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 9)
        for count, goal in ((1000, 0.3), (10_000, 2.0)):
            made = MadeUp(Path(folder) / str(count), now=time.time())
            made.many(count)
            for words in (["status"], ["status", "--json"]):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                took = median(partial(run, words, made.root), 7)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 8
                row(
                    f"`shoal {' '.join(words)}`, {count:,} runs, warm",
                    took,
                    "`python -c pass`",
                    bare,
                    f"< {goal} s",
                    spent,
                )
        made = MadeUp(Path(folder) / "page", now=time.time())
        made.many(5000)
        page(made)
        asyncio.run(keys(made))


def page(made: MadeUp) -> None:
    """What the browser waits for: everything once, then what changed."""
    from shoal.clusters import QueueState
    from shoal.views.web.api import DashboardData
    from shoal.views.web.server import DashboardServer

    server = DashboardServer(DashboardData(made.home, lambda environ, newer: QueueState({})))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cookie = server.guard.set_cookie(server.guard.redeem(server.guard.token) or "").split(";")[0]
    link = f"http://127.0.0.1:{server.server_address[1]}"

    def ask(path: str) -> bytes:
        request = urllib.request.Request(link + path, headers={"Cookie": cookie, "Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    bare = median(lambda: ask("/style.css"), 20)
    first = once(lambda: ask("/api/runs"))
    size = len(ask("/api/runs")) / 1024
    row(f"page, 5,000 runs, first answer ({size:.0f} KB)", first, "a static file", bare, "< 3 s")
    row("page, 5,000 runs, nothing has changed", median(lambda: ask("/api/runs?since=1"), 9), "a static file", bare, "")
    server.shutdown()
    server.server_close()


async def keys(made: MadeUp) -> None:
    """From a key to the redrawn screen."""
    from shoal.views.status import StatusFilter
    from shoal.views.tui.app import WatchApp
    from shoal.views.tui.panes import RunList

    app = WatchApp(made.home, StatusFilter(), everything=True, look_s=3600)
    async with app.run_test(size=(120, 40)) as pilot:
        while app.report is None:
            await pilot.pause(0.1)
        await pilot.press("enter")
        await pilot.pause(0.5)
        runs = app.query_one(RunList)
        spent = []
        for _ in range(40):
            begin = time.perf_counter()
            runs.action_move(1)
            await asyncio.sleep(0)
            app._show(runs.current)
            app.screen._compositor.render_update(full=True)
            spent.append(time.perf_counter() - begin)
        row(f"full-screen view, {len(runs.lines):,} lines, one key", statistics.median(spent), "", 0.0, "< 0.05 s")


def run(words: list[str], folder: Path) -> None:
    subprocess.run([SHOAL, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def once(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def median(work: Callable[[], object], times: int) -> float:
    work()
    return statistics.median(once(work) for _ in range(times))


def row(what: str, took: float, base: str, bare: float, goal: str, spent: float | None = None) -> None:
    ratio = f"{took / bare:.1f}" if bare else "-"
    cpu = "" if spent is None else f"{spent * 1000:.0f} ms"
    print(f"| {what} | {took * 1000:.1f} ms | {cpu} | {base} {bare * 1000:.1f} ms | {ratio} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
