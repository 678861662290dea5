"""Warm starts: a run that is forked from a parent finds what it would have found after `python train.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project, project_here
from shoal.job.environment import escape_placeholders
from shoal.job.pack.warm_starter import parse_python_command
from waiting import wait_until

pytestmark = pytest.mark.slow

SHOW = """\
import json, os, random, sys
sys.stdout.write(json.dumps({
    "argv": sys.argv, "cwd": os.getcwd(), "path0": sys.path[0], "name": __name__, "file": globals().get("__file__"),
    "depth": os.environ.get("DEPTH"), "run": os.environ.get("SHOAL_RUN"), "leader": os.getsid(0) == os.getpid(),
    "random": random.random(), "main": sys.modules["__main__"].__dict__ is globals(),
    "preloaded": "fractions" in sys.modules,
    "stdin": sys.stdin.read(), "ours": [m for m in sys.modules if m.startswith("shoal_agent")],
}) + "\\n")
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = project_here(tmp_path)
    yield made


def run(project: Project, *words: object, preload: str | None = "fractions", code: int | None = 0) -> dict[str, Any]:
    warm = [] if preload is None else ["--preload", preload]
    done = project.shoal("pack", *warm, "--slots", 2, "--json", "--", *words, code=code)
    return done.json["runs"][0]  # type: ignore[no-any-return]


def shown(project: Project, *words: object, preload: str | None = "fractions", **set_: str) -> dict[str, Any]:
    """What the program saw, cold or warm; under a name of its own."""
    name = f"x{'warm' if preload else 'cold'}{abs(hash(words))}"
    warm = [] if preload is None else ["--preload", preload]
    done = project.shoal("pack", "--name", name, *warm, "--slots", 2, "--json", "--", *words)
    log = Path(done.json["runs"][0]["output_dir"]) / "attempt-1.out"
    return json.loads(log.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "words", [["sub/show.py", "a b", "--x={seed}"], ["-m", "sub.show", "1"], ["-u", "sub/show.py"]]
)
def test_a_warm_run_finds_what_a_cold_one_finds(project: Project, words: list[str]) -> None:
    project.write("sub/show.py", SHOW)
    cold = shown(project, sys.executable, *words, preload=None)
    warm = shown(project, sys.executable, *words)
    assert warm.pop("preloaded") and not cold.pop("preloaded")
    assert warm.pop("random") != cold.pop("random")
    assert warm.pop("run").startswith("xwarm") and cold.pop("run").startswith("xcold")
    assert warm == cold and warm["leader"] and warm["main"] and not warm["ours"]


def test_code_on_the_command_line_can_be_warm(project: Project) -> None:
    warm = shown(project, sys.executable, "-c", *escape_placeholders([SHOW]), "x")
    assert warm["argv"] == ["-c", "x"] and warm["preloaded"] and warm["file"] is None


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
        ("import os; os._exit(5)", 5, ""),
        (
            "import atexit, threading as t; atexit.register(print, 'bye'); t.Thread(target=print, args=('t',)).start()",
            0,
            "",
        ),
    ],
)
def test_exit_codes_and_tracebacks_are_the_programs_own(project: Project, program: str, code: int, says: str) -> None:
    project.write("end.py", program + "\n")
    result = run(project, sys.executable, "end.py", code=None)
    assert result["exit_code"] == code
    logs = Path(result["output_dir"])
    errors = (logs / "attempt-1.out").read_text()
    assert says in errors and "warm_server" not in errors and "shoal_agent" not in errors
    if "Traceback" in errors:
        assert 'end.py", line 1' in errors
    if "atexit" in program:
        assert errors.split() == ["t", "bye"]


def test_runs_of_one_parent_draw_different_numbers(project: Project) -> None:
    project.write("draw.py", "import random; print(random.random())\n")
    words = ("--preload", "random", "--slots", 2, "--set", "k=1:6:1", "--json", "--", sys.executable, "draw.py", "{k}")
    done = project.shoal("pack", *words)
    drawn = {(Path(one["output_dir"]) / "attempt-1.out").read_text() for one in done.json["runs"]}
    assert len(drawn) == 6


def test_a_module_that_is_missing_or_starts_threads_means_cold_starts(project: Project) -> None:
    project.write(
        "threads.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    for module, why in (("no_such_module", "cannot import no_such_module"), ("threads", "starts threads")):
        words = ("--preload", module, "--name", module, "--slots", 1, "--", sys.executable, "-S", "train.py")
        done = project.shoal("pack", *words, PYTHONPATH=str(project.root))
        assert f"runs start cold: {why}" in done.err or why in done.err
        assert project.status()[f"{module}/train"]["state"] == "completed"


def test_the_parent_killed_means_its_runs_end_and_the_rest_start_cold(project: Project) -> None:
    project.write(
        "wait.py",
        "import os, time\nprint(os.getppid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n",
    )
    words = ("pack", "--preload", "fractions", "--slots", 1, "--set", "k=1,2", "--", sys.executable, "wait.py", "{k}")
    begun = project.start(*words)

    def parent() -> int:
        for path in project.root.glob("outputs/*/*/*/*/attempt-1.out"):
            return int(path.read_text() or 0)
        return 0

    os.kill(wait_until(parent, 60, "a run tells its parent"), signal.SIGKILL)
    project.write("go", "")
    _, said = begun.communicate(timeout=300)
    assert "the warm parent has died" in said
    assert sorted(run["state"] for run in project.status().values()) == ["completed", "failed"]


def test_only_plain_python_commands_can_be_warm() -> None:
    assert parse_python_command(["python", "a.py", "1"]) == ("file", "a.py", ["1"])
    assert parse_python_command(["/x/python3.11", "-u", "-m", "a.b", "-v"]) == ("m", "a.b", ["-v"])
    assert parse_python_command(["python", "-O", "a.py"]) is None
    assert parse_python_command(["bash", "a.sh"]) is None and parse_python_command(["python"]) is None
