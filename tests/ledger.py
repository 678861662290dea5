"""What user code really did, written down by that code outside shoal: the only witness that these tests trust.

The program appends lines "uptime pid host what" to LEDGER/<run>: begin=PARENTS (processes above it), alive ten times
a second, end=CODE. Arguments: seconds=3, wait=FILE, exit=7, first_exit=85 (the first time only), save (a checkpoint),
plan (more arguments are in LEDGER/plan/<run>), fork (a grandchild in a session of its own does the work, as a
launcher's ranks do).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

from project import Project
from waiting import wait_until

ALIVE_S = 0.1
#: Marks further apart than this are a pause (the process was stopped), not slow user code.
MAX_GAP_S = 1.0

PROGRAM = """\
import os, socket, sys, time
path = os.path.join(LEDGER, (os.environ.get("SHOAL_RUN") or os.environ["RUN_NAME"]).replace("/", "."))
host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
def note(what):
    with open("/proc/uptime") as file:  # libfaketime does not change it
        now = file.read().split()[0]
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(handle, ("%s %d %s %s\\n" % (now, os.getpid(), host, what)).encode())
    os.close(handle)
def begun():
    with open(path) as file:
        return sum(" begin=" in line for line in file)
def parents():
    pid, found = os.getppid(), []
    while pid > 1:
        found.append(str(pid))
        with open("/proc/%d/stat" % pid) as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return ",".join(found)
args = dict(word.partition("=")[::2] for word in sys.argv[1:])
if "plan" in args:
    with open(os.path.join(LEDGER, "plan", os.path.basename(path))) as file:
        args.update(word.partition("=")[::2] for word in file.read().split())
if "fork" in args and os.fork():
    sys.exit(os.wait()[1] >> 8)
if "fork" in args:
    os.setsid()
note("begin=" + parents())
if "save" in args:
    with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "model_1.pth"), "w") as file:
        file.write("weights")
code = int(args.get("exit") or 0)
if "first_exit" in args and begun() == 1:
    code = int(args["first_exit"])
until = time.monotonic() + float(args.get("seconds") or 0)
while time.monotonic() < until or ("wait" in args and not os.path.exists(os.path.join(LEDGER, args["wait"]))):
    note("alive")
    time.sleep(ALIVE_S)
note("end=%d" % code)
sys.exit(code)
"""


class Execution(NamedTuple):
    """One process of user code: when it was seen (seconds of uptime), and its exit code if it came to its end."""

    run: str
    pid: int
    host: str
    marks: list[float]
    exit_code: int | None
    parents: frozenset[int] = frozenset()

    def lives(self, program: str) -> bool:
        """Whether this process still exists; the kernel's word, where it shares our process ids."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False
        return program.encode() in words  # a zombie has no command line

    def running(self) -> list[tuple[float, float]]:
        """The times in which it ran, without pauses."""
        spans: list[tuple[float, float]] = []
        start = self.marks[0]
        for before, after in pairwise(self.marks):
            if after - before > MAX_GAP_S:
                spans.append((start, before + ALIVE_S / 2))
                start = after
        return [*spans, (start, self.marks[-1] + ALIVE_S / 2)]


class Ledger:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = str(folder / "program.py")
        folder.mkdir(parents=True)
        head = f"LEDGER, ALIVE_S = {str(folder)!r}, {ALIVE_S}\n"
        (folder / "program.py").write_text(head + PROGRAM)

    def executions(self, run: str) -> list[Execution]:
        try:
            text = (self.folder / run.replace("/", ".")).read_text()
        except FileNotFoundError:
            return []
        found: list[Execution] = []
        newest: dict[tuple[str, str], int] = {}
        for line in text.split("\n")[:-1]:
            now, pid, host, what = line.split()
            if what.startswith("begin="):
                newest[pid, host] = len(found)
                parents = frozenset(int(word) for word in what[6:].split(",") if word)
                found.append(Execution(run, int(pid), host, [], None, parents))
            place = newest[pid, host]
            found[place].marks.append(float(now))
            if what.startswith("end="):
                found[place] = found[place]._replace(exit_code=int(what[4:]))
        return found

    def runs(self) -> list[str]:
        """Names of runs that have begun, in the ledger's spelling (a dot for the slash)."""
        return sorted(
            path.name for path in self.folder.iterdir() if path.is_file() and path.suffix != ".py" and "_" in path.name
        )

    def alive(self, run: str) -> list[Execution]:
        return [one for one in self.executions(run) if one.exit_code is None and one.lives(self.program)]

    def ends(self, run: str, exit_code: int = 0) -> int:
        return sum(one.exit_code == exit_code for one in self.executions(run))

    def overlap_s(self, run: str) -> float:
        return overlap_s(self.executions(run))

    def release(self, name: str = "go") -> None:
        (self.folder / name).touch()

    def wait_begun(self, run: str, times: int = 1, deadline_s: float = 60) -> Execution:
        wait_until(lambda: len(self.executions(run)) >= times, deadline_s, f"{run} began {times} times")
        return self.executions(run)[times - 1]

    def end_all(self) -> None:
        """End what a failed test left running."""
        for run in self.runs():
            for execution in self.alive(run):
                os.kill(execution.pid, signal.SIGKILL)


def overlap_s(executions: Iterable[Execution]) -> float:
    """Seconds in which two processes of one run were both running."""
    total = 0.0
    for one, other in combinations(executions, 2):
        for begin, end in one.running():
            total += sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in other.running())
    return round(total, 2)


def keeping_ledger(project: Project, ledger: Ledger) -> Project:
    """Let every step of a project run the ledger's program."""
    path = project.root / "shoal.toml"
    path.write_text(path.read_text().replace(str(project.root / "train.py"), ledger.program))
    return project


def shoal_processes(project: Project) -> list[tuple[int, int]]:
    """(pid, parent) of each process that runs the agent's file of this project, in the order of their start."""
    return list(_with_word(str(project.home / "agent")))


def guard_and_agent(project: Project) -> tuple[int, int]:
    """The outer process of an execution and the one below it; before there was a guard these were one."""
    found = wait_until(lambda: shoal_processes(project), 30, "the agent runs")
    pids = {pid for pid, _ in found}
    guard = next(pid for pid, parent in found if parent not in pids)
    return guard, next((pid for pid, parent in found if parent == guard), guard)


def _with_word(word: str) -> Iterator[tuple[int, int]]:
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if word.encode() in words and pid != os.getpid():
            yield pid, int(fields[1])
