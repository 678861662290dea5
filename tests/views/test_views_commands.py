"""Each looking command on a terminal, in a pipe, with --json, -q, NO_COLOR and at 80 columns; against golden pictures.

After a wanted change:  SHOAL_ACCEPT_GOLDEN=1 python -m pytest tests/views/test_views_commands.py
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_results import event_file

from made_up import NOW, MadeUp, picture
from shoal.describe import run_selection as selecting
from shoal.describe.columns import ColumnSetting
from shoal.errors import InputError
from shoal.kernel.log_lines import strip_escapes
from shoal.model import RUN_STATES
from shoal.observe.results import tabulate
from shoal.observe.run_state import RunView
from shoal.views import error_groups, logs, results, run_groups, status, why
from shoal.views.columns import COLUMNS_BY_NAME, ColumnInput, ColumnSource, choose_columns
from shoal.views.details import RunDetails
from shoal.views.render import cell_width, state_word
from shoal.views.report import gather as reporting
from shoal.views.report import page, text
from shoal.views.run_groups import RunGroup, group_runs
from shoal.views.status import StatusFilter
from shoal.views.table_choice import TableChoice
from shoal.views.terminal import Screen, confirm, detect_screen
from shoal.views.watch import WatchOptions, watch_runs
from terminal import run_in_terminal
from waiting import wait_until

GOLDEN = Path(__file__).parents[1] / "golden" / "views"
SHOAL = Path(sys.executable).with_name("shoal")
PLAIN = Screen(tty=False, width=80)
TERMINAL = Screen(tty=True, width=120, colour=True)
NARROW = Screen(tty=True, width=80)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    found = picture(tmp_path / "project")
    monkeypatch.chdir(found.root)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return found


@pytest.fixture
def pictured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """The same on a host whose name is always as long."""
    monkeypatch.setattr("shoal.kernel.processes.host_name", lambda: "gpu07")
    monkeypatch.setattr("made_up.HOST", "gpu07")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    found = picture(tmp_path / "project")
    monkeypatch.chdir(found.root)
    return found


def assert_golden(name: str, text: str, made: MadeUp) -> None:
    text = text.replace(str(made.root), "/project").replace("\x1b", "^[")
    text = re.sub(r"(?m)[ \t]+$", "", text)
    path = GOLDEN / name
    path.parent.mkdir(exist_ok=True)
    if os.environ.get("SHOAL_ACCEPT_GOLDEN"):
        path.write_text(text)
    accept = f"SHOAL_ACCEPT_GOLDEN=1 python -m pytest {Path(__file__).name}"
    assert path.is_file() and path.read_text() == text, f"{path} differs; to accept the change: {accept}"


def printed(work: Callable[[], object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        work()
    return out.getvalue()


def report_of(made: MadeUp, wanted: StatusFilter | None = None) -> status.StatusReport:
    """Ages of logs depend on the file system's clock, and are left out."""
    found = status.gather_status(made.home, wanted, clock=lambda: NOW)
    return found._replace(details={name: one._replace(log_age_s=None) for name, one in found.details.items()})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("status_all.txt", {"screen": NARROW, "everything": True}),
        (
            "status_columns.txt",
            {"screen": NARROW, "choice": TableChoice([ColumnSetting("run,state,gpus,exit", "--columns")])},
        ),
    ],
)
def test_status_looks_like_its_picture(pictured: MadeUp, name: str, options: dict[str, Any]) -> None:
    assert_golden(name, printed(lambda: status.show_status(report_of(pictured), **options)), pictured)


def test_many_runs_of_a_kind_are_one_line_with_a_tally_and_their_failures_once(pictured: MadeUp) -> None:
    pictured.many(120)
    wanted = StatusFilter(["001_many"])
    shown = printed(lambda: status.show_status(report_of(pictured, wanted), screen=NARROW, everything=True))
    assert_golden("status_folded.txt", shown, pictured)
    assert len(shown.splitlines()) < 12
    unfolded = printed(
        lambda: status.show_status(report_of(pictured, wanted), screen=NARROW, everything=True, tasks=True)
    )
    assert unfolded.count("000_train_lr") >= 120


def test_why_and_report_in_other_forms_look_like_their_pictures(pictured: MadeUp) -> None:
    told = why.explain_run(pictured.home, "001_lr/000_train_5", {}, clock=lambda: NOW)
    assert_golden("why_oom.txt", printed(lambda: why.show_explanation(told, NARROW)), pictured)
    found = reporting.gather_report(pictured.home, ["001_lr"], clock=lambda: NOW)
    assert_golden("report.md", text.report_markdown(found), pictured)
    assert_golden("report.csv", text.report_csv(found), pictured)


def _why(made: MadeUp, screen: Screen, **how: bool) -> None:
    why.show_explanation(
        why.explain_run(made.home, "001_lr/000_train_3", {}, clock=lambda: NOW), screen, now=NOW, **how
    )


def _why_running(made: MadeUp, screen: Screen, **how: bool) -> None:
    for log in (made.root / "outputs/001_lr/000_train_6").glob("attempt-1.*"):
        os.utime(log, (NOW - 40, NOW - 40))
    why.show_explanation(
        why.explain_run(made.home, "001_lr/000_train_6", {}, clock=lambda: NOW), screen, now=NOW, **how
    )


def _errors(made: MadeUp, screen: Screen, **how: bool) -> None:
    error_groups.show_errors(error_groups.group_errors(made.home, selecting.select_runs(made.home, [])), screen, **how)


def _status(made: MadeUp, screen: Screen, *, as_json: bool, quiet: bool) -> None:
    status.show_status(report_of(made), screen=screen, as_json=as_json, quiet=quiet)


def _report(made: MadeUp, screen: Screen, *, as_json: bool, quiet: bool) -> None:
    found = reporting.gather_report(made.home, ["001_lr"], clock=lambda: NOW)
    text.show_report(found, screen, as_json=as_json, quiet=quiet)


def _results(made: MadeUp, screen: Screen, *, as_json: bool, quiet: bool) -> None:
    runs, defaults, _ = results.gather_results(made.home, ["001_lr"], {}, partial=False)
    results.show_results(tabulate(runs, defaults=defaults), "json" if as_json else "names" if quiet else "text", screen)


def _logs(made: MadeUp, screen: Screen, *, as_json: bool, quiet: bool) -> None:
    """Two runs, one of which has not started; a bar, an escape sequence, bytes that are no text."""
    made.run("001_lr/000_train_6", "running", out=b"10%\r99%\rstep 1\n\x1b[31mred\x1b[0m\x1b]0;x\x07 \xff\n")
    names = ["001_lr/000_train_6"] if quiet else ["001_lr/000_train_6", "002_new/000_train_0"]
    sources = [logs.find_logs(made.home, name) for name in names]
    if as_json:
        logs.show_logs_json(sources, 10)
        return
    out = io.BytesIO()
    with contextlib.redirect_stderr(sys.stdout):
        logs.show_logs(sources, logs.format_for(screen, lines=10), out)
    print(out.getvalue().decode("utf-8", "backslashreplace"), end="")


def _watch(made: MadeUp, screen: Screen, *, as_json: bool, quiet: bool) -> None:
    """Of runs that are over: each told once, then the end."""
    wanted = StatusFilter(["001_lr/000_train_3", "001_lr/000_train_5", "001_lr/000_train_0"])
    code = watch_runs(made.home, wanted, WatchOptions(as_json, quiet, exit_status=True), screen, clock=lambda: NOW)
    assert code == 4


LOOKS: dict[str, Callable[..., None]] = {
    "logs": _logs,
    "watch": _watch,
    "status": _status,
    "why": _why,
    "why_running": _why_running,
    "errors": _errors,
    "report": _report,
    "results": _results,
}
MODES: dict[str, tuple[Screen, dict[str, bool]]] = {
    "terminal": (TERMINAL, {}),
    "no_color": (TERMINAL._replace(colour=False), {}),
    "80": (NARROW, {}),
    "accessible": (NARROW._replace(accessible=True), {}),
    "pipe": (PLAIN, {}),
    "quiet": (NARROW, {"quiet": True}),
    "json": (PLAIN, {"as_json": True}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("command", LOOKS)
def test_each_command_looks_like_its_picture_in_each_mode(pictured: MadeUp, command: str, mode: str) -> None:
    screen, how = MODES[mode]
    shown = printed(lambda: LOOKS[command](pictured, screen, **{"as_json": False, "quiet": False, **how}))
    if mode == "json":
        shown = "".join(json.dumps(_layout(json.loads(line)), indent=1) + "\n" for line in shown.splitlines())
    if mode == "terminal":
        bare = LOOKS[command], MODES["no_color"][0]
        same = printed(lambda: bare[0](pictured, bare[1], as_json=False, quiet=False))
        assert strip_escapes(shown) == same, "colour adds nothing that could be missed"
    if mode == "80" and command not in ("logs", "watch"):  # theirs are other people's lines, and one for each change
        # Commands and paths stay whole, so that they can be copied.
        told = [line for line in shown.splitlines() if not line.startswith(("hint: ", "from /", "  as in "))]
        assert max(map(cell_width, told)) <= 80
    assert_golden(f"modes/{command}_{mode}.txt", shown, pictured)


def _layout(value: Any) -> Any:
    """What a program can rely on: keys, and the kinds of values; of a list the first."""
    if isinstance(value, dict):
        return {key: _layout(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_layout(value[0])] if value else []
    return type(value).__name__


def test_the_report_counts_hours_by_hand(made: MadeUp) -> None:
    """Two GPUs each; minutes: 30 + 31 + 32 and 3 x 30 done, 2 x 1 and 10 lost, 20 running, 30 cancelled."""
    found = reporting.report_document(reporting.gather_report(made.home, ["001_lr"], clock=lambda: NOW))
    minutes = 30 + 31 + 32 + 3 * 30 + 2 * 1 + 10 + 20 + 30
    hours = found["gpu_hours"]
    assert hours["allocated"] == pytest.approx(2 * minutes / 60, abs=1e-3)
    assert hours["wasted"] == pytest.approx(2 * (2 + 10) / 60, abs=1e-3)  # a cancelled run wastes nothing
    assert hours["busy"] + hours["idle"] + hours["not_measured"] == pytest.approx(hours["allocated"], abs=1e-5)
    assert hours["busy"] > 0 and hours["idle"] > 0 and hours["not_measured"] > 0
    parts = ("runs", "staging", "set_up", "idle_slots", "tail")
    assert sum(hours[part] for part in parts) == pytest.approx(hours["allocated"], abs=1e-5)
    assert sum(run["gpu_hours"]["allocated"] for run in found["runs"]) == pytest.approx(hours["allocated"], abs=1e-4)
    assert found["gpu_hours"]["requested"] == pytest.approx(2 * 2 * 11, abs=1e-3)
    assert {one["reason"]: one["times"] for one in found["failures"]} == {
        "CUDA out of memory": 2, "out of memory on the host": 1}  # a cancelled run is no failure  # fmt: skip
    rows = {row["settings"]["lr"]: row["metrics"]["accuracy"] for row in found["results"]}
    assert rows["0.1"]["mean"] == pytest.approx(0.91) and rows["0.1"]["spread"] == pytest.approx(0.01)
    assert rows["0.01"]["runs"] == 3
    flags = {(one["code"], one["flag"]) for one in found["advice"]}
    assert flags >= {("memory_low", "--mem=11G"), ("time_low", "--time=00:50:00"), ("time_low", "--time=00:45:00")}
    lanes = {bar["lane"] for bar in found["timeline"]}
    assert len(lanes) >= 4 and all(bar["end"] >= bar["start"] for bar in found["timeline"])


def test_a_gpu_that_runs_of_a_pack_share_is_allocated_once(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    names = [f"001_p/000_train_{at}" for at in range(4)]
    for name in (*names, "002_q/000_train_0"):
        made.run(name, "running", gpus=1)
    starts = [Path(made.home) / "runs" / name / "attempt.1.start" for name in names]
    own = [json.loads(path.read_text()) for path in starts]
    for path, record in zip(starts, own, strict=True):
        path.write_text(json.dumps({**record, "allocation": own[0]["allocation"]}) + "\n")
    found = report_of(made)
    assert found.counts == {"running": 5} and found.gpus_allocated == 2
    assert "2 GPUs allocated" in status.headline(found, PLAIN)
    assert report_of(made, StatusFilter(["001_p"])).gpus_allocated == 1


def test_the_time_of_a_run_without_a_known_end_does_not_grow() -> None:
    view = RunView(name="001_a/000_train_0", state="lost", started=NOW - 600)
    texts = [COLUMNS_BY_NAME["time"].text(ColumnInput(view, RunDetails(), now, True)) for now in (NOW, NOW + 9000)]
    assert texts == ["-", "-"]


def test_report_and_results_group_the_same_runs_and_leave_out_tries(made: MadeUp) -> None:
    spec = Path(made.home) / "runs/001_lr/001_train_2/spec.1.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "smoke": {"steps": 1}}))
    runs, _, notes = results.gather_results(made.home, ["001_lr"], {}, partial=False)
    assert notes == ["1 smoke or replacement run left out"]
    groups = {
        group.name: (one.mean, one.size)
        for group in tabulate(runs).groups
        if (one := group.metrics.get("accuracy")) is not None
    }
    rows = {
        f"001_lr/{row.label}": row.metrics["accuracy"] for row in reporting.gather_report(made.home, ["001_lr"]).rows
    }
    assert {name: (one.mean, one.size) for name, one in rows.items()} == groups
    assert {name: one.size for name, one in rows.items()} == {"001_lr/000_train": 3, "001_lr/001_train": 2}


def test_a_report_reads_what_trackers_wrote_and_a_diverged_run_is_no_number(made: MadeUp) -> None:
    for seed, loss in ((0, 0.5), (1, float("nan"))):
        output = made.run(f"004_tb/000_train_{seed}", "completed", gpus=0)
        (output / "events.out.tfevents.1.host").write_bytes(event_file(("loss", 3.0), ("loss", loss)))
    found = reporting.report_document(reporting.gather_report(made.home, ["004_tb"], clock=lambda: NOW))
    assert [run["metrics"]["loss"] for run in found["runs"]] == [0.5, None]
    assert found["results"][0]["metrics"]["loss"] == {"mean": None, "spread": None, "runs": 2}
    json.dumps(found, allow_nan=False)


def test_the_page_of_a_report_needs_no_network_and_escapes_what_others_wrote(made: MadeUp) -> None:
    made.run("001_lr/000_train_9", "failed", err=b"ValueError: <script>alert(1)</script> & co\n")
    html = page.report_page(reporting.gather_report(made.home, ["001_lr"], clock=lambda: NOW))
    assert "<script" not in html and "&lt;script&gt;alert(1)" in html
    assert not re.search(r"""(src|href|url)\s*[=(]\s*['"]?\s*(https?:)?//""", html)
    assert "default-src 'none'" in html and html.count("<rect") > 20
    markdown = text.report_markdown(reporting.gather_report(made.home, ["001_lr"], clock=lambda: NOW))
    assert "<script>" not in markdown
    made.run("001_lr/000_train_10", "completed", params={"formula": "=cmd()"})
    assert "'=cmd()" in text.report_csv(reporting.gather_report(made.home, ["001_lr"], clock=lambda: NOW))


def test_every_state_can_be_told_without_colour_and_no_two_look_the_same() -> None:
    words = [state_word(state) for state in RUN_STATES]
    assert len(set(words)) == len(words) and all(word[0].isalpha() for word in words)


def test_table_columns_are_keys_of_the_json(made: MadeUp) -> None:
    record = status.status_document(report_of(made))["runs"][0]
    assert {column.key for column in COLUMNS_BY_NAME.values()} <= set(record)
    source = ColumnSource(report_of(made).summaries)
    chosen = choose_columns([ColumnSetting("+gpus,-node,-output", "--columns")], source)
    assert chosen[-1].name == "gpus" and {"node", "output"}.isdisjoint(column.name for column in chosen)
    with pytest.raises(InputError, match="unknown column 'colour'"):
        choose_columns([ColumnSetting("+colour", "--columns")], source)


@pytest.mark.slow
def test_columns_are_kept_in_the_projects_and_in_the_persons_settings(made: MadeUp, tmp_path: Path) -> None:
    def header(*words: str, code: int = 0) -> list[str]:
        shown = shoal("status", *words, folder=made.root, code=code, XDG_CONFIG_HOME=str(tmp_path / "config"))
        return next((line for line in shown.splitlines() if line.startswith("RUN")), "").split("\t")

    toml = made.root / "shoal.toml"
    toml.write_text(toml.read_text() + '[status]\ncolumns = "run,state,gpus"\n')
    assert header() == ["RUN", "STATE", "GPUS"]
    own = tmp_path / "config" / "shoal" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[status]\ncolumns = "-gpus,+exit"\n')
    assert header() == ["RUN", "STATE", "EXIT"] and header("--columns", "+job") == ["RUN", "STATE", "EXIT", "JOB"]
    own.write_text('[status]\ncolumns = "+colour"\n')
    assert header(code=2) == [""]
    own.write_text('[status]\ncolums = "run"\n')
    assert "did you mean 'columns'" in failing(
        "plan", "experiments", folder=made.root, XDG_CONFIG_HOME=str(tmp_path / "config")
    )


def test_runs_are_selected_by_the_words_people_use(made: MadeUp) -> None:
    def names(*words: str) -> list[str]:
        return selecting.select_runs(made.home, words)

    assert len(names("001_lr")) == 11 and names("experiments/001_lr/") == names("001_lr")
    assert names("001_lr/0-2") == names("001_lr")[:3]
    assert names("001_lr/1,3") == [names("001_lr")[1], names("001_lr")[3]]
    assert names("*_train_1") == ["001_lr/000_train_1", "001_lr/001_train_1"]
    assert names("last") == names("001_lr") and len(names("last:2")) == 2
    with pytest.raises(InputError, match="did you mean"):
        names("001_lr/000_trian_1")
    states = selecting.parse_states("failed,running")
    assert states is not None and states >= {"failed", "oom", "running"}
    with pytest.raises(InputError, match="unknown state"):
        selecting.parse_states("broken")


def test_counts_are_those_of_what_is_listed_and_the_rest_is_named(made: MadeUp) -> None:
    found = report_of(made, StatusFilter(causes="failed", name="000_*"))
    assert [view.name for view in found.views] == ["001_lr/000_train_3", "001_lr/000_train_4"]
    assert found.counts == {"failed": 2} and found.left_out == 10
    head = status.headline(found, detect_screen())
    assert "2 of 12 runs" in head and "GPUs busy" not in head
    shown = "\n".join(status.status_lines(found, found.views, detect_screen()))
    assert "10 runs left out by --cause failed --name '000_*'" in shown
    assert found.unselected == [] and report_of(made, StatusFilter(["001_lr/0-2"])).unselected == [
        "8 of 11 runs of 001_lr not selected"
    ]
    assert len(report_of(made, StatusFilter(last=3)).views) == 3
    since = report_of(made, StatusFilter(since="21m")).views
    assert {view.name for view in since} == {"001_lr/000_train_6"}


def _view(name: str, state: str, **more: Any) -> RunView:
    return RunView(name=name, state=state, **more)


def test_the_expected_end_follows_progress_and_the_waves_of_what_waits() -> None:
    running = _view("1_a/000_t_0", "running", started=0.0)
    assert run_groups.expected_end([running], {"1_a/000_t_0": 300.0}, 100.0) == (400, None)
    done = _view("1_a/000_t_1", "completed", started=0.0, ended=200.0)
    waiting = [_view(f"1_a/000_t_{n}", "pending") for n in (2, 3)]
    assert run_groups.expected_end([running, done, *waiting], {}, 100.0) == (100 + 100 + 2 * 200, None)
    assert run_groups.expected_end(waiting, {}, 100.0) is None
    assert run_groups.expected_end([_view("1_a/000_t_0", "running")], {}, 0.0) is None
    assert run_groups.expected_end([done], {}, 300.0) is None


def test_the_expected_end_knows_the_queue_and_the_size_of_the_cluster() -> None:
    done = _view("1_a/000_t_0", "completed", started=0.0, ended=200.0)
    later = [_view(f"1_a/000_t_{n}", "pending", job_id=str(n), expected_start=1000.0 * n) for n in (1, 2)]
    assert run_groups.expected_end([done, *later], {}, 100.0) == (2000 + 200, None), "as Slurm expects to start them"
    waiting = [_view(f"1_a/000_t_{n}", "pending", job_id=str(n), gpus=2, cluster_gpus=8) for n in range(1, 11)]
    assert run_groups.expected_end([done, *waiting], {}, 100.0) == (100 + 3 * 200, 8), "ten runs, four at a time"
    assert run_groups.expected_end([done, *waiting[:2]], {}, 100.0) == (100 + 200, 4)
    packed = [
        _view(f"1_a/000_t_{n}", "pending", job_id="7", gpus=2, cluster_gpus=8, expected_start=5.0) for n in (1, 2)
    ]
    assert run_groups.expected_end([done, *packed], {}, 100.0) is None, "a pack that has not begun"
    unknown = [_view("1_a/000_t_1", "pending", job_id="1", gpus=2)]
    assert run_groups.expected_end([done, *unknown], {}, 100.0) is None


def test_the_headline_says_what_the_end_depends_on(made: MadeUp) -> None:
    report = report_of(made)._replace(ends=run_groups.ExpectedEnd(NOW + 600, 4))
    assert "if 4 GPUs are free" in status.headline(report, NARROW)
    document = status.status_document(report)
    assert (document["expected_end"], document["expected_end_if_gpus"]) == (NOW + 600, 4)


def test_folding_keeps_every_run_exactly_once() -> None:
    views = [_view(f"1_a/{order:03}_t_{seed}", "completed") for order in range(3) for seed in range(order * 8)]
    rows = group_runs(views)
    flat = [view for row in rows for view in (row.views if isinstance(row, RunGroup) else [row])]
    assert sorted(view.name for view in flat) == sorted(view.name for view in views)


# ---- the commands themselves, as another process ----


def shoal(*words: str, folder: Path, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [SHOAL, *words], cwd=folder, env={**os.environ, **env}, capture_output=True, errors="replace", timeout=300
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def failing(*words: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        [SHOAL, *words], cwd=folder, env={**os.environ, **env}, capture_output=True, errors="replace", timeout=300
    )
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_status_on_a_real_terminal_fits_eighty_columns_and_obeys_no_color(made: MadeUp) -> None:
    shown = run_in_terminal(["status"], made.root)
    assert "\x1b[31mfailed x\x1b[0m" in shown
    bare = run_in_terminal(["status", "--all"], made.root, NO_COLOR="1")
    assert "\x1b" not in bare
    table = [line for line in bare.splitlines() if "/000_train" in line or line.startswith("RUN")]
    assert len(table) > 8 and max(map(len, table)) <= 80
    assert "failed x" in bare and "running >" in bare


@pytest.mark.slow
def test_in_a_pipe_there_are_tabs_whole_words_and_no_colour(made: MadeUp) -> None:
    shown = shoal("status", "--all", folder=made.root)
    assert "\x1b" not in shown and "…" not in shown
    rows = [line.split("\t") for line in shown.splitlines() if "\t" in line]
    assert len({len(row) for row in rows}) == 1
    assert shoal("status", "-q", folder=made.root).splitlines()[0] == "001_lr/000_train_3"
    assert shoal("status", "--exit-status", "001_lr", "-q", folder=made.root, code=4)
    assert "\x1b" in shoal("status", "--tty", folder=made.root, FORCE_COLOR="1")


@pytest.mark.slow
def test_logs_of_several_runs_have_prefixes_and_a_terminal_is_safe(made: MadeUp) -> None:
    evil = b"10%\r90%\r\x1b]0;owned\x07\x1b[2Jdone \xff\xfe\0 \x1b[32mgreen\x1b[0m\n"
    made.run("003_evil/000_train_0", "failed", out=evil)
    made.run("003_evil/000_train_1", "completed", out=b"fine\n")
    assert shoal("logs", "003_evil", "-n", "1", folder=made.root).count("003_evil/000_train_") == 2
    shown = run_in_terminal(["logs", "003_evil/000_train_0"], made.root)
    assert "\x1b]0" not in shown and "\x1b[2J" not in shown and "\x1b[32mgreen" in shown and "90%" not in shown
    raw = subprocess.run(
        [SHOAL, "logs", "--raw", "003_evil/000_train_0"], cwd=made.root, capture_output=True, check=True
    )
    assert raw.stdout == evil
    found = json.loads(shoal("logs", "003_evil/000_train_0", "--json", folder=made.root))
    assert found["run"] == "003_evil/000_train_0" and "green" in found["logs"][0]["text"]
    assert shoal("logs", "003_evil/000_train_1", "--path", folder=made.root).strip().endswith("attempt-1.out")
    assert shoal("logs", folder=made.root, code=2) == ""
    assert "fine" in shoal("logs", "003_evil/000_train_1", "--pager", folder=made.root, PAGER="cat")


@pytest.mark.parametrize(
    "words", [["--help"], ["shell"], ["status"], ["status", "-q"], ["status", "--json"], ["report"], ["plan", "--help"]]
)
def test_off_a_terminal_no_library_for_looks_is_imported(made: MadeUp, words: list[str]) -> None:
    """rich costs 50 ms and more, matplotlib 300: only people who look at a terminal or ask for a picture pay them."""
    made.run("003_漢字/000_train_0", "failed", out="ValueError: 漢字 …\n".encode())
    code = (
        "import atexit, sys; atexit.register(lambda: print([*sys.modules], file=sys.stderr));"
        f"from shoal.cli import main; sys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=made.root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "'shoal.cli'" in done.stderr
    assert not [name for name in ("rich", "matplotlib", "textual") if f"'{name}" in done.stderr]


def test_a_status_imports_nothing_that_submits_or_reads_profiles(made: MadeUp) -> None:
    """Half of what a status of a thousand runs costs was such imports."""
    code = "import sys; from shoal.cli import main; main(['status', '-q']); print([*sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=made.root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "shoal.observe" in done.stderr
    assert not [
        name
        for name in (
            "shoal.actions.transaction",
            "shoal.actions.prepare",
            "shoal.describe.cluster",
            "shoal.describe.expand",
            "tomllib",
        )
        if f"'{name}" in done.stderr
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["why", "001_lr"], "'001_lr' is an experiment of 11 runs; which of them?"),
        (["ui", "--port", "80000"], "cannot listen on port 80000: ports are numbers up to 65535"),
        (["ui", "--port", "-1"], "cannot listen on port -1: ports are numbers up to 65535"),
        (["logs", "001_lr/000_train_0", "--attempt", "7"], "001_lr/000_train_0 has no attempt 7; it has 1"),
        (["status", "--since", "soon"], "--since"),
        (["report", "nothing"], "no run named 'nothing'"),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_sentence(made: MadeUp, words: list[str], sentence: str) -> None:
    said = failing(*words, folder=made.root)
    assert said.startswith("error: ") and sentence in said and "\nhint: " in said


def test_a_misspelt_flag_is_told_with_the_one_that_was_meant(made: MadeUp) -> None:
    assert "unrecognized arguments: --colums=x; did you mean --columns?" in failing(
        "status", "--colums=x", folder=made.root
    )


@pytest.mark.slow
def test_what_would_be_cancelled_is_named_and_counted_before_it_is(made: MadeUp) -> None:
    made.run("001_lr/000_train_8", "running")
    assert "this would cancel 2 running runs of 001_lr" in failing("cancel", "001_lr", folder=made.root)
    asked = run_in_terminal(["cancel", "001_lr"], made.root, typed=b"n\n")
    assert "cancel 2 running runs of 001_lr? [y/N]" in asked and asked.count("left alone") == 2
    asked = run_in_terminal(["cancel", "001_lr"], made.root, typed=b"y\n", ACCESSIBLE="1")
    assert "1: yes\r\n2: no\r\n" in asked and asked.count("left alone") == 2, "a number is asked for"


@pytest.mark.parametrize(
    ("said", "environ", "yes"),
    [("y", {}, True), ("YES ", {}, True), ("", {}, False), ("1", {}, False), ("1", {"ACCESSIBLE": "1"}, True),
     ("1", {"TERM": "dumb"}, True), ("y", {"TERM": "dumb"}, False), ("", {"ACCESSIBLE": "1"}, False)],
)  # fmt: skip
def test_only_a_clear_yes_is_one(
    said: str, environ: dict[str, str], yes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(said + "\n"))
    assert confirm("really?", environ) is yes
    assert not confirm("really?", environ), "Ctrl-D is no"


@pytest.mark.slow
def test_a_log_of_ten_gigabytes_costs_no_more_than_its_end(made: MadeUp) -> None:
    output = made.run("003_huge/000_train_0", "failed")
    with (output / "attempt-1.out").open("r+b") as file:
        file.truncate(10 << 30)  # sparse: NULs without a line break
        file.seek(0, 2)
        file.write(b"\nValueError: at the very end\nthe last line\n")
    assert shoal("logs", "003_huge", "-n", "1", folder=made.root).endswith("the last line\n")
    # More lines are asked for than there are breaks: megabytes before the end, and not all of it.
    many = subprocess.run([SHOAL, "logs", "003_huge", "-n", "50"], cwd=made.root, capture_output=True, timeout=300)
    assert many.stdout.endswith(b"the last line\n") and len(many.stdout) < 64 << 20
    assert "ValueError: at the very end" in shoal("why", "003_huge/000_train_0", "-q", folder=made.root)
    assert "ValueError: at the very end" in shoal("logs", "--errors", "003_huge", folder=made.root)
    assert "ValueError: at the very end" in shoal("status", "003_huge", folder=made.root)


def test_a_watch_of_what_is_over_ends_at_once_and_its_exit_code_tells(made: MadeUp) -> None:
    lines = shoal("watch", "001_lr/000_train_3", "001_lr/000_train_0", "--exit-status", folder=made.root, code=4)
    assert "001_lr/000_train_3 failed" in lines and "all ended: 1 completed  1 failed" in lines
    events = [
        json.loads(line) for line in shoal("watch", "001_lr/000_train_3", "--json", folder=made.root).splitlines()
    ]
    assert [event["event"] for event in events] == ["run", "end"] and events[0]["state"] == "failed"


@pytest.fixture
def watched(made: MadeUp) -> Iterator[subprocess.Popen[str]]:
    words: list[str | Path] = [SHOAL, "watch", "001_lr", "--exit-status"]
    env = {**os.environ, "SHOAL_LOOK_S": "0.1"}
    process = subprocess.Popen(words, cwd=made.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_watch_in_a_pipe_tells_each_change_once_and_ctrl_c_cancels_nothing(
    made: MadeUp, watched: subprocess.Popen[str]
) -> None:
    assert watched.stdout is not None
    while "000_train_6 running" not in (line := watched.stdout.readline()):
        assert line
    made.run("001_lr/000_train_6", "failed", err=b"ValueError: late\n", began=-1200, lasted=600)
    rest = watched.stdout.read()
    assert rest.count("000_train_6 failed (exit code 1: ValueError: late)") == 1 and "all ended" in rest
    assert watched.wait(300) == 4


def test_ctrl_c_ends_the_watching_and_says_that_the_runs_go_on(made: MadeUp, watched: subprocess.Popen[str]) -> None:
    assert watched.stdout is not None and watched.stderr is not None
    while "000_train_6 running" not in (line := watched.stdout.readline()):
        assert line
    watched.send_signal(signal.SIGINT)
    assert watched.wait(300) == 130 and "the runs go on" in watched.stderr.read()
    wait_until(
        lambda: not (Path(made.home) / "runs/001_lr/000_train_6/submit.1.cancel").exists(), 1, "nothing cancelled"
    )


@pytest.mark.slow
def test_a_watch_on_a_terminal_redraws_and_its_last_frame_stays(made: MadeUp) -> None:
    shown = run_in_terminal(["watch", "001_lr/000_train_3", "--simple"], made.root)
    assert "failed x" in shown and shown.count("001_lr   1 run") == 2 and "\x1b[J" in shown
    assert "all ended" not in shown
    # With the full-screen view installed too: who asks for an exit code waits for the end.
    told = run_in_terminal(["watch", "001_lr/000_train_3", "--exit-status"], made.root)
    assert "failed x" in told and "\x1b[?1049h" not in told, "no other screen was opened"
    silent = run_in_terminal(["status", "-w", "001_lr/000_train_3"], made.root, ACCESSIBLE="1")
    assert "\x1b[J" not in silent and "failed" in silent
