"""Output of `shoal switch`, as text and as JSON: what was measured, both options with their numbers, and the advice."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from shoal.actions import SubmitResult
from shoal.model import ACTIVE_STATES
from shoal.observe import RunView
from shoal.switch import SwitchComparison
from shoal.units import format_duration, plural
from shoal.views.render import print_json, safe_line


def record(comparison: SwitchComparison, applied: list[SubmitResult]) -> dict[str, Any]:
    view, seen = comparison.view, comparison.progress
    return {
        "run": view.name,
        "job_id": view.job_id,
        "gpus": view.gpus,
        "progress": {
            "step": seen.step,
            "total": seen.total,
            "fraction": seen.fraction,
            "from": seen.source,
            "text": seen.text,
        },
        "alternative": {
            "run": comparison.replacement,
            "state": comparison.replacement_state,
            "request": msgspec.to_builtins(comparison.request),
        },
        **msgspec.to_builtins(comparison.advice),
        "applied": [result._asdict() for result in applied],
    }


def show(comparison: SwitchComparison, applied: list[SubmitResult], *, as_json: bool, quiet: bool, now: float) -> None:
    if as_json:
        print_json(record(comparison, applied))
    elif quiet:
        print(comparison.advice.recommend)
    else:
        _print(comparison, applied, now)


def _print(comparison: SwitchComparison, applied: list[SubmitResult], now: float) -> None:
    view, advice, seen = comparison.view, comparison.advice, comparison.progress
    since = f" for {format_duration(now - view.started)}" if view.started else ""
    on = f"on {plural(view.gpus, 'GPU')}" if view.gpus else "without GPUs"
    print(f"{view.name} runs {on} as job {view.job_id}{since}")
    print(f"  progress  {seen.fraction or 0:.0%}: {safe_line(seen.text)} ({seen.source})")
    print(f"  keep      completed in {_span(advice.keep_s, now)}{_cost(view, advice.keep_gpu_hours)}")
    wait = "starts at a time that Slurm does not tell" if advice.wait_s is None else _starts(advice.wait_s)
    again = f", does {format_duration(advice.lost_s)} of work again" if advice.lost_s >= 1 else ""
    done = f"completed in {_span(advice.switch_s, now)}{_cost(view, advice.switch_gpu_hours)}"
    print(f"  {_size(comparison):<9} {wait}{again}, {done}")
    print(
        f"            {advice.speedup:.3g} times as fast: efficiency {advice.efficiency:.2g}, {advice.efficiency_from}"
    )
    sooner = (
        f" ({format_duration(advice.saved_s)} sooner)" if advice.recommend == "switch" and advice.saved_s > 0 else ""
    )
    print(f"{advice.recommend}: {advice.why}{sooner}")
    if advice.recommend == "switch" and advice.worth_above is not None:
        print(f"  it pays as long as the efficiency is above {advice.worth_above:.2g}")
    for note in advice.notes:
        print(f"note: {safe_line(note)}")
    for result in applied:
        job = f" as job {result.job_id}" if result.job_id else ""
        print(f"{result.did} {result.name}{job}" + (f": {result.reason}" if result.reason else ""))
        if result.did == "submitted":
            print(f"  it takes {view.name} over by itself; if it fails, job {view.job_id} goes on")
            print(f"next: shoal status {view.experiment}")
    if applied:
        return
    if comparison.replacement_state in ACTIVE_STATES:
        print(
            f"{comparison.replacement} is {comparison.replacement_state} already; next: shoal status {view.experiment}"
        )
    elif advice.recommend == "switch":
        size = f" --gpus {comparison.request.gpus}" if comparison.request.gpus else ""
        size += f" --nodes {comparison.request.nodes}" if (comparison.request.nodes or 1) > 1 else ""
        print(f"next: shoal switch {view.name}{size} --apply")


def _size(comparison: SwitchComparison) -> str:
    nodes = comparison.request.nodes or 1
    return plural(nodes * comparison.request.gpus, "GPU") if comparison.request.gpus else plural(nodes, "node")


def _cost(view: RunView, gpu_hours: float) -> str:
    return f"; {gpu_hours:.3g} GPU-hours more" if view.gpus else ""


def _starts(wait_s: float) -> str:
    return "starts at once" if wait_s < 60 else f"starts in {format_duration(wait_s)}"


def _span(seconds: float, now: float) -> str:
    return f"{format_duration(seconds)} ({time.strftime('%a %H:%M', time.localtime(now + seconds))})"
