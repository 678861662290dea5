"""Experiment files as requested runs: a bash script, a sweep file (TOML) or a Python file, with the command's flags.

A Python file is executed with `Experiment.submit` replaced by a function that collects what it adds.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.describe.document import Document, Given, read_document
from shoal.describe.expand import expand_points
from shoal.describe.parameters import parse_seeds
from shoal.describe.project import Project
from shoal.describe.run_names import SweepNaming, extend_naming, read_naming, run_stems, save_naming
from shoal.describe.run_specs import PlannedRun, RequestedRun, requested_runs, seeds_in
from shoal.describe.shell_functions import COLLECT_VARIABLE, StepCall, collect_calls, refuse_blocked
from shoal.describe.steps import Step
from shoal.describe.sweep_file import SweepBlock, parse_sweep, with_flags
from shoal.describe.sweep_runs import Sweep, base_name, expand_sweep, parameter_words
from shoal.errors import InputError
from shoal.job import fill_known_placeholders, fill_placeholders, format_value, placeholder_names
from shoal.model import Request
from shoal.names import ScriptName, check_length, make_slug, parse_script_path, parse_stem

BlockRecord = dict[str, Any]


def collect_blocks(path: Path, environ: Mapping[str, str]) -> list[Sweep]:
    """What a file adds before its last `exp.submit()`, in number; the file runs with this very Python."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        answer_path = os.path.join(folder, "blocks")
        env = {**environ, COLLECT_VARIABLE: answer_path, "PYTHONDONTWRITEBYTECODE": "1"}
        # Whatever the file prints is for people, and must not mix with what this command prints for programs.
        done = subprocess.run(
            [sys.executable, str(path)], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        )
        text = Path(answer_path).read_text() if os.path.exists(answer_path) else ""
    lines = [json.loads(line) for line in text.splitlines()]
    refuse_blocked(path, lines)
    last = lines[-1] if lines else {}
    if "error" in last:
        raise InputError(last["error"], hint=last["hint"])
    if done.returncode != 0:
        raise InputError(
            f"{path} ended with exit code {done.returncode}",
            hint=f"{COLLECT_VARIABLE}=/dev/null python {shlex.quote(str(path))}   # shows where",
        )
    if not lines:
        raise InputError(f"{path} submits nothing", hint="exp.submit()   # at its end")
    return group_sweeps(lines)


def append_block(path: str, added: Iterable[BlockRecord]) -> None:
    """Called by `Experiment.submit` in a collecting file."""
    with Path(path).open("a") as file:
        for one in added:
            file.write(json.dumps(one) + "\n")


def group_sweeps(added: Iterable[BlockRecord]) -> list[Sweep]:
    """Blocks with the same experiment and name are one sweep, so that a loop is named like a grid."""
    found: dict[tuple[str, str], list[SweepBlock]] = {}
    for one in added:
        block = parse_sweep(Given(one["place"], one["values"]))
        name = block.name or _file_name(one["place"], block.step) or block.step or ""
        found.setdefault((one["experiment"], name), []).append(block)
    return [Sweep(run_file_name(experiment, stem), tuple(blocks)) for (experiment, stem), blocks in found.items()]


def _file_name(place: str, step: str | None) -> str | None:
    """The name of a file that is called after this step, as in a sweep file: 000_train.py for train."""
    stem = Path(place.rpartition(":")[0]).stem
    number, word, seed = parse_stem(stem)
    return stem if number is not None and word == step and seed is None else None


def run_file_name(experiment: str, stem: str) -> ScriptName:
    """Names that were not read from a path: 000_train says its number and step, plain train is only a step."""
    number, step, seed = parse_stem(stem)
    safe_experiment, safe_stem = make_slug(experiment), make_slug(stem)
    check_length(safe_experiment, safe_stem)
    title = None if (safe_experiment, safe_stem) == (experiment, stem) else f"{experiment}/{stem}"
    return ScriptName(safe_experiment, safe_stem, number, step, seed, title)


FILE_SUFFIXES = (".sh", ".toml", ".py")


class SweepOptions(NamedTuple):
    """What a command line adds to files: --seeds, --set and --zip; for commands and batch scripts also the `words`
    after --, the name of the experiment, the request, other sbatch flags, and the pattern of checkpoints."""

    seeds: str | None = None
    sets: Sequence[str] = ()
    zips: Sequence[str] = ()
    words: tuple[str, ...] = ()
    name: str | None = None
    request: Request = Request()
    flags: tuple[str, ...] = ()
    checkpoint: str | None = None

    def flag_words(self) -> tuple[Sequence[str], Sequence[str], str | None]:
        """--set, --zip and --seeds, as `with_flags` takes them."""
        return self.sets, self.zips, self.seeds


class SweepNames(NamedTuple):
    """A sweep, and what the names of its runs rest on now; kept when it is submitted."""

    experiment: str
    base: str
    number: int
    naming: SweepNaming
    #: Whether a file describes all of its runs, so that one that it has no longer is told.
    is_file: bool = True


class FileRuns(NamedTuple):
    """What one file asks for."""

    asked: list[RequestedRun]
    grown: list[SweepNames]


def read_experiment_file(path: Path, project: Project, environ: Mapping[str, str], options: SweepOptions) -> FileRuns:
    """The runs of one file. Changes nothing; what the names rest on is in `grown`."""
    if path.suffix == ".toml":
        document = read_document(path, os.path.relpath(path))
        _list_files(document, project.code_root)
        block = parse_sweep(document)
        named = parse_script_path(path, project.code_root)
        return read_sweeps([Sweep(named, (with_flags(block, *options.flag_words()),))], project)
    if path.suffix == ".py":
        if options.sets or options.zips:
            raise InputError(f"{path} sets its parameters itself", hint="use --set with sweep files and bash scripts")
        sweeps = [
            sweep._replace(blocks=tuple(with_flags(block, *options.flag_words()) for block in sweep.blocks))
            for sweep in collect_blocks(path, environ)
        ]
        return read_sweeps(sweeps, project)
    swept = {word.partition("=")[0].strip() for word in options.sets}
    seeds = None if options.seeds is None else parse_seeds(options.seeds)
    asked = requested_runs(_script_calls(path, environ, seeds, project), project, swept)
    return expand_step_sweeps(asked, options, project, path)


def _script_calls(
    path: Path, environ: Mapping[str, str], seeds: Sequence[int] | None, project: Project
) -> list[StepCall]:
    """The calls of a script for these seeds, or for those that its call names itself."""
    calls = collect_calls(path, environ, project, seeds)
    own = seeds_in(calls[0]) if seeds is None else None
    return calls if own is None else collect_calls(path, environ, project, own)


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


def read_sweeps(sweeps: Sequence[Sweep], project: Project, *, names_all: bool = False) -> FileRuns:
    """The runs of sweeps, named after what is remembered of them. `names_all`: a parameter is part of the name even if
    it has one value."""
    reading = FileRuns([], [])
    for sweep in sweeps:
        base = base_name(sweep.named)
        number, kept = read_naming(str(project.home), sweep.named.experiment, base)
        if kept is None and names_all:
            kept = SweepNaming()
        expanded = expand_sweep(sweep, project, kept)
        reading.asked.extend(RequestedRun(PlannedRun(spec)) for spec in expanded.specs)
        reading.grown.append(SweepNames(sweep.named.experiment, base, number, expanded.naming))
    return reading


def save_sweep_names(home: str, grown: Sequence[SweepNames]) -> None:
    """Remember what the names of these sweeps rest on; called before the first of their runs is claimed."""
    for one in grown:
        save_naming(home, one.experiment, one.base, one.number, one.naming)


def expand_step_sweeps(asked: Sequence[RequestedRun], options: SweepOptions, project: Project, path: Path) -> FileRuns:
    """The runs of a bash script: each call once for each point of its step's `sweep` and of --set."""
    found = FileRuns([], [])
    for one in asked:
        step = project.steps.get(one.run.spec.step_kind)
        block = _step_block(step, project, path)
        if one.by_name and options.sets:
            raise InputError(
                f"--set has no effect on {one.run.spec.name}, which is resumed as it was", hint="remove --set"
            )
        if one.by_name or not (options.sets or block.axes):
            found.asked.append(one)
            continue
        expanded = _expand_call(one, with_flags(block, options.sets, options.zips), project, path)
        found.asked.extend(expanded.asked)
        found.grown.extend(naming for naming in expanded.grown if naming not in found.grown)
    return found


def _step_block(step: Step | None, project: Project, path: Path) -> SweepBlock:
    if step is None or not step.sweep:
        return SweepBlock(os.path.relpath(path))
    document = Given(step.origin, {"sweep": dict(step.sweep)})
    _list_files(document, project.code_root)
    return parse_sweep(document)


def _expand_call(one: RequestedRun, block: SweepBlock, project: Project, path: Path) -> FileRuns:
    """{lr} in the arguments of a call is filled in; a parameter that nothing mentions is passed as its step says."""
    named = parse_script_path(path, project.code_root)
    base = base_name(named)
    points = expand_points(block)
    number, kept = read_naming(str(project.home), named.experiment, base)
    naming = extend_naming(points, kept, {})
    found = []
    spec = one.run.spec
    at_seed = [point._replace(seed=spec.seed) for point in points]
    known = {*placeholder_names(spec.command), *placeholder_names(spec.args)}
    template = project.step(spec.step_kind).params
    for point, stem in zip(at_seed, run_stems(at_seed, base, named.experiment, naming), strict=True):
        values = {name: format_value(value) for name, value in point.params.items()}
        extra = [
            word
            for name in sorted(values)
            if name not in known
            for word in parameter_words(template, name, values[name])
        ]
        run = msgspec.structs.replace(
            spec,
            stem=stem,
            params=dict(sorted(point.params.items())),
            args=[*(fill_known_placeholders(word, values) for word in spec.args), *extra],
            sweep=base,
            parents=[fill_placeholders(parent, values) for parent in spec.parents],
            start_parent=None if spec.start_parent is None else fill_placeholders(spec.start_parent, values),
        )
        found.append(one._replace(run=PlannedRun(run)))
    return FileRuns(found, [SweepNames(named.experiment, base, number, naming)])
