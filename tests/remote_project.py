"""A project on a laptop and a cluster behind sshd: its runs note their starts on the cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from project import SHOAL, Done, git
from shoal.sandbox import Sandbox
from ssh_server import SshServer
from waiting import wait_until

TRAIN = """\
import os, sys, time
import helper
run, marks = os.environ["SHOAL_RUN"], os.environ["TEST_MARKS"]
print("began", run, helper.WORD, flush=True)
with open(os.path.join(marks, run.replace("/", ".")), "a") as file:
    file.write(os.environ["SHOAL_ATTEMPT"] + " " + helper.WORD + "\\n")
while "wait" in sys.argv and not os.path.exists(os.path.join(marks, "go")):
    time.sleep(0.05)
if "fail" in sys.argv and not os.path.exists(os.path.join(marks, "fixed")):
    sys.exit(7)
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:
    file.write('{"loss": 0.5}')
print("done", run, flush=True)
"""
SWEEP = """\
step = "train"
args = {args}

[sweep]
x = {values}
"""


class RemoteProject:
    """`shoal` on the laptop, whose only knowledge of the cluster is [clusters.galvani.ssh]."""

    def __init__(self, folder: Path, server: SshServer, cluster: Sandbox | None, *, toml: str = "") -> None:
        self.server, self.cluster = server, cluster
        self.root = server.laptop / "lead"
        self.marks, self.there = folder / "marks", server.home / "lead"
        for path in (self.root / "experiments" / "001_a", self.marks):
            path.mkdir(parents=True)
        self.write("train.py", TRAIN)
        self.write("helper.py", 'WORD = "first"\n')
        self.write(".gitignore", "/outputs/\n/data/\n.shoal/\n__pycache__/\n")
        python = json.dumps(sys.executable)
        self.write(
            "shoal.toml",
            f'[steps.train]\ncommand = [{python}, "-S", "train.py"]\noutput = "training"\n'
            'params = "--{name}={value}"\n'
            f'env = {{ TEST_MARKS = "{self.marks}" }}\n'
            f'[clusters.galvani]\nmatch = {{ cluster = "galvani" }}\n{toml}'
            '[clusters.galvani.ssh]\nhost = "galvani"\ndirectory = "~/lead"\n',
        )
        git(self.root, "init", "-q")
        git(self.root, "add", ".")
        git(self.root, "commit", "-qm", "first")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "SLURM", "XDG_"))}
        self.env = {**kept, **server.laptop_environment()}

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def sweep(self, count: int, *args: str, name: str = "001_a/000_train") -> list[str]:
        """A sweep of so many runs; their names."""
        self.write(
            f"experiments/{name}.toml", SWEEP.format(args=json.dumps(["--run", *args]), values=list(range(count)))
        )
        return [f"{name}_x{number}" for number in range(count)]

    def shoal(
        self,
        *words: object,
        code: int | None = 0,
        timeout_s: float = 120,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Done:
        process = self.start(*words, environ=environ)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            out, err = process.communicate()
            raise AssertionError(f"shoal {words} took more than {timeout_s} s\n{out}\n{err}") from None
        assert "Traceback" not in err and "shoal broke" not in err, err
        assert code is None or process.returncode == code, f"{words}: exit code {process.returncode}\n{out}\n{err}"
        return Done(process.returncode, out, err)

    def start(
        self, *words: object, environ: Mapping[str, str] = MappingProxyType({}), cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SHOAL, *map(str, words)],
            cwd=cwd or self.root,
            env={**self.env, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def status(self) -> dict[str, dict[str, Any]]:
        return {run["name"]: run for run in self.shoal("status", "--on", "galvani", "--json").json["runs"]}

    def starts(self, name: str) -> list[str]:
        """What each execution of a run noted: its attempt and the word of its code."""
        try:
            return (self.marks / name.replace("/", ".")).read_text().splitlines()
        except FileNotFoundError:
            return []

    def wait_started(self, *names: str, times: int = 1) -> None:
        wait_until(lambda: all(len(self.starts(name)) >= times for name in names), 60, f"{names} started")

    def wait_ended(self, *names: str, state: str = "completed") -> None:
        """Look at the records on the cluster until each run has an end, and ask once over ssh which."""
        folders = [self.there / ".shoal" / "runs" / name for name in names]

        def ended() -> bool:
            counts = [(len(list(one.glob("attempt.*.end"))), len(list(one.glob("submit.*.claim")))) for one in folders]
            return all(ends and ends == claims for ends, claims in counts)

        wait_until(ended, 90, f"{names} have ended")
        runs = self.status()
        assert {name: runs[name]["state"] for name in names} == dict.fromkeys(names, state)

    def assert_once(self, *names: str) -> None:
        """Each run was executed once, and Slurm has one job for each."""
        self.wait_ended(*names)
        assert {name: len(self.starts(name)) for name in names} == dict.fromkeys(names, 1)

    def kill_workers(self, requests: list[Path]) -> list[int]:
        """End the processes that execute orders, as a reboot does; which they were."""
        homes = [f"SHOAL_HOME={self.there}/.shoal\0".encode()]
        workers = [json.loads(path.read_text())["pid"] for one in requests for path in one.glob("*/worker.json")]
        commands = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if homes[0] in environ and b"--command-id=" in words:
                commands.append(int(name))
        for pid in [*workers, *commands]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return commands

    def requests(self) -> list[Path]:
        return sorted((self.there / ".shoal" / "requests").glob("*"))

    def notes(self) -> list[Path]:
        return sorted((self.root.parent / ".local" / "state" / "shoal" / "requests").glob("*.json"))


class CutOnce:
    """Ends all connections the first time that a condition holds while bytes pass; `stays_down` also those after it."""

    def __init__(self, project: RemoteProject, condition: Callable[[str], bool], *, stays_down: bool = False) -> None:
        self.proxy, self.condition, self.stays_down = project.server.proxy, condition, stays_down
        self.happened, self._lock = False, threading.Lock()
        self.proxy.watch = self

    def __call__(self, way: str, count: int) -> None:
        with self._lock:
            if self.happened or not self.condition(way):
                return
            self.happened = True
            self.proxy.refuses = self.stays_down
        self.proxy.cut()
