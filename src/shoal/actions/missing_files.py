"""Files of the project that its runs will not see: files that git ignores and that look like outputs.

Each run has its own outputs (snapshot.py). Weights are always reported; other files if code or a command names them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shoal.actions.git_index import SnapshotError
from shoal.actions.snapshot import (
    STATE_DIRECTORY,
    WEIGHT_SUFFIXES,
    ignored_paths,
    is_program_output,
    open_git,
)
from shoal.units import shorten_list

#: Where names of folders are no sign that a program reads them.
_NON_PROGRAM_PATTERNS = ("*.md", "*.rst", "*.html", "*.svg", "*.ipynb", "*ignore", "*.lock")
_MAX_NAMES = 200
#: The folder that shoal itself writes to: only paths in it are told.
_OUTPUTS = "outputs"
#: A path with one of these is made up when the program runs.
_PLACEHOLDER_CHARACTERS = re.compile(r"[{}%*$<>]")


def find_missing_files(root: Path, environ: Mapping[str, str], link: Sequence[str], words: Iterable[str]) -> list[str]:
    """Paths from `root`, or with ../ in front, that programs may want to read. `words` are those of the commands."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        try:
            opened = open_git(root, environ, Path(folder), reads_only=True)
            if opened is None:
                return []
            git, top, _ = opened
            ignored = [name for name in ignored_paths(git) if STATE_DIRECTORY not in name.split("/")]
            places = {os.path.relpath(top / name, root): name for name in ignored if is_program_output(name)}
        except SnapshotError:
            return []  # `submit` tells why
        linked = tuple(f"{name}/" for name in link)
        places = {
            path: name
            for path, name in places.items()
            if not f"{path}/".startswith(linked) and _has_content(root / path)
        }
        if not places:
            return []
        always = [path for path in places if _is_weight(os.path.basename(path))]
        others = [path for path in places if path not in always]
        pattern = _pattern({os.path.basename(path) for path in others[:_MAX_NAMES]})
        texts = git.matches(pattern, "--untracked", _NON_PROGRAM_PATTERNS) if others else set()
        texts |= {found.group() for word in set(words) if others for found in re.finditer(pattern, f'"{word}"')}
        named = [path for place in others for path in _paths_named(root, place, texts)]
    return [*always, *dict.fromkeys(named)]


def missing_files_note(paths: Sequence[str]) -> str:
    wanted = ", ".join(f'"{path}"' for path in paths[:3])
    return (
        f"runs do not see {shorten_list(paths, 3)} of the project, because each run has its own; if they read it, "
        f"write link = [{wanted}] in shoal.toml"
    )


def _pattern(names: Iterable[str]) -> str:
    """A name in quotes, or behind a = to the end of a word, or with a path behind it; for git as well as for Python."""
    either = "|".join(re.sub(r"([].^$*+?{}()|\\[])", r"\\\1", name) for name in sorted(names))
    return f"[\"'=](\\./)?({either})[\"']|(^|[^A-Za-z0-9_])({either})/[^ \"'`(),;:]*"


def _paths_named(root: Path, place: str, texts: Iterable[str]) -> list[str]:
    """What these texts name of a place: the place itself, or paths in it that exist."""
    base, found = os.path.basename(place), []
    for text in texts:
        at = re.search(rf"(?:^|[^A-Za-z0-9_]){re.escape(base)}(?![A-Za-z0-9_.-])(/?.*)", text)
        if at is None:
            continue
        rest = at[1].strip("/\"'")
        if (not rest or _PLACEHOLDER_CHARACTERS.search(rest)) and place != _OUTPUTS:
            return [place]
        if rest and _has_content(root / place / rest):
            found.append(os.path.join(place, rest))
    return sorted(found)


def _is_weight(base: str) -> bool:
    return "ckpt" in base or "checkpoint" in base or base.endswith(WEIGHT_SUFFIXES)


def _has_content(path: Path) -> bool:
    """Whether there is something to read."""
    try:
        return any(path.iterdir()) if path.is_dir() else path.exists()
    except OSError:
        return False
