"""What an experiment script asks for: run it with its step functions set to collect, and read how they were called.

The script is ordinary bash; only the functions from `source "$(shoal shell)"` are ours. What it exports between that
line and the call is the experiment's configuration (`settings`), and becomes part of the run. A script that does not
source them is a batch script and is never executed here; one that does may not act on a cluster while it is read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.errors import InputError
from shoal.secrecy import is_secret

COLLECT = "SHOAL_COLLECT"
BASE = "SHOAL_SHELL_BASE"
#: Functions that say what the next step starts from or continues, unless shoal.toml declares a step of that name.
MODIFIERS = ("posttrain", "resume")
#: The shell's own bookkeeping, and variables that say where a command runs rather than what it does.
_NOT_SETTINGS = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS", "LINES", "COLUMNS", "PATH"})
_STAND_INS = (740113, 920371)
#: Programs that act on a cluster.
_ACTING = ("qsub", "sbatch", "srun", "salloc", "scancel", "scontrol")
_CAUGHT = """#!/bin/sh
echo "${0##*/}" >> "${0%/*}/../caught"
exit 1
"""
_SOURCE = re.compile(r"""(?:^|&&|\|\||;)\s*(?:source|\.)\s+("[^\n]*"|'[^']*'|[^\s;&|]+)""")
#: The ways in which a script names its own folder.
_OWN_FOLDER = re.compile(
    r"""\$\(dirname\s+(?:--\s+)?"?\$(?:0|\{?BASH_SOURCE(?:\[0\])?\}?)"?\)|\$\{BASH_SOURCE(?:\[0\])?%/\*\}"""
)


class Call(NamedTuple):
    """One call of a step function: `train --time=1:00:00 -- --lr 0.1` in a script, with the settings around it.
    `modifier` is what stood before it: posttrain and a checkpoint, or resume and a run."""

    function: str
    words: list[str]
    script: str
    seed: int | None
    env: dict[str, str]
    modifier: Sequence[str] = ()


def fingerprint(environ: Mapping[str, str]) -> str:
    """The environment as names and hashes of values: enough to see later what changed, nothing to give away."""
    hashes = {name: _hash(value) for name, value in environ.items()}
    return base64.b64encode(zlib.compress(json.dumps(hashes).encode())).decode()


def settings(environ: Mapping[str, str], base: str) -> tuple[dict[str, str], list[str]]:
    """What was exported since the fingerprint was taken, and the names of secrets among it, which are not kept."""
    try:
        hashes = json.loads(zlib.decompress(base64.b64decode(base)))
    except (ValueError, zlib.error):
        raise InputError('the script did not begin with: source "$(shoal shell)"') from None
    changed = {
        name: value
        for name, value in environ.items()
        if hashes.get(name) != _hash(value)
        and name not in _NOT_SETTINGS
        and not name.startswith(("SHOAL_", "SLURM_", "BASH_FUNC_"))
    }
    kept = {name: value for name, value in changed.items() if not is_secret(name, value)}
    return kept, sorted(set(changed) - set(kept))


def collect(script: Path, environ: Mapping[str, str], seeds: Sequence[int] | None = None) -> list[Call]:
    """The calls of a script, once for each seed, in the order of the script and then of the seeds.

    A script that passes its seed on unchanged is run twice however many seeds there are, with numbers that stand in
    for them; one that computes with its seed is run for each.
    """
    if not sources_functions(script, environ):
        raise InputError(
            f"{script} does not source shoal's functions, so it is a batch script and was not executed",
            hint=f'sbatch {shlex.quote(str(script))}   # or let it begin with: source "$(shoal shell)"',
        )
    if seeds is None or len(seeds) <= len(_STAND_INS):
        once: Sequence[int | None] = [None] if seeds is None else seeds
        return [call for seed in once for call in _run(script, environ, seed)]
    from concurrent.futures import ThreadPoolExecutor  # here: what comes from no script starts sooner without it

    with ThreadPoolExecutor(len(_STAND_INS)) as pool:
        first, second = pool.map(lambda seed: _run(script, environ, seed), _STAND_INS)
    if [_with_seed(call, _STAND_INS[0], _STAND_INS[1]) for call in first] != second:
        return [call for seed in seeds for call in _run(script, environ, seed)]
    return [_with_seed(call, _STAND_INS[0], seed) for seed in seeds for call in first]


def sources_functions(script: Path, environ: Mapping[str, str], depth: int = 3) -> bool:
    """Whether a script, or a file that it sources, sources the step functions; told from the text."""
    try:
        lines = script.read_text(errors="replace").splitlines()
    except OSError:
        return False
    words = [word for line in lines if not line.lstrip().startswith("#") for word in _SOURCE.findall(line)]
    if any("shoal shell" in word for word in words):
        return True
    found = (_find_sourced(word, script, environ) for word in words)
    return depth > 0 and any(path is not None and sources_functions(path, environ, depth - 1) for path in found)


def _find_sourced(word: str, script: Path, environ: Mapping[str, str]) -> Path | None:
    """The file that a `source` line names: from where we are, or from the script's folder."""
    text = _OWN_FOLDER.sub(lambda match: str(script.parent.absolute()), word.strip("\"'"))
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: environ.get(match.group(1), match.group(0)), text)
    places = [Path(text), *(folder / text for folder in (script.parent, *list(script.absolute().parents)[1:4]))]
    return next((path for path in places if path.is_file()), None)


def append(path: str, call: Call) -> None:
    """Called by the step function of a collecting script: one line for one call."""
    with Path(path).open("a") as file:
        file.write(json.dumps(call._asdict()) + "\n")


def _run(script: Path, environ: Mapping[str, str], seed: int | None) -> list[Call]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        path, programs = os.path.join(folder, "calls"), Path(folder, "bin")
        programs.mkdir()
        for name in _ACTING:
            (programs / name).write_text(_CAUGHT)
            (programs / name).chmod(0o755)
        own = os.path.dirname(os.path.abspath(sys.argv[0]))
        env = {
            **environ,
            COLLECT: path,
            "PATH": os.pathsep.join([str(programs), own, environ.get("PATH", os.defpath)]),
            "SHOAL_SEED": "" if seed is None else str(seed),
        }
        # Whatever the script prints is for people, and must not mix with what this command prints for programs.
        done = subprocess.run(["bash", str(script)], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        lines = Path(path).read_text().splitlines() if os.path.exists(path) else []
        caught = Path(folder, "caught").read_text().split() if os.path.exists(os.path.join(folder, "caught")) else []
    if caught:
        names = list(dict.fromkeys(caught))
        raise InputError(
            f"{script} calls {', '.join(names)}, which is not executed while it is read",
            hint=f"grep -nE '{'|'.join(names)}' {shlex.quote(str(script))}   # shoal submits, not the script",
        )
    if done.returncode != 0:
        raise InputError(
            f"{script} ended with exit code {done.returncode}", hint=f"bash -x {script}   # shows the failing line"
        )
    if not lines:
        raise InputError(
            f"{script} calls no step",
            hint='a script sources the functions and calls one: source "$(shoal shell)"; train --time=1:00:00',
        )
    return [Call(**json.loads(line)) for line in lines]


def _with_seed(call: Call, old: int, new: int) -> Call:
    def swap(text: str) -> str:
        return text.replace(str(old), str(new))

    return call._replace(
        seed=new,
        words=[swap(word) for word in call.words],
        env={name: swap(value) for name, value in call.env.items()},
        modifier=[swap(word) for word in call.modifier],
    )


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:12]
