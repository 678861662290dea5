"""`shoal results`: the table of an experiment as text, CSV, Markdown, LaTeX or JSON."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.describe import read_naming, select_runs, unselected_sentence
from shoal.job import format_value
from shoal.kernel import read_metrics
from shoal.model import RunSpec
from shoal.names import stem_without_seed
from shoal.observe import (
    ResultGroup,
    ResultTable,
    RunCode,
    RunMetrics,
    RunReader,
    RunView,
    Statistic,
    map_in_threads,
    observe,
    other_code_notes,
    read_code,
    run_output,
)
from shoal.units import plural
from shoal.views.render import finite_or_none as finite_or_none
from shoal.views.render import print_json, print_table, safe_line
from shoal.views.terminal import Screen

#: In a cell; JSON names all of them.
_MAX_NAMED = 5
FORMATS = ("text", "csv", "json", "markdown", "latex")


def gather_results(
    home: str, which: Sequence[str], environ: Mapping[str, str], *, partial: bool
) -> tuple[list[RunMetrics], dict[str, Any], list[str]]:
    """The runs with their numbers, the declared defaults of parameters that older runs lack, and notes on the runs that
    are in no row."""
    views = observe(home, select_runs(home, which), environ=environ).listed(which)
    names = list(views)
    reader = RunReader(home)
    defaults: dict[str, Any] = {}
    sweeps = set()

    def read(name: str) -> RunMetrics | None:
        spec, view = reader.spec(name), views[name]
        counts = view.output_dir is not None and (view.state == "completed" or partial)
        found = run_metrics(spec, view, read_metrics(run_output(view, spec)) if counts else {})
        if found is not None:
            found = found._replace(code=read_code(reader, view, spec), submitted=view.submitted or view.started or 0.0)
        if found is not None and spec is not None:
            sweeps.add((spec.experiment, spec.sweep))
        return found

    found = [run for run in map_in_threads(read, names) if run is not None] if names else []
    notes = unselected_sentence(home, names)
    notes += other_code_notes(RunCode(run.name, run.step, run.code, run.submitted) for run in found if run.numbers)
    if len(found) < len(names):
        notes.append(f"{plural(len(names) - len(found), 'smoke or replacement run')} left out")
    for experiment, base in sweeps:
        if base:
            naming = read_naming(home, experiment, base)[1]
            defaults.update(naming.defaults if naming else {})
    return found, defaults, notes


def run_metrics(spec: RunSpec | None, view: RunView, numbers: Mapping[str, float]) -> RunMetrics | None:
    """A run for the table; None for one that nobody described, or that only tries something out."""
    if spec is None or spec.smoke or spec.replacement:
        return None
    return RunMetrics(
        view.name,
        spec.step,
        spec.seed,
        spec.all_params,
        spec.derived,
        view.state,
        numbers,
        view.cause,
        view.reason,
        script=f"{spec.experiment}/{spec.sweep or stem_without_seed(spec.stem)}",
        number=spec.number,
        work=spec.work() if spec.sweep is None else "",
        starts=spec.starts(),
    )


def show_results(results: ResultTable, kind: str, screen: Screen | None = None) -> None:
    """`kind` is one of FORMATS, or "names" for those of the groups alone. Notes go to standard error."""
    _show_format(results, kind, screen)
    for note in results.notes if kind not in ("json", "names") else ():
        sys.stderr.write(f"note: {safe_line(note)}\n")


def _show_format(results: ResultTable, kind: str, screen: Screen | None) -> None:
    if kind == "json":
        print_json(results_document(results))
        return
    if kind == "names":
        print("\n".join(group.name for group in results.groups))
        return
    header, rows = table_cells(results, plus_minus=" ± " if kind in ("text", "markdown") else None)
    if kind == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerows([header, *rows])
    elif kind == "markdown":
        print(_markdown(header, rows))
        if (sentence := _missing_sentence(results)) is not None:
            print(f"\n{sentence}")
    elif kind == "latex":
        print(_latex(results))
    else:
        print_table(header, rows, widest=len(header) - 1, screen=screen)
        if (sentence := _missing_sentence(results)) is not None:
            print(sentence)


def results_document(results: ResultTable) -> dict[str, Any]:
    return {
        "params": results.params,
        "metrics": results.metrics,
        "missing_value": results.missing_value,
        "notes": results.notes,
        "groups": [
            {
                "name": group.name,
                "step": group.step,
                "params": dict(group.params),
                "count": len(group.runs),
                "missing": [
                    {"name": run.name, "seed": run.seed, "state": run.state, "cause": run.cause, "reason": run.reason}
                    for run in group.missing
                ],
                "metrics": {name: _statistic(one) for name, one in group.metrics.items()},
            }
            for group in results.groups
        ],
        "runs": [
            {
                "name": run.name,
                "step": run.step,
                "seed": run.seed,
                "params": dict(run.params),
                "state": run.state,
                "code": run.code or None,
                "metrics": {name: finite_or_none(value) for name, value in run.numbers.items()},
            }
            for group in results.groups
            for run in group.runs
        ],
    }


def table_cells(results: ResultTable, plus_minus: str | None) -> tuple[list[str], list[list[str]]]:
    """Header and rows. With `plus_minus` mean and deviation share a cell, else they are columns of full precision."""
    header = ["group", *results.params]
    for name in results.metrics:
        header += [name] if plus_minus else [name, f"{name} std"]
    counted = [] if results.missing_value is None or plus_minus else ["missing counted as"]
    header += ["n", "runs", "missing", *counted]
    rows = []
    for group in results.groups:
        row = [group.name, *(_format_parameter(group.params.get(name)) for name in results.params)]
        for name in results.metrics:
            one = group.metrics.get(name)
            if plus_minus:
                row.append(format_mean(one, plus_minus))
            else:
                row += ["", ""] if one is None else [repr(one.mean), "" if one.std is None else repr(one.std)]
        counted = [f"{results.missing_value:g}"] if counted else []
        rows.append([*row, seed_count(group), _seed_count_text(group), missing_seeds(group), *counted])
    return header, rows


def seed_count(group: ResultGroup) -> str:
    """Over how many seeds the statistics are; 2-3 where that depends on the metric."""
    sizes = sorted({one.size for one in group.metrics.values()}) or [0]
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"


def _missing_sentence(results: ResultTable) -> str | None:
    if results.missing_value is None:
        return None
    return f"missing runs that have ended count as {results.missing_value:g}"


def _seed_count_text(group: ResultGroup) -> str:
    """2/3, and how many of them tell only what they had so far."""
    partial = sum(1 for run in group.runs if run.numbers and run.state != "completed")
    words = f"{len(group.runs) - len(group.missing)}/{len(group.runs)}"
    return f"{words} ({partial} not completed)" if partial else words


def missing_seeds(group: ResultGroup) -> str:
    """Who is missing, and why: seed 2 failed."""
    seeds = [run.seed for run in group.runs]
    unique = len(set(seeds)) == len(seeds)
    missing = [f"{_describe_run(run, unique)} {_missing_reason(run)}" for run in group.missing]
    return ", ".join(missing[:_MAX_NAMED]) + (
        f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    )


def _describe_run(run: RunMetrics, unique: bool) -> str:
    if not unique:
        return run.name.partition("/")[2]
    return "run" if run.seed is None else f"seed {run.seed}"


def _missing_reason(run: RunMetrics) -> str:
    if run.state == "stopped" and run.reason:
        return run.reason  # with the value that it had: partial, and in no mean
    return "has no metrics" if run.state == "completed" else run.state


def format_mean(one: Statistic | None, plus_minus: str = " ± ") -> str:
    """0.912 ± 0.004, or the number alone for one seed."""
    if one is None:
        return "-"
    return f"{one.mean:.4g}" if one.std is None else f"{one.mean:.4g}{plus_minus}{one.std:.2g}"


def _format_parameter(value: Any) -> str:
    return "-" if value is None else format_value(value)


def _statistic(one: Statistic) -> dict[str, Any]:
    values = {seed: finite_or_none(value) for seed, value in one.values.items()}
    return {"mean": finite_or_none(one.mean), "std": finite_or_none(one.std), "count": one.size, "values": values}


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def _latex(results: ResultTable) -> str:
    """A booktabs table: parameters and metrics, and the rows' names where the parameters do not tell them apart."""

    def escape(text: str) -> str:
        return "".join(_LATEX.get(letter, letter) for letter in text)

    def number(one: Statistic | None) -> str:
        return "--" if one is None else "$" + format_mean(one, r" \pm ") + "$"

    params = [tuple(_format_parameter(group.params.get(name)) for name in results.params) for group in results.groups]
    has_names = not results.params or len(set(params)) < len(params)
    named = [*(["group"] if has_names else []), *results.params]
    lines = [
        r"\begin{tabular}{" + "l" * len(named) + "r" * (len(results.metrics) + 1) + "}",
        r"\toprule",
        " & ".join(escape(name) for name in (*named, *results.metrics, "n")) + r" \\",
        r"\midrule",
    ]
    for group in results.groups:
        first = [group.name] if has_names else []
        first += [_format_parameter(group.params.get(name)) for name in results.params]
        count = seed_count(group)
        row = [*map(escape, first), *(number(group.metrics.get(name)) for name in results.metrics), count]
        lines.append(" & ".join(row) + r" \\")
    if (sentence := _missing_sentence(results)) is not None:
        lines += [r"\midrule", rf"\multicolumn{{{len(named) + len(results.metrics) + 1}}}{{l}}{{{sentence}}} \\"]
    notes = [f"% note: {safe_line(note)}" for note in results.notes]  # the table may be read long after standard error
    return "\n".join([*notes, *lines, r"\bottomrule", r"\end{tabular}"])
