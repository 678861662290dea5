"""Write a run's files, each created once by link, so that the first writer decides; and remember silent leases.

Submissions and claims are written by the submission transaction (kernel/submission.py).

A lease is judged by the clock of the host that watches it: the same name for a number of seconds of this host's own
boot time. So what a command saw is kept for the next one. That file can be deleted at any time; watching then begins
anew.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.errors import InputError
from shoal.kernel import files, layout, lease, processes
from shoal.model import RunSpec
from shoal.observe import run_files
from shoal.observe.run_files import DamagedRecord, RunFiles, Verdict, read_spec
from shoal.observe.state_dir import make_shared

#: Small durable writes wait for the disk, not for the processor; eight at a time is where ext4 and NFS stop gaining.
_WRITER_THREADS = 8
A = TypeVar("A")
B = TypeVar("B")


def open_state_dir(home: Path, shared_by: Path | None) -> str:
    """Make the state folder if need be, and return it: private to the user, or as its owner has made it.

    `shared_by` is the root of a project that says `shared = true`: its group gets the state too. From here on this
    process makes files that the group can use, if the state folder is shared.
    """
    if shared_by is not None and not files.is_shared(str(shared_by)):
        raise InputError(f"shared = true, but the group cannot write in {shared_by}", hint="shoal init --shared")
    if not home.exists():
        home.mkdir(mode=files.PRIVATE_MODE, parents=True, exist_ok=True)
        if shared_by is not None:
            make_shared(home, shared_by.stat().st_gid)
    if home.stat().st_mode & 0o002:
        raise InputError(f"anybody may write in {home}, so nothing in it can be trusted", hint=f"chmod o-w {home}")
    if shared_by is not None and not files.is_shared(str(home)):
        raise InputError(f"shared = true, but {home} is private to {home.owner()}", hint="shoal init --shared")
    files.open_umask(str(home))
    for name in ("runs", "submissions"):
        files.make_dir(str(home / name))
    if not (home / ".gitignore").exists():
        files.create_exclusive(str(home / ".gitignore"), b"*\n", sync=False)
    return str(home)


def project_id(home: str) -> str:
    """A random id of this project, so that two people's runs of one repository differ in a shared tracker."""
    path = os.path.join(home, "project.json")
    try:
        record = files.read_json(path)
        if record is None:
            files.create_exclusive(path, files.to_json({"schema": 1, "id": secrets.token_hex(8)}))
            record = files.read_json(path) or {}
    except ValueError as damage:
        raise DamagedRecord(str(damage)) from None
    return str(record.get("id", ""))


def write_notify_settings(home: str, settings: msgspec.Struct | None) -> None:
    """Whom jobs tell about an end or a failure, as shoal.toml says now; nobody if there are no settings."""
    path = os.path.join(home, "notify.json")
    wanted = None if settings is None else {"schema": 1, **msgspec.structs.asdict(settings)}
    if files.read_json(path) != wanted:
        if wanted is None:
            os.unlink(path)
        else:
            files.replace(path, files.to_json(wanted))


def write_spec(home: str, spec: RunSpec) -> RunSpec:
    """Keep what the run is, under its revision; a spec that stands there already must be the same run."""
    folder = layout.run_dir(home, spec.name)
    files.make_dir(folder)
    path = os.path.join(folder, layout.spec_file(spec.revision))
    # The claim that follows in the same folder syncs the folder for both; a spec without a claim is worth nothing.
    if not files.create_exclusive(path, files.to_json(msgspec.to_builtins(spec)), sync_folder=False):
        kept = read_spec(path)
        if kept is None or kept.digest != spec.digest:
            raise InputError(
                f"another command has just described {spec.name} differently", hint=f"shoal status {spec.name}"
            )
        return kept
    return spec


def request_cancel(home: str, name: str, generation: int, record: dict[str, Any]) -> bool:
    path = os.path.join(layout.run_dir(home, name), layout.submit_file(generation, "cancel"))
    return files.create_in_run_dir(path, files.to_json({"schema": 1, **record}))


def write_verdict(home: str, run: RunFiles, verdict: Verdict) -> None:
    kind = layout.verdict_kind(run.names.attempt)
    path = os.path.join(layout.run_dir(home, run.name), layout.submit_file(run.generation, kind))
    files.create_in_run_dir(path, run_files.encode_file(verdict))


def map_in_threads(work: Callable[[A], B], items: list[A]) -> list[B]:
    """Apply `work` to each item, several at a time, in order; the first error is raised after all have been tried."""
    if len(items) == 1:
        return [work(items[0])]
    from concurrent.futures import ThreadPoolExecutor  # here: commands that only look start sooner without it

    with ThreadPoolExecutor(_WRITER_THREADS) as pool:
        return list(pool.map(work, items))


class ObservationHistory:
    """What is doubtful now, and since when. `save` keeps what this command saw, and forgets the rest."""

    def __init__(self, home: str) -> None:
        self._path = os.path.join(home, "cache", f"watch-{socket.gethostname()}-{os.getuid()}.json")
        self._boot = (processes.process_start_time(os.getpid()) or "").partition(":")[0]
        self._kept: dict[str, Any] | None = None
        self._looked_at: set[str] = set()
        self._seen: dict[str, Any] = {}

    def since(self, name: str, what: str) -> float:
        """For how many seconds `what` has been seen about the run, this look included."""
        known = self._before().get(name)
        if not isinstance(known, list) or known[0] != what:
            known = [what, lease.boot_time_s()]
        self._seen[name] = known
        return float(lease.boot_time_s() - known[1])

    def note_checked(self, name: str) -> None:
        self._looked_at.add(name)

    def save(self) -> None:
        """Doubts about runs that were looked at and are clear now are gone; others stay."""
        if not self._seen and self._kept is None and not os.path.exists(self._path):
            return
        before = self._before()
        after = {**{name: known for name, known in before.items() if name not in self._looked_at}, **self._seen}
        if after != before:
            with contextlib.suppress(OSError):
                files.make_dir(os.path.dirname(self._path))
                record = {"schema": 1, "boot": self._boot, "seen": after}
                files.replace(self._path, files.to_json(record), sync=False)

    def _before(self) -> dict[str, Any]:
        if self._kept is None:
            try:
                record = files.read_json(self._path) or {}
            except (OSError, ValueError):
                record = {}
            seen = record.get("seen")
            self._kept = seen if record.get("boot") == self._boot and isinstance(seen, dict) else {}
        return self._kept
