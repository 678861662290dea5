"""A project: the directory of shoal.toml, its steps, and the cluster profiles of the user and of the project."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import field

from shoal.describe.cluster import Cluster, ClusterTable, Layer, PriceTable, build_cluster, parse_cluster
from shoal.describe.document import Table, read_document
from shoal.describe.locate import TOML_NAME, delivered_root, find_root, home_of, user_config_path
from shoal.describe.steps import Step, StepTable, named_step
from shoal.describe.tables import BadValue, Plain, Seconds, SettingsTable, StatusTable, Text, convert, read_by, rule
from shoal.errors import InputError
from shoal.names import refuse_unprintable

_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[^\s@<>,;-][^\s@<>,;]*@[A-Za-z0-9.-]+")


def _read_variable(value: Any) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise BadValue(
            "it must name a variable that holds the address, because such addresses are secrets",
            hint='webhook = "$SLACK_URL"   # and SLACK_URL=https://... in ~/.config/shoal/secrets.env, mode 600',
        )
    return value[1:]


def _read_program(value: Any) -> list[str]:
    try:
        return shlex.split(convert(value, Text))
    except BadValue:
        raise
    except ValueError as error:
        raise BadValue(f"the string cannot be split into words: {str(error).lower()}") from None


def _is_inside(path: str) -> bool:
    inside = os.path.normpath(path)
    return bool(path) and inside not in (".", "..") and not inside.startswith(("/", "../"))


if TYPE_CHECKING:
    VariableName = str
    Program = list[str]
else:
    VariableName, Program = read_by(_read_variable), read_by(_read_program)


Address = Annotated[str, rule(_ADDRESS.fullmatch, "a mail address")]
InnerPath = Annotated[Plain, rule(_is_inside, "a path inside the project", 'link = ["checkpoints"]')]


class Notify(SettingsTable, frozen=True):
    """[notify]: who is told, and when. Secrets are named here, never written: `webhook = "$SLACK_URL"`.

    `command` gets the text on standard input; `webhook` is the name of a variable that holds a URL.
    """

    command: Program = field(default_factory=list)
    webhook: VariableName | None = None
    webhook_as: Literal["json", "text"] = "json"
    mail: Address | None = None
    on: list[Literal["end", "failure", "quiet", "idle"]] = field(default_factory=list)
    quiet_after_s: Seconds = field(default=30 * 60, name="quiet_after")
    idle_after_s: Seconds = field(default=30 * 60, name="idle_after")

    def __post_init__(self) -> None:
        if not self.on:
            msgspec.structs.force_setattr(self, "on", ["end", "failure"])


class UserTable(SettingsTable, frozen=True):
    """The user's config.toml."""

    clusters: dict[str, ClusterTable] = field(default_factory=dict)
    status: StatusTable = StatusTable()


class ProjectTable(UserTable, frozen=True):
    """shoal.toml. `link` names paths of the project that runs see as they are, though their names look like outputs."""

    steps: dict[str, StepTable] = field(default_factory=dict)
    notify: Notify = Notify()
    snapshot: bool = True
    link: tuple[InnerPath, ...] = ()
    shared: bool = False


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """What shoal.toml and the user's config say. `toml` is None for a folder without a shoal.toml.

    `delivered` is set for an order that came over ssh: the snapshot of the code that came with it, which shoal.toml and
    experiment files are read from. Outputs, data and state are below `root` all the same.
    """

    root: Path
    home: Path
    toml: Path | None
    steps: dict[str, Step]
    clusters: dict[str, Cluster]
    notify: Notify | None = None
    snapshot: bool = True
    #: Paths of the project that runs see as they are, though their names look like outputs.
    link: tuple[str, ...] = ()
    shared: bool = False
    delivered: Path | None = None

    @property
    def code_root(self) -> Path:
        """Where experiment files and programs are read from."""
        return self.delivered or self.root

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
    delivered = delivered_root(environ)
    top = read_document(root / TOML_NAME, TOML_NAME).top
    table = top.read(ProjectTable)
    steps = {name: named_step(name, step, top.place("steps", name)) for name, step in table.steps.items()}
    notify = table.notify
    return msgspec.structs.replace(
        _assemble(Path(delivered or root), environ, steps, _layers(top, table), root / TOML_NAME),
        notify=notify if notify.command or notify.webhook or notify.mail else None,
        snapshot=table.snapshot,
        link=table.link,
        shared=table.shared,
        delivered=root if delivered else None,
    )


def project_or_bare(start: Path, environ: Mapping[str, str]) -> Project:
    """For commands that also work outside of projects: the project around a folder, or a bare one."""
    try:
        root = Path(find_root(start))
    except InputError:
        return bare_project(start, environ)
    return load_project(root, environ)


def project_prices(project: Project) -> dict[str, PriceTable]:
    """Profile -> its price, of those that have one."""
    return {name: profile.price for name, profile in project.clusters.items() if profile.price.currency}


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
        steps=steps,
        clusters={name: build_cluster(name, layer) for name, layer in merged.items()},
    )


def _user_values(path: Path, environ: Mapping[str, str]) -> dict[str, Layer]:
    if not os.path.lexists(path):
        return {}
    home = environ.get("HOME", "")
    shown = f"~{str(path)[len(home) :]}" if home and str(path).startswith(home.rstrip("/") + "/") else str(path)
    top = read_document(path, shown).top
    return _layers(top, top.read(UserTable))


def _layers(top: Table, table: UserTable) -> dict[str, Layer]:
    found = {}
    for name, checked in table.clusters.items():
        try:
            refuse_unprintable(name)
        except InputError as error:
            raise InputError(error.message, place=top.place("clusters", name)) from None
        found[name] = parse_cluster(top.table("clusters").table(name), checked)
    return found
