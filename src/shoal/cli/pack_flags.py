"""The flags of packs, for `shoal pack` and for `shoal submit --shape pack`."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.plan import PackOptions


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
