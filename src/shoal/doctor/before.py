"""The doctor before `shoal submit`: the request and command of a run, read as the script that they amount to.

The real batch script starts the agent, which no rule can look into; so the rules see the header and, in the agent's
place, the launch line that it stands for. Errors refuse the submission, warnings are told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from shoal.batch import decode_text, parse_option_words, sbatch_line, shell_command
from shoal.doctor.check import check_script
from shoal.doctor.finding import Finding
from shoal.errors import InputError, RefusedError
from shoal.model import RunSpec
from shoal.plan import ResolvedRequest

#: Slurm's reading of these is what people get wrong, so their own spelling is looked at, not the one we made of it.
_USER_SPELLED_OPTIONS = ("time", "mem", "mem-per-cpu", "mem-per-gpu")
#: Said of a script that a person writes; shoal fills these in, or leaves them to the cluster, on purpose.
_SKIPPED_RULES = frozenset({"D16", "D18", "G15", "G16", "X03", "R09"})


class _RunLike(Protocol):
    @property
    def spec(self) -> RunSpec: ...


class _SubmissionLike(Protocol):
    @property
    def runs(self) -> Sequence[_RunLike]: ...
    @property
    def resolved(self) -> ResolvedRequest: ...


def check_submissions(submissions: Iterable[_SubmissionLike], root: str, *, force: bool = False) -> list[str]:
    """Warnings as notes; RefusedError for the first error, unless `force`, which makes it a note as well."""
    notes: dict[str, None] = {}
    seen: set[tuple[object, ...]] = set()
    for planned in submissions:
        spec = planned.runs[0].spec
        key = (planned.resolved.options, tuple(spec.command[:3]), spec.launch, tuple(spec.flags))
        if key in seen:
            continue
        seen.add(key)
        for finding in run_findings(spec, planned.resolved, root):
            if finding.severity == "error" and not force:
                raise RefusedError(
                    f"the doctor refuses {spec.name}: {finding.message} ({finding.code})",
                    hint=f"{finding.fix}   # or --force, to submit it all the same",
                )
            notes[f"{finding.code}: {finding.message}; {finding.fix}"] = None
    return list(notes)


def run_findings(spec: RunSpec, resolved: ResolvedRequest, root: str) -> list[Finding]:
    """Errors and warnings on one run; nothing when its header cannot be written, which others say better."""
    try:
        text = equivalent_script(spec, resolved)
    except InputError:
        return []
    path = Path(spec.cwd if os.path.isabs(spec.cwd) else os.path.join(root, spec.cwd)) / f"{spec.stem}.sh"
    found = check_script(decode_text(text.encode("utf-8", "surrogateescape")), path, None, {}).findings
    return [one for one in found if one.severity != "hint" and one.code not in _SKIPPED_RULES]


def equivalent_script(spec: RunSpec, resolved: ResolvedRequest) -> str:
    """Header and launch line that a run amounts to."""
    options = dict(resolved.options)
    written = {
        option.name: option.value
        for option in parse_option_words(spec.flags)[0]
        if option.name in _USER_SPELLED_OPTIONS
    }
    options.update({name: value for name, value in written.items() if name in options})
    # Arguments arrive as they are, whatever is in them; a line break in one is none in the script.
    words = [*spec.command, *("".join(c if c.isprintable() else "?" for c in word) for word in spec.args)]
    gpus = resolved.request.gpus or 1
    if spec.launch == "process":
        # The agent hides the number of tasks from the program, so that Lightning starts its own processes.
        options.pop("ntasks-per-node", None)
        line = f"exec {shell_command(words)}"
    elif spec.launch == "torchrun":
        program = words[1:] if words[:1] in (["python"], ["python3"]) else words
        line = f"srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node={gpus} {shell_command(program or ['train.py'])}"
    elif spec.launch == "srun":
        line = f"srun --ntasks-per-node={gpus} {shell_command(words)}"
    else:
        line = ":"
    header = "\n".join(sbatch_line(name, value) for name, value in options.items())
    return f"#!/bin/bash\n{header}\nset -e\n{line}\n"
