"""What `shoal data` prints: one result, as a table for people or as one document with --json."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError, ShoalError
from shoal.units import format_bytes, format_duration
from shoal.views.render import print_json, print_table

if TYPE_CHECKING:
    from shoal.data import (
        BenchResult,
        ExtractResult,
        LoaderAdvice,
        ReadThroughput,
        ShardingEstimate,
        ShardingResult,
        SourceScan,
        VerifyResult,
    )
from collections.abc import Sequence
from html import escape

#: How many classes or fields are listed by name.
_MAX_SHOWN = 10


_ROW, _LEFT, _WIDTH = 28, 150, 480


def print_estimate(estimate: ShardingEstimate, args: argparse.Namespace) -> None:
    if args.json:
        numbers = {key: value for key, value in estimate._asdict().items() if key != "scan"}
        return print_json(
            {"dry_run": True, **numbers, **_source_document(estimate.scan), "left_out": estimate.scan.bad}
        )
    print(f"{estimate.samples:,} samples, {estimate.files:,} files, {format_bytes(estimate.bytes)}")
    print(
        f"{estimate.shards} {'shard' if estimate.shards == 1 else 'shards'}, about {_format_seconds(estimate.seconds)}"
    )
    _print_source(estimate.scan, estimate.scan.bad)
    return None


def print_sharded(sharded: ShardingResult, args: argparse.Namespace) -> None:
    manifest = sharded.manifest
    if args.json:
        return print_json(
            {
                "path": sharded.path,
                "id": manifest.id,
                "samples": manifest.samples,
                "bytes": manifest.bytes,
                "bytes_on_disk": manifest.size,
                "shards": len(manifest.shards),
                "reused_shards": sharded.reused,
                "seconds": round(sharded.seconds, 3),
                "existed": sharded.existed,
                **_source_document(sharded.scan),
                "left_out": manifest.left_out,
            }
        )
    if args.quiet:
        return print(sharded.path)
    if sharded.existed:
        print(f"{sharded.path} is up to date: nothing was written")
        return _print_source(sharded.scan, manifest.left_out)
    again = f", {sharded.reused} of them from an earlier attempt" if sharded.reused else ""
    shards = f"{len(manifest.shards)} shard{'' if len(manifest.shards) == 1 else 's'}"
    print(f"{sharded.path}: {manifest.samples:,} samples, {format_bytes(manifest.bytes)} in {shards}{again}")
    print(f"took {_format_seconds(sharded.seconds)} ({manifest.bytes / max(sharded.seconds, 1e-9) / 1e6:,.0f} MB/s)")
    return _print_source(sharded.scan, manifest.left_out)


def print_verified(verified: VerifyResult, args: argparse.Namespace) -> None:
    """Damage is an error: it goes to stderr as one sentence, after the table that names all of it."""
    if args.json:
        print_json({**verified._asdict(), "problems": [problem._asdict() for problem in verified.problems]})
    elif not args.quiet:
        if verified.problems:
            print_table(("shard", "problem"), [(problem.shard, problem.message) for problem in verified.problems])
        else:
            shards = f"{verified.shards} shard{'' if verified.shards == 1 else 's'}"
            print(f"{verified.path}: {shards}, {format_bytes(verified.bytes)}: {verified.how} right")
    if verified.problems:
        first = verified.problems[0]
        more = f" (and {len(verified.problems) - 1} more)" if len(verified.problems) > 1 else ""
        raise ShoalError(
            f"{verified.path} is damaged: {first.shard} {first.message}{more}",
            hint="shard it again, or copy these shards again from where it was sharded",
        )


def print_info(document: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        return print_json(document)
    if args.quiet:
        return print(document["id"] or document["path"])
    rows = [
        ("name", document["name"]),
        ("path", document["path"]),
        ("id", document["id"] or "none: made elsewhere"),
        ("format", document["format"]),
        ("samples", f"{document['samples']:,}"),
        ("bytes", f"{format_bytes(document['bytes'])} ({format_bytes(document['bytes_on_disk'])} on disk)"),
        ("shards", f"{document['shards']}, the largest {format_bytes(document['largest_shard_bytes'])}"),
        ("fields", ", ".join(document["fields"]) or "-"),
        ("classes", str(document["classes"])),
        ("order", "as it was" if document["seed"] is None else f"shuffled with seed {document['seed']}"),
        ("source", str(document["source"].get("path", "-"))),
        ("sharded", str(document["source"].get("sharded_at", "-"))),
        ("left out", str(len(document["left_out"]))),
    ]
    return print_table(("what", "value"), rows)


def print_extracted(unpacked: ExtractResult, args: argparse.Namespace) -> None:
    if args.json:
        return print_json(unpacked._asdict())
    return print(
        unpacked.path if args.quiet else f"{unpacked.path}: {unpacked.files:,} files, {format_bytes(unpacked.bytes)}"
    )


def print_staging(record: dict[str, Any], args: argparse.Namespace, *, ran: bool) -> None:
    if args.json:
        return print_json(record)
    if args.quiet:
        return None if ran else print(record["path"])
    return print(describe_staged(record) if not ran else f"shoal: {describe_staged(record)}")


def describe_staged(record: dict[str, Any]) -> str:
    """One sentence about a staging record, for logs and reports."""
    path, copied = record.get("path", "-"), int(record.get("copied_bytes") or 0)
    if record["how"] == "source":
        return f"{record['name']} is read from the source, {record['source']}"
    if record["how"] == "shared" and not copied:
        return f"{record['name']} was here already: {path}"
    seconds = float(record.get("seconds") or 0)
    speed = f" ({copied / seconds / 1e6:,.0f} MB/s)" if seconds else ""
    rest = int(record.get("left_at_source_bytes") or 0)
    left = f", {format_bytes(rest)} left at the source for lack of room" if rest else ""
    return f"{record['name']}: {format_bytes(copied)} copied in {_format_seconds(seconds)}{speed} to {path}{left}"


def print_bench(bench: BenchResult, args: argparse.Namespace) -> None:
    if args.picture:
        _bench_svg(bench, args)
    if args.json:
        rows = [
            {**row._asdict(), "mb_per_s": row.mb_per_s, "estimate_s": row.estimate_s(args.estimate)}
            for row in bench.rows
        ]
        return print_json({**bench._asdict(), "rows": rows, "cold": bench.cold, "estimate_gb": args.estimate})
    print(f"{bench.files:,} files, {format_bytes(bench.bytes)}, from {bench.storage} to {bench.scratch}")
    print(_describe_readers(bench, args.slurm))
    print(_CACHE_NOTES[bench.cold])
    header = ("method", "readers", "seconds", "MB/s each", "first sample s", f"{args.estimate:g} GB")
    table = [
        (
            row.method,
            str(row.readers),
            _median_and_range(row.seconds, "{:.2f}".format),
            f"{row.mb_per_s:.0f}",
            _median_and_range(row.first_s, "{:.2f}".format),
            _median_and_range(row.estimate_s(args.estimate), format_duration),
        )
        for row in bench.rows
    ]
    print_table(header, table)
    if bench.enough_files is not None:
        print(f"note: nothing is estimated from less than 3 s; try --files {bench.enough_files}")
    return None


_CACHE_NOTES = {
    True: "cache: each reader's node forgot the files before every measurement; the storage's own cache is as it was",
    False: "cache: warm, because the system would not forget the files",
    None: "cache: each reader's node was asked to forget the files, and does not tell whether it did",
}


def _describe_readers(bench: BenchResult, slurm: bool) -> str:
    """What readers that run at once have in common, and so do not measure separately."""
    where = ", ".join(f"{count} on {node}" for node, count in sorted(bench.nodes.items()))
    if not slurm:
        return f"readers: processes of this machine ({where}), which share its cores, link, memory and scratch disk"
    return f"readers: tasks of a job array (at most {where}); those of one node share its link, memory and disk"


def _median_and_range(values: list[float] | None, show: Callable[[float], str]) -> str:
    """The median and the range of the repeats; nothing where nothing is known."""
    if not values:
        return "-"
    median = show(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({show(min(values))} to {show(max(values))})"


def _bench_svg(bench: BenchResult, args: argparse.Namespace) -> None:

    labels = [f"{row.method} x{row.readers}" for row in bench.rows]
    title, values = f"{format_bytes(bench.bytes)} to a node's disk, seconds", [row.median_s for row in bench.rows]
    if bench.enough_files is None:
        title = f"{args.estimate:g} GB to a node's disk, minutes"
        values = [statistics.median(row.estimate_s(args.estimate) or [0]) / 60 for row in bench.rows]
    with open(args.picture, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(bar_chart_svg(title, labels, values))


def print_advice(advice: LoaderAdvice, delivery: ReadThroughput | None, args: argparse.Namespace) -> None:
    if args.json:
        return print_json(
            {
                **advice._asdict(),
                "times": advice.times._asdict(),
                "predicted": {str(count): rate for count, rate in advice.predicted.items()},
                "delivery": None if delivery is None else {**delivery._asdict(), "prep_per_s": delivery.prep_per_s},
            }
        )
    if args.quiet:
        return print(advice.bound)
    for sentence in advice.sentences:
        print(sentence)
    times = advice.times
    rows = [
        (str(count), f"{rate:.2f}", f"{rate * times.batch:,.0f}", "<- now" if count == times.workers else "")
        for count, rate in sorted(advice.predicted.items())
    ]
    return print_table(("workers", "steps/s", "samples/s", ""), rows)


def parse_counts(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is not a list of numbers", hint="--readers 1,8", place="--readers") from None


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _source_document(scan: SourceScan) -> dict[str, Any]:
    """What was found in the source, what was left out of it, and what nobody said, as a document."""
    return {
        "classes": scan.class_counts(),
        "fields": scan.field_counts(),
        "skipped": [skipped._asdict() for skipped in scan.skipped],
        "guessed": scan.guessed,
        "notes": scan.notes,
    }


def _print_source(scan: SourceScan, left_out: list[str]) -> None:
    classes, fields = scan.class_counts(), scan.field_counts()
    print("classes: " + (f"{len(classes):,}: {_format_counts(classes)}" if classes else "none, samples have no label"))
    print("fields: " + _format_counts(fields))
    partial = [field for field in fields if fields[field] < len(scan.samples)]
    if len(partial) > 1 and sum(fields[field] for field in partial) == len(scan.samples):
        print(f"note: each sample has one of these fields; read them together as {';'.join(partial)!r}")
    for guess in scan.guessed:
        print(f"guessed: {guess}")
    for skipped in scan.skipped:
        examples = f" ({', '.join(skipped.examples)}{', ...' if skipped.files > len(skipped.examples) else ''})"
        files = f"{skipped.files:,} file{'' if skipped.files == 1 else 's'}"
        print(f"skipped: {files}, {skipped.why}{examples if skipped.examples else ''}")
    for note in scan.notes:
        print(f"note: {note}")
    for text in left_out[:5]:
        print(f"left out: {text}")
    if len(left_out) > 5:
        print(f"left out: and {len(left_out) - 5} more, all in the manifest")


def _format_counts(counts: dict[str, int]) -> str:
    """Names with counts; of many the first ones, and how the counts are spread."""
    first = ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:_MAX_SHOWN])
    if len(counts) <= _MAX_SHOWN:
        return first
    return (
        f"{first}, and {len(counts) - _MAX_SHOWN:,} more with {min(counts.values()):,} to {max(counts.values()):,} each"
    )


def bar_chart_svg(title: str, labels: Sequence[str], values: Sequence[float]) -> str:
    """One horizontal bar per value, with the value written behind it."""
    height = 50 + _ROW * len(labels)
    top = max([*values, 1e-12])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<title>{escape(title)}</title><text x="10" y="24" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = 40 + _ROW * number
        wide = max(1.0, _WIDTH * value / top)
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_ROW - 8}" fill="#2a6f97"/>')
        lines.append(f'<text x="{_LEFT + wide + 6:.1f}" y="{y + 15}">{value:.3g}</text>')
    return "\n".join([*lines, "</svg>", ""])
