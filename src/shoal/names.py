"""One name for the Slurm job, the output directory, the logs, the tracker run and the state directory.

    experiments/001_example/000_pretrain1_0.sh
                └experiment └stem: number 000, step pretrain1, seed 0

The directory experiments/ may be anywhere below the project's root: slurm/experiments/001_example/000_pretrain1_0.sh.

A name holds only characters that Slurm, file systems and trackers accept. A real name with others is slugged: the bad
characters become "-" and eight characters of its hash are added, so two real names never have the same slug.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.errors import InputError
from shoal.kernel import TOKEN_LENGTH, TOKEN_LETTERS

#: Slurm's accounting cuts job names at 255 bytes and W&B ids at 128 characters; token and hash have to fit as well.
MAX_COMPONENT = 80
MAX_NAME = 110
#: At the end of the name of a smoke run.
SMOKE_SUFFIX = "_smoke"

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_STEM = re.compile(r"(?P<number>\d+)_(?P<step>.+?)(?:_(?P<seed>\d+))?", re.ASCII)
_EXPERIMENT = re.compile(r"\d+_.+", re.ASCII)
_JOB_TOKEN = re.compile(rf"\.([{TOKEN_LETTERS}]{{{TOKEN_LENGTH}}})(?:-\d+)?\Z", re.ASCII)

_NAMING_HINT = "name it like experiments/001_example/000_pretrain_0.sh: number, name; number, step, seed"


class ScriptName(NamedTuple):
    """What the path of an experiment file says. `title` is the real name when it had to be slugged, else None."""

    experiment: str
    stem: str
    number: int | None
    step: str
    seed: int | None
    title: str | None


def parse_script_path(path: Path, root: Path) -> ScriptName:
    """Read experiment, number, step and seed from a path with experiments/EXPERIMENT/FILE at its end, below `root`;
    anything else is an InputError."""
    # Through a link the same folder has two paths; the script itself may be a link to a shared one and keeps its name.
    real = Path(os.path.realpath(path.parent)) / path.name
    parts = real.relative_to(os.path.realpath(root)).parts if real.is_relative_to(os.path.realpath(root)) else ()
    if "experiments" not in parts[:-1]:
        raise InputError(
            f"{path} is not in a directory experiments/ of {root}",
            hint=f"mkdir -p {root / 'experiments' / '001_example'}  # and move the script there",
        )
    at = len(parts) - 1 - parts[::-1].index("experiments")
    _refuse_second_place(path, root, parts, at)
    parts = parts[at + 1 :]
    if len(parts) != 2:
        raise InputError(f"{path} must be in a folder of its experiment", hint=_NAMING_HINT)
    folder, stem = parts[0], Path(parts[1]).stem
    for word in (folder, stem):
        refuse_unprintable(word)
    match = _STEM.fullmatch(stem)
    if match is None or not _EXPERIMENT.fullmatch(folder):
        raise InputError(f"{path} does not say experiment, step and seed", hint=_NAMING_HINT)
    safe_experiment, safe_stem = make_slug(folder), make_slug(stem)
    check_length(safe_experiment, safe_stem)
    title = None if (safe_experiment, safe_stem) == (folder, stem) else f"{folder}/{stem}"
    seed = match["seed"]
    return ScriptName(
        safe_experiment, safe_stem, int(match["number"]), match["step"], None if seed is None else int(seed), title
    )


def _refuse_second_place(path: Path, root: Path, parts: Sequence[str], at: int) -> None:
    """A script of the same name in the root's own experiments/ would be the same run."""
    other = root.joinpath(*parts[at:])
    if at and other.exists():
        raise InputError(f"{path} and {other} have the same name, so they would be one run", hint="rename one of them")


def parse_stem(stem: str) -> tuple[int | None, str, int | None]:
    """Number, step and seed of a name that is no path: 000_train_0 says all three, plain train only the step."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None, stem, None
    return int(match["number"]), match["step"], None if match["seed"] is None else int(match["seed"])


def stem_with_seed(stem: str, seed: int) -> str:
    """The stem of the same script under another seed: 000_train_0 -> 000_train_7; a stem without a seed gets one."""
    return f"{stem_without_seed(stem)}_{seed}"


def stem_without_seed(stem: str) -> str:
    """What the seeds of one script share: 000_train_0 -> 000_train."""
    match = _STEM.fullmatch(stem)
    return stem if match is None or match["seed"] is None else stem[: match.end("step")]


def make_slug(real: str) -> str:
    """A name that Slurm, file systems and trackers leave alone; equal to `real` where that is possible."""
    refuse_unprintable(real)
    if _SAFE_NAME.fullmatch(real):
        return real
    plain = unicodedata.normalize("NFKD", real).encode("ascii", "ignore").decode()
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "x"
    return f"{kept}-{hashlib.sha256(real.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def refuse_unprintable(word: str) -> None:
    """Refuse what no slug can rescue: nothing at all, control characters, a leading dash, undecodable bytes."""
    if not word or word in (".", ".."):
        raise InputError(f"{word!r} is not a name")
    if word.startswith("-"):
        raise InputError(f"the name {word!r} begins with a dash, which programs take for an option", hint=_NAMING_HINT)
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Cn") for letter in word):
        raise InputError(f"the name {word!r} has characters that cannot be printed", hint=_NAMING_HINT)


def check_length(experiment: str, stem: str) -> None:
    for word in (experiment, stem):
        if len(word) > MAX_COMPONENT:
            raise InputError(
                f"the name {word!r} has {len(word)} characters; {MAX_COMPONENT} are the limit", hint="shorten it"
            )
    if len(experiment) + 1 + len(stem) > MAX_NAME:
        raise InputError(
            f"{experiment}/{stem} has {len(experiment) + 1 + len(stem)} characters; {MAX_NAME} are the limit",
            hint="shorten the experiment's folder name or the script's name",
        )


def token_of_job(name: str) -> str | None:
    """The token at the end of a Slurm job name, or None for a job that is not ours. Later jobs of a pack count up."""
    match = _JOB_TOKEN.search(name)
    return None if match is None else match[1]


def tracker_id(project: str, name: str, revision: int) -> str:
    """A W&B run id: the same over all attempts of a run, another for each time that it was started over."""
    digest = hashlib.sha256(f"{project}\n{name}\n{revision}".encode()).hexdigest()[:8]
    return f"{name.replace('/', '-')}-{digest}"
