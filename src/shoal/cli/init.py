"""Write a first shoal.toml from what this cluster tells, and a small example that runs as it is.

    shoal init --dry-run      shows what would be written
    shoal init                writes it; an existing shoal.toml is never touched
    shoal init --from job.sbatch                         write the step, sweep file and profile for a batch script
    shoal init --gpus 1 --time 2h -- python train.py     the same for a command; --set and --seeds are swept
    shoal init --shared       the same, open to the group of the folder; also for a project that exists

Works without Slurm too: the project then runs on this machine until a cluster is added.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from shoal.cli.options import add_sweep, refuse_unused_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe import SweepOptions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="the project's root (default: here)")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="Batch script to describe in files")
    parser.add_argument("command", nargs="*", metavar="-- COMMAND", help="Command to describe in files")
    for flag, what in (("--gpus", "GPUs"), ("--nodes", "Nodes"), ("--cpus", "CPUs per node")):
        parser.add_argument(flag, type=int, metavar="N", help=f"{what} of the step's request")
    parser.add_argument("--mem", metavar="32G", help="Memory of the step's request, per node")
    parser.add_argument("--time", metavar="2h", help="Time limit of the step's request")
    add_sweep(parser)
    parser.add_argument("--dry-run", action="store_true", help="print shoal.toml and write nothing")
    parser.add_argument(
        "--shared", action="store_true", help="Let the group of the project's folder submit, cancel and retry too"
    )
    parser.add_argument("--json", action="store_true", help="what was found and written, as one document")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")


def run(args: argparse.Namespace) -> None:
    from shoal.describe import TOML_NAME, draft_settings, project_files
    from shoal.errors import InputError

    root = Path(os.path.abspath(args.folder))
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", hint=f"mkdir -p {root}")
    if args.source is not None or args.command:
        _write_described(args, root)
        return
    flags = ("--gpus", "--nodes", "--cpus", "--mem", "--time", "--seeds", "--set", "--zip")
    refuse_unused_flags(args, True, "without --from FILE or -- COMMAND", *flags)
    if os.path.lexists(root / TOML_NAME) and not args.dry_run:
        if not args.shared:
            raise InputError(f"{root / TOML_NAME} exists and is left as it is", hint="shoal init --dry-run")
        _write_shared(root)
        if not args.quiet:
            print(json.dumps({"schema": 1, "root": str(root), "shared": True}) if args.json else _shared_text(root))
        return
    text, silent = draft_settings(os.environ, shared=args.shared)
    files = project_files(root, text)
    if not args.dry_run:
        write_files(files)
        if args.shared:
            _write_shared(root)
    _render(args, root, text, files, silent)


def _write_shared(root: Path) -> None:
    from shoal.describe import home_of
    from shoal.observe import share_project

    share_project(root, Path(home_of(root, os.environ)))


def _shared_text(root: Path) -> str:
    return f"shared {root} with the group {root.group()}"


def write_files(files: dict[Path, str], *, replaces_toml: bool = False) -> None:
    """Write each file in one step, shoal.toml last: it is what makes the folder a project."""
    from shoal.describe import TOML_NAME
    from shoal.errors import InputError
    from shoal.observe import create_exclusive, replace

    for path, text in reversed(files.items()):
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode("utf-8", "surrogateescape")
        if path.name == ".gitignore" or (replaces_toml and path.name == TOML_NAME):
            replace(str(path), data)
        elif not create_exclusive(str(path), data) and path.suffix == ".toml":
            raise InputError(f"{path} has just been written by somebody else, and is left as it is")


def _render(
    args: argparse.Namespace,
    root: Path,
    text: str,
    files: dict[Path, str],
    silent: tuple[str, ...],
    next_step: str | None = None,
) -> None:
    from shoal.describe import EXAMPLE_PATH

    shown = [str(path.relative_to(root)) for path in files]
    if args.json:
        document = {"schema": 1, "root": str(root), "files": shown, "written": not args.dry_run, "toml": text}
        print(json.dumps({**document, "silent": list(silent)}))
    elif args.dry_run:
        print(text, end="")
        for path, one in files.items() if next_step else ():
            if path.parent != root:
                print(f"\n# {path.relative_to(root)}\n{one}", end="")
        print("".join(f"# would write {path}\n" for path in shown), end="")
    elif not args.quiet:
        print("".join(f"wrote {path}\n" for path in shown), end="")
        print("".join(f"no answer from {reason}\n" for reason in silent), end="")
        if next_step is not None:
            print(f"next: {next_step}")
            return
        print(f"next: shoal run {EXAMPLE_PATH}" if EXAMPLE_PATH in shown else "next: shoal clusters list")
        _propose_scripts(root)


def _propose_scripts(root: Path) -> None:
    """Name a few batch scripts that are there already, and what to do with them."""
    import shlex

    from shoal.describe import find_batch_scripts

    scripts = [shlex.quote(str(path.relative_to(root))) for path in find_batch_scripts(root)]
    if scripts:
        more = f" and {len(scripts) - 3} more" if len(scripts) > 3 else ""
        print(f"batch scripts: {', '.join(scripts[:3])}{more}")
        print(f"  as they are: shoal submit {scripts[0]}")
        print(f"  as a step and a sweep file: shoal init --from {scripts[0]}")


def _write_described(args: argparse.Namespace, root: Path) -> None:
    """Write the step and the sweep file of a batch script or a command; a project that exists gets the step added."""
    from shoal.describe import (
        TOML_NAME,
        describe_command,
        describe_script,
        draft_settings,
        profile_comments,
        project_files,
        project_or_bare,
    )
    from shoal.errors import InputError

    if args.source is not None and not os.path.lexists(args.source):
        raise InputError(f"no such file: {args.source}", hint=f"ls {args.source.parent}")
    if args.source is not None and args.source.exists() and not args.source.is_file():
        raise InputError(f"{args.source} is not a regular file", hint=f"ls -l {args.source}")
    project = project_or_bare(root, os.environ)
    options = _described_options(args)
    made = describe_command(options) if args.source is None else describe_script(args.source, project, options)
    exists = os.path.lexists(root / TOML_NAME)
    if made.name in project.steps:
        raise InputError(f"{TOML_NAME} has a step {made.name!r} already", hint=f"shoal submit {made.sweep_path}")
    silent: tuple[str, ...] = ()
    if exists:
        text = (root / TOML_NAME).read_text() + f"\n{made.step}{profile_comments(made.profile)}"
    else:
        draft, silent = draft_settings(os.environ, shared=args.shared, steps=made.step)
        text = draft + profile_comments(made.profile)
    files = {**project_files(root, text), root / made.sweep_path: made.sweep}
    files = {path: one for path, one in files.items() if not path.name.endswith("_hello_0.sh")}
    if not args.dry_run:
        _check_new(root / made.sweep_path)
        write_files(files, replaces_toml=exists)
    if exists and not args.quiet and not args.json and not args.dry_run:
        print(f"added [steps.{made.name}] to {TOML_NAME}")
        del files[root / TOML_NAME]
    _render(args, root, text, files, silent, next_step=f"shoal submit {made.sweep_path}")


def _described_options(args: argparse.Namespace) -> SweepOptions:
    from shoal.describe import SweepOptions
    from shoal.model import Request

    request = Request(nodes=args.nodes, gpus=args.gpus, cpus=args.cpus, memory=args.mem, time=args.time)
    return SweepOptions(args.seeds, args.set, args.zip, tuple(args.command), request=request)


def _check_new(path: Path) -> None:
    from shoal.errors import InputError

    if os.path.lexists(path):
        raise InputError(f"{path} exists and is left as it is", hint=f"shoal plan {path}")
