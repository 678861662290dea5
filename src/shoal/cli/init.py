"""Write a first shoal.toml from what this cluster tells, and a small example that runs as it is.

    shoal init --dry-run      shows what would be written
    shoal init                writes it; an existing shoal.toml is never touched
    shoal init --shared       the same, open to the group of the folder; also for a project that exists

Works without Slurm too: the project then runs on this machine until a cluster is added.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="the project's root (default: here)")
    parser.add_argument("--dry-run", action="store_true", help="print shoal.toml and write nothing")
    parser.add_argument(
        "--shared", action="store_true", help="Let the group of the project's folder submit, cancel and retry too"
    )
    parser.add_argument("--json", action="store_true", help="what was found and written, as one document")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")


def run(args: argparse.Namespace) -> None:
    from shoal.describe import TOML_NAME
    from shoal.errors import InputError

    root = Path(os.path.abspath(args.folder))
    if not root.is_dir():
        raise InputError(f"{root} is not a folder", hint=f"mkdir -p {root}")
    if os.path.lexists(root / TOML_NAME) and not args.dry_run:
        if not args.shared:
            raise InputError(f"{root / TOML_NAME} exists and is left as it is", hint="shoal init --dry-run")
        _write_shared(root)
        if not args.quiet:
            print(json.dumps({"schema": 1, "root": str(root), "shared": True}) if args.json else _shared_text(root))
        return
    text, silent = draft_settings(shared=args.shared)
    files = plan_files(root, text)
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


def draft_settings(*, shared: bool = False) -> tuple[str, tuple[str, ...]]:
    """The text of shoal.toml for this machine, and which programs had no answer."""
    import shutil
    import socket

    from shoal.clusters import read_cluster
    from shoal.describe import draft_profile, toml_text

    if shutil.which("sinfo") is None:
        return toml_text(None, shared=shared), ("Slurm's programs are not on PATH",)
    facts = read_cluster(os.environ, "nodes", "name", "user")
    return toml_text(draft_profile(facts, socket.gethostname()), shared=shared), facts.silent


def plan_files(root: Path, text: str) -> dict[Path, str]:
    """What a new project gets: shoal.toml, an example unless there are experiments, and lines in .gitignore."""
    from shoal.describe import EXAMPLE, EXAMPLE_PATH, IGNORED, TOML_NAME, Document

    Document(TOML_NAME, text)  # what we write must load
    files = {root / TOML_NAME: text}
    if not (root / "experiments").exists():
        files[root / EXAMPLE_PATH] = EXAMPLE
    if any((folder / ".git").exists() for folder in (root, *root.parents)):
        ignore = root / ".gitignore"
        before = ignore.read_text(errors="surrogateescape") if ignore.is_file() else ""
        missing = [line for line in IGNORED if line not in before.splitlines()]
        if missing:
            gap = "" if not before or before.endswith("\n") else "\n"
            files[ignore] = before + gap + "".join(f"{line}\n" for line in missing)
    return files


def write_files(files: dict[Path, str]) -> None:
    """Write each file in one step, shoal.toml last: it is what makes the folder a project."""
    from shoal.errors import InputError
    from shoal.observe import create_exclusive, replace

    for path, text in reversed(files.items()):
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode("utf-8", "surrogateescape")
        if path.name == ".gitignore":
            replace(str(path), data)
        elif not create_exclusive(str(path), data) and path.suffix == ".toml":
            raise InputError(f"{path} has just been written by somebody else, and is left as it is")


def _render(args: argparse.Namespace, root: Path, text: str, files: dict[Path, str], silent: tuple[str, ...]) -> None:
    from shoal.describe import EXAMPLE_PATH

    shown = [str(path.relative_to(root)) for path in files]
    if args.json:
        document = {"schema": 1, "root": str(root), "files": shown, "written": not args.dry_run, "toml": text}
        print(json.dumps({**document, "silent": list(silent)}))
    elif args.dry_run:
        print(text, end="")
        print("".join(f"# would write {path}\n" for path in shown), end="")
    elif not args.quiet:
        print("".join(f"wrote {path}\n" for path in shown), end="")
        print("".join(f"no answer from {reason}\n" for reason in silent), end="")
        print(f"next: shoal run {EXAMPLE_PATH}" if EXAMPLE_PATH in shown else "next: shoal clusters list")
