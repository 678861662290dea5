"""A Python file that describes an experiment: run it with `Experiment.submit` set to collect, and read what it adds."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.describe.blocks import SweepBlock, parse_sweep
from shoal.describe.calls import COLLECT_VARIABLE, refuse_blocked
from shoal.describe.document import Given
from shoal.describe.runs import Sweep
from shoal.errors import InputError
from shoal.names import ScriptName, check_length, make_slug, parse_stem

BlockRecord = dict[str, Any]


def collect_blocks(path: Path, environ: Mapping[str, str]) -> list[Sweep]:
    """What a file adds before its last `exp.submit()`, in order; the file runs with this very Python."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        told = os.path.join(folder, "blocks")
        env = {**environ, COLLECT_VARIABLE: told, "PYTHONDONTWRITEBYTECODE": "1"}
        # Whatever the file prints is for people, and must not mix with what this command prints for programs.
        done = subprocess.run(
            [sys.executable, str(path)], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        )
        text = Path(told).read_text() if os.path.exists(told) else ""
    lines = [json.loads(line) for line in text.splitlines()]
    refuse_blocked(path, lines)
    told_error = lines[-1] if lines else {}
    if "error" in told_error:
        raise InputError(told_error["error"], hint=told_error["hint"])
    if done.returncode != 0:
        raise InputError(
            f"{path} ended with exit code {done.returncode}",
            hint=f"{COLLECT_VARIABLE}=/dev/null python {shlex.quote(str(path))}   # shows where",
        )
    if not lines:
        raise InputError(f"{path} submits nothing", hint="exp.submit()   # at its end")
    return group_sweeps(lines)


def append_block(path: str, added: Iterable[BlockRecord]) -> None:
    """Called by `Experiment.submit` in a collecting file."""
    with Path(path).open("a") as file:
        for one in added:
            file.write(json.dumps(one) + "\n")


def group_sweeps(added: Iterable[BlockRecord]) -> list[Sweep]:
    """Blocks with the same experiment and name are one sweep, so that a loop is named like a grid."""
    found: dict[tuple[str, str], list[SweepBlock]] = {}
    for one in added:
        block = parse_sweep(Given(one["place"], one["values"]))
        name = block.name or _file_name(one["place"], block.step) or block.step or ""
        found.setdefault((one["experiment"], name), []).append(block)
    return [Sweep(run_file_name(experiment, stem), tuple(blocks)) for (experiment, stem), blocks in found.items()]


def _file_name(place: str, step: str | None) -> str | None:
    """The name of a file that is called after this step, as a page's runs have it: 000_train.py for train."""
    stem = Path(place.rpartition(":")[0]).stem
    order, word, seed = parse_stem(stem)
    return stem if order is not None and word == step and seed is None else None


def run_file_name(experiment: str, stem: str) -> ScriptName:
    """Names that were not read from a path: 000_train says its order and step, plain train is only a step."""
    order, step, seed = parse_stem(stem)
    safe_experiment, safe_stem = make_slug(experiment), make_slug(stem)
    check_length(safe_experiment, safe_stem)
    title = None if (safe_experiment, safe_stem) == (experiment, stem) else f"{experiment}/{stem}"
    return ScriptName(safe_experiment, safe_stem, order, step, seed, title)
