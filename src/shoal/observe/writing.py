"""Write a run's files: every one is created once, by link, and whoever comes first decides.

Submissions and claims are written by the one transaction, shoal.kernel.submission.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.errors import InputError
from shoal.kernel import files, layout
from shoal.model import RunSpec
from shoal.observe import records
from shoal.observe.reading import RunFiles, read_spec
from shoal.observe.records import DamagedRecord, Verdict
from shoal.observe.sharing import make_shared

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
    return files.create_exclusive(path, files.to_json({"schema": 1, **record}))


def write_verdict(home: str, run: RunFiles, verdict: Verdict) -> None:
    kind = layout.verdict_kind(run.names.attempt)
    path = os.path.join(layout.run_dir(home, run.name), layout.submit_file(run.generation, kind))
    files.create_exclusive(path, records.encode_file(verdict))


def map_in_threads(work: Callable[[A], B], items: list[A]) -> list[B]:
    """Apply `work` to each item, several at a time, in order; the first error is raised after all have been tried."""
    if len(items) == 1:
        return [work(items[0])]
    from concurrent.futures import ThreadPoolExecutor  # here: commands that only look start sooner without it

    with ThreadPoolExecutor(_WRITER_THREADS) as pool:
        return list(pool.map(work, items))
