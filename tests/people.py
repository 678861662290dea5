"""Two real users of this machine with one group, a project folder that they share, and a Slurm that both may use.

Only root can make them. Names carry the pid of the test session; users, group and folders are gone at the end.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shoal
from project import TRAIN, Done
from shoal.sandbox import Sandbox, SandboxSpec
from waiting import wait_until

TOML = """\
snapshot = false

[steps.train]
command = [{python}, "-S", {train}]
output = "training"
checkpoint = "model_*.pth"
"""


class Person(NamedTuple):
    """One of the users, at a project: runs commands there under an umask of their own."""

    name: str
    uid: int
    root: Path
    env: dict[str, str]
    umask: int

    def run(self, *argv: object, code: int | None = 0, **env: str) -> Done:
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=self.root,
            env={**self.env, **env},
            user=self.name,
            group=self.name,
            extra_groups=[self.env["TEST_GROUP"]],
            umask=self.umask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert code is None or done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Done(done.returncode, done.stdout, done.stderr)

    def shoal(self, *words: object, code: int | None = 0, **env: str) -> Done:
        return self.run("shoal", *words, code=code, **env)

    def start(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["shoal", *map(str, words)],
            cwd=self.root,
            env=self.env,
            user=self.name,
            group=self.name,
            extra_groups=[self.env["TEST_GROUP"]],
            umask=self.umask,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def can_read(self, path: Path) -> bool:
        return self.run("bash", "-c", f'cat "{path}" > /dev/null', code=None).code == 0

    def can_write(self, path: Path) -> bool:
        return self.run("bash", "-c", f'>> "{path}"', code=None).code == 0

    def states(self) -> dict[str, str]:
        """Each run's state, by the last part of its name."""
        runs: list[dict[str, Any]] = self.shoal("status", "--json").json["runs"]
        return {run["name"].rpartition("/")[2]: run["state"] for run in runs}

    def wait(self, deadline_s: float = 60, **states: str) -> None:
        wanted = {f"000_train_{name[1:]}": state for name, state in states.items()}
        wait_until(lambda: wanted.items() <= self.states().items(), deadline_s, f"{wanted} for {self.name}", poll_s=0.3)


class Group:
    """The users, and projects that they share."""

    def __init__(self, folder: Path, sandbox: Sandbox | None) -> None:
        self.folder, self.sandbox = folder, sandbox
        stem = f"shoal{os.getpid()}{'h' if sandbox is None else 's'}"
        self.group, self.names = f"{stem}g", (f"{stem}a", f"{stem}b")
        self.python = _open_python(folder)

    def add(self) -> None:
        _remove_leftovers()
        subprocess.run(["groupadd", self.group], check=True)
        for name in self.names:
            home = self.folder / name
            subprocess.run(["useradd", "-U", "-m", "-d", home, "-G", self.group, name], check=True)

    def remove(self) -> None:
        _remove(self.names, [self.group])

    def project(self, label: str, *, toml: str = "", umasks: tuple[int, int] = (0o002, 0o002)) -> tuple[Person, Person]:
        """A project of the first person in a folder that is setgid and the group's; nothing was submitted in it yet."""
        root = self.folder / label
        (root / "marks").mkdir(parents=True)
        (root / "experiments").mkdir()
        (root / "train.py").write_text(f"ROOT = {str(root)!r}\n{TRAIN}")
        words = {"python": json.dumps(self.python), "train": json.dumps(str(root / "train.py"))}
        (root / "shoal.toml").write_text(toml + TOML.format(**words))
        for path in (root, *root.rglob("*")):
            shutil.chown(path, self.names[0], self.group)
            path.chmod(0o2770 if path.is_dir() else 0o660)
        first, second = (
            Person(name, int(_id(name)), root, self._env(name), umask)
            for name, umask in zip(self.names, umasks, strict=True)
        )
        return first, second

    def _env(self, name: str) -> dict[str, str]:
        base = self.sandbox.env() if self.sandbox else {"SHOAL_ON": "local"}
        return {
            **{key: value for key, value in base.items() if key.startswith(("SLURM", "SHOAL_ON"))},
            "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / name),
            "USER": name,
            "LOGNAME": name,
            "SHOAL_SUBMIT_GRACE_S": "3",
            "TEST_GROUP": self.group,
        }


@contextlib.contextmanager
def group(label: str, *, slurm: bool) -> Iterator[Group]:
    """Users, and with `slurm` a cluster of their own: the session's one stands where only root can go."""
    folder = Path(tempfile.mkdtemp(prefix=f"shoal-{label}-", dir="/tmp"))
    folder.chmod(0o755)
    sandbox = _open_sandbox(folder) if slurm else None
    made = Group(folder, sandbox)
    try:
        made.add()
        yield made
    finally:
        if sandbox is not None:
            sandbox.down()
        made.remove()
        shutil.rmtree(folder)


def share_state(person: Person, mode: int = 0o2770) -> Path:
    """The state folder as its owner makes it by hand, without any setting."""
    home = person.root / ".shoal"
    person.run("mkdir", home)
    person.run("chmod", f"{mode:o}", home)
    return home


def _remove(users: Iterable[str], groups: Iterable[str]) -> None:
    for name in users:
        subprocess.run(["userdel", "-f", name], check=False, capture_output=True)
    for name in groups:
        subprocess.run(["groupdel", name], check=False, capture_output=True)


def _remove_leftovers() -> None:
    """Users and groups of sessions that were killed."""
    ours = re.compile(r"shoal(\d+)[hs][abg]")

    def dead(names: list[str]) -> list[str]:
        found = ((name, ours.fullmatch(name)) for name in names)
        return [name for name, match in found if match and not os.path.exists(f"/proc/{match[1]}")]

    _remove(dead([user.pw_name for user in pwd.getpwall()]), dead([one.gr_name for one in grp.getgrall()]))


def _open_sandbox(folder: Path) -> Sandbox:
    before = os.environ.get("SHOAL_SANDBOX_HOME")
    os.environ["SHOAL_SANDBOX_HOME"] = str(folder / "s")
    try:
        sandbox = Sandbox(SandboxSpec(name=f"p{os.getpid()}", nodes=2, settings=(("KillWait", "20"),)))
    finally:
        if before is None:
            del os.environ["SHOAL_SANDBOX_HOME"]
        else:
            os.environ["SHOAL_SANDBOX_HOME"] = before
    sandbox.up(deadline_s=180)
    layout = sandbox.layout
    for path in (layout.home, layout.folder, layout.spool, *layout.spool.iterdir()):
        path.chmod(0o755)
    for path in layout.folder.glob("*.conf"):
        path.chmod(0o644)
    return sandbox


def _open_python(folder: Path) -> str:
    """A Python that everybody may use, with this shoal and a `shoal` command; ours may stand where only we can go."""
    base = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    if not os.path.exists(base):
        pytest.skip(f"there is no {base} that other users can run")
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder / "python")], check=True)
    (site,) = (folder / "python").glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join([*packages, str(Path(shoal.__file__).parents[1])]) + "\n")
    python = folder / "python" / "bin" / "python"
    command = python.with_name("shoal")
    command.write_text(f"#!{python}\nimport sys\nfrom shoal.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    return str(python)


def _id(name: str) -> str:
    return subprocess.run(["id", "-u", name], check=True, capture_output=True, text=True).stdout
