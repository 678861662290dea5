"""shoal.sh is what scripts source; `function_definitions` is the part of it that depends on the project."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.batch import shell_quote
from shoal.describe.calls import COLLECT_VARIABLE, MODIFIERS, fingerprint
from shoal.describe.project import Project
from shoal.errors import InputError
from shoal.names import parse_script_path, stem_with_seed

#: Always functions, so that a step which shoal.toml does not declare is told so instead of "command not found".
_BUILTIN_FUNCTIONS = ("train", "resume", "posttrain", "evaluate")
#: What bash takes as the name of a function although it is a path.
_FUNCTION_PATH = re.compile(r"/[\w./+-]+", re.ASCII)


def function_definitions(script: Path, project: Project, environ: Mapping[str, str]) -> str:
    """Bash text: the run's names as variables, a fingerprint of the environment, one function for each step."""
    named = parse_script_path(script, project.root)
    given = environ.get("SHOAL_SEED", "")
    seed = (
        given if given.isdigit() and environ.get(COLLECT_VARIABLE) else ("" if named.seed is None else str(named.seed))
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
    functions = dict.fromkeys((*_BUILTIN_FUNCTIONS, *project.steps))
    modifiers = [name for name in MODIFIERS if name not in project.steps]
    lines += [
        f'{name}() {{ {"__shoal_modify" if name in modifiers else "__shoal_call"} {name} "$@"; }}' for name in functions
    ]
    with contextlib.suppress(OSError):
        text = script.read_text(errors="replace")
        if any(name in text for name in modifiers):
            from shoal.describe.script_text import unused_modifiers

            alone = unused_modifiers(text, modifiers, set(functions) - set(modifiers))
            lines.append(f"__shoal_alone={shell_quote(' '.join(['', *map(str, alone), '']))}")
        if "SHOAL_" in text:
            _refuse_unset(script, text, set(functions))
    return "\n".join([*_blocked_functions(environ), *lines])


def _refuse_unset(script: Path, text: str, steps: set[str]) -> None:
    """A variable that only the run has is empty in the script, so its word would be too."""
    from shoal.describe.script_text import run_variables

    for name, line in run_variables(text, steps).items():
        raise InputError(
            f"{script}:{line} passes ${name} to a step, but only the run has it, not the script",
            hint=f"write {{{name.partition('_')[2].lower()}}} instead, or let the program read the variable",
        )


def _blocked_functions(environ: Mapping[str, str]) -> Iterator[str]:
    """While a script is read: functions in place of programs that act on a cluster. They win over the PATH, whatever
    the script does to it; bash scripts that it starts have them too; and a path such as /usr/bin/sbatch is one."""
    if not environ.get(COLLECT_VARIABLE):
        return
    from shoal.describe.script_text import SCHEDULER_COMMANDS

    for name in SCHEDULER_COMMANDS:
        body = f"""{{ echo '{{"caught": "{name}"}}' >> "${{SHOAL_COLLECT:-/dev/null}}"; return 1; }}"""
        yield f"{name}() {body}; export -f {name}"
        for folder in dict.fromkeys(environ.get("PATH", os.defpath).split(os.pathsep)):
            path = os.path.join(folder, name)
            if _FUNCTION_PATH.fullmatch(path) and os.access(path, os.X_OK):
                yield f"[[ -o posix ]] || eval {shell_quote(f'{path}() {body}')}"
