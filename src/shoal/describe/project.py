"""A project: the folder of shoal.toml, its steps, and the cluster profiles of the user and of the project together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from shoal.describe.cluster import Cluster, Layer, build_cluster, parse_cluster
from shoal.describe.columns import parse_columns
from shoal.describe.document import Document, Table, read_document
from shoal.describe.locate import TOML_NAME, find_root, home_of, user_config_path
from shoal.describe.notify import KEYS as NOTIFY_KEYS
from shoal.describe.notify import Notify, parse_notify
from shoal.describe.steps import Step, parse_step
from shoal.errors import InputError
from shoal.names import refuse_unprintable


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """What shoal.toml and the user's config say. `toml` is None for a folder without a shoal.toml."""

    root: Path
    home: Path
    toml: Path | None
    user_config: Path
    steps: dict[str, Step]
    clusters: dict[str, Cluster]
    notify: Notify | None = None
    snapshot: bool = True
    #: Paths of the project that runs see as they are, though their names look like outputs.
    link: tuple[str, ...] = ()
    shared: bool = False

    @property
    def shared_by(self) -> Path | None:
        """The folder whose group shares the project's state, if shoal.toml says so."""
        return self.root if self.shared else None

    def step(self, name: str) -> Step:
        """A declared step, or an InputError that lists those that are."""
        if name in self.steps:
            return self.steps[name]
        known = f"it has {', '.join(self.steps)}" if self.steps else "it declares no steps"
        toml = self.toml or self.root / TOML_NAME
        raise InputError(f"{TOML_NAME} has no step {name!r}; {known}", hint=f"add [steps.{name}] to {toml}")


def find_project(start: Path, environ: Mapping[str, str]) -> Project:
    """The project around a folder; an InputError when there is none, or when one of its files is wrong."""
    return load_project(Path(find_root(start)), environ)


def load_project(root: Path, environ: Mapping[str, str]) -> Project:
    """Read shoal.toml in `root`, if there is one, and the user's config; the project's values win over the user's."""
    if not os.path.lexists(root / TOML_NAME):
        return bare_project(root, environ)
    document = read_document(root / TOML_NAME, TOML_NAME)
    top = document.table(("steps", "clusters", "notify", "status", "snapshot", "link", "shared"))
    steps = {name: parse_step(name, table) for name, table in top.tables("steps").items()}
    parse_columns(top)
    project = _assemble(root, environ, steps, _cluster_values(top), root / TOML_NAME)
    notify = parse_notify(top.table("notify", NOTIFY_KEYS))
    snapshot, shared = top.flag("snapshot") is not False, top.flag("shared") is True
    link = _paths_to_link(top, root)
    return msgspec.structs.replace(project, notify=notify, snapshot=snapshot, link=link, shared=shared)


def _paths_to_link(top: Table, root: Path) -> tuple[str, ...]:
    paths = tuple(top.strings("link") or ())
    for path in paths:
        inside = os.path.normpath(path)
        if not path or inside in (".", "..") or inside.startswith(("/", "../")):
            raise InputError(
                f"link must name paths inside {root}, not {path!r}",
                place=top.place("link"),
                hint='link = ["checkpoints"]',
            )
    return paths


def project_or_bare(start: Path, environ: Mapping[str, str]) -> Project:
    """For commands that also work outside of projects: the project around a folder, or a bare one."""
    try:
        root = Path(find_root(start))
    except InputError:
        return bare_project(start, environ)
    return load_project(root, environ)


def bare_project(root: Path, environ: Mapping[str, str]) -> Project:
    """A folder without a shoal.toml: no steps, and the user's own cluster profiles."""
    return _assemble(root, environ, {}, {}, None)


def _assemble(
    root: Path, environ: Mapping[str, str], steps: dict[str, Step], own: dict[str, Layer], toml: Path | None
) -> Project:
    user_path = Path(user_config_path(environ))
    merged = _user_values(user_path, environ)
    for name, layer in own.items():
        merged[name] = layer.over(merged.get(name, Layer()))
    return Project(
        root=root,
        home=Path(home_of(root, environ)),
        toml=toml,
        user_config=user_path,
        steps=steps,
        clusters={name: build_cluster(name, layer) for name, layer in merged.items()},
    )


def _user_values(path: Path, environ: Mapping[str, str]) -> dict[str, Layer]:
    if not os.path.lexists(path):
        return {}
    home = environ.get("HOME", "")
    shown = f"~{str(path)[len(home) :]}" if home and str(path).startswith(home.rstrip("/") + "/") else str(path)
    document: Document = read_document(path, shown)
    top = document.table(("clusters", "status"))
    parse_columns(top)
    return _cluster_values(top)


def _cluster_values(top: Table) -> dict[str, Layer]:
    found = {}
    for name, table in top.tables("clusters").items():
        try:
            refuse_unprintable(name)
        except InputError as error:
            raise InputError(error.message, place=table.place()) from None
        found[name] = parse_cluster(table)
    return found
