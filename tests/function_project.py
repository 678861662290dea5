"""A project whose module has functions for runs, in which the tests' process works."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = """\
import os, signal, sys, threading, time

import shoal


class Unbuildable(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, x):
        return self.factor * x

    @classmethod
    def describe(cls, x):
        return f"{cls.__name__} {x}"


class Doubler(Scaler):
    def __init__(self):
        super().__init__(2)


def add(a, b=2, seed=0):
    print("adding", a)
    return {"sum": a + b + seed}


def note(path, value=1):
    with open(path, "a") as file:
        file.write(f"{value}\\n")
    return value


def size(data):
    return len(data)


def tell():
    ctx = shoal.context()
    ctx.progress(3, 10)
    ctx.log(step=1, loss=0.5)
    return ctx.name, str(ctx.output_dir), ctx.seed, ctx.resume_from, ctx.should_stop(), os.getcwd()


def fills(a):
    # Only where a test has put the output directory on a disk of its own.
    with open(os.path.join(os.environ["TEST_DISK"], "ballast"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            return bytes(100_000)


def sleep(seconds):
    time.sleep(seconds)


def fail(how):
    if how == "raise":
        raise ValueError("boom")
    if how == "unbuildable":
        raise Unbuildable(1, 2)
    if how == "lock":
        return threading.Lock()
    if how == "exit":
        sys.exit(3)
    if how == "exit0":
        sys.exit(0)
    if how == "_exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "local class":
        class Inner(Exception):
            pass
        raise Inner("inner")
    if how == "disk":
        raise OSError(28, "No space left on device")
"""


class FunctionProject:
    """The project, its module, and how to change the module."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.module_name = f"work_{abs(hash(str(root))) % 10**8}"
        self.path = root / f"{self.module_name}.py"
        (root / "shoal.toml").write_text("")
        self.path.write_text(SOURCE)
        for words in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.email=a@b", "-c", "user.name=a", "commit", "-qm", "a"],
        ):
            subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
        monkeypatch.chdir(root)
        monkeypatch.syspath_prepend(str(root))
        monkeypatch.setenv("SHOAL_ON", "local")
        monkeypatch.delenv("SHOAL_HOME", raising=False)
        self.module: ModuleType = importlib.import_module(self.module_name)

    def change(self, old: str, new: str) -> None:
        """Edit the module and load it again, as a person does between two submissions."""
        self.path.write_text(self.path.read_text().replace(old, new))
        # The compiled file counts as current within a second.
        os.utime(self.path, (self.path.stat().st_mtime + 5,) * 2)
        sys.modules.pop(self.module_name)
        importlib.invalidate_caches()
        self.module = importlib.import_module(self.module_name)
