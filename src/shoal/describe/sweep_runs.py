"""Points of a sweep -> RunSpecs: the step's command with its placeholders, flags for other parameters, and the names.

A placeholder that no parameter fills is an error: a misspelt name must not reach a program with its braces.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from shoal.describe.expand import SweepPoint, count_points, expand_points
from shoal.describe.launches import change_mode, over
from shoal.describe.parameters import MAX_RUNS
from shoal.describe.project import Project
from shoal.describe.run_names import SweepNaming, drop_defaults, extend_naming, run_stems
from shoal.describe.search import sampler_python
from shoal.describe.steps import Step, check_step_name, resolve_data
from shoal.describe.sweep_file import SweepBlock
from shoal.describe.trials import expand_trials
from shoal.errors import InputError
from shoal.job import (
    BUILT_IN_PLACEHOLDERS,
    escape_placeholders,
    fill_known_placeholders,
    fill_placeholders,
    format_value,
    placeholder_names,
)
from shoal.model import LaunchSettings, Request, RunSpec, searched_names
from shoal.names import ScriptName

#: Placeholders of a replica's words, and the shell variable that has each in a generated script.
REPLICA_PLACEHOLDERS = {
    "replica": '"$replica"',
    "replicas": '"$NUM_REPLICA_GROUPS"',
    "lighthouse": '"$TORCHFT_LIGHTHOUSE"',
}
#: Braces around something that is almost a placeholder: {seed:03d}, {lr!r}, {output-dir}, { seed }. JSON, YAML and
#: brace expansion ({"a": 1}, {lr: 1}, {a,b}) are not.
_NEAR_PLACEHOLDER = re.compile(
    r"(?<![{$])\{(?:(?P<formatted>[A-Za-z_][\w.]*)"
    r"(?:![rsa]|(?:![rsa])?:(?:0\d+|[<>=^+-]?#?\d*(?:\.\d+)?[bdeEfFgGnosxX%]))"
    r"|(?P<dashed>[A-Za-z_][\w.]*-[\w.-]*)|\s+(?P<spaced>[A-Za-z_][\w.]*)\s*|(?P<before>[A-Za-z_][\w.]*)\s+)\}",
    re.ASCII,
)
_UNCLOSED_BRACE = re.compile(r"(?<![{$])\{([A-Za-z_][\w.]*)(?![\w.])[^}]*$", re.ASCII)
_SHOAL_VARIABLE = re.compile(r"\$\{?(SHOAL_\w+)\}?", re.ASCII)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


def step_words(step: Step) -> Iterator[tuple[str, Iterable[str]]]:
    """The words of a step in which placeholders are filled, beside its command, each with what to call them."""
    yield f"`env` of step {step.name!r}", step.env.values()
    yield f"`smoke` of step {step.name!r}", [*step.smoke.args, *step.smoke.env.values()]
    yield f"`resume_args` of step {step.name!r}", step.resume_args or ()
    yield f"`recovery.result_check` of step {step.name!r}", step.recovery.get("result_check") or ()


def check_placeholders(
    words: Iterable[tuple[str, Iterable[str]]],
    params: Collection[str],
    *,
    launch: str = "process",
    settings: LaunchSettings | None = None,
    place: str | None = None,
    missing: str | None = None,
) -> None:
    """Refuse words with a placeholder that is neither a parameter nor filled in by shoal; name the nearest that is."""
    known = {*params, *BUILT_IN_PLACEHOLDERS}
    replica = known | set(REPLICA_PLACEHOLDERS) if launch == "replicas" else known
    command: Sequence[str] = ()
    for where, given in words:
        texts = list(given)
        command = texts if where == "the command" else command
        if not texts:
            continue
        refuse_unknown_placeholders(where, texts, replica if where == "the command" else known, place, missing)
        for text in _without_inline_code(texts):
            _refuse_near_placeholders(where, text, known, place)
        if where.startswith("`env`") or not any(os.path.basename(word) in _SHELLS for word in command):
            _refuse_variables(where, _without_inline_code(texts), place)
    launch_words = [*settings.args, *settings.env.values()] if settings is not None else []
    if launch_words:
        refuse_unknown_placeholders("the launch settings", launch_words, replica, place, missing)


def refuse_unknown_placeholders(
    where: str, words: Iterable[str], known: Collection[str], place: str | None, missing: str | None = None
) -> None:
    for name in placeholder_names(words):
        if name in known:
            continue
        if name.startswith("_"):
            raise InputError(
                f"{where} has {{{name}}}, but values whose names begin with _ are not passed on",
                hint=f"rename it to {name.lstrip('_') or 'value'}",
                place=place,
            )
        near = get_close_matches(name, known, n=1)
        but = missing or "no parameter has this name"
        raise InputError(
            f"{where} has {{{name}}}, but {but}" + (f"; did you mean {{{near[0]}}}?" if near else ""),
            hint=f"write {{{{{name}}}}} for the braces themselves, or set it: --set {name}=VALUE",
            place=place,
        )


def _without_inline_code(words: Sequence[str]) -> list[str]:
    """The words less the program of `python -c`, whose braces are Python's."""
    python = bool(words) and os.path.basename(words[0]).startswith("python")
    return [word for at, word in enumerate(words) if not (python and at and words[at - 1] == "-c")]


def near_placeholder(text: str, known: Collection[str]) -> tuple[str, str] | None:
    """Braces in a text that are nearly a placeholder of these names, and the placeholder that is meant; or None."""
    for match in _NEAR_PLACEHOLDER.finditer(text):
        name = next(filter(None, match.groups())).replace("-", "_")
        meant = name if name in known else next(iter(get_close_matches(name, known, n=1, cutoff=0.8)), None)
        if meant is not None and (name in known or match["dashed"]):
            return match[0], meant
    match_open = _UNCLOSED_BRACE.search(text)
    return (match_open[0], match_open[1]) if match_open and match_open[1] in known else None


def _refuse_near_placeholders(where: str, text: str, known: Collection[str], place: str | None) -> None:
    if (found := near_placeholder(text, known)) is not None:
        raise InputError(
            f"{where} has {found[0]!r}, which would reach the program with its brace",
            hint=f"write {{{found[1]}}}; shoal fills in names alone, without a format",
            place=place,
        )


def _refuse_variables(where: str, words: Iterable[str], place: str | None) -> None:
    for word in words:
        if (match := _SHOAL_VARIABLE.search(word)) is not None:
            name = match[1].removeprefix("SHOAL_").lower()
            raise InputError(
                f"{where} has {match[0]}, which no shell reads: the program would get it as it is",
                hint=f"write {{{name}}}"
                if name in BUILT_IN_PLACEHOLDERS
                else 'let a shell read it: command = ["bash", "-c", "python train.py ..."]',
                place=place,
            )


class Sweep(NamedTuple):
    """Blocks whose runs share a base name: a sweep file is one block, a Python loop is many."""

    named: ScriptName
    blocks: tuple[SweepBlock, ...]


class ExpandedSweep(NamedTuple):
    """The runs of a sweep, and the naming that their names rest on."""

    sweep: Sweep
    specs: list[RunSpec]
    naming: SweepNaming


def expand_sweep(sweep: Sweep, project: Project, kept: SweepNaming | None) -> ExpandedSweep:
    """Every run that the sweep describes. `kept` is what the names of its earlier runs rest on."""
    total = sum(count_points(block) for block in sweep.blocks)
    if total > MAX_RUNS:
        raise InputError(f"this describes {total:,} runs; {MAX_RUNS:,} are the limit", place=sweep.blocks[-1].place)
    defaults = {name: value for block in sweep.blocks for name, value in block.defaults.items()}
    points: list[tuple[SweepBlock, SweepPoint]] = []
    for block in sweep.blocks:
        expanded = _expand_block(_with_file_seed(block, sweep.named), base_name(sweep.named))
        points += [(block, point) for point in drop_defaults(expanded, block.defaults, kept)]
    naming = extend_naming([point for _, point in points], kept, defaults)
    names = run_stems([point for _, point in points], base_name(sweep.named), sweep.named.experiment, naming)
    makers = {id(block): _RunSpecBuilder(sweep.named, block, project) for block in sweep.blocks}
    specs = [makers[id(block)].spec(point, stem) for (block, point), stem in zip(points, names, strict=True)]
    return ExpandedSweep(sweep, specs, naming)


def _expand_block(block: SweepBlock, base: str) -> list[SweepPoint]:
    if block.search is None:
        return expand_points(block)
    return expand_trials(block, base, sampler_python(os.environ))


def base_name(named: ScriptName) -> str:
    """The name that all runs of a sweep begin with: the file's, without the seed that it may carry."""
    return named.stem if named.seed is None else named.stem.removesuffix(f"_{named.seed}")


def _with_file_seed(block: SweepBlock, named: ScriptName) -> SweepBlock:
    """A file name that carries a seed gives it to a block that says nothing about seeds."""
    return block._replace(seeds=(named.seed,)) if block.seeds is None and named.seed is not None else block


class _RunSpecBuilder:
    """Makes the runs of one block; what they have in common is worked out once."""

    def __init__(self, named: ScriptName, block: SweepBlock, project: Project) -> None:
        self.named, self.block, self.root, self.base = named, block, str(project.root), base_name(named)
        self.step = _step_of(named, block, project)
        self.command = list(block.command or self.step.command)
        self.mentioned = {*placeholder_names(self.command), *placeholder_names(block.args)}
        if block.launch is None:
            self.launch, self.settings = self.step.launch, self.step.launch_settings
        else:
            mode, settings = block.launch
            kept = change_mode(mode, self.step.launch, self.step.launch_settings)
            self.launch, self.settings = (mode, settings) if settings is not None else kept
        self.container = over(block.container, self.step.container)
        self._requests: dict[Request, Request] = {}
        self._filled: set[frozenset[str]] = set()
        rows = {name for axis in block.axes for row in axis for name in row}
        rows |= set(block.search.space) if block.search else set()
        self._check({*block.params, *block.defaults, *rows, *(n for n in block.derived if not n.startswith("_"))})

    def spec(self, point: SweepPoint, stem: str) -> RunSpec:
        values = {name: format_value(value) for name, value in point.values.items()}
        late = searched_names(point.search)
        missing = {n for n in self.mentioned if n in self.block.defaults and n not in values and n not in late}
        command = _drop_default_arguments(self.command, missing, self.block.place)
        seed = "" if point.seed is None else str(point.seed)
        known = {**values, "seed": seed}
        self._check(known.keys() | missing | late, stem)
        args = [
            fill_known_placeholders(word, known)
            for word in _drop_default_arguments(self.block.args, missing, self.block.place)
        ]
        appended = [
            word
            for name in sorted({*values, *late})
            if name not in self.mentioned
            for word in (
                late_parameter_words(self.step.params, name)
                if name in late
                else parameter_words(self.step.params, name, values[name])
            )
        ]
        env = {name: fill_known_placeholders(text, known) for name, text in {**self.step.env, **self.block.env}.items()}
        return RunSpec(
            experiment=self.named.experiment,
            stem=stem,
            number=self.named.number,
            step=self.named.step,
            step_kind=self.step.name,
            seed=point.seed,
            command=command,
            args=[*args, *appended],
            params=dict(sorted(point.values.items())),
            cwd=self.root,
            output=self.step.output,
            env=env,
            checkpoint=self.step.checkpoint,
            resume_args=None if self.step.resume_args is None else list(self.step.resume_args),
            metrics=list(self.step.metrics),
            metric=self._metric(),
            launch=self.launch,
            launch_settings=self.settings,
            title=self.named.title,
            request=self._request(point.request),
            sweep=self.base,
            derived=sorted({*point.derived, *(point.search.get("drawn", {}).get("derived", ()))}),
            cost=point.cost,
            early_stopping=self.block.early_stopping._asdict() if self.block.early_stopping else {},
            search=dict(point.search),
            recovery=self.step.recovery,
            parents=self._parents(known),
            start_parent=self._start_parent(known),
            data=resolve_data(self.step.data, self.root),
            container=self.container,
        )

    def _metric(self) -> dict[str, str]:
        """The metric that the file compares runs by; that of its search or early stopping, if it names no other."""
        rule, search = self.block.early_stopping, self.block.search
        if self.block.metric:
            return dict(self.block.metric)
        if search is not None:
            return {"name": search.metric, "mode": search.direction}
        return {"name": rule.metric, "mode": rule.mode} if rule is not None else {}

    def _parents(self, known: Mapping[str, str]) -> list[str]:
        words = [*([self.block.start_from] if self.block.start_from else []), *self.block.after]
        return list(dict.fromkeys(self._named(word, known) for word in words))

    def _start_parent(self, known: Mapping[str, str]) -> str | None:
        start = self.block.start_from
        if start and "*" in start:
            raise InputError(
                f"start_from = {start!r} names several runs", hint=f'after = ["{start}"]', place=self.block.place
            )
        return self._named(start, known) if start else None

    def _named(self, word: str, known: Mapping[str, str]) -> str:
        """The run that "000_pretrain_{seed}" names for this point, in this experiment unless it says another."""
        refuse_unknown_placeholders(repr(word), [word], known, self.block.place)
        name = fill_placeholders(word, known)
        return name if "/" in name else f"{self.named.experiment}/{name}"

    def _request(self, asked: Request) -> Request:
        """The point's request over the step's; equal ones are merged once."""
        if asked not in self._requests:
            self._requests[asked] = asked.over(self.step.request)
        return self._requests[asked]

    def _check(self, names: Collection[str], stem: str | None = None) -> None:
        """Refuse a placeholder that nothing fills: in no run, or in the run `stem`."""
        if frozenset(names) in self._filled:
            return
        self._filled.add(frozenset(names))
        words = [("the command", self.command), ("`args`", self.block.args), ("`env`", self.block.env.values())]
        check_placeholders(
            [*words, *step_words(self.step)],
            names,
            launch=self.launch,
            settings=self.settings,
            place=self.block.place,
            missing=None if stem is None else f"{self.named.experiment}/{stem} has no value for it",
        )


def _step_of(named: ScriptName, block: SweepBlock, project: Project) -> Step:
    """The step of shoal.toml; a sweep file that has its own command needs none."""
    name = block.step or named.step
    if name not in project.steps and block.command is not None:
        check_step_name(name, place=block.place)
        return Step(name=name, command=block.command, output=name, origin=block.place)
    try:
        return project.step(name)
    except InputError as error:
        raise InputError(error.message, hint=error.hint, place=error.place or block.place) from None


def _drop_default_arguments(words: Sequence[str], missing: set[str], place: str) -> list[str]:
    """The words less those that pass a parameter at its default, and the flag in front of such a word."""
    if not missing:
        return list(words)
    kept: list[str] = []
    for word in words:
        names = set(placeholder_names([word]))
        if not names & missing:
            kept.append(word)
            continue
        if names - missing:
            raise InputError(
                f"{word!r} passes a parameter at its default together with others, so it cannot be left out",
                hint="give it a word of its own",
                place=place,
            )
        if word.startswith("{") and kept and kept[-1].startswith("-") and not placeholder_names([kept[-1]]):
            kept.pop()
    return kept


def parameter_words(template: str, name: str, value: str) -> list[str]:
    """The words that pass a parameter which the command does not mention: --lr=0.1, lr=0.1, or none at all."""
    return escape_placeholders(word.replace("{name}", name).replace("{value}", value) for word in _split(template))


def late_parameter_words(template: str, name: str) -> list[str]:
    """The same for a parameter of a search, with a placeholder that is filled when the trial starts."""
    return [word.replace("{name}", name).replace("{value}", f"{{{name}}}") for word in _split(template)]


@functools.cache
def _split(template: str) -> tuple[str, ...]:
    return tuple(shlex.split(template))
