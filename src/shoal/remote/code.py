"""The project's code as it travels: the snapshot that a submission here would take, by content.

The cluster says which files it lacks, and only those are sent; neither git nor rsync is needed there. What the snapshot
does not copy (outputs, data, environments, files with secrets) stays where it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.actions import take_snapshot
from shoal.describe import TOML_NAME, Project
from shoal.errors import InputError
from shoal.kernel import layout
from shoal.remote.channel import RemoteChannel

_FRAME_BYTES = 1 << 18
_KEEP_DEADLINE_S = 55.0
#: The code itself is there; a larger difference to its commit is mostly data.
_MAX_DIFFERENCE_BYTES = 32 << 20


class TreeFile(NamedTuple):
    """A file of the code. `kind` is file, program (executable) or link; the digest of a link is its target."""

    path: str
    kind: str
    digest: str
    size: int


class CodeTree(NamedTuple):
    """What travels: files below `top`. `name` is theirs on the cluster, `inside` the project's directory among them;
    `record` and `difference` are what a snapshot has beside it."""

    name: str
    inside: str
    top: str
    files: list[TreeFile]
    record: Mapping[str, Any]
    difference: str


def project_code(project: Project, environ: Mapping[str, str]) -> CodeTree:
    """All code of a project, with its uncommitted work."""
    kept = take_snapshot(project.root, project.home, environ, project.link)
    if kept is None:
        raise InputError("git is needed on this machine to see which files are code", hint="install git")
    top = layout.snapshot_of(kept.root)
    record = json.loads(Path(f"{top}.json").read_bytes())
    inside = os.path.relpath(kept.root, top)
    links = record.get("links")
    files = list(_tree_files(top, "", None if links is None else set(links)))
    try:
        difference = Path(f"{top}.diff").read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        difference = ""
    return _named(inside, top, files, record, difference)


def project_settings(project: Project) -> CodeTree:
    """The settings alone, for commands that start nothing."""
    path = project.root / TOML_NAME
    data = path.read_bytes()
    files = [TreeFile(TOML_NAME, "file", hashlib.sha256(data).hexdigest(), len(data))]
    record: dict[str, Any] = {
        "schema": 1,
        "commit": None,
        "branch": None,
        "changed": False,
        "above": [],
        "size": len(data),
    }
    return _named(".", str(project.root), files, record, "")


def send_tree(channel: RemoteChannel, tree: CodeTree, directory: str) -> None:
    """Bring the code to the project's directory on the cluster, unless it is there."""
    if channel.ask("tree", name=tree.name, directory=directory)["there"]:
        return
    manifest = zlib.compress(json.dumps(tree.files).encode("ascii"))
    places = channel.ask("offer", manifest, deadline_s=_KEEP_DEADLINE_S)["missing"]
    for block in _blocks(tree, [tree.files[place] for place in places]):
        channel.send("bytes", block)
    record = {**tree.record, "tree": tree.record.get("tree", tree.name)}
    difference = zlib.compress(tree.difference.encode("utf-8", "surrogateescape")) if tree.difference else b""
    if len(difference) > _MAX_DIFFERENCE_BYTES:
        difference, record["difference"] = b"", "not sent: too large"
    kept = channel.ask("keep", difference, record=record, deadline_s=_KEEP_DEADLINE_S)
    if not kept["there"]:
        raise InputError("the code did not arrive", hint="run the same command again")


def _named(inside: str, top: str, files: list[TreeFile], record: Mapping[str, Any], difference: str) -> CodeTree:
    meaning = [inside, record.get("commit"), record["changed"], files]
    name = hashlib.sha256(json.dumps(meaning).encode("ascii")).hexdigest()[:16]
    return CodeTree(name, inside, top, files, record, difference)


def _tree_files(top: str, inside: str, links: set[str] | None) -> Iterator[TreeFile]:
    """Files of a snapshot in order; of links those that are part of the code, not those to what stays here."""
    for entry in sorted(os.scandir(os.path.join(top, inside)), key=lambda entry: entry.name):
        path = os.path.join(inside, entry.name)
        if entry.is_symlink():
            target = os.readlink(entry.path)
            if path in links if links is not None else not os.path.isabs(target):
                yield TreeFile(path, "link", target, 0)
        elif entry.is_dir():
            yield from _tree_files(top, path, links)
        elif entry.is_file():
            found = entry.stat()
            kind = "program" if found.st_mode & 0o100 else "file"
            yield TreeFile(path, kind, _digest_of_file(entry.path), found.st_size)


def _digest_of_file(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:  # noqa: PTH123
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _blocks(tree: CodeTree, files: list[TreeFile]) -> Iterator[bytes]:
    """The contents one after another, in blocks."""
    block = b""
    for one in files:
        with open(os.path.join(tree.top, one.path), "rb") as file:  # noqa: PTH123
            while data := file.read(_FRAME_BYTES):
                block += data
                if len(block) >= _FRAME_BYTES:
                    yield block
                    block = b""
    if block:
        yield block
