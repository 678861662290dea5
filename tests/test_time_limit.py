"""A test that hangs fails by itself and says where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from time_limit import LIMIT_VARIABLE

HANGING = """\
import subprocess, threading

def test_that_waits_for_a_child():
    subprocess.run(["sleep", "1234"])

def test_that_waits_for_a_thread():
    threading.Event().wait()

def test_that_ends():
    pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_with_its_stack_and_its_processes(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "time_limit", "-p", "no:cacheprovider", str(tmp_path)]
    env = {**os.environ, LIMIT_VARIABLE: "3", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_that_waits_for_a_child was not over after 3 s" in done.stdout
    assert "S sleep 1234" in done.stdout, "which process it waited for"
    assert "Current thread" in done.stdout and "in test_that_waits_for_a_thread" in done.stdout
