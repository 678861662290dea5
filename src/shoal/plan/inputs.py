"""The word behind `posttrain`, `evaluate` or `resume`: a checkpoint file, an output folder, or the name of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from shoal.agent import checkpoints, layout
from shoal.agent.files import names_in
from shoal.errors import InputError
from shoal.store import records
from shoal.store.listing import run_names
from shoal.store.reading import Reader
from shoal.store.records import Claim


class NotReadyError(InputError):
    """What the run needs does not exist yet, but may come: its parent has not written a checkpoint."""


class Found(NamedTuple):
    """A checkpoint, the output folder it stands in, and the run that wrote it, where those are known."""

    checkpoint: str | None
    folder: str
    run: str | None


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
        raise InputError(f"{word!r} could be {' or '.join(matches[:4])}", hint=f"name it in full: {matches[0]}")
    from difflib import get_close_matches

    near = get_close_matches(stem, names, n=1) or get_close_matches(stem, [name.split("/")[1] for name in names], n=1)
    raise InputError(
        f"there is no run {word!r}{f'; did you mean {near[0]}?' if near else ''}", hint="shoal status --all"
    )


def find_checkpoint(home: str, root: Path, word: str, experiment: str, pattern: str | None) -> Found:
    """The newest checkpoint that a word stands for.

    A file is itself. A folder gives its newest checkpoint, or that of its newest dated folder. A run gives the newest
    of its output folders that has one. Nothing there is an InputError; nothing there yet is a NotReadyError.
    """
    path = Path(os.path.expanduser(word))
    path = path if path.is_absolute() else (path if path.exists() else root / path)
    if path.is_file():
        return Found(str(path.absolute()), str(path.absolute().parent), None)
    if path.is_dir():
        return _in_folder(path.absolute(), pattern, word)
    script = root / "experiments" / (word if "/" in word else f"{experiment}/{word}")
    try:
        name = find_run(home, word, experiment)
    except InputError:
        if not script.with_name(f"{script.name}.sh").is_file():
            raise
        raise NotReadyError(f"{word} has not been submitted yet", hint=f"shoal submit {script}.sh") from None
    spec = Reader(home).spec(name)
    pattern = (spec.checkpoint if spec else None) or pattern
    if pattern is None:
        raise InputError(
            f"nothing says how checkpoints of {name} are named", hint='checkpoint = "model_*.pth"   # in its step'
        )
    folders = output_folders(home, name)
    for folder in folders:
        if (newest := checkpoints.newest(folder, pattern)) is not None:
            return Found(newest, folder, name)
    raise NotReadyError(
        f"{name} has written no checkpoint {pattern} yet" + (f" in {folders[0]}" if folders else ""),
        hint=f"shoal status {name}",
    )


def output_folders(home: str, name: str) -> list[str]:
    """The output folders of a run, newest first."""
    folder = layout.run_dir(home, name)
    found: dict[str, None] = {}
    for generation in reversed(layout.parse_names(names_in(folder)).submits.get("claim", [])):
        claim = records.read(os.path.join(folder, layout.submit_file(generation, "claim")), Claim)
        if claim is not None:
            found[claim.output_dir] = None
    return list(found)


def _in_folder(folder: Path, pattern: str | None, word: str) -> Found:
    if pattern is None:
        raise InputError(f"nothing says how checkpoints in {word} are named", hint='checkpoint = "model_*.pth"')
    for candidate in (folder, *sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)):
        if (newest := checkpoints.newest(str(candidate), pattern)) is not None:
            return Found(newest, str(candidate), None)
    raise NotReadyError(f"there is no checkpoint {pattern} in {folder}", hint=f"ls {folder}")
