"""Flags that several commands share, those of packs (`shoal pack`, `shoal submit --layout pack`) among them."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False  # typing itself takes longer to import than everything else here

if TYPE_CHECKING:
    from shoal.api import PackOptions, SubmitOptions, SweepOptions
    from shoal.model import Request

CAUSE_HELP = "Filter by cause of failure, such as oom, cuda_oom, timeout or node_fail"


#: Flags that are the request of each run of a command or a batch script, and the allocation's where runs are packed.
REQUEST_FLAGS = ("--gpus", "--nodes", "--mem", "--time")


def add_sources(parser: argparse.ArgumentParser) -> None:
    """What is submitted: files, or a command after --; and flags about runs that no experiment file describes."""
    from pathlib import Path

    parser.add_argument(
        "file", nargs="*", type=Path, help="Experiment files (.toml, .sh, .py), batch scripts, or directories of them"
    )
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="Command to run, or arguments for the batch scripts"
    )
    group = parser.add_argument_group(
        "a command or a batch script",
        "--gpus, --nodes, --mem and --time are the request of each run; options of sbatch (--partition=gpu) "
        "are passed on",
    )
    group.add_argument("--name", metavar="NAME", help="Experiment name (default: program, or directory of the script)")
    group.add_argument("--cpus", type=int, metavar="N", help="CPUs of each run, per node")
    group.add_argument("--gpu-type", metavar="TYPE", help="GPU type of each run, such as a100")
    group.add_argument("--checkpoint", metavar="PATTERN", help="Checkpoint files in the output directory, for resume")
    _add_sbatch_flags(group)


class _SbatchFlag(argparse.Action):
    """An option of sbatch, collected in `sbatch` as --name=value."""

    def __call__(self, parser: object, args: argparse.Namespace, values: object, option_string: object = None) -> None:
        name = self.option_strings[0]
        args.sbatch = [*(args.sbatch or ()), name if values in ([], None) else f"{name}={values}"]


def _add_sbatch_flags(group: argparse._ArgumentGroup) -> None:
    """sbatch's own options, by their long names, where shoal has none of that name; they are not in the help."""
    from shoal.api import known_options

    taken = {"time", "mem", "nodes", "gpus", "help", "usage", "version", "quiet", "verbose", "parsable", "test-only"}
    for name, takes in sorted(known_options().items()):
        if name not in taken:
            nargs = None if takes == 2 else 0
            group.add_argument(f"--{name}", dest="sbatch", action=_SbatchFlag, nargs=nargs, help=argparse.SUPPRESS)


def has_own_request(args: argparse.Namespace) -> bool:
    """Whether flags such as --gpus are about each run: of a command or a batch script, unless runs are packed."""
    return not is_packed(args) and (bool(args.command) or not _experiment_files(args))


def is_packed(args: argparse.Namespace) -> bool:
    return args.layout in ("pack", "pilots") or args.pilots is not None


def _experiment_files(args: argparse.Namespace) -> list[str]:
    from shoal.api import is_experiment_source

    return [str(path) for path in args.file if is_experiment_source(path)]


def run_request(args: argparse.Namespace) -> tuple[Request, tuple[str, ...]]:
    """The request of each run of a command or a batch script, and other sbatch flags; refused for experiment files."""
    from shoal.errors import InputError
    from shoal.model import Request

    if files := _experiment_files(args):
        refuse_unused_flags(
            args, True, f"on {files[0]}, an experiment file", "--name", "--cpus", "--gpu-type", "--checkpoint"
        )
        if args.sbatch:
            raise InputError(
                f"{args.sbatch[0]} has no effect on {files[0]}, an experiment file",
                hint="write it after a step in bash (train --partition=gpu), or in `flags` of the profile",
            )
    refuse_unused_flags(args, is_packed(args), "on runs of a pack (--cpus-per-run)", "--cpus", "--gpu-type")
    if is_packed(args) or (files and not args.command):
        return Request(), tuple(args.sbatch or ())
    wanted = {"nodes": args.nodes, "gpus": args.gpus, "gpu_type": args.gpu_type, "cpus": args.cpus}
    try:
        return Request(**wanted, memory=args.mem, time=args.time), tuple(args.sbatch or ())
    except InputError as error:
        hint = error.hint or "use values such as --gpus 1 --cpus 8 --mem 32G --time 2h"
        raise InputError(error.message, hint=hint) from None


def add_pack_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a pack; most have a default that follows from its runs."""
    group = parser.add_argument_group("a queue inside an allocation (--layout pack, --layout pilots)")
    add = group.add_argument
    add("--slots", type=int, metavar="N", help="Number of runs to execute in parallel (default: computed)")
    add("--gpus", type=int, metavar="G", help="GPUs per node of the allocation (default: computed)")
    add("--nodes", type=int, metavar="N", help="Nodes of the allocation (default: 1)")
    add("--shrink", action="store_true", help="Release nodes as soon as they have no run left")
    add("--pilots", type=int, metavar="K", help="Submit K small Slurm jobs that share one queue (default: one job)")
    add("--gpus-per-run", type=float, metavar="X", help="GPUs per run; a fraction such as 0.25 shares a GPU")
    add("--no-mps", action="store_true", help="Share GPUs without NVIDIA MPS")
    add("--cpus-per-run", type=int, metavar="C", help="CPUs reserved per run")
    add("--bind", action="store_true", help="Bind each run to its CPUs")
    add("--mem", metavar="32G", help="Memory per node of the allocation (default: sum over its runs)")
    add("--time", metavar="2h", help="Time limit of the allocation (default: computed)")
    add("--run-time", metavar="10m", help="Time limit of each run (default: none)")
    add("--probe", metavar="10s", help="Run each run of unknown length for this long, then start the longest first")
    add("--warn", metavar="60s", help="Send SIGTERM this long before the allocation ends (default: 60s)")
    add("--grace", metavar="30s", help="Send SIGKILL this long after SIGTERM (default: 30s)")
    add("--retries", type=int, default=0, metavar="N", help="Retry a failed run up to N times (default: 0)")
    add("--follow-ups", type=int, default=3, metavar="N", help="Maximum number of follow-up jobs (default: 3)")
    add("--engine", choices=("auto", "slots", "ray"), default="auto", help="Process starter (default: auto)")
    add("--dashboard", action="store_true", help="Start Ray's dashboard on the first node (with --engine ray)")
    add(
        "--early-stop",
        metavar="metric=loss,first=10",
        help="Stop losing runs early (also: mode, eta, last, resource), or off (default: [early_stopping])",
    )
    add("--preload", metavar="torch,...", help="Import these modules once and fork Python runs from that process")


def pack_flag_names() -> list[str]:
    bare = argparse.ArgumentParser(add_help=False)
    add_pack_flags(bare)
    return [flag for action in bare._actions for flag in action.option_strings]


def refuse_pack_flags(args: argparse.Namespace) -> None:
    """Without a pack its flags would mean nothing, and people would take `--gpus 4` for the GPUs of each run."""
    from shoal.errors import InputError

    for flag in pack_flag_names():
        if flag in getattr(args, "given", ()) and not (flag in REQUEST_FLAGS and has_own_request(args)):
            value = getattr(args, flag[2:].replace("-", "_"))
            words = flag if value is True else f"{flag} {value}"
            raise InputError(
                f"{flag} applies to packs only; without --layout pack each run has its own request",
                hint=f"shoal submit FILE --layout pack {words}",
            )


def pack_options(args: argparse.Namespace) -> PackOptions:
    from shoal.api import PackOptions
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
        max_follow_ups=args.follow_ups,
        bind=args.bind,
        preload=tuple(word for word in (args.preload or "").split(",") if word),
        probe_s=seconds(args.probe, "--probe"),
        shrink=args.shrink,
        mps=not args.no_mps,
        dashboard=args.dashboard,
        early_stopping=args.early_stop,
    ).validate()


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="Print run names only")


def add_profile_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", metavar="PROFILE", help="Cluster profile, or local for this machine")


def add_command_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command-id",
        metavar="NAME",
        help="Name of this command: repeated under the same name, it submits nothing twice (default: random)",
    )


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", metavar="0-2,7", help="Seeds; one run per seed")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="Sweep a parameter, e.g. lr=0.1,0.01 or depth=4:80:4",
    )
    parser.add_argument(
        "--zip",
        action="append",
        default=[],
        metavar="A,B",
        help="Pair these parameters by position instead of combining them",
    )


def sweep_options(args: argparse.Namespace) -> SweepOptions:
    from shoal.api import SweepOptions

    refuse_unused_flags(args, not args.set, "without --set", "--zip")
    request, flags = run_request(args)
    return SweepOptions(args.seeds, args.set, args.zip, tuple(args.command), args.name, request, flags, args.checkpoint)


def add_submit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layout",
        choices=("auto", "job", "array", "pack", "pilots"),
        default="auto",
        help="How runs map to Slurm jobs: one job per run, arrays, one pack, or pilots (default: auto)",
    )
    parser.add_argument("--rerun", action="store_true", help="Run completed runs again in a new output directory")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--resume", action="store_true", default=None, help="Continue failed runs from their newest checkpoint"
    )
    either.add_argument(
        "--fresh", action="store_false", dest="resume", help="Start failed runs over in a new output directory"
    )
    parser.add_argument(
        "--max-parallel",
        type=_positive_integer,
        metavar="K",
        help="Run at most K of these runs at a time (default: no limit)",
    )
    parser.add_argument("--no-snapshot", action="store_true", help="Run the working tree instead of a code snapshot")
    parser.add_argument("--force", action="store_true", help="Submit even if checks report errors")
    smoke = parser.add_mutually_exclusive_group()
    smoke.add_argument(
        "--smoke", action="store_const", const="there", help="Run a smoke test first; the runs start only if it passes"
    )
    smoke.add_argument(
        "--smoke-here",
        action="store_const",
        const="here",
        dest="smoke",
        help="Run the smoke test locally before submitting",
    )
    add_pack_flags(parser)


def submit_options(args: argparse.Namespace) -> SubmitOptions:
    from shoal.api import SubmitOptions
    from shoal.errors import InputError

    packed = is_packed(args)
    pack = pack_options(args) if packed else None
    if not packed:
        refuse_pack_flags(args)
    refuse_unused_flags(args, packed, "on a pack; its slots say how many run at a time (--slots)", "--max-parallel")
    refuse_unused_flags(
        args, args.layout == "job", "on single jobs; an array limits its tasks (--layout array)", "--max-parallel"
    )
    refuse_unused_flags(
        args, args.pilots is not None and args.layout not in ("auto", "pilots"), "with --pilots", "--layout"
    )
    if args.rerun and args.resume:
        raise InputError("--resume cannot be used with --rerun", hint="remove --rerun to continue from a checkpoint")
    return SubmitOptions(
        args.layout,
        args.rerun,
        args.max_parallel,
        pack=pack,
        force=args.force,
        snapshot=not args.no_snapshot,
        smoke=args.smoke,
        resume=args.resume,
        sure=getattr(args, "yes", False),
    )


def _positive_integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def exit_on_sigterm_for_job(word: str) -> None:
    """Where a command looks at a job id: the records of a job that is no run are removed, however the command ends."""
    from shoal.api import is_job_id

    if is_job_id(word):
        exit_on_sigterm()


def exit_on_sigterm() -> None:
    """From now on SIGTERM, and SIGHUP unless it is ignored, end the command as Ctrl-C does: what it began is undone."""
    import signal
    import sys

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda received, _: sys.exit(128 + received))


def refuse_unused_flags(args: argparse.Namespace, idle: bool, because: str, *flags: str) -> None:
    """Refuse flags that would do nothing where they are given. `because` goes on after "has no effect".

    Not refused: `--json` and `-q`, and flags about what `--dry-run` leaves undone, because it is added to a whole
    command line to look first.
    """
    for flag in flags if idle else ():
        if flag in getattr(args, "given", ()):
            from shoal.errors import InputError

            raise InputError(f"{flag} has no effect {because}", hint=f"remove {flag}")
