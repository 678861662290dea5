"""The documentation cannot drift: links lead somewhere, commands exist, and whole pages are executed as they stand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from shoal.cli import COMMANDS
from shoal.views.report.costs import Holding, divide
from shoal.views.report.gather import HOUR_WORDS, PART_WORDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOAL = Path(sys.executable).with_name("shoal")
_BLOCK = re.compile(r"^```(\w*) ?(.*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_in_code_blocks_exist(page: Path) -> None:
    blocks = "\n".join(text for _, _, text in _BLOCK.findall(page.read_text()))
    known = {name for group in COMMANDS.values() for name in group}
    words = re.findall(r"^\s*(?:\$ )?(?:\.venv/bin/)?shoal ([a-z]+)", blocks, re.MULTILINE)
    assert set(words) <= known


def test_every_command_has_examples_in_its_help_and_its_line_in_the_overview() -> None:
    for group in COMMANDS.values():
        for name, line in group.items():
            module = import_module(f"shoal.cli.{name}")
            assert module.__doc__ and line
            assert f"shoal {name}" in module.__doc__, f"shoal {name} --help shows no example"


def test_the_readme_begins_with_the_two_commands_and_a_picture() -> None:
    text = (ROOT / "README.md").read_text()
    first = _BLOCK.search(text)
    assert first is not None
    assert "make demo" in first[3] and "make test" in first[3]
    assert text.index("![") < text.index("\n## ")


def runnable(page: Path, *, slurm: bool) -> str:
    """The page as one bash script: files are written, blocks marked `run` are executed, others are only text.

    Its sandboxes do without cgroups, which are named after the sandbox alone and not after its folder: another
    checkout may be running the same page.
    """
    lines = ["set -e"]
    for _, info, text in _BLOCK.findall(page.read_text()):
        options = info.split()
        name = next((word.removeprefix("file=") for word in options if word.startswith("file=")), None)
        code = next((word.removeprefix("exit=") for word in options if word.startswith("exit=")), None)
        if name:
            lines.append(
                f'mkdir -p "$TOP/{Path(name).parent}"\ncat > "$TOP/{name}" <<\'END_OF_FILE\'\n{text}END_OF_FILE'
            )
        elif "run" in options and (slurm or "slurm" not in options):
            text = text.replace("shoal sandbox up ", "shoal sandbox up --cgroups off ")
            lines.append(text if code is None else f"set +e\n(\n{text})\n[ $? = {code} ] || exit 99\nset -e")
    return "\n".join(lines)


def execute(page: Path, folder: Path, *, sandboxes: Path | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SHOAL_"))}
    env = {**kept, "PATH": f"{SHOAL.parent}:{os.environ['PATH']}", "TOP": str(folder), "HOME": str(folder)}
    if sandboxes is not None:
        env["SHOAL_SANDBOX_HOME"] = str(sandboxes)
    script = runnable(page, slurm=sandboxes is not None)
    page_run = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = page_run.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(page_run.pid, signal.SIGKILL)  # what the page had started holds our pipes open
        out, err = page_run.communicate()
    return subprocess.CompletedProcess(page_run.args, page_run.returncode, out, err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "getting-started.md",
        "from-sbatch.md",
        "tutorial-lead.md",
        "migrate.md",
        "tutorial-muloco.md",
        "tutorial-stages.md",
        "tutorial-data.md",
        "smoke.md",
        "pack.md",
        "python.md",
        "shared-projects.md",
        "trackers.md",
        "hydra.md",
    ],
)
def test_a_newcomer_can_follow_the_page_without_slurm(name: str, tmp_path: Path) -> None:
    done = execute(ROOT / "docs" / name, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slurm
@pytest.mark.parametrize(
    "name",
    [
        "getting-started.md",
        "from-sbatch.md",
        "tutorial-lead.md",
        "migrate.md",
        "tutorial-stages.md",
        "switch.md",
        "tutorial-launch.md",
        "tutorial-muloco-launch.md",
        "adopt.md",
    ],
)
def test_a_newcomer_can_follow_the_page_to_slurm(name: str, tmp_path: Path, sandboxes: Path) -> None:
    done = execute(ROOT / "docs" / name, tmp_path, sandboxes=sandboxes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitted" in done.stdout or "adopted" in done.stdout


@pytest.fixture
def sandboxes() -> Iterator[Path]:
    """A home for the sandboxes of a page, short for their Unix sockets; what a killed session left is removed."""
    top = Path(tempfile.gettempdir())
    for left in top.glob("shoal-docs-*"):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            take_down(left)
    folder = top / f"shoal-docs-{os.getpid()}"
    yield folder
    take_down(folder)


def take_down(home: Path) -> None:
    down = [str(SHOAL), "sandbox", "down", "--all"]
    subprocess.run(down, env={**os.environ, "SHOAL_SANDBOX_HOME": str(home)}, check=False, capture_output=True)


def test_the_page_of_defaults_tells_the_numbers_of_the_code() -> None:
    from shoal.describe.steps import DEFAULT_MAX_FOLLOW_UPS, Smoke
    from shoal.observe.queue_cache import INTERVAL_S
    from shoal.plan.generate import DEFAULT_REQUEST
    from shoal.plan.pack_queue import PackOptions

    page, pack, smoke = (ROOT / "docs/defaults.md").read_text(), PackOptions(), Smoke()
    flags = {name: _default_of(name) for name in ("clean --keep", "clean --older-than", "logs --lines")}
    for text in (
        f"{smoke.steps} steps, {smoke.time_s // 60} minutes",
        f"{pack.retries} retries",
        f"{pack.max_follow_ups} jobs that continue",
        f"SIGTERM {pack.warn_s:g} s before the end, SIGKILL {pack.grace_s:g} s later",
        f"the last {flags['logs --lines']} lines",
        f"{flags['clean --keep']} checkpoints of each run",
        f"in the last {str(flags['clean --older-than']).removesuffix('d')} days",
        f"{DEFAULT_REQUEST.nodes} nodes, {DEFAULT_REQUEST.gpus} GPUs per node",
        f"`max_follow_ups` ({DEFAULT_MAX_FOLLOW_UPS} once",
        f"once in {INTERVAL_S:g} s",
    ):
        assert text in page, text


def _default_of(name: str) -> object:
    import argparse

    command, _, flag = name.partition(" ")
    parser = argparse.ArgumentParser()
    import_module(f"shoal.cli.{command}").configure(parser)
    return next(action.default for action in parser._actions if flag in action.option_strings)


def test_the_page_of_hours_tells_what_the_code_computes() -> None:
    minute = 60.0
    run_a = Holding("A", 1, 60 * minute, 510 * minute, 1.0, 30 * minute, 0.8 * 450 * minute, 0.2 * 450 * minute)
    run_b = Holding("B", 1, 60 * minute, 360 * minute, 1.0, 0.0, 0.6 * 300 * minute, 0.4 * 300 * minute)
    run_c = Holding("C", 1, 370 * minute, 520 * minute, 1.0, wasted_s=30 * minute)
    found = divide(0.0, 600 * minute, 2.0, 20 * 3600, [run_a, run_b, run_c])
    columns = [found.by_run["A"], found.by_run["B"], found.by_run["C"], found.whole]
    page = (ROOT / "docs/hours.md").read_text()
    for name, word in {**HOUR_WORDS, **PART_WORDS}.items():
        cells = [f"{getattr(one, name) / minute:.0f}" for one in columns]
        assert f"| {word} | {' | '.join(cells)} |\n" in page
        assert f"\n| {word} | " in page.partition("## A pack")[0], f"{word} is not explained"
