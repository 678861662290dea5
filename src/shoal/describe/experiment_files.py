"""The doors: a bash script, a TOML page or a Python file, and the flags beside it, as runs that are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.describe.blocks import Block, parse_block, with_flags
from shoal.describe.calls import Call, collect
from shoal.describe.document import Document, read_document
from shoal.describe.expand import expand
from shoal.describe.naming import Naming, learn, stems
from shoal.describe.project import Project
from shoal.describe.python_file import collect_blocks
from shoal.describe.run_names import keep_naming, read_naming
from shoal.describe.run_specs import Asked, PlannedRun, describe, seeds_in
from shoal.describe.runs import Sweep, base_of, passed, runs_of
from shoal.describe.values import parse_seeds
from shoal.errors import InputError
from shoal.job import fill, fill_known, placeholders, text_of
from shoal.names import parse_script_path

SUFFIXES = (".sh", ".toml", ".py")


class Wish(NamedTuple):
    """What flags add to a file: --seeds, --set and --zip."""

    seeds: str | None = None
    sets: Sequence[str] = ()
    zips: Sequence[str] = ()

    def flags(self) -> tuple[Sequence[str], Sequence[str], str | None]:
        return self.sets, self.zips, self.seeds


class Grown(NamedTuple):
    """A sweep, and what the names of its runs rest on now; kept when it is submitted."""

    experiment: str
    base: str
    number: int
    naming: Naming


class Reading(NamedTuple):
    """What one file asks for."""

    asked: list[Asked]
    grown: list[Grown]


def read_file(path: Path, project: Project, environ: Mapping[str, str], wish: Wish) -> Reading:
    """The runs of one file. Changes nothing; what the names rest on is in `grown`."""
    if path.suffix == ".toml":
        document = read_document(path, os.path.relpath(path))
        _list_files(document, project.root)
        block = parse_block(document)
        named = parse_script_path(path, project.root)
        return read_sweeps([Sweep(named, (with_flags(block, *wish.flags()),))], project)
    if path.suffix == ".py":
        if wish.sets or wish.zips:
            raise InputError(f"{path} sets its parameters itself", hint="--set belongs to TOML pages and bash scripts")
        sweeps = [
            sweep._replace(blocks=tuple(with_flags(block, *wish.flags()) for block in sweep.blocks))
            for sweep in collect_blocks(path, environ)
        ]
        return read_sweeps(sweeps, project)
    swept = {word.partition("=")[0].strip() for word in wish.sets}
    asked = [describe(call, project, swept) for call in _calls(path, environ, parse_seeds(wish.seeds), project)]
    return _swept(asked, wish, project, path) if wish.sets else Reading(asked, [])


def _calls(path: Path, environ: Mapping[str, str], seeds: Sequence[int] | None, project: Project) -> list[Call]:
    """The calls of a script for these seeds, or for those that its call names itself."""
    calls = collect(path, environ, seeds, project.steps)
    own = seeds_in(calls[0]) if seeds is None else None
    return calls if own is None else collect(path, environ, own, project.steps)


def _list_files(document: Document, root: Path) -> None:
    """Put the names of files in place of { files = "routes/*.xml" } and { stems = ... } in a sweep, sorted."""
    sweep = document.values.get("sweep")
    if not isinstance(sweep, dict):
        return
    for name, value in sweep.items():
        kind = next(iter(value), None) if isinstance(value, dict) and len(value) == 1 else None
        if kind not in ("files", "stems"):
            continue
        pattern = value[kind]
        if not isinstance(pattern, str) or pattern.startswith("/") or ".." in pattern.split("/"):
            raise InputError(
                f"{name} needs a pattern of files below the project's root",
                hint='route = { stems = "routes/*.xml" }',
                place=document.place(("sweep", name)),
            )
        found = sorted(path for path in root.glob(pattern) if path.is_file())
        if not found:
            raise InputError(f"no file matches {pattern!r}", place=document.place(("sweep", name)))
        sweep[name] = [path.stem if kind == "stems" else str(path.relative_to(root)) for path in found]


def read_sweeps(sweeps: Sequence[Sweep], project: Project) -> Reading:
    """The runs of sweeps, named after what is remembered of them."""
    reading = Reading([], [])
    for sweep in sweeps:
        base = base_of(sweep.named)
        number, kept = read_naming(str(project.home), sweep.named.experiment, base)
        expanded = runs_of(sweep, project, kept)
        reading.asked.extend(Asked(PlannedRun(spec)) for spec in expanded.specs)
        reading.grown.append(Grown(sweep.named.experiment, base, number, expanded.naming))
    return reading


def keep(home: str, grown: Sequence[Grown]) -> None:
    """Remember what the names of these sweeps rest on; called before the first of their runs is claimed."""
    for one in grown:
        keep_naming(home, one.experiment, one.base, one.number, one.naming)


def _swept(asked: Sequence[Asked], wish: Wish, project: Project, path: Path) -> Reading:
    """A bash script under --set: each call once for each point; {lr} in its arguments is filled in."""
    named = parse_script_path(path, project.root)
    base = base_of(named)
    points = expand(with_flags(Block(os.path.relpath(path)), wish.sets, wish.zips))
    number, kept = read_naming(str(project.home), named.experiment, base)
    naming = learn(points, kept, {})
    found = []
    for one in asked:
        spec = one.run.spec
        at_seed = [point._replace(seed=spec.seed) for point in points]
        for point, stem in zip(at_seed, stems(at_seed, base, named.experiment, naming), strict=True):
            values = {name: text_of(value) for name, value in point.params.items()}
            known = {*placeholders(spec.command), *placeholders(spec.args)}
            template = project.step(spec.step_kind).params
            extra = [
                word for name in sorted(values) if name not in known for word in passed(template, name, values[name])
            ]
            args = [fill_known(word, values) for word in spec.args]
            run = msgspec.structs.replace(
                spec,
                stem=stem,
                params=dict(sorted(point.params.items())),
                args=[*args, *extra],
                sweep=base,
                parents=[fill(parent, values) for parent in spec.parents],
                start_parent=None if spec.start_parent is None else fill(spec.start_parent, values),
            )
            found.append(one._replace(run=PlannedRun(run)))
    return Reading(found, [Grown(named.experiment, base, number, naming)])
