"""The argument of `posttrain`, `evaluate` or `resume`: a checkpoint file, an output directory, or the name of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from shoal.errors import InputError
from shoal.kernel import checkpoints, layout, list_names
from shoal.observe import ClaimRecord, run_files, run_names
from shoal.units import shorten_list


class StartSource(NamedTuple):
    """What a run starts from: a checkpoint that is there, or a run whose newest one is looked up in time."""

    checkpoint: str | None = None
    parent: str | None = None


def find_run(home: str, word: str, experiment: str | None = None) -> str:
    """The full name of a run from what a person typed: its name, its stem alone, or a path to its script or outputs."""
    names = run_names(home)
    stem = Path(word).stem if word.endswith(".sh") else word.rstrip("/")
    if stem in names:
        return stem
    if experiment and f"{experiment}/{stem}" in names:
        return f"{experiment}/{stem}"
    parts = Path(stem).parts
    inside = [name for name in names if parts[-2:] == tuple(name.split("/")) or parts[-3:-1] == tuple(name.split("/"))]
    matches = inside or [name for name in names if name.split("/")[1] == stem]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"{word!r} could be {shorten_list(matches, 4, ' or ')}", hint=f"name it in full: {matches[0]}")
    inside = [name for name in names if name.startswith(f"{parts[-1] if parts else ''}/")]
    if inside:
        raise InputError(
            f"{word!r} is an experiment of {len(inside)} runs; which of them?", hint=f"shoal status {parts[-1]} --all"
        )
    from difflib import get_close_matches

    near = get_close_matches(stem, names, n=1) or get_close_matches(stem, [name.split("/")[1] for name in names], n=1)
    is_job = stem.replace("_", "").isdigit() and not near
    raise InputError(
        f"no run named {word!r}{f'; did you mean {near[0]}?' if near else ''}",
        hint=f"shoal adopt {word}   # for a Slurm job that shoal did not submit" if is_job else "shoal status --all",
    )


def find_source(root: Path, word: str, experiment: str, pattern: str | None) -> StartSource:
    """What a word stands for. A file is itself; a folder gives its newest checkpoint, or that of its newest dated
    folder, as it is now. Anything else names a run, of this experiment unless it says another; it need not exist yet.
    """
    path = Path(os.path.expanduser(word))
    path = path if path.is_absolute() else (path if path.exists() else root / path)
    if path.is_file():
        return StartSource(str(path.absolute()))
    if path.is_dir():
        return StartSource(_newest_in_directory(path.absolute(), pattern, word))
    name = word.removesuffix(".sh").rstrip("/")
    if name.count("/") > 1 or name.startswith(("/", "~", ".")):
        run = "/".join(part for part in Path(name).parts[-3:-1] if part != "/")
        hint = f"name the run to start from its newest checkpoint: {run}" if run.count("/") else "ls"
        raise InputError(f"no file or directory {word}", hint=hint)
    return StartSource(parent=name if "/" in name else f"{experiment}/{name}")


def output_directories(home: str, name: str, revision: int | None = None) -> list[str]:
    """The output folders of a run, newest first; of one revision, if it was started over with other settings."""
    folder = layout.run_dir(home, name)
    found: dict[str, None] = {}
    for generation in reversed(layout.parse_names(list_names(folder)).submits.get("claim", [])):
        claim = run_files.read_checked(os.path.join(folder, layout.submit_file(generation, "claim")), ClaimRecord)
        if claim is not None and revision in (None, claim.revision):
            found[claim.output_dir] = None
    return list(found)


def _newest_in_directory(folder: Path, pattern: str | None, word: str) -> str:
    if pattern is None:
        raise InputError(f"nothing says how checkpoints in {word} are named", hint='checkpoint = "model_*.pth"')
    for candidate in (folder, *sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)):
        if (newest := checkpoints.newest_checkpoint(str(candidate), pattern)) is not None:
            return newest
    raise InputError(f"there is no checkpoint {pattern} in {folder}", hint=f"ls {folder}")
