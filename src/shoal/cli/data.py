"""Data next to the GPU: write a dataset as few big files (shards), stage it once per node, check and measure it.

shoal data shard images/ data/imagenet --dry-run     how many shards, and how long
shoal data shard images/ data/imagenet               class folders, or a .csv/.jsonl/.txt list of files
shoal data verify data/imagenet
shoal data stage data/imagenet -- python train.py   in a job: SHOAL_DATA is the copy on this node
shoal data bench --storage . --scratch /scratch     folder, tar and shards on your own storage
shoal data advise data/imagenet -- python train.py  is the loader or the model the bottleneck?
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.cli.options import add_output, refuse_unused_flags
from shoal.cli.parser import CommandParser

if TYPE_CHECKING:
    from shoal.views import ProgressLine

_ACTIONS = "shard|verify|info|unpack|stage|bench|advise"


class _SplitAtDashes(CommandParser):
    """What stands behind `--` is the user's command, whatever it looks like; argparse itself mixes it with ours."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args or [])
        cut = words.index("--") if "--" in words else len(words)
        found, rest = super().parse_known_args(words[:cut], namespace)
        found.command = words[cut + 1 :]
        return found, rest


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar=_ACTIONS, parser_class=_SplitAtDashes)
    for name, text, set_up in (
        ("shard", "Write a directory or a list of files as shards", _configure_shard),
        ("verify", "Compare every shard with its checksum", _configure_verify),
        ("info", "Describe a dataset, or shards made by other tools", _configure_path),
        ("unpack", "Restore the original files", _configure_unpack),
        ("stage", "Copy a dataset to node-local disk once per node, and run a command with it", _configure_stage),
        ("bench", "Compare files, tar and shards on your storage", _configure_bench),
        ("advise", "Tell whether the data loader or the model is the bottleneck", _configure_advise),
    ):
        action = actions.add_parser(name, help=text, description=text)
        set_up(action)
        add_output(action)


def run(args: argparse.Namespace) -> int | None:
    from shoal.data import optional_packages
    from shoal.errors import InputError

    _refuse_unused_flags(args)
    optional_packages.numpy()
    if args.command and args.action not in ("stage", "bench", "advise"):
        raise InputError(f"shoal data {args.action} runs no command", hint="remove what stands after --", place="--")
    if args.action == "bench" and args.command and not args.slurm:
        raise InputError("sbatch flags have no effect without --slurm", hint="add --slurm", place="--")
    action: Callable[[argparse.Namespace], int | None] = globals()[f"_{args.action}"]
    return action(args)


def _refuse_unused_flags(args: argparse.Namespace) -> None:
    if args.action == "shard":
        refuse_unused_flags(args, args.no_shuffle, "with --no-shuffle", "--seed")
        refuse_unused_flags(args, os.path.isdir(args.source), "on a folder; it is for lists", "--path-column")
        refuse_unused_flags(args, os.path.isfile(args.source), "on a list, whose lines are the samples", "--group")
        order = ("--shard-size", "--first-shard", "--seed", "--no-shuffle", "--skip-bad")
        refuse_unused_flags(
            args, args.format == "squashfs", "with --format squashfs, which is one image of the folder", *order
        )
    elif args.action == "advise":
        refuse_unused_flags(args, bool(args.command), "with a command, which is measured", "--step-time", "--workers")
        refuse_unused_flags(args, not args.command, "without a command", "--batches")
        refuse_unused_flags(args, args.path is None, "without a data set", "--field", "--decode", "--link", "--batch")


def _configure_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="Dataset directory or manifest, or tar or TFRecord shards")


def _configure_shard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="Directory, or a list of files: .csv, .tsv or .jsonl with a column path, or .txt",
    )
    parser.add_argument("dest", metavar="DEST", help="Output directory; appears only when complete")
    parser.add_argument(
        "--format", default="tar", choices=("tar", "tfrecord", "squashfs"), help="Shard format (default: tar)"
    )
    parser.add_argument("--shard-size", type=float, default=128, metavar="MB", help="Shard size in MB (default: 128)")
    parser.add_argument(
        "--first-shard",
        type=float,
        default=8,
        metavar="MB",
        help="Size of the first shard in MB; small, so training starts early (default: 8)",
    )
    parser.add_argument("--seed", type=int, default=0, help="Shuffle seed (default: 0)")
    parser.add_argument("--no-shuffle", action="store_true", help="Keep the order of names")
    parser.add_argument(
        "--group",
        default="file",
        choices=("file", "stem"),
        help="A sample is one file, or all files of a stem (default: file)",
    )
    parser.add_argument(
        "--label",
        default="auto",
        choices=("auto", "folder", "parent", "none"),
        help="Class of a file: its top directory, its own directory, or none (default: auto, top directories if clear)",
    )
    parser.add_argument("--split", metavar="NAME", help="Split (train, val, ...) of the source to use; all mixes them")
    parser.add_argument(
        "--include", action="append", default=[], metavar="GLOB", help="Use only matching files, such as '*.jpg'"
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="Exclude matching files, such as '*.txt'"
    )
    parser.add_argument("--path-column", metavar="NAME", help="Column of a list that names the file (default: path)")
    parser.add_argument("--skip-bad", action="store_true", help="Skip unreadable files and list them")
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace an existing dataset once the new one is complete"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="Number of processes (default: one per core)")
    parser.add_argument("--name", help="Dataset name (default: name of DEST)")
    parser.add_argument(
        "--dry-run", action="store_true", help="Show the number of shards and the expected time without writing"
    )


def _configure_verify(parser: argparse.ArgumentParser) -> None:
    _configure_path(parser)
    parser.add_argument("--quick", action="store_true", help="Compare sizes only")


def _configure_unpack(parser: argparse.ArgumentParser) -> None:
    _configure_path(parser)
    parser.add_argument("dest", metavar="DEST", help="Output directory; must not exist yet")


def _configure_stage(parser: argparse.ArgumentParser) -> None:
    _configure_path(parser)
    parser.add_argument(
        "--scratch", metavar="FOLDER", help="Node-local disk (default: $SHOAL_SCRATCH, $SLURM_TMPDIR, ...)"
    )
    parser.add_argument(
        "--limit", metavar="SIZE", help="Maximum size of the cache, such as 200G (default: $SHOAL_SCRATCH_LIMIT)"
    )
    parser.add_argument(
        "--wait",
        default="all",
        choices=("all", "first"),
        help="start the command when all shards are there, or at the first one, which only programs that read with "
        "shoal.data can do (default: all)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="Number of copy threads (default: 8, or 16 for small files)"
    )
    parser.epilog = "-- COMMAND runs with SHOAL_DATA and SHOAL_DATA_<NAME> set to the folder."


def _configure_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", default=".", metavar="FOLDER", help="on the storage to measure (default: here)")
    parser.add_argument("--scratch", metavar="FOLDER", help="Node-local disk (default: $SHOAL_SCRATCH, $TMPDIR, /tmp)")
    parser.add_argument("--files", type=int, default=1000, metavar="N", help="default: 1000")
    parser.add_argument("--file-size", type=int, default=100, metavar="KB", help="default: 100")
    parser.add_argument("--readers", default="1,4", metavar="N,M", help="how many at once (default: 1,4)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="measure everything N times (default: 3)")
    parser.add_argument("--methods", default="folder,tar,shards", metavar="LIST")
    parser.add_argument("--estimate", type=float, default=64, metavar="GB", help="size to estimate for (default: 64)")
    parser.add_argument("--picture", metavar="FILE.svg", help="also draw it")
    parser.add_argument("--slurm", action="store_true", help="readers are the tasks of a job array, started in step")
    parser.epilog = "-- FLAGS are sbatch's, with --slurm: -- --partition=gpu --time=10"


def _configure_advise(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", help="a data set, to measure how fast samples can be read")
    parser.add_argument("--step-time", type=float, metavar="SECONDS", help="what the model takes for a batch")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="samples in a batch (default: 64)")
    parser.add_argument("--field", action="append", metavar="NAME", help="fields to read (default: all)")
    parser.add_argument("--decode", metavar="MODULE:FUNCTION", help="what your loader does with a sample")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="that you run now (default: 1)")
    parser.add_argument("--cores", type=int, metavar="N", help="for the loader (default: those of this job)")
    parser.add_argument("--link", type=float, metavar="MB/S", help="speed of the way to the storage, as bench tells it")
    parser.add_argument("--batches", type=int, default=40, metavar="N", help="to watch of the command (default: 40)")
    parser.epilog = "-- COMMAND is a PyTorch training, which is watched for some batches and then ended."


def _shard(args: argparse.Namespace) -> None:
    from shoal.data import ShardSettings, shard_dataset
    from shoal.views import data as views

    settings = ShardSettings(
        format=args.format,
        shard_mb=args.shard_size,
        first_mb=args.first_shard,
        seed=None if args.no_shuffle else args.seed,
        group=args.group,
        label=args.label,
        path_column=args.path_column,
        skip_bad=args.skip_bad,
        split=args.split,
        include=tuple(args.include),
        exclude=tuple(args.exclude),
    )
    if args.dry_run:
        from shoal.data import estimate_sharding

        return views.print_estimate(estimate_sharding(args.source, settings, workers=args.workers), args)
    with _progress_line("sharding", args) as progress:
        sharded = shard_dataset(
            args.source,
            args.dest,
            settings,
            workers=args.workers,
            overwrite=args.overwrite,
            name=args.name,
            progress=progress,
        )
    return views.print_sharded(sharded, args)


def _verify(args: argparse.Namespace) -> None:
    from shoal.data import verify_dataset
    from shoal.views import data as views

    with _progress_line("verifying", args) as progress:
        verified = verify_dataset(args.path, quick=args.quick, progress=progress)
    views.print_verified(verified, args)


def _info(args: argparse.Namespace) -> None:
    from shoal.data import describe_dataset
    from shoal.views import data as views

    views.print_info(describe_dataset(args.path), args)


def _unpack(args: argparse.Namespace) -> None:
    from shoal.data import extract_dataset
    from shoal.views import data as views

    with _progress_line("unpacking", args) as progress:
        unpacked = extract_dataset(args.path, args.dest, progress=progress)
    views.print_extracted(unpacked, args)


def _stage(args: argparse.Namespace) -> int:
    from shoal.data import stage_and_run
    from shoal.views import data as views

    environ = dict(os.environ)
    environ.update({"SHOAL_SCRATCH": args.scratch} if args.scratch else {})
    environ.update({"SHOAL_SCRATCH_LIMIT": args.limit} if args.limit else {})
    code, record = stage_and_run(
        args.path, args.command, environ, wait=args.wait, threads=args.threads, quiet=args.quiet
    )
    views.print_staging(record, args, ran=bool(args.command))
    return code


def _bench(args: argparse.Namespace) -> None:
    from shoal.data import run_bench, slurm_launcher
    from shoal.views import data as views

    scratch = args.scratch or os.environ.get("SHOAL_SCRATCH") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    result = run_bench(
        os.path.abspath(args.storage),
        os.path.abspath(scratch),
        count=args.files,
        kilobytes=args.file_size,
        readers=views.parse_counts(args.readers),
        methods=args.methods.split(","),
        repeats=args.repeats,
        launch=slurm_launcher(args.command, os.environ) if args.slurm else None,
        tell=lambda text: None if args.quiet else print(text, file=sys.stderr),
    )
    views.print_bench(result, args)


def _advise(args: argparse.Namespace) -> None:
    from shoal.data import advise, load_function
    from shoal.errors import InputError
    from shoal.views import data as views

    delivery = None
    if args.path is not None:
        from shoal.data import open as open_dataset

        decode = load_function(args.decode) if args.decode else None
        delivery = advise.measure_delivery(open_dataset(args.path, fields=args.field, transform=decode), args.batch)
    if args.command:
        times = advise.measure_script(args.command, args.batches)
    elif args.step_time is not None and delivery is not None:
        prep_s = args.batch / delivery.prep_per_s
        times = advise.BatchTimes(args.step_time, prep_s, args.batch, args.workers, None, delivery.cpu_share)
        times = times._replace(contention=delivery.contention, data="staged" if delivery.staged else "sharded")
    else:
        raise InputError(
            "nothing says how fast the model is",
            hint="shoal data advise -- python train.py   # or PATH --step-time 0.1",
        )
    views.print_advice(advise.advise_loader(times, args.cores or _cores(), delivery, args.link), delivery, args)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _progress_line(what: str, args: argparse.Namespace) -> ProgressLine:
    from shoal.units import format_bytes
    from shoal.views import ProgressLine

    return ProgressLine(what, format_bytes, off=args.quiet)
