"""The text of a batch script, as three parts that a person can read: header, set-up, launch. Pure text, no I/O.

    render_script(header(options, comments), set_up(cluster), launch)

The script does the same under `sbatch x.sh` and, where its geometry allows, under `bash x.sh`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from shoal.batch import refuse_line_breaks, sbatch_line, shell_quote
from shoal.describe import Cluster
from shoal.errors import InputError

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Not `set -e`: that would also judge every command inside a sourced activation script, and those fail harmlessly.
_EXIT_TRAP = """trap 'failed=$?; [ "${FUNCNAME[0]}" != set_up ] || { trap - ERR; return "$failed"; }' ERR"""


def script_header(options: Sequence[tuple[str, str | None]], comments: Sequence[str] = ()) -> str:
    """Shebang, comments, one #SBATCH line for each option; sbatch reads these only up to the first command."""
    for comment in comments:
        refuse_line_breaks(comment, "a comment")
    lines = ["#!/bin/bash", *(f"# {comment}".rstrip() for comment in comments)]
    lines += [sbatch_line(name, value) for name, value in options]
    return "\n".join(lines) + "\n"


def setup_function(cluster: Cluster, env: Mapping[str, str] | None = None) -> str:
    """The function `setup`: exports of the profile, then of `env`, then the profile's own shell lines as they are.

    It returns the exit code of the first of these lines that fails. Call it as a plain command: bash does not notice
    failures inside of `if set_up` or `set_up || ...`.
    """
    exports = {**cluster.environment(), **(env or {})}
    lines = [_export(name, value) for name, value in exports.items()]
    lines += [
        f"    export {name}={shell_quote(value)}${{{name}:+:${name}}}"
        for name, value in cluster.prepends().items()
        if name not in exports
    ]
    # Lines that only make sense together (a here-document, a quoted text over lines) must not be indented.
    indent = "    " if all(_is_single_command(line) for line in cluster.setup) else ""
    if cluster.setup:
        lines += ["    # The first line that fails ends the set-up.", f"    {_EXIT_TRAP}"]
        lines += [f"{indent}{line}" if line.strip() else "" for line in cluster.setup]
        lines.append("    trap - ERR")
    return "\n".join(["set_up() {", *(lines or ["    :"]), "}"]) + "\n"


def _export(name: str, value: str) -> str:
    """Where scratch is, a person may have said already; $NAMES in it are filled in by each node for itself."""
    unless = '[ -n "${SHOAL_SCRATCH:-}" ] || ' if name == "SHOAL_SCRATCH" else ""
    return f"    {unless}export {_env_name(name)}={shell_quote(value)}"


def render_script(head: str, setup: str, launch: str) -> str:
    """The whole script. A failing line ends it with that line's exit code; the last line's is the job's.

    `set -eu` begins after the set-up part, because activation scripts of conda and modules read unset variables.
    """
    call = 'set_up\nstatus=$?\n[ "$status" -eq 0 ] || exit "$status"\nset -euo pipefail\n'
    return f"{head}\n{setup}\n{call}\n{launch.rstrip()}\n"


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise InputError(f"{name!r} is not the name of an environment variable")
    return name


def _is_single_command(line: str) -> bool:
    if "<<" in line or line.endswith("\\"):
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True
