"""The bash door: shoal.sh is what scripts source; `definitions` is the part of it that depends on the project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.backends.slurm.quoting import shell_quote
from shoal.config.project import Project
from shoal.names import parse_script_path, stem_with_seed
from shoal.plan.calls import MODIFIERS, fingerprint

#: Always functions, so that a step which shoal.toml does not declare is told so instead of "command not found".
_ALWAYS = ("train", "resume", "posttrain", "evaluate")


def definitions(script: Path, project: Project, environ: Mapping[str, str]) -> str:
    """Bash text: the run's names as variables, a fingerprint of the environment, one function for each step."""
    named = parse_script_path(script, project.root)
    given = environ.get("SHOAL_SEED", "")
    seed = (
        given if given.isdigit() and environ.get("SHOAL_COLLECT") else ("" if named.seed is None else str(named.seed))
    )
    stem = stem_with_seed(named.stem, int(seed)) if seed else named.stem
    names = {
        "SHOAL_EXPERIMENT": named.experiment,
        "SHOAL_STEP": named.step,
        "SHOAL_SEED": seed,
        "SHOAL_RUN": f"{named.experiment}/{stem}",
    }
    lines = [f"export {name}={shell_quote(value)}" for name, value in names.items()]
    lines.append(f"__shoal_base={shell_quote(fingerprint(environ))}")
    functions = dict.fromkeys((*_ALWAYS, *project.steps))
    modifiers = [name for name in MODIFIERS if name not in project.steps]
    lines += [
        f'{name}() {{ {"__shoal_modify" if name in modifiers else "__shoal_call"} {name} "$@"; }}' for name in functions
    ]
    return "\n".join(lines)
