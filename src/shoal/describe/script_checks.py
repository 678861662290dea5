"""What a batch script does that shoal tells about, and what it cannot do without Slurm."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from shoal.batch import ShellCommand, known_options, parse_flags, parse_option_words
from shoal.describe.project import Project
from shoal.describe.script_source import ScriptSource, load_batch_script
from shoal.errors import InputError
from shoal.job import fill_placeholders, parse_srun
from shoal.kernel import layout, slurm
from shoal.model import RunSpec

#: Options of plugins that many sites have (Pyxis, Shifter, X11), which `sbatch --help` lists only there.
_PLUGIN_OPTIONS = frozenset(
    {"container-image", "container-mounts", "container-workdir", "container-name", "container-save", "container-env"}
    | {"container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root", "x11"}
    | {"container-entrypoint", "no-container-entrypoint", "container-entrypoint-log", "container-writable"}
    | {"container-readonly", "image", "module", "volume"}
)
#: Programs of Slurm that a job's own machine must have.
_CLIENTS = ("sbatch", "salloc", "scancel", "squeue", "sacct", "sinfo", "sstat", "sbcast", "sattach", "sprio", "sshare")
_OWN_PATH = re.compile(r"\$0(?!\d)|\$\{0[}%#:/]|BASH_SOURCE")
_QUOTED = re.compile(r"'[^']*'")
#: Options that have a meaning between jobs of Slurm alone.
_BETWEEN_JOBS = ("dependency", "begin", "deadline")
_HELP_TIMEOUT_S = 20.0


def check_scripts(specs: Iterable[RunSpec], project: Project, environ: Mapping[str, str], *, local: bool) -> list[str]:
    """Remarks on the batch scripts among runs; InputError for an option that no Slurm has, and where `local` (without
    Slurm) for a line that cannot work."""
    remarks: dict[str, None] = {}
    seen: set[tuple[object, ...]] = set()
    for spec in specs:
        key = (spec.script.get("digest"), tuple(spec.flags))
        if not spec.script or key in seen:
            continue
        seen.add(key)
        script = load_batch_script(_script_file(spec, str(project.home)))
        _refuse_unknown_options(script, spec, environ)
        remarks.update(dict.fromkeys(_remarks(script)))
        if local and not environ.get("SLURM_JOB_ID"):
            remarks.update(dict.fromkeys(_without_slurm(script, spec, environ)))
    return list(remarks)


def _script_file(spec: RunSpec, home: str) -> Path:
    """The script of a run: its copy if it was submitted before, else the file itself."""
    for shared in (False, True):
        kept = layout.kept_script(home, spec.script["digest"], spec.script["file"], shared)
        if os.path.exists(kept):
            return Path(kept)
    return Path(spec.cwd, fill_placeholders(spec.command[spec.script["word"]], {}))


def _refuse_unknown_options(script: ScriptSource, spec: RunSpec, environ: Mapping[str, str]) -> None:
    known = known_options()
    lines = {option.name: option.line for option in script.directives.options}
    unknown = [option for option in parse_option_words(spec.flags)[0] if option.name not in known]
    unknown = [option for option in unknown if option.name not in _PLUGIN_OPTIONS]
    if not unknown:
        return
    listed = slurm.run_command(["sbatch", "--help"], _HELP_TIMEOUT_S, environ).stdout
    for option in unknown:
        if re.search(rf"--{re.escape(option.name)}\b", listed):
            continue
        near = get_close_matches(option.name, known, n=1)
        raise InputError(
            f"unknown sbatch option --{option.name}",
            hint=f"did you mean --{near[0]}?" if near else "remove the line",
            place=f"{spec.script['path']}:{lines.get(option.name, 0)}",
        )


def _remarks(script: ScriptSource) -> list[str]:
    """What is told about a script wherever it runs."""
    found: list[str] = []
    for command in script.shell.commands if script.shell else ():
        raws = [word.raw for word in command.words] + [one.raw for one in command.assigns]
        if any(_OWN_PATH.search(_QUOTED.sub("", raw)) for raw in raws):
            found.append(
                f"{script.path.name}:{command.line} reads the script's own path, which in a job is that of a copy "
                "(with sbatch too); $SLURM_SUBMIT_DIR is the directory of the submission"
            )
        if os.path.basename(command.name) == "sbatch":
            found.append(
                f"{script.path.name}:{command.line} calls sbatch: shoal does not know the jobs that it submits"
            )
    return found


def _without_slurm(script: ScriptSource, spec: RunSpec, environ: Mapping[str, str]) -> list[str]:
    """Refuse what cannot work on this machine alone, by its line; remarks on what may not be reached."""
    _refuse_several_nodes(script, spec)
    remarks: list[str] = []
    for command in script.shell.commands if script.shell else ():
        problem = _problem(command, environ)
        if problem is None:
            continue
        if command.function is not None or command.condition or command.within:
            remarks.append(f"{script.path.name}:{command.line} may not work without Slurm: {problem}")
            continue
        raise InputError(
            f"{problem}, which needs Slurm",
            hint=f"shoal submit {shlex.quote(str(spec.script['path']))} --on CLUSTER   # or change the line",
            place=f"{spec.script['path']}:{command.line}",
        )
    return remarks


def _refuse_several_nodes(script: ScriptSource, spec: RunSpec) -> None:
    flags = parse_flags(spec.flags)
    lines = {option.name: option.line for option in script.directives.options}
    if (flags.request.nodes or 1) > 1:
        raise InputError(
            f"--nodes={flags.request.nodes} needs Slurm: this machine is one node",
            hint=f"add --nodes 1, or --on CLUSTER: shoal clusters list   # {spec.name}",
            place=f"{spec.script['path']}:{lines.get('nodes', 0)}",
        )
    for flag in flags.other:
        name = flag.removeprefix("--").partition("=")[0]
        if name in _BETWEEN_JOBS:
            raise InputError(
                f"{flag} needs Slurm",
                hint="remove it, or submit to a cluster: --on CLUSTER",
                place=f"{spec.script['path']}:{lines.get(name, 0)}",
            )


def _problem(command: ShellCommand, environ: Mapping[str, str]) -> str | None:
    """Why a command of a script cannot work on a machine without Slurm; None if it can."""
    name, words = os.path.basename(command.name), command.texts[1:]
    if name == "srun":
        nodes = parse_srun(list(words)).options.get("nodes", "1")
        return f"srun --nodes={nodes}" if nodes.isdigit() and int(nodes) > 1 else None
    if name == "scontrol":
        return None if _is_answered(words) else f"scontrol {' '.join(words[:2])}"
    if name in _CLIENTS and shutil.which(name, path=environ.get("PATH")) is None:
        return f"{name} is called"
    return None


def _is_answered(words: Sequence[str]) -> bool:
    """Whether job/local_slurm.py answers this question to scontrol."""
    plain = [word for word in words if not word.startswith("-")]
    return plain[:1] == ["show"] and plain[1:2] in (["hostnames"], ["hostname"], ["job"])
