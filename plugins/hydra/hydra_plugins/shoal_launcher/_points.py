"""Overrides -> command, parameters and seed of a run. Pure; what Hydra and Python know comes in as arguments."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from shoal.errors import InputError

#: Arguments of every point. Paths and names come from the environment, whose values need no quotes.
POINT_ARGS = (
    "hydra.mode=RUN",
    "hydra.run.dir=${oc.env:SHOAL_OUTPUT_DIR}",
    "hydra.job.num=${oc.env:SHOAL_NUMBER}",
    "hydra.job.id=${oc.env:SHOAL_RUN}",
    "+hydra.callbacks.shoal._target_=hydra_plugins.shoal_launcher.return_value.KeepReturnValue",
)
#: Settings of Hydra that are about the sweep and not about its points, or that a point has in POINT_ARGS.
_SWEEP_KEYS = re.compile(r"hydra(?:[/.](?:launcher|sweeper|sweep|mode)|\.run\.dir|\.job\.num|\.job\.id)(?:[./@].*)?")
_MAX_NAME_LENGTH = 60
_BRACKETS = str.maketrans("{}", "()")


class PointMeaning(NamedTuple):
    """What the overrides of a point say about its run."""

    params: dict[str, str | int | float | bool]
    seed: int | None


def program_command(original: Sequence[str], argv: Sequence[str], executable: str, cwd: str, root: str) -> list[str]:
    """The words that started this program, without its arguments. A file of the project is named by its relative path,
    so that a run uses its own copy."""
    count = len(argv) - 1
    if not original or (count and list(original[-count:]) != list(argv[1:])) or len(original) <= count + 1:
        raise InputError(
            "cannot tell how this program was started: its arguments were changed before Hydra read them",
            hint="start it as: python app.py --multirun hydra/launcher=shoal ...",
        )
    words = [executable, *original[1 : len(original) - count]]
    if words[-2:-1] in (["-c"], ["-"]) or words[-1] in ("-", "-c"):
        raise InputError(
            "cannot submit a program that is not a file or a module",
            hint="write it to app.py: python app.py --multirun",
        )
    inside = os.path.realpath(words[-1])
    if os.path.isabs(words[-1]) and os.path.commonpath([inside, os.path.realpath(root)]) == os.path.realpath(root):
        words[-1] = os.path.relpath(inside, os.path.realpath(cwd))
    return words


def hydra_flags(config_path: str | None, config_name: str | None, config_dir: str | None) -> list[str]:
    """The flags that choose the program's configuration, for its points."""
    found = (("--config-path", config_path), ("--config-name", config_name), ("--config-dir", config_dir))
    return [f"{flag}={value}" for flag, value in found if value is not None]


def kept_hydra_overrides(overrides: Iterable[str]) -> list[str]:
    """Settings of Hydra itself that points need too: job settings, logging, verbosity."""
    return [word for word in overrides if not _SWEEP_KEYS.fullmatch(_key_of(word))]


def sets_sweep_dir(overrides: Iterable[str]) -> bool:
    return any(_key_of(word) in ("hydra.sweep.dir", "hydra.sweep.subdir") for word in overrides)


def _key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0].strip()


def read_overrides(words: Sequence[str]) -> PointMeaning:
    """The parameters of a point: lr=0.1, model=resnet, ++optimizer.lr=0.1 and ~scheduler, under names that shoal takes.
    A whole number for `seed` is the run's seed."""
    params: dict[str, str | int | float | bool] = {}
    seed: int | None = None
    for override in OverridesParser.create().parse_overrides(list(words)):
        name = _parameter_name(override.key_or_group, override.package)
        value = "deleted" if override.is_delete() else _parameter_value(override)
        if name == "seed" and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
            seed = value
            continue
        while name in params:
            name += "_"
        params[name] = value
    return PointMeaning(params, seed)


def _parameter_name(key: str, package: str | None) -> str:
    """db/engine@backup -> db.engine.backup"""
    text = re.sub(r"[^A-Za-z0-9_.]+", "_", ".".join(filter(None, (key.replace("/", "."), package))))
    text = re.sub(r"\.+", ".", text).strip(".")
    return re.sub(r"(^|\.)(?=\d)", r"\1_", text)[-_MAX_NAME_LENGTH:].lstrip(".") or "_"


def _parameter_value(override: Override) -> str | int | float | bool:
    value: Any = override.value()
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    # With other brackets: what is in braces would be refused as a placeholder. The argument keeps its own.
    text = (value if isinstance(value, str) else override.get_value_element_as_str()).translate(_BRACKETS)
    return "".join(letter if letter.isprintable() else " " for letter in text)
