"""Flags that several commands share, those of packs (`shoal pack`, `shoal submit --shape pack`) among them."""

from __future__ import annotations

import argparse
import os

TYPE_CHECKING = False  # typing itself takes longer to import than everything else here

if TYPE_CHECKING:
    from shoal.describe import Cluster, Project, SweepOptions
    from shoal.plan import PackOptions
    from shoal.submit import SubmitOptions


def add_pack_flags(parser: argparse.ArgumentParser) -> None:
    """What may be said about a queue inside an allocation; most of it follows from the allocation by itself."""
    group = parser.add_argument_group("a queue inside an allocation (--shape pack, --shape pilots)")
    group.add_argument("--slots", type=int, metavar="N", help="so many runs at a time")
    group.add_argument("--gpus", type=int, metavar="G", help="GPUs of the allocation, on each node")
    group.add_argument("--nodes", type=int, metavar="N", help="nodes of the allocation")
    group.add_argument("--shrink", action="store_true", help="give nodes back as soon as they have nothing left to do")
    group.add_argument("--pilots", type=int, metavar="K", help="K small allocations that share the queue, not one")
    group.add_argument("--gpus-per-run", type=float, metavar="X", help="2, 1, or a share such as 0.25")
    group.add_argument("--no-mps", action="store_true", help="let runs share a GPU without NVIDIA's MPS")
    group.add_argument("--cpus-per-run", type=int, metavar="C", help="CPUs that each run counts for")
    group.add_argument("--bind", action="store_true", help="bind each run to its CPUs")
    group.add_argument("--mem", metavar="32G", help="memory of the allocation, on each node (default: of its runs)")
    group.add_argument("--time", metavar="2h", help="how long the allocation may last (default: computed)")
    group.add_argument("--run-time", metavar="10m", help="stop a run that takes longer")
    group.add_argument("--probe", metavar="10s", help="start runs of unknown length so long, then the longest first")
    group.add_argument("--warn", metavar="60s", help="ask runs to stop so long before the allocation ends")
    group.add_argument("--grace", metavar="30s", help="kill what has not stopped so long after it was asked to")
    group.add_argument(
        "--retries", type=int, default=0, metavar="N", help="try a failed run so often again (default 0)"
    )
    group.add_argument(
        "--follow-ups", type=int, default=3, metavar="N", help="jobs that continue leftovers (default 3)"
    )
    group.add_argument("--engine", choices=("auto", "slots", "ray"), default="auto", help="what starts the runs")
    group.add_argument("--dashboard", action="store_true", help="Ray's own page, on the first node (--engine ray)")
    group.add_argument(
        "--search", metavar="metric=loss,first=10", help="stop losing runs early (mode, eta, last, resource), or off"
    )
    group.add_argument("--preload", metavar="torch,...", help="import these once and fork Python runs from there")


def pack_flag_names() -> list[str]:
    bare = argparse.ArgumentParser(add_help=False)
    add_pack_flags(bare)
    return [flag for action in bare._actions for flag in action.option_strings]


def refuse_pack_flags(args: argparse.Namespace) -> None:
    """Without a pack its flags would mean nothing, and people would take `--gpus 4` for the GPUs of each run."""
    from shoal.errors import InputError

    for flag in pack_flag_names():
        if flag in getattr(args, "given", ()):
            value = getattr(args, flag[2:].replace("-", "_"))
            words = flag if value is True else f"{flag} {value}"
            raise InputError(
                f"{flag} is about a pack, and these are jobs of their own, each with the request of its run",
                hint=f"shoal submit FILE --shape pack {words}",
            )


def pack_options(args: argparse.Namespace) -> PackOptions:
    from shoal.plan import PackOptions
    from shoal.units import parse_duration_s

    def seconds(text: str | None, flag: str, default: float | None = None) -> float | None:
        return default if text is None else float(parse_duration_s(text, place=flag))

    return PackOptions(
        slots=args.slots,
        engine=args.engine,
        gpus=args.gpus,
        nodes=args.nodes,
        pilots=args.pilots,
        gpus_per_run=args.gpus_per_run,
        cpus_per_run=args.cpus_per_run,
        run_limit_s=seconds(args.run_time, "--run-time"),
        time=args.time,
        memory=args.mem,
        retries=args.retries,
        grace_s=seconds(args.grace, "--grace", 30.0) or 0.0,
        warn_s=seconds(args.warn, "--warn", 60.0) or 0.0,
        follow=args.follow_ups,
        bind=args.bind,
        preload=tuple(word for word in (args.preload or "").split(",") if word),
        probe_s=seconds(args.probe, "--probe"),
        shrink=args.shrink,
        mps=not args.no_mps,
        dashboard=args.dashboard,
        search=args.search,
    ).validate()


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names or nothing")


def add_profile_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", metavar="CLUSTER", help="a cluster profile, or local for this machine")


def add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--request",
        metavar="NAME",
        help="Name of this order: given again under the same name, it continues and repeats nothing (default: random)",
    )


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", metavar="0-2,7", help="one run for each of these seeds")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="sweep a parameter: lr=0.1,0.01 or depth=4:80:4",
    )
    parser.add_argument("--zip", action="append", default=[], metavar="A,B", help="let set parameters walk together")


def sweep_options(args: argparse.Namespace) -> SweepOptions:
    from shoal.describe import SweepOptions

    refuse_unused_flags(args, not args.set, "without --set", "--zip")
    return SweepOptions(args.seeds, args.set, args.zip)


def add_submit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        choices=("auto", "job", "array", "pack", "pilots"),
        default="auto",
        help="one job each, an array, a queue in one allocation, or in several small ones",
    )
    parser.add_argument("--again", action="store_true", help="start over what is done; old results stay")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--resume", action="store_true", default=None, help="Continue failed runs from their newest checkpoint"
    )
    either.add_argument(
        "--fresh", action="store_false", dest="resume", help="Start failed runs over in a new output directory"
    )
    parser.add_argument(
        "--at-once", type=_positive_integer, metavar="K", help="let at most K of these runs be under way together"
    )
    parser.add_argument("--no-snapshot", action="store_true", help="let jobs run the code as it is when they start")
    parser.add_argument("--force", action="store_true", help="submit even what the doctor refuses")
    smoke = parser.add_mutually_exclusive_group()
    smoke.add_argument(
        "--smoke", action="store_const", const="there", help="a few steps must pass before the runs start"
    )
    smoke.add_argument(
        "--smoke-here", action="store_const", const="here", dest="smoke", help="the same, on this machine and now"
    )
    add_pack_flags(parser)


def submit_options(args: argparse.Namespace) -> SubmitOptions:
    from shoal.errors import InputError
    from shoal.submit import SubmitOptions

    packed = args.shape in ("pack", "pilots") or args.pilots is not None
    pack = pack_options(args) if packed else None
    if not packed:
        refuse_pack_flags(args)
    refuse_unused_flags(args, packed, "on a pack; its slots say how many run at a time (--slots)", "--at-once")
    refuse_unused_flags(
        args, args.shape == "job", "on single jobs; an array limits its tasks (--shape array)", "--at-once"
    )
    refuse_unused_flags(
        args, args.pilots is not None and args.shape not in ("auto", "pilots"), "with --pilots", "--shape"
    )
    if args.again and args.resume:
        raise InputError("--resume cannot be used with --again", hint="remove --again to continue from a checkpoint")
    return SubmitOptions(
        args.shape,
        args.again,
        args.at_once,
        pack=pack,
        force=args.force,
        snapshot=not args.no_snapshot,
        smoke=args.smoke,
        resume=args.resume,
        sure=getattr(args, "yes", False),
    )


def _positive_integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs")
    return int(text)


def current_project() -> Project:
    from pathlib import Path

    from shoal.describe import find_project

    return find_project(Path.cwd(), os.environ)


def refuse_unused_flags(args: argparse.Namespace, idle: bool, because: str, *flags: str) -> None:
    """Refuse flags that would do nothing where they are given. `because` goes on after "has no effect".

    Not refused: `--json` and `-q`, and flags about what `--dry-run` leaves undone, because it is added to a whole
    command line to look first.
    """
    for flag in flags if idle else ():
        if flag in getattr(args, "given", ()):
            from shoal.errors import InputError

            raise InputError(f"{flag} has no effect {because}", hint=f"remove {flag}")


def chosen_cluster(project: Project, on: str | None) -> Cluster:
    from shoal.plan import choose_cluster

    return choose_cluster(project, on, os.environ, inside_job="SLURM_JOB_ID" in os.environ)
