"""For the tests of launches: a project whose steps run the example programs, and a look at the processes they start.

`show.py` needs no torch: it writes down what it was given and then waits, saves, or ends as it is told, so that most
of what launching means can be tested in a second.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

EXAMPLES = Path(__file__).parent.parent / "examples" / "launch"

SHOW = """\
import json, os, signal, sys, time
out, got = os.environ["SHOAL_OUTPUT_DIR"], []
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
         "CUDA_VISIBLE_DEVICES", "SLURM_NTASKS", "SRUN_CPUS_PER_TASK", "SHOAL_REPLICA", "TORCHFT_LIGHTHOUSE",
         "PYTHONUNBUFFERED")
rank = os.environ.get("RANK", "0")
def note(**what):
    with open(os.path.join(out, "rank-%s.jsonl" % rank), "a") as file:
        file.write(json.dumps(dict(what, pid=os.getpid(), host=os.uname().nodename)) + "\\n")
def hear(number, frame):
    got.append(signal.Signals(number).name)
    note(what=got[-1])
for name in ("SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), hear)
note(what="start", args=sys.argv[1:], env={name: os.environ[name] for name in names if name in os.environ},
     cpus=len(os.sched_getaffinity(0)), in_image=os.path.exists("/in-image"), cwd=os.getcwd())
print("rank", rank, "speaks", flush=True)
for word in sys.argv[1:]:
    do, _, what = word.partition("=")
    if do == "fail" and rank == what.split(":")[0]:
        print("rank", rank, "has a problem", file=sys.stderr, flush=True)
        sys.exit(int(what.split(":")[1]))
    if do == "wait":
        if os.fork() == 0:
            while True:
                time.sleep(0.1)  # a loader that nobody ends
        while "SIGTERM" not in got:
            time.sleep(0.02)
        note(what="saved", got=got)
        os.killpg(0, signal.SIGKILL) if what == "rude" else os._exit(0)
note(what="end")
"""


class Launching(Project):
    """A project with steps `show` (show.py), `ddp` and `diloco` (the examples), launched as the test says."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None, *, name: str = "project", **steps: str) -> None:
        super().__init__(folder, cluster, name=name)
        self.write("show.py", SHOW)
        for program in EXAMPLES.glob("*.py"):
            shutil.copy(program, self.root)
        text = "".join(
            f"\n[steps.{step}]\ncommand = [{json.dumps(sys.executable)}, {json.dumps(step.split('_')[0] + '.py')}]\n"
            f'output = "{step}"\ncheckpoint = "model_*.pth"\n{lines}\n'
            for step, lines in steps.items()
        )
        self.write("shoal.toml", (self.root / "shoal.toml").read_text() + text)

    def submit(self, name: str, call: str) -> str:
        """Write a script that calls a step, submit it, and return the run's name."""
        self.script(f"001_a/{name}.sh", call)
        self.shoal("submit", f"experiments/001_a/{name}.sh")
        return f"001_a/{name}"

    def output(self, name: str) -> Path:
        """The newest output folder of a run."""
        return max((self.root / "outputs").glob(f"*/{name}/*"))

    def launch_folder(self, name: str, attempt: int = 1) -> Path:
        return self.output(name) / f"attempt-{attempt}.launch"

    def notes(self, name: str, what: str = "start") -> list[dict[str, Any]]:
        """What the ranks of show.py wrote down, by rank; a line that is just being written is none yet."""
        found = []
        for path in sorted((self.root / "outputs").glob(f"*/{name}/*/rank-*.jsonl")):
            found += [note for note in map(json.loads, path.read_text().split("\n")[:-1]) if note["what"] == what]
        return found

    def wait_notes(
        self, name: str, count: int, what: str = "start", running: subprocess.Popen[str] | None = None
    ) -> list[dict[str, Any]]:
        enough = lambda: len(self.notes(name, what)) >= count  # noqa: E731
        wait_until(while_running(running, enough), 60, f"{count} ranks of {name} wrote {what!r}")
        return self.notes(name, what)

    def says(self, name: str, what: str, attempt: int = 1) -> list[dict[str, Any]]:
        """Lines of JSON that the examples printed, from all logs of an attempt."""
        try:
            folder = self.output(name)
        except ValueError:
            return []
        logs = [folder / f"attempt-{attempt}.out", *sorted(folder.glob(f"attempt-{attempt}.launch/*.out"))]
        lines = [line for log in logs if log.exists() for line in log.read_text().splitlines() if line.startswith("{")]
        return [said for said in map(_json, lines) if said.get("what") == what]

    def log(self, name: str, attempt: int = 1) -> str:
        return (self.output(name) / f"attempt-{attempt}.out").read_text()


def while_running(running: subprocess.Popen[str] | None, condition: Callable[[], object]) -> Callable[[], object]:
    """The condition; but when the command that should bring it about has ended, what it said is the failure."""

    def look() -> object:
        if value := condition():
            return value
        if running is not None and running.poll() is not None:
            raise AssertionError(f"shoal ended with {running.returncode}: {running.communicate()}")
        return None

    return look


def _json(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except ValueError:  # a line that is just being written
        return {}


def processes_of(folder: Path) -> dict[int, list[str]]:
    """pid -> arguments of every process on this machine, in whatever sandbox, that works in this folder."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder):
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                found[int(entry.name)] = words[:-1]
        except OSError:
            continue
    return {pid: words for pid, words in found.items() if words}


def find_process(folder: Path, *words: str) -> int:
    """The pid of the one process in the folder whose arguments hold all these words."""
    matches = [
        pid for pid, argv in processes_of(folder).items() if all(any(word in one for one in argv) for word in words)
    ]
    assert len(matches) == 1, (words, matches, processes_of(folder))
    return matches[0]


def assert_nothing_left(folder: Path) -> None:
    wait_until(lambda: not processes_of(folder), 20, f"no process works in {folder}: {processes_of(folder)}")
