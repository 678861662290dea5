"""Where a sandbox keeps its files, and the record that lets `down` clean what a killed `up` left.

The record is written before the first process, namespace or cgroup exists, so that nothing is ever made that a later
command could not find again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shoal.errors import InputError, ShoalError
from shoal.sandbox.spec import SandboxSpec

HOME_VARIABLE = "SHOAL_SANDBOX_HOME"
_SOCKET_PATH_LIMIT = 107  # sun_path of unix(7), less the closing zero
_LOCK_DEADLINE_S = 30.0


class Ports(msgspec.Struct, frozen=True):
    slurmctld: int
    slurmd: tuple[int, ...]
    slurmdbd: int

    def all(self) -> tuple[int, ...]:
        return (self.slurmctld, *self.slurmd, self.slurmdbd)


class SlurmRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A built root. `folder` is in it because its programs name their loader by its full path."""

    release: str
    version: str
    suite: str
    folder: str
    plugins: str

    @property
    def programs(self) -> Path:
        return Path(self.folder) / "programs"

    @property
    def base(self) -> Path:
        """MariaDB's --basedir."""
        return Path(self.folder) / "usr"


class SandboxState(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` decided and how far it came; `mark` is in the environment of every process it started."""

    schema: int = 1
    mark: str
    spec: SandboxSpec
    ports: Ports
    cgroups: bool
    subnet: str | None
    slurm_version: str = ""
    slurm_root: SlurmRoot | None = None
    is_up: bool = False


class SandboxPaths:
    """The one place that knows a sandbox's file names."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self.folder = home / name
        self.state = self.folder / "sandbox.json"
        self.conf = self.folder / "slurm.conf"
        self.slurmdbd_conf = self.folder / "slurmdbd.conf"
        self.munge_key = self.folder / "munge.key"
        self.munge_socket = self.folder / "munge.sock"
        self.database = self.folder / "db"
        self.database_socket = self.folder / "db.sock"
        self.hosts = self.folder / "hosts"
        self.resolver = self.folder / "resolv.conf"
        self.devices = self.folder / "gpu"
        self.save = self.folder / "save"
        self.spool = self.folder / "spool"
        self.run = self.folder / "run"
        self.logs = self.folder / "log"

    def output(self, daemon: str) -> Path:
        """What a daemon writes to its standard output and error."""
        return self.logs / f"{daemon}.out"

    def log(self, daemon: str) -> Path:
        """What a Slurm daemon writes to its log file; slurmstepd, which has no output, writes only here."""
        return self.logs / f"{daemon}.log"

    def record(self, daemon: str) -> Path:
        return self.run / f"{daemon}.json"

    def make(self) -> None:
        for folder in (self.devices, self.save, self.spool, self.run, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def check_length(self, node_names: tuple[str, ...]) -> None:
        """Refuse a folder whose longest socket path the kernel would not take."""
        node = max(node_names, key=len)
        longest = self.spool / node / f"{node}_99999999.4294967295"
        if (over := len(os.fsencode(longest)) - _SOCKET_PATH_LIMIT) > 0:
            raise InputError(
                f"the folder {self.folder} is {over} bytes too long for Slurm's sockets",
                hint=f"export {HOME_VARIABLE}=/tmp/sandboxes, or take a shorter --name",
            )

    def is_ours(self) -> bool:
        """Whether the folder is a sandbox's: it has a record, or is still as empty as a killed `up` leaves it."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return False
        try:
            inside = [entry.name for entry in self.folder.iterdir()]
        except FileNotFoundError:
            return False  # its `down` has just removed it
        return self.state.name in inside or all(name.startswith(".sandbox.json.") for name in inside)

    def load(self) -> SandboxState | None:
        try:
            return msgspec.json.decode(self.state.read_bytes(), type=SandboxState)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ShoalError(
                f"{self.state} cannot be read ({error})",
                hint=f"look for processes that use it, then rm -r {self.folder}",
            )

    def others(self) -> list[SandboxState]:
        """Records of the other sandboxes of this user that can be read."""
        found = []
        for entry in self.home.iterdir():
            with contextlib.suppress(ShoalError, OSError):
                if entry != self.folder and (state := SandboxPaths(self.home, entry.name).load()) is not None:
                    found.append(state)
        return found

    def save_state(self, state: SandboxState) -> None:
        write_atomically(self.state, msgspec.json.format(msgspec.json.encode(state), indent=2))


def default_home() -> Path:
    """The folder of all sandboxes of this user: short, because unix socket paths end at 107 bytes, and private."""
    if chosen := os.environ.get(HOME_VARIABLE):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"shoal-sandbox-{os.getuid()}"  # noqa: S108


def open_home(home: Path) -> None:
    """Make sure that `home` exists and is private; in /tmp anyone could have made it first."""
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700, parents=True)
    check_home(home)


def check_home(home: Path) -> None:
    """Refuse a folder in which somebody else could have put a record for us to act on; a missing one is fine."""
    try:
        found = home.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ShoalError(
            f"{home} is not a private folder of this user", hint=f"export {HOME_VARIABLE}=<a folder of your own>"
        )


@contextlib.contextmanager
def directory_lock(folder: Path, deadline_s: float = _LOCK_DEADLINE_S) -> Iterator[None]:
    """Hold a folder, made if need be; the kernel lets go when the holder dies, so no lock outlives a kill -9."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # Another sandbox's `down` has just removed it, or the home that was empty.
            if not folder.parent.exists():
                open_home(folder.parent)
            continue
        try:
            if _try_lock(handle) and _is_same(handle, folder):
                yield
                return
        finally:
            os.close(handle)
        if time.monotonic() > end:
            raise ShoalError(f"another command is still working on {folder}", hint="wait for it, or end it, then retry")
        time.sleep(0.05)


def write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.rename(path)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(handle: int, folder: Path) -> bool:
    """Whether the folder was not removed and made anew while we waited for it."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False
