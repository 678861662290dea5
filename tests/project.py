"""A small project in a temporary folder, and the `shoal` command run on it as a person would: as another process.

`Project(tmp_path)` is on this machine; `Project(tmp_path, cluster)` speaks to that sandbox. Its only program, train.py,
writes down what it was given (one line of JSON in marks/<run> at its start, one at its end) and then does what its
arguments say: exit=7, kill=9, save=3, wait=FILE, print=WORDS; any other argument is only written down.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.kernel import records
from shoal.kernel.records import End, Start
from shoal.sandbox import Sandbox
from waiting import wait_until

SHOAL = Path(sys.executable).with_name("shoal")
ENDED = ("completed", "failed", "oom", "timeout", "preempted", "node_fail", "cancelled", "lost")

TRAIN = """\
import json, os, signal, sys, time
run, out = os.environ["SHOAL_RUN"], os.environ["SHOAL_OUTPUT_DIR"]
def mark(what):
    kept = {k: v for k, v in os.environ.items() if k.startswith(("SHOAL_", "WANDB_", "SLURM_JOB", "TEST_", "LC_"))}
    line = json.dumps({"what": what, "args": sys.argv[1:], "env": kept, "cwd": os.getcwd()}) + "\\n"
    with open(os.path.join(ROOT, "marks", run.replace("/", ".")), "a") as file:
        file.write(line)
resume_from = os.environ["SHOAL_RESUME_FROM"]
if "polite" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
mark("start")
code = 0
for word in sys.argv[1:]:
    do, _, what = word.partition("=")
    if do == "exit":
        code = int(what)
    elif do == "kill":
        os.kill(os.getpid(), int(what))
    elif do == "save":
        with open(os.path.join(out, "model_%s.pth" % what), "w") as file:
            file.write("weights")
    elif do == "print":
        print(what, flush=True)
    elif do == "wait":
        while not os.path.exists(os.path.join(ROOT, what)):
            time.sleep(0.05)
    elif do == "first" and os.environ["SHOAL_ATTEMPT"] == "1":
        while True:
            time.sleep(0.1)
mark("end")
sys.exit(code)
"""

TOML = """\
snapshot = false

[steps.train]
command = [{python}, "-S", {train}]
output = "training"
checkpoint = "model_*.pth"

[steps.posttrain]
command = [{python}, "-S", {train}]
output = "posttraining"
checkpoint = "model_*.pth"

[steps.evaluate]
command = [{python}, "-S", {train}, "from={{start_from}}"]
output = "evaluation"
"""


def read_record(path: Path) -> dict[str, Any]:
    """An attempt's file holds its start, and behind that its end."""
    first, _, second = path.read_text().partition("\n")
    is_end = path.suffix == ".end"
    if not is_end and path.suffix != ".start":
        return json.loads(first)  # type: ignore[no-any-return]
    return _all_fields(records.decode_record(json.loads(second if is_end else first), End if is_end else Start))


def _all_fields(record: Any) -> dict[str, Any]:
    """Those with their default value too, which are not in the file."""
    return {
        name: _all_fields(value) if hasattr(value, "_asdict") else list(value) if isinstance(value, tuple) else value
        for name, value in record._asdict().items()
    }


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)  # type: ignore[no-any-return]


class Project:
    """A folder with shoal.toml, train.py and experiments/, and a home folder of its own beside it."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None, *, name: str = "project", toml: str = "") -> None:
        self.root = folder / name
        self.cluster = cluster
        self.home = self.root / ".shoal"
        (self.root / "marks").mkdir(parents=True)
        (self.root / "experiments").mkdir()
        user = folder / "home"
        user.mkdir(exist_ok=True)
        self.write("train.py", f"ROOT = {str(self.root)!r}\n{TRAIN}")
        words = {"python": json.dumps(sys.executable), "train": json.dumps(str(self.root / "train.py"))}
        self.write("shoal.toml", TOML.format(**words) + toml)
        base = os.environ if cluster is None else cluster.env()
        kept = {name: value for name, value in base.items() if not name.startswith(("SHOAL_", "WANDB_", "XDG_"))}
        if cluster is None:
            kept = {name: value for name, value in kept.items() if not name.startswith("SLURM")}
        path = f"{SHOAL.parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        self.env = {**kept, "HOME": str(user), "PATH": path, "SHOAL_SUBMIT_GRACE_S": "3", "SHOAL_LEASE_S": "12"}

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def script(self, path: str, *lines: str) -> Path:
        """An experiment script: script("001_a/000_train_0.sh", "train -- exit=7")."""
        body = "\n".join(lines or ("train --time=5 --mem=50",))
        return self.write(f"experiments/{path}", f'source "$(shoal shell)"\n{body}\n')

    def shoal(
        self,
        *words: object,
        code: int | None = 0,
        timeout_s: float = 300,
        environ: Mapping[str, str] = MappingProxyType({}),
        **env: str,
    ) -> Done:
        """Run `shoal WORDS` in the root; `code` is the exit code it must have, None for any."""
        return self.run([SHOAL, *words], code=code, timeout_s=timeout_s, environ={**environ, **env})

    def bash(self, *words: object, code: int | None = 0, timeout_s: float = 300, **env: str) -> Done:
        return self.run(["bash", *words], code=code, timeout_s=timeout_s, environ=env)

    def run(
        self,
        argv: Sequence[object],
        *,
        code: int | None = 0,
        timeout_s: float = 300,
        cwd: Path | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        **env: str,
    ) -> Done:
        """Run a command; `environ` and `env` are added to the project's environment."""
        done = subprocess.run(
            [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in argv],
            cwd=cwd or self.root,
            env={**self.env, **environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        assert not re.search(r'File "[^"]*(/shoal/|shoal_agent/)', err), err  # a traceback of ours, not the program's
        assert code is None or done.returncode == code, f"{argv} ended with {done.returncode}\n{out}\n{err}"
        return Done(done.returncode, out, err)

    def start(self, *words: object, **env: str) -> subprocess.Popen[str]:
        """Begin `shoal WORDS` and return at once; for races. Collect it with `communicate`."""
        return subprocess.Popen(
            [SHOAL, *map(str, words)],
            cwd=self.root,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def slurm(self, *argv: str, check: bool = True) -> str:
        assert self.cluster is not None
        return self.cluster.run(*argv, check=check, cwd=self.root).stdout

    def status(self, *which: str) -> dict[str, dict[str, Any]]:
        """name -> record of `shoal status --json`."""
        return {run["name"]: run for run in self.shoal("status", "--json", *which).json["runs"]}

    def wait(self, name: str, *states: str, deadline_s: float = 60) -> dict[str, Any]:
        """Wait until a run is in one of these states (default: any that is an end), and return its record.

        A look costs as much processor time as many a run, so it is made when the run has written something, and for
        what only Slurm knows now and then.
        """
        wanted = states or ENDED
        seen: list[str] | None = None
        due = 0.0

        def look() -> dict[str, Any] | None:
            nonlocal seen, due
            names, asked = self._state_files(name), time.monotonic()
            if names == seen and asked < due:
                return None
            seen, run = names, self.status(name)[name]
            due = time.monotonic() + max(0.7, time.monotonic() - asked)
            if not states or run["state"] in wanted or run["state"] not in ENDED:
                return run if run["state"] in wanted else None
            raise AssertionError(f"{name} is {run['state']} ({run['reason']}), not {' or '.join(states)}")

        return wait_until(look, deadline_s, f"{name} is {' or '.join(wanted)}", poll_s=0.05)

    def _state_files(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.home / "runs" / name))
        except OSError:
            return []

    def marks(self, name: str, what: str = "start") -> list[dict[str, Any]]:
        """What the program wrote down, in order; a line that is just being written is none yet."""
        try:
            text = (self.root / "marks" / name.replace("/", ".")).read_text()
        except FileNotFoundError:
            return []
        return [mark for mark in map(json.loads, text.split("\n")[:-1]) if mark["what"] == what]

    def wait_started(self, name: str, times: int = 1, deadline_s: float = 60) -> dict[str, Any]:
        """Wait until the program has begun so many times, and return what it then wrote down."""
        wait_until(lambda: len(self.marks(name)) >= times, deadline_s, f"{name} began {times} times")
        return self.marks(name)[times - 1]

    def records(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Records of a run's state folder: records(name, "attempt.*.end")."""
        folder = self.home / "runs" / name
        return [read_record(path) for path in sorted(folder.glob(kind)) if ".tmp-" not in path.name]

    def submissions(self) -> list[Path]:
        return sorted((self.home / "submissions").glob("*"))

    def jobs(self) -> list[str]:
        """Names of the jobs that Slurm has in memory and that come from this project."""
        return self.queue("%j", "-t", "all")

    def queue(self, fields: str, *flags: str) -> list[str]:
        """squeue's rows of this project's jobs, each array task by itself: queue("%T|%E")."""
        rows = self.slurm("squeue", "-h", "-r", *flags, "-o", f"{fields}|%j").splitlines()
        tokens = tuple(folder.name for folder in self.submissions())  # after the rows: each job has its folder by then
        return [row.rpartition("|")[0] for row in rows if row.endswith(tokens)] if tokens else []

    def assert_ran_once(self, *names: str) -> None:
        """The audit: each run began and ended exactly once, well, and left no temporary file."""
        for name in names:
            ends = [end for end in self.records(name, "attempt.*.end") if end["success"]]
            assert len(ends) == 1, f"{name} has {len(ends)} good ends"
            assert len(self.marks(name, "end")) == 1, f"{name} ended {len(self.marks(name, 'end'))} times"
            assert len(self.marks(name)) == 1, f"{name} began {len(self.marks(name))} times"
        wait_until(lambda: not self._unfinished(), 20, "no process that lives has a temporary file")

    def _unfinished(self) -> list[str]:
        """Processes that are in the middle of a write; one that was killed there leaves its temporary file."""
        left = [path.name.rpartition(".tmp-")[2].split("-")[0] for path in self.root.rglob("*.tmp-*")]
        return [pid for pid in left if os.path.exists(f"/proc/{pid}")]


def end_process(process: subprocess.Popen[Any]) -> None:
    """End a process that a test started, and collect it."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def assert_clear_error(done: Done, code: int, *words: str) -> None:
    """The contract of an error: its code, one `error:` line, a hint, no traceback; and these words in it."""
    assert done.code == code, f"exit code {done.code}\n{done.out}\n{done.err}"
    lines = done.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert any(line.startswith("hint: ") for line in lines), done.err
    assert "shoal broke" not in done.err and "Traceback" not in done.err, done.err
    for word in words:
        assert word in done.err, f"{word!r} is not in {done.err}"


def env_of(mark: Mapping[str, Any], name: str) -> str:
    return str(mark["env"].get(name, ""))


def project_here(folder: Path, **env: str) -> Project:
    """A project whose runs stay on this machine, whatever Slurm it could speak to."""
    made = Project(folder)
    made.env.update(SHOAL_ON="local", **env)
    return made


def processes_with(*words: str) -> list[int]:
    """Every process but ours whose environment has all these words, whatever became of its parents."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if int(name) != os.getpid() and all(word.encode() in environ for word in words):
            found.append(int(name))
    return found


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
