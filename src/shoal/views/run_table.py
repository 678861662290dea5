"""The columns that tell runs of an experiment apart: parameters that vary, the metric that counts, the best run. Pure.

`status`, the full-screen view and the page share these decisions: which parameters are columns and in which order their
values sort, which metric is shown and whether less of it is better, how seeds are folded into one row, and how a long
name is shortened so that rows stay different.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import InputError
from shoal.job import format_value
from shoal.observe import ResultTable, RunMetrics, RunSummary, RunView, tabulate
from shoal.units import shorten_list
from shoal.views.run_groups import group_key

#: So many parameters become columns unless they are asked for by name.
MAX_PARAM_COLUMNS = 8
_MAX_HEADER = 16
#: Guessed in this order where nothing names the metric; slashes, dots and dashes count as underscores.
_PREFERRED = (
    "val_loss", "valid_loss", "validation_loss", "eval_loss", "test_loss", "val_acc", "val_accuracy", "eval_accuracy",
    "test_acc", "test_accuracy", "loss", "train_loss", "accuracy", "acc", "top1", "reward", "perplexity", "ppl",
)  # fmt: skip
_SMALL_IS_GOOD = frozenset((
    "loss", "losses", "err", "error", "errors", "nll", "mse", "mae", "rmse", "ppl", "perplexity", "wer", "cer", "fid",
    "bpb", "bpc", "bpd", "regret", "latency", "cost", "distance", "divergence", "kl", "collisions",
))  # fmt: skip
_LARGE_IS_GOOD = frozenset((
    "acc", "acc1", "acc5", "accuracy", "top1", "top5", "auc", "auroc", "f1", "precision", "recall", "reward", "return",
    "returns", "score", "map", "ap", "iou", "miou", "bleu", "rouge", "psnr", "ssim", "success", "r2", "dice", "hits",
    "mrr", "ndcg", "winrate", "throughput",
))  # fmt: skip


class MetricChoice(NamedTuple):
    """The metric that a table shows. `mode` is min or max: which values are better; None where that is not known."""

    name: str
    mode: str | None

    @property
    def sign(self) -> float:
        """Times a value: small is better."""
        return -1.0 if self.mode == "max" else 1.0


def guess_mode(name: str) -> str | None:
    """min for a loss, max for an accuracy; None for a name that says neither."""
    parts = set(_name_parts(name))
    if parts & _SMALL_IS_GOOD:
        return "min"
    return "max" if parts & _LARGE_IS_GOOD else None


def choose_metric(
    summaries: Iterable[RunSummary], setting: Mapping[str, str] | None = None, wanted: str | None = None
) -> MetricChoice | None:
    """The metric of a table: `wanted` (--sort), else that of the sweep file, else the project's setting, else a guess.
    None if no run has written a metric."""
    runs = list(summaries)
    known: Counter[str] = Counter()
    for names, count in Counter(tuple(run.metrics) for run in runs).items():  # many runs have the same ones
        known.update(dict.fromkeys(names, count))
    declared = Counter(tuple(sorted(run.metric.items())) for run in runs if run.metric)
    settings = [dict(items) for items, _ in declared.most_common()] + ([dict(setting)] if setting else [])
    modes = {one["name"]: one["mode"] for one in reversed(settings) if "mode" in one}
    if wanted is not None and wanted in known:
        return MetricChoice(wanted, modes.get(wanted) or guess_mode(wanted))
    for one in settings:
        if one["name"] in known:
            return MetricChoice(one["name"], modes.get(one["name"]) or guess_mode(one["name"]))
    name = _guess_metric(known)
    return None if name is None else MetricChoice(name, modes.get(name) or guess_mode(name))


def _guess_metric(known: Mapping[str, int]) -> str | None:
    """A well-known name; else one with a known direction; else the one that most runs have."""
    by_parts = {"_".join(_name_parts(name)): name for name in sorted(known, reverse=True)}
    for preferred in _PREFERRED:
        if preferred in by_parts:
            return by_parts[preferred]
    ordered = sorted(known, key=lambda name: (guess_mode(name) is None, -known[name], name))
    return ordered[0] if ordered else None


def _name_parts(name: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]


def last_value(summary: RunSummary, metric: MetricChoice | None) -> float | None:
    found = summary.metrics.get(metric.name) if metric is not None else None
    return None if found is None else found.last


def best_value(summary: RunSummary, metric: MetricChoice | None) -> float | None:
    """The best value so far; None if the direction is not known, no value is finite, or a part was not read."""
    found = summary.metrics.get(metric.name) if metric is not None else None
    if found is None or metric is None or metric.mode is None or not found.is_whole:
        return None
    best = found.high if metric.mode == "max" else found.low
    return best if math.isfinite(best) else None


def best_run(summaries: Mapping[str, RunSummary], metric: MetricChoice | None) -> str | None:
    """The run whose last value is best; None without a direction, or with fewer than two runs to compare."""
    if metric is None or metric.mode is None:
        return None
    values = {
        name: metric.sign * value
        for name, one in summaries.items()
        if not one.is_trial and (value := last_value(one, metric)) is not None and math.isfinite(value)
    }
    return min(values, key=lambda name: (values[name], name)) if len(values) > 1 else None


def varying_params(summaries: Iterable[RunSummary]) -> list[str]:
    """Parameters in which runs differ, those that follow from others left out; sorted by name."""
    runs = [one for one in summaries if not one.is_trial and one.step]
    derived = {name for one in runs for name in one.derived}
    names = {name for one in runs for name in one.params} - derived
    return sorted(name for name in names if len({repr(one.params.get(name)) for one in runs}) > 1)


def short_param_names(names: Sequence[str]) -> dict[str, str]:
    """optimizer.lr -> lr, as long as that names one parameter alone."""
    short: dict[str, str] = {}
    for name in names:
        parts = re.split(r"[./]", name)
        tails = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [re.split(r"[./]", other) for other in names if other != name]
        short[name] = next(
            (
                tail
                for tail in tails
                if not any(".".join(other).endswith(f".{tail}") or other == [tail] for other in others)
            ),
            name,
        )
    cut = shorten_names(list(short.values()), _MAX_HEADER)
    return {name: cut[tail] for name, tail in short.items()}


def value_key(value: Any) -> tuple[int, float, str]:
    """Sorts values of a parameter: numbers by size, also those that are written as text; then text; then nothing."""
    if value is None:
        return 2, 0.0, ""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 1, 0.0, format_value(value)
    return (1, 0.0, "nan") if math.isnan(number) else (0, number, "")


def metric_key(value: float | None, metric: MetricChoice | None) -> tuple[bool, float]:
    """Sorts values of a metric, the best first, and what is no number last."""
    if value is None or math.isnan(value):
        return True, 0.0
    return False, value * (metric.sign if metric is not None else 1.0)


def sort_views(
    views: Sequence[RunView], summaries: Mapping[str, RunSummary], metric: MetricChoice | None, sort: str | None
) -> list[RunView]:
    """Best first for a metric, by value for a parameter. Without `sort`: by script, parameters and seed."""
    nothing = RunSummary()
    names = varying_params(summaries.values())

    def usual(view: RunView) -> tuple[Any, ...]:
        one = summaries.get(view.name, nothing)
        values = tuple(value_key(one.params.get(name)) for name in names)
        return group_key(view.name), values, value_key(one.seed), view.name

    if sort is None:
        return sorted(views, key=usual)
    if metric is not None and sort == metric.name:
        return sorted(
            views,
            key=lambda view: (metric_key(last_value(summaries.get(view.name, nothing), metric), metric), usual(view)),
        )
    param = find_param(sort, summaries.values())
    if param is None:
        raise unknown_sort(sort, summaries.values())
    if param == "seed":
        return sorted(views, key=lambda view: (value_key(summaries.get(view.name, nothing).seed), usual(view)))
    return sorted(views, key=lambda view: (value_key(summaries.get(view.name, nothing).params.get(param)), usual(view)))


def find_param(word: str, summaries: Iterable[RunSummary]) -> str | None:
    """A parameter by its name or its short one; `seed` is one too."""
    names = sorted({name for one in summaries for name in one.params})
    if word in names or word == "seed":
        return word
    return next((name for name, short in short_param_names(names).items() if short == word), None)


def has_sort(word: str | None, summaries: Iterable[RunSummary]) -> bool:
    """Whether these runs have such a metric or parameter."""
    runs = list(summaries)
    return word is not None and (any(word in one.metrics for one in runs) or find_param(word, runs) is not None)


def unknown_sort(word: str, summaries: Iterable[RunSummary]) -> InputError:
    runs = list(summaries)
    metrics = sorted({name for one in runs for name in one.metrics})
    params = sorted({name for one in runs for name in one.params})
    have = ", ".join(filter(None, (shorten_list(metrics, 10), shorten_list(params, 10))))
    return InputError(
        f"no run has a metric or parameter {word!r}",
        hint=f"use one of: {have}" if have else "runs write metrics to $SHOAL_OUTPUT_DIR/metrics.jsonl",
        place="--sort",
    )


def group_table(
    views: Sequence[RunView],
    summaries: Mapping[str, RunSummary],
    metric: MetricChoice | None,
    sort: str | None = None,
) -> ResultTable:
    """Runs that differ in the seed alone as one row: mean and deviation of the metric's last values, and the seeds that
    have none. Trial runs are in no row."""
    runs = [
        RunMetrics(
            view.name, one.step, one.seed, one.params, one.derived, view.state,
            {metric.name: value} if metric is not None and (value := last_value(one, metric)) is not None else {},
            view.cause, view.reason, script=one.script, number=one.number, work=one.work, starts=one.starts,
        )
        for view in views
        if (one := summaries.get(view.name)) is not None and one.step and not one.is_trial
    ]  # fmt: skip
    has_metric = metric is not None and any(run.numbers for run in runs)
    table = tabulate(runs, metrics=[metric.name] if metric is not None and has_metric else ())
    names = table.params

    def usual(group: Any) -> tuple[Any, ...]:
        return group.runs[0].script.partition("/")[0], [value_key(group.params.get(name)) for name in names], group.name

    if sort is not None and metric is not None and sort == metric.name:
        name = metric.name
        groups = sorted(
            table.groups,
            key=lambda group: (
                metric_key(group.metrics[name].mean if name in group.metrics else None, metric), usual(group),
            ),
        )  # fmt: skip
    elif sort is not None:
        param = find_param(sort, summaries.values())
        if param is None:
            raise unknown_sort(sort, summaries.values())
        groups = sorted(table.groups, key=lambda group: (value_key(group.params.get(param)), usual(group)))
    else:
        groups = sorted(table.groups, key=usual)
    return table._replace(groups=groups)


def format_number(value: float | None) -> str:
    """A metric in a cell: four digits; nan and inf as such."""
    return "-" if value is None else f"{value:.4g}"


def format_param(value: Any) -> str:
    return "-" if value is None else format_value(value)


def shorten_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Each name in at most `width` characters, cut in the middle where that leaves all of them different; where it does
    not, they stay as long as they must."""
    distinct = list(dict.fromkeys(names))
    long = [name for name in distinct if len(name) > width]
    if not long:
        return {name: name for name in distinct}
    for room in range(max(5, width), max(map(len, long)) + 4, 4):
        for head in sorted(range(1, room - 1), key=lambda size: abs(size - room // 3)):
            if (cut := _cut_names(distinct, room, head)) is not None:
                return cut
    return {name: name for name in distinct}


def _cut_names(names: Sequence[str], room: int, head: int) -> dict[str, str] | None:
    """The names without their middle; None as soon as two would be the same."""
    cut: dict[str, str] = {}
    seen = set()
    for name in names:
        cut[name] = name if len(name) <= room else f"{name[:head]}…{name[head + 1 - room :]}"
        if cut[name] in seen:
            return None
        seen.add(cut[name])
    return cut
