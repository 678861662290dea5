"""A script that is read meets a recorder in place of `shoal shell`: its calls are those that shoal itself notes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.describe import shell_functions
from shoal.describe.project import find_project
from shoal.describe.shell_functions import StepCall, collect_calls
from shoal.errors import InputError

SOURCE = 'source "$(shoal shell)"\n'
#: What a script does; those that the recorder can read alone, and those for which shoal is started.
RECORDED = {
    "plain": SOURCE + "train --time=1:00:00\n",
    "exports": SOURCE + "export LR=0.1 EMPTY= SPACED='a  b'\nLOCAL=1\ntrain -- --lr $LR\n",
    "words": SOURCE + "train -- '' 'a b' $'two\\nlines' \"it's\" '\"q\"' '*' '\\n' -x --modifier y é\n",
    "several": SOURCE + "train -- one\nexport A=2\ntrain -- two\nunset A\nevaluate -- three\n",
    "elsewhere": SOURCE + "cd /\ntrain -- $PWD\n",
    "subshell": SOURCE + "(export A=1; train -- a)\ntrain -- b | cat\ntrain -- c & wait\n",
    "modifier": SOURCE + "posttrain 'a b/model.pt'\ntrain -- x\n",
    "secret": SOURCE + "export API_KEY=abcdefgh12345\ntrain\n",
    "seed": SOURCE + 'train -- "seed is $SHOAL_SEED"\n',
    "bytes": SOURCE + "export ODD=$'\\xff\\xfe'\ntrain -- $'\\xff'\n",
}
STARTED = {
    "exports first": "export BEFORE=1\n" + SOURCE + "export AFTER=1\ntrain -- $BEFORE\n",
    "path first": "export PATH=/elsewhere:$PATH\n" + SOURCE + "train\n",
    "nested": SOURCE + "train -- a\nbash other.sh\n",
    "another shoal": SOURCE + 'export PATH="$(dirname "$REAL_SHOAL"):$PATH" A=1\ntrain -- b\n',
}


SHOAL = os.path.join(os.path.dirname(sys.executable), "shoal")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.argv", [SHOAL])
    (tmp_path / "shoal.toml").write_text('[steps.train]\ncommand = "true"\n[steps.evaluate]\ncommand = "true"\n')
    (tmp_path / "experiments" / "001_a").mkdir(parents=True)
    (tmp_path / "other.sh").write_text("export NESTED=1\n")
    return tmp_path


def read(root: Path, text: str, seeds: Sequence[int] | None, monkeypatch: pytest.MonkeyPatch) -> list[StepCall]:
    script = root / "experiments" / "001_a" / "000_train_0.sh"
    script.write_text("#!/bin/bash\n" + text)
    monkeypatch.chdir(root)
    environ = {**os.environ, "REAL_SHOAL": SHOAL}
    return collect_calls(script, environ, find_project(root, environ), seeds)


@pytest.mark.parametrize("name", [*RECORDED, *STARTED])
def test_the_recorder_and_shoal_note_the_same_calls(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = {**RECORDED, **STARTED}[name]
    seeds = [3] if name == "seed" else None
    recorded = read(root, text, seeds, monkeypatch)
    monkeypatch.setattr(shell_functions, "_known_definitions", lambda *args: None)
    noted = read(root, text, seeds, monkeypatch)
    if name == "subshell":  # one of them is in the background
        recorded, noted = sorted(recorded), sorted(noted)
    assert recorded == noted
    assert recorded[0].script == str(root / "experiments" / "001_a" / "000_train_0.sh")


@pytest.mark.parametrize("name", [*RECORDED, *STARTED])
def test_a_script_is_executed_once(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = {**RECORDED, **STARTED}[name]
    read(root, f"echo x >> {root}/executed\n{text}", None, monkeypatch)
    assert (root / "executed").read_text() == "x\n"


def test_reading_a_script_starts_no_python(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shoal = tmp_path / "bin" / "shoal"
    shoal.parent.mkdir()
    shoal.write_text("#!/bin/sh\necho started >&2\nexit 7\n")
    shoal.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(shoal)])
    for text in RECORDED.values():
        assert read(root, text, None, monkeypatch)
    with pytest.raises(InputError, match="exit code 7"):
        read(root, SOURCE + "shoal status\nexit $?\n", None, monkeypatch)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (SOURCE + "sbatch job.sh\n", "sbatch"),
        (SOURCE + "shoal submit x\n", "shoal submit"),
        (SOURCE + "true\n", "calls no step"),
        (SOURCE + "train -- $SHOAL_OUTPUT_DIR\n", "exit code 2"),
    ],
)
def test_what_is_refused_without_the_recorder_is_refused_with_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    with pytest.raises(InputError, match=what):
        read(root, text, None, monkeypatch)


def test_scripts_read_at_once_find_their_programs_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that starts slowly holds the files that other threads write: "Text file busy" for whoever runs them."""
    start: Any = subprocess.Popen
    delays_s = itertools.cycle([0.0, 0.1])

    def start_slowly(*args: Any, **options: Any) -> Any:
        delay_s = next(delays_s)
        return start(*args, preexec_fn=lambda: time.sleep(delay_s), **options)

    def write_slowly(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
            time.sleep(0.01)

    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    monkeypatch.setattr(Path, "write_bytes", write_slowly)
    calls = read(root, SOURCE + "train -- $((SHOAL_SEED + 1))\n", range(10), monkeypatch)
    assert [call.words for call in calls] == [["--", str(seed + 1)] for seed in range(10)]
