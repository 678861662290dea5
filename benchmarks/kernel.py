"""What shoal adds to a run: time before and after the program, file operations, files that stay; old beside new.

    python -m benchmarks.kernel                        this commit
    python -m benchmarks.kernel --old ../base          beside another worktree, which has its own .venv
    python -m benchmarks.kernel --only calls,inodes    some parts: start, pack, submit, calls, inodes, beats

Everything goes through the command line, so any two commits can be compared. Old and new take turns; medians, and in
brackets the minimum of times, which a busy machine changes least. Needs root and Slurm (the sandbox), and strace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import select
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from shoal.sandbox import Sandbox, SandboxSpec

SCRIPT = 'source "$(shoal shell)"\ntrain\n'
PROGRAM = """\
#!/bin/sh
date +%s.%N > {root}/marks/first
sleep {{seconds}}
date +%s.%N > {root}/marks/last
"""
PROJECT = """\
snapshot = false
[steps.train]
command = ["{root}/program"]
request = {{ cpus = 1, memory = "10M", time = "10m" }}
[clusters.here]
match = {{ host = "*" }}
setup = 'echo $$ > {root}/marks/pid; date +%s.%N > {root}/marks/start'
"""
#: In place of bash, which executes the script of a run on this machine: it notes the script's pid and start.
BASH = """\
#!/bin/sh
case "$1" in */submissions/*/script.sh) ;; *) exec {bash} "$@";; esac
echo $$ > {root}/marks/pid
date +%s.%N > {root}/marks/start
exec {trace} {bash} "$@"
"""
#: What a file server hears of: a read or a close of an open file can be answered by the client alone.
STRACE = "strace -f -y -qq -s 4096 -o {root}/trace -e trace=%file,fsync,fdatasync,getdents64,fchmod,ftruncate,execve"
PACK_RUNS, SLOTS = 200, 4
BEATS_S = 120


class Side(NamedTuple):
    """A commit to measure: a column of the tables."""

    name: str
    shoal: Path


class Work:
    """A project of one side, in a folder of its own, and what is done there."""

    def __init__(self, side: Side, folder: Path, env: dict[str, str] | None = None) -> None:
        self.side, self.root = side, folder / side.name
        for name in ("marks", "experiments/001_b", "shims"):
            (self.root / name).mkdir(parents=True)
        (self.root / "shoal.toml").write_text(PROJECT.format(root=self.root))
        self.is_local = env is None
        hidden = ("SHOAL_", "PYTHONDONTWRITEBYTECODE", *(("SLURM",) if self.is_local else ()))
        kept = {name: value for name, value in (env or os.environ).items() if not name.startswith(hidden)}
        path = f"{side.shoal.parent}{os.pathsep}{kept['PATH']}"
        self.env = {**kept, "HOME": str(self.root), "PATH": path}
        self._count = 0
        self.takes(0.0)
        if self.is_local:
            self.trace("")

    def takes(self, seconds: float) -> None:
        """How long the program sleeps from now on."""
        program = self.root / "program"
        program.write_text(PROGRAM.format(root=self.root).format(seconds=seconds))
        program.chmod(0o755)

    def trace(self, words: str) -> None:
        """Put these words before the bash that executes a script on this machine."""
        shim = self.root / "shims/bash"
        shim.write_text(BASH.format(root=self.root, trace=words.format(root=self.root), bash=shutil.which("bash")))
        shim.chmod(0o755)

    def shoal(self, *words: object) -> str:
        done = self.start(*words)
        out, err = done.communicate()
        if done.returncode != 0:
            raise SystemExit(f"{self.side.name}: shoal {shlex.join(map(str, words))}: {done.returncode}\n{err}")
        return out

    def start(self, *words: object) -> subprocess.Popen[str]:
        env = dict(self.env, PATH=f"{self.root}/shims{os.pathsep}{self.env['PATH']}") if self.is_local else self.env
        pipe = subprocess.PIPE
        argv = [str(self.side.shoal), *map(str, words)]
        return subprocess.Popen(argv, cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
                                text=True)  # fmt: skip

    def submit(self, *flags: object) -> subprocess.Popen[str]:
        """Begin to submit a new experiment, and return at once."""
        self._count += 1
        script = self.root / f"experiments/001_b/{self._count:03}_train{'' if '--seeds' in flags else '_0'}.sh"
        script.write_text(SCRIPT)
        return self.start("submit", "-q", "--yes", script, "--on", "local" if self.is_local else "here", *flags)

    def finish(self, command: subprocess.Popen[str]) -> None:
        _, err = command.communicate()
        if command.returncode != 0:
            raise SystemExit(f"{self.side.name}: {command.args!r}: {command.returncode}\n{err}")

    def mark(self, name: str) -> float:
        return float((self.root / "marks" / name).read_text())

    def inodes(self) -> int:
        return len({path.lstat().st_ino for path in (self.root / ".shoal").rglob("*")})


class Table:
    """One line for each figure, printed when it is known."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        names = " | ".join(side.name for side in sides)
        ratio = " ratio |" if len(sides) == 2 else ""
        print(f"| what | {names} |{ratio} goal |\n|---|{'---|' * len(sides)}{'---|' if ratio else ''}---|", flush=True)

    def row(
        self, what: str, figures: dict[str, list[float]], spell: str, goal: str = "", *, least: bool = False
    ) -> None:
        middle = [statistics.median(figures[side.name]) for side in self._sides]
        cells = [spell.format(value) for value in middle]
        if least:
            cells = [
                f"{cell} ({spell.format(min(figures[side.name]))})"
                for cell, side in zip(cells, self._sides, strict=True)
            ]
        if len(middle) == 2:
            cells.append(f"{middle[1] / middle[0]:.2f}" if middle[0] else "")
        print(f"| {what} | {' | '.join(cells)} | {goal} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--old", type=Path, metavar="WORKTREE", help="Compare with the shoal of this worktree")
    parser.add_argument("--repeats", type=int, default=9, help="Number of times to measure each (default: 9)")
    parser.add_argument("--only", metavar="PART,...", help=f"Parts to measure (default: {','.join(PARTS)})")
    args = parser.parse_args()
    sides = [Side("new", Path(sys.executable).with_name("shoal"))]
    if args.old:
        sides.insert(0, Side("old", args.old.resolve() / ".venv/bin/shoal"))
    wanted = args.only.split(",") if args.only else list(PARTS)
    table = Table(sides)
    with tempfile.TemporaryDirectory(prefix="shoal-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        spec = SandboxSpec(name=f"bench{os.getpid()}", nodes=2, gpus=0, cpus=8)
        with Sandbox(spec) if set(wanted) & {"start", "submit", "inodes"} else contextlib.nullcontext() as sandbox:
            for part in wanted:
                PARTS[part](Measuring(sides, folder / part, table, args.repeats, sandbox))
    print(f"\nload {os.getloadavg()[0]:.0f}, {args.repeats} times each, old and new in turns, medians (minimum)")


class Measuring(NamedTuple):
    """What a part needs."""

    sides: Sequence[Side]
    folder: Path
    table: Table
    repeats: int
    sandbox: Sandbox | None

    def local(self) -> list[Work]:
        return [Work(side, self.folder / "local") for side in self.sides]

    def slurm(self) -> list[Work]:
        assert self.sandbox is not None
        return [Work(side, self.folder / "slurm", self.sandbox.env()) for side in self.sides]

    def figures(self) -> dict[str, list[float]]:
        return {side.name: [] for side in self.sides}


def start(it: Measuring) -> None:
    """From the script's last command to the program's first line, and from its last line to the script's end."""
    bare = [once(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)) for _ in range(it.repeats)]
    it.table.row("`python -c pass`, for comparison", {side.name: bare for side in it.sides}, "{:.0f} ms", least=True)
    for place, works in (("local", it.local()), ("Slurm", it.slurm())):
        before, after, whole = it.figures(), it.figures(), it.figures()
        for number in range(it.repeats + 1):
            for work in works:
                took = script_times(work)
                if number > 0:  # the first run of a project makes the agent
                    for figures, seconds in zip((before, after, whole), took, strict=True):
                        figures[work.side.name].append(1000 * seconds)
        it.table.row(f"{place}: script's last command to program's first line", before, "{:.0f} ms", least=True)
        it.table.row(f"{place}: program's end to script's end", after, "{:.0f} ms", least=True)
        if place == "local":
            it.table.row("local: all of `shoal submit` but the program", whole, "{:.0f} ms", least=True)


def script_times(work: Work) -> tuple[float, float, float]:
    """Seconds before the program, after it, and of the whole command without the program."""
    for mark in (work.root / "marks").iterdir():
        mark.unlink()
    work.takes(0.3)
    begin = time.time()
    command = work.submit()
    pid = wait_for(lambda: read_int(work.root / "marks/pid"), 60)
    ended = end_of(pid)
    work.finish(command)
    whole = time.time() - begin
    first, last = work.mark("first"), work.mark("last")
    return first - work.mark("start"), ended - last, whole - (last - first)


def end_of(pid: int) -> float:
    """Wait for the end of a process that is not ours, and return its time."""
    fd = os.pidfd_open(pid)
    try:
        select.select([fd], [], [], 120)
        return time.time()
    finally:
        os.close(fd)


def pack(it: Measuring) -> None:
    """Runs that do nothing, four at a time: the engine alone, everything, and processor time."""
    rate, whole, cpu = it.figures(), it.figures(), it.figures()
    works = it.local()
    for number in range(min(it.repeats, 5) + 1):
        for work in works:
            before, begin = cpu_s(), time.monotonic()
            words = ["--name", f"p{number}", "--set", f"k=1:{PACK_RUNS}:1", "--", "/bin/true", "{k}"]
            told = json.loads(work.shoal("pack", "--slots", SLOTS, "--json", *words))
            if number > 0:
                rate[work.side.name].append(PACK_RUNS / told["makespan_s"])
                whole[work.side.name].append(1000 * (time.monotonic() - begin) / PACK_RUNS)
                cpu[work.side.name].append(1000 * (cpu_s() - before) / PACK_RUNS)
    it.table.row(f"pack of {PACK_RUNS} x `true`, {SLOTS} slots: runs/s in the engine", rate, "{:.0f}")
    it.table.row("the same: wall time of the command, a run", whole, "{:.2f} ms", least=True)
    it.table.row("the same: processor time, a run", cpu, "{:.2f} ms", least=True)


def submit(it: Measuring) -> None:
    """Submitting, while no node takes jobs: the figures are about sending."""
    assert it.sandbox is not None
    works = it.slurm()
    for work in works:
        work.finish(work.submit())
    for node in it.sandbox.nodes:
        it.sandbox.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=benchmark")
    for count, layout in ((1, "job"), *product((20, 200), ("job", "array", "pack"))):
        took = it.figures()
        for _ in range(min(it.repeats, 3 if count == 200 else 5)):
            for work in works:
                flags: list[object] = ["--seeds", f"0-{count - 1}"] if count > 1 else []
                flags += ["--slots", SLOTS] if layout == "pack" else []
                took[work.side.name].append(once(partial(submit_all, work, "--layout", layout, *flags)))
                it.sandbox.run("scancel", "--user", it.sandbox.run("id", "-un").stdout.strip())
        what = f"`submit` of {count} run{'s' if count > 1 else ''} as {layout}"
        it.table.row(what, took, "{:.0f} ms", least=True)
    for node in it.sandbox.nodes:
        it.sandbox.run("scontrol", "update", f"nodename={node}", "state=resume")


def submit_all(work: Work, *flags: object) -> None:
    work.finish(work.submit(*flags))


#: Kinds of calls that are counted, by the name of the system call.
CHANGES = ("mkdir", "rename", "link", "unlink", "rmdir", "symlink", "chmod", "truncate", "utime")


def calls(it: Measuring) -> None:
    """System calls of the agent on files of the project, by when they come; nothing varies, so twice is enough."""
    works = it.local()
    phases: dict[str, list[Counter[str]]] = {}
    for work in works:
        work.finish(work.submit())
        work.trace(STRACE)
        work.finish(work.submit())
        phases[work.side.name] = count_calls(work)
    for phase, what in enumerate(("begin of a run", "end of a run")):
        for kind in ("all", "changes", "fsync"):
            figures = {name: [float(found[phase][kind])] for name, found in phases.items()}
            it.table.row(f"{what}: {WORDS[kind]}", figures, "{:.0f}")
    spent: dict[str, Counter[str]] = {}
    for work in works:
        counts = []
        for runs in (20, 40):
            words = ["--name", f"p{runs}", "--set", f"k=1:{runs}:1", "--", "/bin/true", "{k}"]
            work.shoal("pack", "-q", "--slots", SLOTS, *words)
            counts.append(sum(count_calls(work), Counter()))
        spent[work.side.name] = Counter({kind: (counts[1][kind] - counts[0][kind]) for kind in counts[1]})
    for kind in ("all", "changes", "fsync"):
        figures = {name: [found[kind] / 20] for name, found in spent.items()}
        it.table.row(f"a run of a pack, begin and end: {WORDS[kind]}", figures, "{:.1f}")


WORDS = {
    "all": "calls on files of the project",
    "changes": "of these that create, rename, link, remove or chmod",
    "fsync": "of these fsync",
}


def count_calls(work: Work) -> list[Counter[str]]:
    """Before the program starts, and from then on (its own calls are left out)."""
    phases: list[Counter[str]] = [Counter(), Counter()]
    programs: set[str] = set()
    root = str(work.root)
    for line in (work.root / "trace").read_text(errors="replace").splitlines():
        pid, _, text = line.partition(" ")
        name = re.match(r"\s*(\w+)\(", text)
        if name is None or " resumed>" in text:
            continue
        if name[1] == "execve" and f'"{root}/program"' in text:
            programs.add(pid)
        if pid in programs or name[1] == "execve":
            continue
        if re.search(r"/agent/[^/\"]*\.pyz", text):
            phases[1 if programs else 0]["zip"] += 1  # Python reads modules from there: a cached file
            continue
        text = re.sub(r'AT_FDCWD<[^>]*>, (?=")', "", text)  # the working directory says nothing of an absolute path
        if root not in text or f"{root}/marks" in text or f"{root}/shims" in text:
            continue
        phase = phases[1 if programs else 0]
        phase["all"] += 1
        phase[name[1]] += 1
        phase["renames"] += "rename" in name[1]
        phase["renames of samples"] += "rename" in name[1] and '.use"' in text
        if "sync" in name[1]:
            phase["fsync"] += name[1] != "fsync"
        elif "O_CREAT" in text or "O_TMPFILE" in text or any(word in name[1] for word in CHANGES):
            phase["changes"] += 1
    return phases


def inodes(it: Measuring) -> None:
    """What a finished run leaves in .shoal, folders included; a file with two names is one."""
    for place, works in (("local", it.local()), ("Slurm", it.slurm())):
        more = it.figures()
        for work in works:
            run_to_end(work, it.sandbox)
            before = work.inodes()
            run_to_end(work, it.sandbox)
            more[work.side.name] = [float(work.inodes() - before)]
        it.table.row(f"inodes of a finished run, {place}", more, "{:.0f}", "10")
        layouts: list[tuple[str, list[object]]] = [("pack", ["--layout", "pack", "--slots", SLOTS])]
        if place == "Slurm":
            layouts.append(("array", ["--layout", "array"]))
        for layout, flags in layouts:
            more = it.figures()
            for work in works:
                before = work.inodes()
                run_to_end(work, it.sandbox, "--seeds", "0-19", *flags)
                more[work.side.name] = [(work.inodes() - before) / 20]
            it.table.row(f"inodes of each of 20 runs, {place} {layout}", more, "{:.1f}", "10")


def run_to_end(work: Work, sandbox: Sandbox | None, *flags: object) -> None:
    work.finish(work.submit(*flags))
    if not work.is_local and sandbox is not None:
        wait_for(lambda: not sandbox.run("squeue", "-h").stdout.strip(), 120)


def beats(it: Measuring) -> None:
    """What a run that does nothing but live costs the file server; all sides at the same time."""
    works = it.local()
    commands = []
    for work in works:
        work.finish(work.submit())
        work.takes(BEATS_S)
        work.trace(STRACE)
        commands.append(work.submit())
    for work, command in zip(works, commands, strict=True):
        work.finish(command)
    rest: dict[str, Counter[str]] = {}
    for work in works:
        whole = count_calls(work)[1]
        work.takes(0)
        work.finish(work.submit())
        rest[work.side.name] = whole - count_calls(work)[1]
    words = {"renames": "renames", "renames of samples": "of these of the samples of use", "all": WORDS["all"]}
    for kind, what in words.items():
        figures = {name: [found[kind] * 60 / BEATS_S] for name, found in rest.items()}
        it.table.row(f"a run that lives, each minute: {what}", figures, "{:.1f}", "3" if kind == "renames" else "")


PARTS: dict[str, Callable[[Measuring], None]] = {
    "start": start,
    "pack": pack,
    "submit": submit,
    "calls": calls,
    "inodes": inodes,
    "beats": beats,
}


def once(work: Callable[[], object]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begin)


def cpu_s() -> float:
    """Processor time of everything that we started and that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read_int(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def wait_for(condition: Callable[[], int | bool], deadline_s: float) -> int:
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"waited {deadline_s} s in vain")
        time.sleep(0.01)
    return value


if __name__ == "__main__":
    main()
