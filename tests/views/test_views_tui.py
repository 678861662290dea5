"""The full-screen view, driven by keys: at 80x24, without a mouse; with 5,000 runs; nothing is done without a yes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from textual.strip import Strip
from textual.widgets import Input, RichLog, Static

from made_up import MadeUp, picture
from shoal.observe.run_state import RunView
from shoal.views import actions
from shoal.views.status import StatusFilter
from shoal.views.tui.app import ConfirmDialog, HelpDialog, WatchApp
from shoal.views.tui.panes import RunList, list_lines, sparkline, tab_text

Story = Callable[[WatchApp, Any], Awaitable[None]]


def drive(home: str, story: Story, *, size: tuple[int, int] = (80, 24), everything: bool = True) -> None:
    async def play() -> None:
        app = WatchApp(home, StatusFilter(), everything=everything, look_s=3600)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.report is not None)
            await story(app, pilot)

    asyncio.run(play())


async def until(pilot: Any, condition: Callable[[], bool]) -> None:
    for _ in range(300):
        await pilot.pause(0.05)
        if condition():
            return
    raise AssertionError("waited in vain")


def shown(app: WatchApp) -> str:
    return "\n".join(str(line.text) for line in app.query_one("#text", RichLog).lines)


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return picture(tmp_path / "project")


def test_the_list_moves_with_keys_and_the_tabs_show_log_and_errors(made: MadeUp) -> None:
    async def story(app: WatchApp, pilot: Any) -> None:
        runs = app.query_one(RunList)
        assert "12 runs in 2 experiments" in str(app.query_one("#headline", Static).render())
        assert runs.has_focus
        await pilot.press("4")
        await until(pilot, lambda: "#SBATCH" in shown(app))  # of a run that completed, too
        await pilot.press(*"1jjj")
        assert runs.current is not None and runs.current.key == "001_lr/000_train_3"
        await pilot.press("2")
        await until(pilot, lambda: "CUDA out of memory" in shown(app))
        await pilot.press("j", "j", "j", "1")
        assert runs.current.key == "001_lr/000_train_6"
        await until(pilot, lambda: "step 2" in shown(app))
        await pilot.press("3")
        await until(pilot, lambda: "GPU 70%" in shown(app))
        await pilot.press("4")
        await until(pilot, lambda: "#SBATCH" in shown(app))
        await pilot.press("tab")
        await until(pilot, lambda: "attempt 1 started" in shown(app))
        await pilot.press("G")
        assert runs.cursor == len(runs.lines) - 1
        await pilot.press("g")
        assert runs.cursor == 0

    drive(made.home, story)


def test_the_log_of_the_next_rank_is_a_key_away(made: MadeUp) -> None:
    launch = made.root / "outputs/001_lr/000_train_6/attempt-1.launch"
    launch.mkdir()
    (launch / "rank-1.out").write_text("rank 1 speaks\n")

    async def story(app: WatchApp, pilot: Any) -> None:
        await pilot.press("slash", *"state:running", "enter")
        await until(pilot, lambda: "rank 0, 1 of 2" in shown(app) and "step 2" in shown(app))
        await pilot.press("3", "l")
        await until(pilot, lambda: "rank 1 speaks" in shown(app) and "step 2" not in shown(app))
        await pilot.press("l")
        await until(pilot, lambda: "step 2" in shown(app))

    drive(made.home, story)


@pytest.mark.slow
def test_the_filter_never_fails_and_escape_clears_it(made: MadeUp) -> None:
    async def story(app: WatchApp, pilot: Any) -> None:
        runs = app.query_one(RunList)
        everything = len(runs.lines)
        await pilot.press("slash", *"state:failed")
        await until(pilot, lambda: [line.state for line in runs.lines] == ["failed", "failed"])
        await pilot.press("enter")
        assert runs.has_focus
        await pilot.press("escape")
        await until(pilot, lambda: len(runs.lines) == everything)
        app.query_one("#filter", Input).value = "[[( *: state:"
        await until(pilot, lambda: not runs.lines)
        await pilot.press("j", "enter", "c", "2")

    drive(made.home, story)


def test_done_runs_are_hidden_until_asked_for(made: MadeUp) -> None:
    async def story(app: WatchApp, pilot: Any) -> None:
        runs = app.query_one(RunList)
        names = {view.name for line in runs.lines for view in line.views}
        assert "001_lr/000_train_0" not in names and "001_lr/000_train_3" in names
        await pilot.press("a")
        await until(pilot, lambda: any(view.state == "completed" for line in runs.lines for view in line.views))

    drive(made.home, story, everything=False)


@pytest.mark.slow
def test_cancel_asks_names_the_run_and_only_a_yes_cancels(made: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[list[str]] = []

    def cancel(home: str, names: Sequence[str]) -> str:
        acted.append(list(names))
        return "cancelled"

    monkeypatch.setattr(actions, "cancel_active", cancel)

    async def story(app: WatchApp, pilot: Any) -> None:
        await pilot.press("slash", *"state:running", "enter", "c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        assert "cancel 001_lr/000_train_6?" in str(app.screen.query_one("#question", Static).render())
        await pilot.press("n")
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("enter")
        assert acted == []
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        await until(pilot, lambda: acted == [["001_lr/000_train_6"]])
        await pilot.press("r")  # a running run cannot be retried, and that is said
        assert not isinstance(app.screen, ConfirmDialog)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))

    drive(made.home, story)


@pytest.mark.slow
def test_a_retry_may_ask_for_more_memory_or_time(made: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[tuple[list[str], str | None]] = []

    def retry(home: str, names: Sequence[str], more: str | None) -> str:
        acted.append((list(names), more))
        return "started"

    monkeypatch.setattr(actions, "retry_runs", retry)

    async def story(app: WatchApp, pilot: Any) -> None:
        await pilot.press("slash", *"state:oom", "enter")
        for key in "nmty":
            await pilot.press("r")
            await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
            assert "m  with twice the memory" in str(app.screen.query_one("#question", Static).render())
            await pilot.press(key)
            await until(pilot, lambda: not isinstance(app.screen, ConfirmDialog))
        await until(pilot, lambda: len(acted) == 3)
        assert sorted(more or "-" for _, more in acted) == ["-", "memory", "time"]
        await pilot.press("escape", "slash", *"state:running", "enter", "c")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("m")
        assert isinstance(app.screen, ConfirmDialog), "more memory is no answer to this question"
        await pilot.press("n")

    drive(made.home, story)


def test_hostile_names_and_logs_are_text(made: MadeUp) -> None:
    made.run(
        "003_evil/000_train_0", "failed", out=b"\x1b]0;owned\x07[bold]x[/bold] \x1b[2J\xff\0\n", err=b"[link=x]boom\n"
    )

    with (made.root / "outputs/003_evil/000_train_0/attempt-1.out").open("r+b") as log:
        beginning = log.read()
        log.truncate(10 << 30)  # sparse
        log.seek(0, 2)
        log.write(b"\n" + beginning)

    async def story(app: WatchApp, pilot: Any) -> None:
        await pilot.press("slash", *"evil", "enter")
        await until(pilot, lambda: "[bold]x[/bold]" in shown(app))
        assert "\x1b" not in shown(app)

    drive(made.home, story)


def test_it_fits_a_small_terminal_and_a_narrow_one(made: MadeUp) -> None:
    async def story(app: WatchApp, pilot: Any) -> None:
        await pilot.press("j", "2", "j", "3")
        for part in ("#headline", "#list", "#detail", "#title", "#tabs", "#text"):
            region = app.query_one(part).region
            assert region.right <= app.size.width and region.height > 0

    drive(made.home, story)
    drive(made.home, story, size=(60, 16))


def test_five_thousand_runs_draw_no_more_lines_than_the_screen_has(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")

    async def story(app: WatchApp, pilot: Any) -> None:
        runs = app.query_one(RunList)
        assert app.report is not None
        views = [RunView(name=f"001_a/000_train_{n}", state="completed") for n in range(5000)]
        app.put(app.report._replace(views=views, counts={"completed": 5000}))
        assert len(runs.lines) == 1  # one family
        drawn: list[int] = []
        real = runs.render_line
        await pilot.press("enter")
        await until(pilot, lambda: len(runs.lines) == 5001)

        def draw(y: int) -> Strip:
            drawn.append(y)
            return real(y)

        runs.render_line = draw  # type: ignore[method-assign]
        await pilot.press("G")
        await pilot.pause()
        assert runs.cursor == 5000 and len(drawn) < 120

    drive(made.home, story)


def test_lines_and_little_bars_are_pure(made: MadeUp) -> None:
    assert list_lines([], frozenset()) == []
    assert sparkline([1, 2, 3], 8) == "▁▄█" and sparkline([], 8) == "" and sparkline([2, 2], 8) == "▁▁"
    assert tab_text is not None


def test_runs_show_progress_and_metric_sort_by_it_and_fold_over_seeds(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    for lr in (0.1, 0.01, 0.03):
        for seed in range(2):
            state = "running" if (lr, seed) == (0.03, 1) else "completed"
            params, progress = {"lr": lr, "width": 8}, "4/10" if state == "running" else None
            output = made.run(f"001_a/000_train_lr{lr}_{seed}", state, params=params, progress=progress)
            last = f'{{"step": 1, "val_loss": {1 - lr + seed / 100}}}\n'
            (output / "metrics.jsonl").write_text('{"step": 0, "val_loss": 2}\n{"step": 0, "val_loss": NaN}\n' + last)

    async def wide(app: WatchApp, pilot: Any) -> None:
        def line() -> str:
            return "".join(segment.text for segment in app.query_one(RunList).render_line(3))

        await until(pilot, lambda: "001_a/000_train_lr0.03_1" in line())  # laid out for this width
        header = str(app.query_one("#columns", Static).render())
        assert header.split() == ["RUN", "STATE", "lr", "SEED", "PROGRESS", "END", "val_loss", "BEST", "GPU"]
        cells = line().split()
        assert cells[:6] == ["001_a/000_train_lr0.03_1", "running", ">", "0.03", "1", "40%"]
        assert cells[-4:] == ["0.98", "0.98", "no", "data"]
        await until(pilot, lambda: str(app.query_one("#curve", Static).render()).startswith("val_loss █▁"))
        await pilot.press("m")
        await until(pilot, lambda: not app.query_one("#curve").display and not app.query_one("#columns").display)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        assert app.screen.query_one("#question").region.x > 20, "in the middle"

    drive(made.home, wide, size=(180, 30))

    async def story(app: WatchApp, pilot: Any) -> None:
        runs = app.query_one(RunList)
        assert [line.key.partition("lr")[2] for line in runs.lines][:3] == ["0.01_0", "0.01_1", "0.03_0"]
        assert runs.lines[3].word == "running > 40% 0.98" and runs.lines[0].word == "completed + 0.99"
        await pilot.press("s")
        await until(pilot, lambda: runs.lines[0].key.endswith("lr0.1_0"))
        await pilot.press("m")
        await until(pilot, lambda: len(runs.lines) == 3)
        assert (runs.lines[0].text, runs.lines[0].word) == ("lr=0.1", "0.905 ± 0.0071 2/2 *")
        await until(pilot, lambda: "seed 1    completed +" in shown(app))
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        box = app.screen.query_one("#question").region
        assert box.width <= 80 and box.height <= 24 and box.x >= 0 and box.y >= 0

    drive(made.home, story)
