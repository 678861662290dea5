"""The bash functions that experiment scripts source, and which calls a script makes: it is executed to collect them.

`function_definitions` is the part of shoal.sh that depends on the project. A script is ordinary bash; only the
functions from `source "$(shoal shell)"` are ours. What it exports between that line and the call is the experiment's
configuration (`exported_settings`) and becomes part of the run. A script that does not source them is a batch script
and is never executed here; one that does may not act on a cluster while it is read.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.batch import shell_quote
from shoal.describe.locate import find_root
from shoal.describe.project import Project
from shoal.errors import InputError
from shoal.model import EXPERIMENT_VARIABLES
from shoal.names import parse_script_path, stem_with_seed
from shoal.redaction import is_secret

COLLECT_VARIABLE = "SHOAL_COLLECT"
BASE_VARIABLE = "SHOAL_SHELL_BASE"
#: Functions that say what the next step starts from or continues, unless shoal.toml declares a step of that name.
MODIFIERS = ("posttrain", "resume")
#: The shell's own bookkeeping, and variables that say where a command runs rather than what it does.
_IGNORED_VARIABLES = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS", "LINES", "COLUMNS", "PATH"})
#: LEAD's name for the time in an output directory's name; other variables of this prefix are Slurm's own.
_DATE_VARIABLE = "SLURM_JOB_DATE"
#: What only the run knows, in a value that a script exports or passes; `requested_runs` makes placeholders of it.
_RUN_VALUE = re.compile(r"(\{+)shoal\.(output_dir|output_name)\}+")
#: Numbers that stand in for the seed where a script's text proves that it passes its seed on as it is.
_PLACEHOLDER_SEEDS = (740113, 920371)
#: A program of such a name, found before the real one. It says so where the calls are written down.
_BLOCKED_PROGRAM = """#!/bin/sh
echo '{{"caught": "{name}"}}' >> "${{SHOAL_COLLECT:-/dev/null}}"
exit 1
"""
#: How long processes that outlive their script are waited for: `train &` without `wait`.
_CHILD_TIMEOUT_S = 10.0
_MAX_PARALLEL_SCRIPTS = 8
#: Held while programs are written and while bash is started. A child that another thread starts has the open file
#: until its exec, and until then the program cannot be executed: "Text file busy".
_PROGRAMS_LOCK = threading.Lock()


class StepCall(NamedTuple):
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


def exported_settings(environ: Mapping[str, str], base: str) -> tuple[dict[str, str], list[str]]:
    """What was exported since the fingerprint was taken, and the names of secrets among it, which are not kept."""
    try:
        hashes = json.loads(zlib.decompress(base64.b64decode(base)))
    except (ValueError, zlib.error):
        raise InputError('the script did not begin with: source "$(shoal shell)"') from None
    changed = {
        name: value
        for name, value in environ.items()
        if hashes.get(name) != _hash(value)
        and name not in _IGNORED_VARIABLES
        and (not name.startswith(("SHOAL_", "SLURM_", "BASH_FUNC_")) or name == _DATE_VARIABLE)
    }
    kept = {name: value for name, value in changed.items() if not is_secret(name, value)}
    return kept, sorted(set(changed) - set(kept))


def collect_calls(
    script: Path, environ: Mapping[str, str], project: Project, seeds: Sequence[int] | None = None
) -> list[StepCall]:
    """The calls of a script, once for each seed, in the order of the script and then of the seeds.

    The script is run for each seed. Only where its text proves that the seed is nothing but a word of its step calls,
    it is run twice however many seeds there are, with numbers that stand in for them.
    """
    from shoal.describe.script_text import only_passes_seed, read_script, scheduler_calls, sources_functions

    files = read_script(script, environ)
    if not sources_functions(files):
        raise InputError(
            f"{script} does not source shoal's functions, so it is a batch script and was not executed",
            hint=f'sbatch {shlex.quote(str(script))}   # or let it begin with: source "$(shoal shell)"',
        )
    for name, path in scheduler_calls(files).items():
        raise _scheduler_error(path, [name], "acts on a cluster, so the script was not executed")
    if seeds is None:
        return _run_script(script, environ, project, None)
    from concurrent.futures import ThreadPoolExecutor  # here: what comes from no script starts sooner without it

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_PARALLEL_SCRIPTS)) as pool:
        if len(seeds) > len(_PLACEHOLDER_SEEDS) and only_passes_seed(files, {*project.steps, *MODIFIERS}):
            first, second = pool.map(lambda seed: _run_script(script, environ, project, seed), _PLACEHOLDER_SEEDS)
            if [_with_seed(call, _PLACEHOLDER_SEEDS[0], _PLACEHOLDER_SEEDS[1]) for call in first] == second:
                return [_with_seed(call, _PLACEHOLDER_SEEDS[0], seed) for seed in seeds for call in first]
        found = pool.map(lambda seed: _run_script(script, environ, project, seed), seeds)
        return [call for calls in found for call in calls]


def _scheduler_error(script: Path, names: Sequence[str], what: str) -> InputError:
    return InputError(
        f"{script} calls {', '.join(names)}, which {what}",
        hint=f"grep -nE '{'|'.join(names)}' {shlex.quote(str(script))}   # shoal submits, not the script",
    )


def refuse_while_collecting(what: str, environ: Mapping[str, str]) -> None:
    """Called by commands of shoal that act: within a script that is only read, they are refused, and so is it."""
    if not environ.get(COLLECT_VARIABLE):
        return
    with contextlib.suppress(OSError), Path(environ[COLLECT_VARIABLE]).open("a") as file:
        file.write(json.dumps({"caught": what}) + "\n")
    raise InputError(f"{what} is not executed while a script is read", hint=f"remove {what} from the script")


def refuse_blocked(script: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a file that tried to act on a cluster while it was read."""
    if names := list(dict.fromkeys(str(line["caught"]) for line in lines if "caught" in line)):
        raise _scheduler_error(script, names, "is not executed while it is read")


def append_call(path: str, call: StepCall) -> None:
    """Called by the step function of a collecting script: one line for one call."""
    try:
        with Path(path).open("a") as file:
            file.write(json.dumps(call._asdict()) + "\n")
    except FileNotFoundError:
        raise InputError(
            f"{call.function} was called too late: {call.script} has been read",
            hint=f"end the script with: wait   # {call.function} runs in the background",
        ) from None


def _run_script(script: Path, environ: Mapping[str, str], project: Project, seed: int | None) -> list[StepCall]:
    """Run a script whose step calls are written down, by the recorder where the answers to it are known."""
    import tempfile

    from shoal.describe import call_recorder
    from shoal.describe.script_text import SCHEDULER_COMMANDS

    with tempfile.TemporaryDirectory(prefix="shoal-") as name:
        folder = Path(name)
        path, programs = os.path.join(folder, "calls"), folder / "bin"
        programs.mkdir()
        own = os.path.dirname(os.path.abspath(sys.argv[0]))
        env = {
            **environ,
            COLLECT_VARIABLE: path,
            "PATH": os.pathsep.join([str(programs), own, environ.get("PATH", os.defpath)]),
            "SHOAL_SEED": "" if seed is None else str(seed),
        }
        definitions, real = _known_definitions(script, project, env), shutil.which("shoal", path=env["PATH"])
        with _PROGRAMS_LOCK:
            for program in SCHEDULER_COMMANDS:
                (programs / program).write_text(_BLOCKED_PROGRAM.format(name=program))
                (programs / program).chmod(0o755)
            if definitions is not None and real is not None:
                call_recorder.write_recorder(programs, folder, script, definitions, env, path, real)
        code, is_over = _run_bash(script, env)
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()] if os.path.exists(path) else []
        calls = [_read_call(folder, line) for line in lines if "caught" not in line]
    refuse_blocked(script, lines)
    settings = f"{COLLECT_VARIABLE}=/dev/null {'' if seed is None else f'SHOAL_SEED={seed} '}"
    look = f"{settings}bash -x {shlex.quote(str(script))}"
    if code != 0:
        raise InputError(f"{script} ended with exit code {code}", hint=f"{look}   # shows the failing line")
    if not is_over:
        raise InputError(
            f"{script} ended, but a process that it started still runs after {_CHILD_TIMEOUT_S:.0f} s "
            "and could call a step",
            hint=f"{look}   # shows what it starts; end the script with `wait`, or keep the process out of it",
        )
    if not lines:
        raise InputError(
            f"{script} calls no step",
            hint='a script sources the functions and calls one: source "$(shoal shell)"; train --time=1:00:00',
        )
    return calls


def _known_definitions(script: Path, project: Project, environ: Mapping[str, str]) -> str | None:
    """What the script gets when it sources the functions; None where that is an error, or of another project."""
    try:
        if Path(find_root(script.absolute().parent)) != project.root:
            return None
        return function_definitions(script, project, environ)
    except InputError:
        return None  # the real shoal says it where the script meets it


def _read_call(folder: Path, line: dict[str, Any]) -> StepCall:
    if "recorded" not in line:
        return StepCall(**line)
    from shoal.describe import call_recorder

    call = call_recorder.read_recorded(folder, line["recorded"])
    return step_call(call.function, call.words, call.script, call.modifier, call.environ)[0]


def step_call(
    function: str, words: list[str], script: str, modifier: list[str], environ: Mapping[str, str]
) -> tuple[StepCall, list[str]]:
    """A call of a step function that was made with an environment, and the names of secrets that are not kept."""
    env, secret = exported_settings(environ, environ.get(BASE_VARIABLE, ""))
    seed = environ.get("SHOAL_SEED", "")
    number = int(seed) if seed.isdigit() else None
    return StepCall(function, words, os.path.abspath(script), number, env, modifier), secret


def _run_bash(script: Path, env: Mapping[str, str]) -> tuple[int, bool]:
    """A script's exit code, and whether all that it started is over too: each process holds the end of a pipe."""
    import select

    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as held:  # noqa: PTH123
        try:
            # Whatever the script prints is for people, and must not mix with what this command prints for programs.
            with _PROGRAMS_LOCK:
                bash = subprocess.Popen(
                    ["bash", str(script)], env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=[writer]
                )
        finally:
            os.close(writer)
        try:
            code = bash.wait()
        except BaseException:
            bash.kill()
            raise
        return code, bool(select.select([held], [], [], _CHILD_TIMEOUT_S)[0])


def _with_seed(call: StepCall, old: int, new: int) -> StepCall:
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


#: Always functions, so that a step which shoal.toml does not declare is told so instead of "command not found".
_BUILTIN_FUNCTIONS = ("train", "resume", "posttrain", "evaluate")
#: What bash takes as the name of a function although it is a path.
_FUNCTION_PATH = re.compile(r"/[\w./+-]+", re.ASCII)


def function_definitions(script: Path, project: Project, environ: Mapping[str, str]) -> str:
    """Bash text: the run's names as variables, a fingerprint of the environment, one function for each step."""
    named = parse_script_path(script, project.code_root)
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
    names.update(_experiment_variables(named.experiment, stem, seed))
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


def _experiment_variables(experiment: str, stem: str, seed: str) -> dict[str, str]:
    """Values of EXPERIMENT_VARIABLES. They are exported, so the run has them too."""
    directory, date = "{shoal.output_dir}", "{shoal.output_name}"
    joined = (f"{experiment}_{stem}_{date}", f"{experiment}/{stem}/{date}")
    return dict(zip(EXPERIMENT_VARIABLES, (experiment, stem, seed, date, *joined, directory, directory), strict=True))


def with_run_values(text: str, *, is_escaped: bool = False) -> str:
    """A word in which what only the run knows is a placeholder that the job fills; braces around it stay.

    `is_escaped`: the text was escaped already, which has doubled the braces."""

    def placeholder(found: re.Match[str]) -> str:
        pairs = len(found[1]) - 1 if is_escaped else 2 * len(found[1]) - 1
        return "{" * pairs + found[2] + "}" * pairs

    return _RUN_VALUE.sub(placeholder, text)


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
