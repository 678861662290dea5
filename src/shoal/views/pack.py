"""Output of `shoal pack`: the runs, the slots against time, and what was used and idle."""

from __future__ import annotations

import csv as csv_format
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.actions import PackResult, SubmitResult
from shoal.kernel import replace
from shoal.model import FAILED_STATES, SUCCESSFUL_STATES
from shoal.observe import observe
from shoal.plan import PackJob, min_makespan_s
from shoal.units import plural
from shoal.views.error_groups import error_sentence, find_error
from shoal.views.render import print_json, print_table, state_word
from shoal.views.terminal import detect_screen
from shoal.views.timeline import Timeline, pack_timeline, text_lines
from shoal.views.timeline_picture import Format, picture

#: More rows than this on a terminal do not help; then only runs that have not completed are listed.
_MAX_ROWS = 40


def show_pack(
    packed: PackResult, *, as_json: bool, quiet: bool, csv: Path | None, pictures: Mapping[Format, Path | None]
) -> None:
    """Print what became of a pack, or what would; write the files that were asked for."""
    if packed.dry_run:
        _show_plan(packed, as_json=as_json, quiet=quiet)
        return
    timeline = pack_timeline(packed.home, packed.names, time.time())
    ran = timeline.since(packed.began)
    ran = ran if ran.bars else timeline
    if csv is not None:
        replace(str(csv), pack_csv(packed, timeline).encode())
    for form, path in pictures.items():
        if path is not None:
            replace(str(path), picture(ran, packed.names[0].partition("/")[0], form))
    if as_json:
        print_json({"runs": [_run_record(result, timeline) for result in packed.results], **ran.record()})
    elif quiet:
        sys.stdout.write("".join(f"{result.name}\n" for result in packed.results))
    elif packed.local:
        _show_runs(packed, timeline, ran)
    else:
        _show_submitted(packed)


def pack_csv(packed: PackResult, timeline: Timeline) -> str:
    """One row for each run: name, state, exit code, attempts, when and where it ran."""
    text = io.StringIO()
    writer = csv_format.writer(text)
    writer.writerow(["name", "state", "exit_code", "attempt", "start", "end", "duration_s", "lane", "output_dir"])
    for result in packed.results:
        one = _run_record(result, timeline)
        row = [one["name"], one["state"], one["exit_code"], one["attempt"], one["start"], one["end"]]
        writer.writerow([*row, one["duration_s"], one["lane"], one["output_dir"]])
    return text.getvalue()


def _run_record(result: SubmitResult, timeline: Timeline) -> dict[str, Any]:
    bar = next((bar for bar in reversed(timeline.bars) if bar.run == result.name), None)
    return {
        **result._asdict(),
        "attempt": bar.attempt if bar else 0,
        "start": bar.start if bar else None,
        "end": bar.end if bar else None,
        "duration_s": round(bar.end - bar.start, 3) if bar else None,
        "lane": bar.lane if bar else None,
    }


def _show_runs(packed: PackResult, timeline: Timeline, ran: Timeline) -> None:
    screen = detect_screen()
    results = packed.results
    counts = Counter(result.state for result in results)
    shown = results if len(results) <= _MAX_ROWS or not screen.tty else [r for r in results if r.state != "completed"]
    shown = shown[: _MAX_ROWS if screen.tty else None]
    failed = [result.name for result in shown if result.did == "ran" and result.state in FAILED_STATES]
    views = observe(packed.home, failed).views if failed else {}
    rows = []
    for result in shown:
        view = views.get(result.name)
        why = result.reason if view is None else error_sentence(view, find_error(packed.home, view))
        one = _run_record(result, timeline)
        length = "" if one["duration_s"] is None else f"{one['duration_s']:.1f} s"
        where = (one["lane"] or "").rpartition(":")[2]
        rows.append([result.name, state_word(result.state), length, where, why])
    if rows:
        print_table(["run", "state", "took", "slot", "reason"], rows, widest=0)
    if len(rows) < len(results):
        experiment = packed.names[0].partition("/")[0]
        left = f"{len(results) - len(rows):,} of {len(results):,} runs are not listed"
        sys.stdout.write(f"{left}; shoal status {experiment} --all --tasks lists them\n")
    if ran.bars:
        if screen.tty:
            sys.stdout.write("\n" + "".join(f"{line}\n" for line in text_lines(ran, screen.width)))
        sys.stdout.write(pack_summary(ran) + "\n")
    words = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    sys.stdout.write(f"{plural(len(results), 'run')}: {words}\n")
    if set(counts) - SUCCESSFUL_STATES:
        sys.stdout.write("the same command again continues with runs that have not completed\n")
    if "stopped" in counts:
        experiment = packed.names[0].partition("/")[0]
        sys.stdout.write(f"to continue runs that were stopped early: shoal retry {experiment} --state stopped\n")


def pack_summary(timeline: Timeline) -> str:
    """Makespan against what no schedule can beat, and idle time, both measured."""
    lanes = len(timeline.lanes)
    lengths = [PackJob(at, expect_s=bar.end - bar.start) for at, bar in enumerate(timeline.bars)]
    bound = min_makespan_s(lengths, slots=lanes) if all(bar.share >= 1 for bar in timeline.bars) else None
    ratio = f" ({timeline.makespan_s / bound:.2f} of the least possible)" if bound else ""
    idle = timeline.idle_s / max(1e-9, lanes * timeline.makespan_s)
    return (
        f"{timeline.makespan_s:.1f} s{ratio} on {plural(lanes, timeline.lane_word)}: "
        f"{timeline.busy_s:.1f} {timeline.lane_word}-seconds used, {timeline.idle_s:.1f} idle ({idle:.1%})"
    )


def _show_submitted(packed: PackResult) -> None:
    jobs = list(dict.fromkeys(result.job_id for result in packed.results if result.job_id))
    did = Counter(result.did for result in packed.results)
    totals = ", ".join(f"{count} {word}" for word, count in did.items())
    sys.stdout.write(f"{plural(len(packed.results), 'run')}: {totals}{f'; job {jobs[0]}' if jobs else ''}\n")
    sys.stdout.write(f"next: shoal status {packed.names[0].partition('/')[0]}\n")


def _show_plan(packed: PackResult, *, as_json: bool, quiet: bool) -> None:
    planned = packed.planned
    pack = planned.pack if planned is not None else None
    jobs = pack.jobs if pack is not None else ()
    order = [planned.runs[job.place].spec.name for job in jobs] if planned is not None else []
    if as_json:
        request = None if planned is None else dict(planned.resolved.options)
        record = {"order": order, "source": pack.source if pack else "", "request": request}
        print_json({"runs": [{"name": name} for name in packed.names], "pack": record})
        return
    if quiet:
        sys.stdout.write("".join(f"{name}\n" for name in order))
        return
    for result in packed.results:
        sys.stdout.write(f"{result.did}: {result.name}: {result.reason}\n")
    if pack is not None and planned is not None:
        rows = [
            [name, "" if job.cost is None else f"{job.cost:g}", "" if job.expect_s is None else f"{job.expect_s:.1f} s"]
            for name, job in zip(order, jobs, strict=True)
        ]
        print_table(["run, in starting order", "cost", "expected"], rows, widest=0)
        sys.stdout.write(f"{plural(len(jobs), 'run')}, ordered by {pack.source}\n")
        if not packed.local:
            sys.stdout.write(" ".join(["sbatch", *planned.resolved.argv()]) + os.linesep)
