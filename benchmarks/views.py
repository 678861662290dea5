"""The views: status of a thousand and of ten thousand runs, the page with five thousand, a key of the full-screen view.

python -m benchmarks views
"""

from __future__ import annotations

import asyncio
import json
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
from typing import Any

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
        metrics(Path(folder) / "metrics", bare)
        made = MadeUp(Path(folder) / "page", now=time.time())
        made.many(5000)
        page(made)
        asyncio.run(keys(made))
        subprocess.run([sys.executable, __file__, "refresh"], check=True)  # its memory is that of this page alone


def refresh(count: int = 25_000) -> None:
    """The page with 25,000 runs of 25 experiments: first answers without and with a cache, and a look after one change.
    Processor time of the server's part: the listing of one look until its JSON is there."""
    from shoal.clusters import QueueState
    from shoal.views.web.api import DashboardData

    def dashboard(home: str) -> DashboardData:
        return DashboardData(home, lambda environ, newer: QueueState({}), clock=lambda: clock[0])

    def look(data: DashboardData, since: int, what: str, goal: str) -> dict[str, Any]:
        clock[0] += 3
        begin, begin_cpu = time.perf_counter(), time.process_time()
        answer = data.runs_json(since, {})
        spent = time.process_time() - begin_cpu
        row(what, time.perf_counter() - begin, "", 0.0, goal, spent)
        return dict(json.loads(answer))

    def read_all(data: DashboardData) -> int:
        answer = json.loads(data.runs_json(0, {}))
        while answer["more"]:
            answer = json.loads(data.runs_json(answer["version"], {}))
        return int(answer["version"])

    clock = [time.time()]
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        made = MadeUp(Path(folder), now=time.time())
        for number in range(count):
            experiment, point = f"{number * 25 // count:03}_sweep", number % (count // 25)
            name = f"{experiment}/000_train_lr{(0.1, 0.03, 0.01)[point % 3]}_{point}"
            state = "failed" if point % 20 == 1 else "running" if point % 100 == 2 else "completed"
            made.run(name, state, params={"lr": (0.1, 0.03, 0.01)[point % 3]}, metrics={"loss": 1 / (1 + point)})
        clock[0] = time.time()
        look(dashboard(made.home), 0, f"page, {count:,} runs, first answer (300 runs), no cache", "< 1 s")
        time.sleep(11)  # directories that changed less than 10 s ago are not kept
        data = dashboard(made.home)
        read_all(data)
        time.sleep(31)  # caches are written every 30 s
        clock[0] += 60
        version = int(json.loads(data.runs_json(0, {}, limit=None))["version"])
        for _ in range(3):
            look(data, version, f"page, {count:,} runs, a look, nothing has changed", "< 0.1 s")
        made.run("024_sweep/000_train_lr0.01_2", "completed", params={"lr": 0.01}, metrics={"loss": 0.5})
        found = look(data, version, f"page, {count:,} runs, a look after one change", "< 0.1 s")
        assert [run["state"] for run in found["runs"]] == ["completed"], found["runs"]
        look(dashboard(made.home), 0, f"page, {count:,} runs, first answer (300 runs), from the cache", "< 1 s")
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| page, {count:,} runs, peak memory of two servers in one process | {peak_mb:.0f} MB | | | | < 150 MB |"
        )


def metrics(folder: Path, bare: float) -> None:
    """A thousand runs with parameters, progress and a hundred lines of metrics each; one of twenty is running."""
    made = MadeUp(folder, now=time.time())
    for number in range(1000):
        lr, seed = (0.1, 0.03, 0.01)[number % 3], number // 3
        state = "running" if number % 20 == 2 else "completed"
        output = made.run(
            f"001_sweep/000_train_lr{lr}_{seed}", state, params={"lr": lr, "width": 32}, progress="40/100"
        )
        rows = ({"step": step, "loss": 2.0 / (step + 1), "val_loss": 2.5 / (step + 1)} for step in range(100))
        (output / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    what = "1,000 runs with parameters, progress and metrics"
    begin = children_s()
    took = once(partial(run, ["status"], made.root))
    row(f"`shoal status`, {what}, first look", took, "`python -c pass`", bare, "", children_s() - begin)
    for words in (["status"], ["status", "--json"], ["status", "--tty", "--group"]):
        begin = children_s()
        took = median(partial(run, words, made.root), 7)
        row(
            f"`shoal {' '.join(words)}`, {what}, warm",
            took,
            "`python -c pass`",
            bare,
            "< 0.6 s",
            (children_s() - begin) / 8,
        )


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
        request = urllib.request.Request(
            link + path, headers={"Cookie": cookie, "X-Shoal-Key": server.guard.key, "Accept-Encoding": "gzip"}
        )
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
    refresh() if sys.argv[1:] == ["refresh"] else main()
