"""shoal itself as one zip, for clusters on which it is not installed: the package, msgspec, rich and what they need."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.remote import stub
from shoal.remote.channel import INSTALL_DEADLINE_S, RemoteChannel

_DEPENDENCIES = ("msgspec", "rich")


class Package(NamedTuple):
    """`digest` is that of all files, so that both sides always have the same version."""

    digest: str
    files: Mapping[str, Path]

    def zip(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for name, path in self.files.items():
                archive.write(path, name)
        return buffer.getvalue()


def ensure_installed(channel: RemoteChannel, python: str | None) -> str:
    """Bring shoal to the cluster unless this version is there; the digest that names it."""
    package = own_package()
    found = channel.ask("find", digest=package.digest, python=python, deadline_s=INSTALL_DEADLINE_S)
    if found["installed"]:
        return package.digest
    chosen = _choose_interpreter(channel, found["interpreters"], python)
    data = package.zip()
    channel.ask(
        "install",
        data,
        digest=package.digest,
        python=chosen,
        sha256=hashlib.sha256(data).hexdigest(),
        deadline_s=2 * INSTALL_DEADLINE_S,
    )
    return package.digest


@cache
def own_package() -> Package:
    """The files of this shoal and of the packages that it needs, as they are installed here."""
    import shoal

    top = Path(shoal.__file__).parent
    files = {f"shoal/{path.relative_to(top)}": path for path in sorted(top.rglob("*")) if _is_shipped(path)}
    for name in _with_requirements(_DEPENDENCIES):
        files.update(sorted(_distribution_files(name)))
    digest = hashlib.sha256()
    for name, path in files.items():
        found = path.stat()
        digest.update(json.dumps([name, found.st_size, found.st_mtime_ns]).encode())
    return Package(_content_digest(files, digest.hexdigest()), files)


def _content_digest(files: Mapping[str, Path], quick: str) -> str:
    """The digest of all contents, kept by sizes and times: reading some hundred files takes longer than asking."""
    cache_file = _cache_directory() / f"package-{quick[:16]}"
    try:
        kept = cache_file.read_text("ascii").strip()
        if re.fullmatch(r"[0-9a-f]{16}", kept):
            return kept
    except OSError:
        pass
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    found = digest.hexdigest()[:16]
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        part = cache_file.with_name(f"{cache_file.name}.tmp-{os.getpid()}")
        part.write_text(found, "ascii")
        part.replace(cache_file)
    except OSError:
        pass  # it is computed again the next time
    return found


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "shoal"


def _is_shipped(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".pyc", ".pyo") and "__pycache__" not in path.parts


def _with_requirements(names: Sequence[str]) -> list[str]:
    """Packages and what they require, without extras."""
    from importlib.metadata import PackageNotFoundError, requires

    known: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name in known:
            continue
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            if name in names:
                raise ShoalError(
                    f"{name} is not installed here as a package", hint="install shoal with pip or uv"
                ) from None
            continue
        known[name] = None
        plain = (line.partition(";") for line in needed)
        waiting += [re.split(r"[\s<>=!~\[(]", text.strip())[0] for text, _, marker in plain if "extra" not in marker]
    return list(known)


def _distribution_files(name: str) -> Iterator[tuple[str, Path]]:
    from importlib.metadata import files

    for file in files(name) or ():
        path = Path(str(file.locate()))
        if ".." not in file.parts and _is_shipped(path):
            yield str(file), path


def _choose_interpreter(channel: RemoteChannel, found: Sequence[Mapping[str, Any]], asked: str | None) -> str:
    """A Python there that runs the packages of this machine: msgspec is compiled for one Python and one system."""
    host, profile = channel.remote.host, channel.remote.profile
    setting = f'set python = "/path/to/python" in [clusters.{profile}.ssh]'
    wanted = ".".join(map(str, stub.MIN_PYTHON))
    own = [sysconfig.get_config_var("SOABI") or "", f"{sys.platform}-{platform.machine()}", platform.libc_ver()[0]]
    if not found:
        what = f"python = {asked!r} does not start" if asked else f"no Python {wanted} or later"
        raise ShoalError(f"{host}: {what}", hint=setting)
    new_enough = [one for one in found if tuple(one["version"]) >= stub.MIN_PYTHON]
    if not new_enough:
        versions = ", ".join(f"{one['path']} is {_version(one)}" for one in found)
        raise ShoalError(f"{host}: shoal needs Python {wanted} or later there, and {versions}", hint=setting)
    for one in new_enough:
        if [one["soabi"], one["platform"], one["libc"]] == own:
            return str(one["path"])
    there = ", ".join(f"{one['path']} ({_version(one)}, {one['platform']})" for one in new_enough)
    raise ShoalError(
        f"{host}: msgspec of this machine ({own[0]}, {own[1]}) does not fit its Python: {there}",
        hint=f"run shoal here with Python {_version(new_enough[0])} on the same system, or {setting}",
    )


def _version(one: Mapping[str, Any]) -> str:
    return ".".join(map(str, one["version"]))
