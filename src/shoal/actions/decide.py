"""(requested run, existing run) -> start it, skip it, or refuse. Pure.

Nodes that failed under a run are excluded when it is started again; job/job_constraints.py knows which.

A run that ended early and left a checkpoint continues from it if its program is known to do that, and otherwise starts
over in a new directory: neither can lose results, because the old directory stays. A person may choose (--resume,
--fresh); a resume that the program may ignore needs confirmation, or is refused.

Smoke tests: for each file or sweep one short run, its first, that must pass before the real ones start. It is a run
like any other, called NAME_smoke, with its own directory and log. The real ones depend on it: `needs`, which is afterok
in Slurm.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from shoal.batch import parse_flags
from shoal.describe import (
    RESUME_VARIABLE,
    Cluster,
    PlannedRun,
    Project,
    RequestedRun,
    Smoke,
    output_directories,
    resume_method,
    with_training_step,
)
from shoal.errors import InputError, RefusedError
from shoal.job import fill_placeholders, format_value, job_constraints
from shoal.kernel import checkpoints, layout
from shoal.model import ACTIVE_STATES, ATTENTION_STATES, ENDED_STATES, RunSpec
from shoal.names import SMOKE_SUFFIX, check_length, stem_without_seed
from shoal.observe import RunView
from shoal.plan import PlannedSubmission, resolve_request
from shoal.units import format_slurm_time


class StartDecision(NamedTuple):
    """`start` with the revision to record, or a reason to leave the run alone."""

    start: bool
    revision: int
    reason: str


def decide_start(
    spec: RunSpec, kept: RunSpec | None, view: RunView, *, rerun: bool, by_name: bool = False
) -> StartDecision:
    """What to do with a run that is asked for. `kept` is what was recorded under its name before, if anything.

    The same run asked for twice is one run: active or completed, it is left alone. One that failed starts again. Other
    settings under the same name start a new revision, but never silently beside or over a result of the old ones.
    What early stopping ended stays so, unless a person names that run (`by_name`: retry, resume).
    """
    if kept is not None and kept.title != spec.title:
        raise InputError(
            f"{spec.title or spec.name!r} and {kept.title or kept.name!r} would both be called {spec.name}",
            hint="rename one of the two scripts",
        )
    if kept is not None and kept.script.get("path") != spec.script.get("path"):
        _refuse_other_script(spec, kept)
    revision = kept.revision if kept else 0
    changed = [] if kept is None else spec_differences(kept, spec)
    if kept is not None and changed and not rerun and _is_same_command_line(kept, spec):
        changed = [] if view.state in ACTIVE_STATES or view.state == "completed" else changed
    if view.state in ACTIVE_STATES:
        if rerun or changed:
            what = "with other settings: " + "; ".join(changed) if changed else "already"
            raise InputError(f"{spec.name} is {view.state} {what}", hint=f"shoal cancel {spec.name}")
        job = f" as job {view.job_id}" if view.job_id else ""
        why = f": {view.reason}" if view.state in ATTENTION_STATES and view.reason else ""
        return StartDecision(False, revision, f"{view.state} already{job}{why}")
    if rerun:
        return StartDecision(True, revision + 1, "started over")
    if view.state == "completed":
        if changed:
            raise InputError(
                f"{spec.name} completed with other settings: {'; '.join(changed)}",
                hint="add --rerun to start it over (the old results stay), or give it another name"
                + (" (--name NAME)" if spec.number is None else ", such as a new number"),
            )
        return StartDecision(False, revision, f"completed already (attempt {view.attempt})")
    if kept is None:
        return StartDecision(True, 1, "new")
    if changed:
        return StartDecision(True, revision + 1, f"{view.state} before, settings changed")
    if view.state == "stopped" and not by_name:
        return StartDecision(False, revision, view.reason or "stopped early")
    return StartDecision(True, revision, "new" if view.state == "new" else f"{view.state} before")


def _is_same_command_line(old: RunSpec, new: RunSpec) -> bool:
    """Whether two descriptions start the same words: --lr 0.1, and --lr {lr} with --set lr=0.1."""

    def started(spec: RunSpec) -> dict[str, object]:
        values = {name: format_value(value) for name, value in spec.params.items()}
        words = [fill_placeholders(word, values) for word in spec.command]
        return {**spec.identity(), "params": {}, "command": words}

    return not old.script and old.params.keys() != new.params.keys() and started(old) == started(new)


def _refuse_other_script(spec: RunSpec, kept: RunSpec) -> None:
    """Another batch script, or a command, has this name; a script that was renamed keeps it."""
    other = kept.script.get("path")
    if other is not None and not os.path.exists(os.path.join(kept.cwd, kept.command[kept.script["word"]])):
        return
    this = spec.script.get("path") or "the command"
    raise InputError(
        f"{this} and {other or 'an earlier command'} would both be named {spec.name}",
        hint="give it another name: --name NAME",
    )


def spec_differences(old: RunSpec, new: RunSpec) -> list[str]:
    """What differs between two descriptions of one run, a phrase each, values cut short."""
    before, after = old.identity(), new.identity()
    if before == after:
        return []
    found = []
    for key in {**before, **after}:
        was, now = before.get(key), after.get(key)
        if was == now:
            continue
        if isinstance(was, dict) or isinstance(now, dict):
            was, now = was or {}, now or {}
            pairs = [(name, was.get(name), now.get(name)) for name in sorted({*was, *now})]
        else:
            pairs = [(key, was, now)]
        found += [f"{name} was {_short_value(a)}, now {_short_value(b)}" for name, a, b in pairs if a != b]
    return found


def _short_value(value: object) -> str:
    if value is None:
        return "not set"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class NodeExclusions:
    """What is known about the nodes of some runs; asks Slurm whether others could run a job, and only about runs that
    have such a node.
    """

    def __init__(
        self, views: Mapping[str, RunView], project: Project, cluster: Cluster, environ: Mapping[str, str]
    ) -> None:
        self._views, self._project, self._cluster, self._environ = views, project, cluster, environ

    @cached_property
    def _ask(self) -> job_constraints.AskSlurm:
        return job_constraints.ask_slurm(self._environ)

    def under(self, run: PlannedRun) -> list[str]:
        """Nodes that this run is to keep away from."""
        if self._cluster.is_local:
            return []
        name = run.spec.name
        tried = self._views[name].claims > 0
        known = job_constraints.failed_nodes(layout.run_dir(str(self._project.home), name), self._ask) if tried else []
        return list(dict.fromkeys([*run.avoid, *known]))

    def avoided_by_each(self, runs: Sequence[PlannedRun]) -> tuple[list[PlannedRun], list[str]]:
        """The runs, with --exclude among their flags where a node failed before, and a note for each."""
        found, notes = [], []
        for run in runs:
            if bad := self.under(run):
                run, words = self._without(run, bad)
                notes += [f"{run.spec.name} {words}"] if words else []
            found.append(run)
        return found, notes

    def avoided_by_all(self, planned: PlannedSubmission) -> tuple[PlannedSubmission, list[str]]:
        """Runs that share an allocation keep away from what failed under any of them."""
        bad = list(dict.fromkeys(node for run in planned.runs for node in self.under(run)))
        argv, words = job_constraints.exclude_nodes(planned.resolved.argv(), bad, self._ask)
        if not words:
            return planned, []
        options = [option for option in planned.resolved.options if option[0] != "exclude"]
        options += [("exclude", word.partition("=")[2]) for word in argv if word.startswith("--exclude=")]
        resolved = msgspec.structs.replace(planned.resolved, options=tuple(options))
        return planned._replace(resolved=resolved), [f"the {planned.layout} {words}"]

    def _without(self, run: PlannedRun, bad: list[str]) -> tuple[PlannedRun, str]:
        spec = run.spec
        flags = parse_flags(spec.flags, nodes=spec.request.nodes)
        resolved = resolve_request(
            spec.request,
            flags,
            self._cluster,
            self._project.clusters,
            launch=spec.launch,
            settings=spec.launch_settings,
            as_written=bool(spec.script),
        )
        argv, words = job_constraints.exclude_nodes(resolved.argv(), bad, self._ask)
        changed = [word for word in argv if word.startswith("--exclude=")]
        return run._replace(spec=msgspec.structs.replace(spec, flags=[*spec.flags, *changed])), words


_RESUME_ARGS_EXAMPLE = '["--resume={resume_from}"]'
#: More runs than this are counted, not named.
_MAX_NAMED = 3


class CheckpointDecision(NamedTuple):
    """A run with a checkpoint that starts again. `resumes`: it continues from it; `known`: how it is known that its
    program can do that, "" if it is not; `by_name`: a person asked for this very run; `is_open`: nobody has chosen.
    """

    name: str
    state: str
    folder: str
    checkpoint: str
    resumes: bool
    known: str
    step: str
    by_name: bool = False
    is_open: bool = False

    @property
    def is_uncertain(self) -> bool:
        return self.resumes and not self.known


def choose_checkpoint(
    home: str,
    one: RequestedRun,
    kept: RunSpec | None,
    view: RunView,
    revision: int,
    resume: bool | None,
    known_programs: dict[tuple[str, ...], str],
) -> tuple[PlannedRun, CheckpointDecision | None]:
    """A run that starts as `revision`, in the folder that it continues in; and from what, if there is a checkpoint.

    `kept` is the run as it was recorded. `resume` is what a person said: resume, or start over. `known_programs` is
    filled with programs that were looked at.
    """
    known = resume_method(one.run.spec, known_programs) if one.run.spec.checkpoint is not None else ""
    spec = msgspec.structs.replace(one.run.spec, revision=revision, resumes=known)
    is_same = one.run.resume_in is not None or (kept is not None and revision == kept.revision)
    found = _find_checkpoint(home, one, spec, view, resume) if is_same else None
    if found is None:
        return one.run._replace(spec=spec), None
    spec = msgspec.structs.replace(spec, resumes=found.known)
    return one.run._replace(spec=spec, resume_in=found.folder if found.resumes else None), found


def _find_checkpoint(
    home: str, one: RequestedRun, spec: RunSpec, view: RunView, resume: bool | None
) -> CheckpointDecision | None:
    folder = one.run.resume_in
    if spec.checkpoint is None or (folder is None and view.state not in ENDED_STATES):
        return None
    folders = [folder] if folder is not None else output_directories(home, spec.name, spec.revision)
    found = [
        (path, newest)
        for path in folders
        if (newest := checkpoints.newest_checkpoint(path, spec.checkpoint)) is not None
    ]
    if not found:
        return None
    known = spec.resumes or _resumed_before(home, spec.name)
    resumes = folder is not None or (bool(known) if resume is None else resume)
    by_name, is_open = folder is not None or one.by_name, folder is None and resume is None
    return CheckpointDecision(spec.name, view.state, *found[0], resumes, known, spec.step_kind, by_name, is_open)


def _resumed_before(home: str, name: str) -> str:
    number = checkpoints.newest_resumed_attempt(layout.run_dir(home, name))
    return f"attempt {number}" if number else ""


def without_checkpoint(spec: RunSpec) -> str:
    """For a run that was to continue."""
    pattern = f" {spec.checkpoint}" if spec.checkpoint else ""
    return f"{spec.name} starts from the beginning: it has no checkpoint{pattern}"


def refuse_uncertain_resume(found: Sequence[CheckpointDecision]) -> None:
    """Refuse to resume runs whose programs may start over and write over their checkpoints."""
    first = found[0]
    raise RefusedError(
        f"cannot tell whether {first.name} continues from {os.path.relpath(first.checkpoint)}: "
        f"{unknown_resume_reason(first)}",
        hint=f"set resume_args = {_RESUME_ARGS_EXAMPLE} in [steps.{first.step}] of shoal.toml ([] if the program needs "
        "none), or add --yes, which keeps a copy of the checkpoint",
    )


def unknown_resume_reason(one: CheckpointDecision) -> str:
    return f"no file of its program reads {RESUME_VARIABLE}, and step {one.step} has no resume_args"


def checkpoint_notes(found: Sequence[CheckpointDecision]) -> list[str]:
    """What happens to each of them, in words; many at once are counted."""
    sentences: list[str] = []
    for resumes in (True, False):
        group = [one for one in found if one.resumes == resumes]
        if len(group) > _MAX_NAMED:
            sentences.append(f"{len(group)} runs that have not completed {_checkpoint_summary(group, resumes)}")
        else:
            sentences += [f"{one.name} {_checkpoint_sentence(one)}" for one in group]
    return sentences


def _checkpoint_sentence(one: CheckpointDecision) -> str:
    where = with_training_step(one.checkpoint)
    if one.resumes:
        remark = "" if one.by_name else f" ({one.state} before; --fresh starts it over)"
        return (
            f"continues from {where}{remark}"
            if one.known
            else f"is given {where}, but may start over: {unknown_resume_reason(one)}"
        )
    if one.known:
        return f"starts over in a new folder (--fresh); its checkpoint {where} stays"
    return f"starts over in a new folder; its checkpoint {where} stays: {unknown_resume_reason(one)}"


def _checkpoint_summary(group: Sequence[CheckpointDecision], resumes: bool) -> str:
    if resumes:
        return "continue from their newest checkpoints (--fresh starts them over)"
    unknown = next((one for one in group if not one.known), None)
    why = f": {unknown_resume_reason(unknown)}" if unknown else " (--fresh)"
    return f"start over in new folders; their checkpoints stay{why}"


#: For set-up lines, staging and the end, beside the program's own time.
_OVERHEAD_S = 180


def with_smoke_runs(
    runs: Sequence[PlannedRun], project: Project, cluster: Cluster, only: Container[str] | None = None
) -> list[PlannedRun]:
    """The runs in their order, each kind with its smoke run before it and waiting for that; those not in `only` as they
    are."""
    found: list[PlannedRun] = []
    known: set[str] = set()
    for run in runs:
        if only is not None and run.spec.name not in only:
            found.append(run)
            continue
        stem = smoke_stem(run.spec)
        name = f"{run.spec.experiment}/{stem}"
        if name not in known:
            known.add(name)
            step = project.steps.get(run.spec.step_kind)
            spec = smoke_spec(run.spec, stem, step.smoke if step else Smoke(), cluster)
            found.append(PlannedRun(spec, needs=run.needs))
        found.append(run._replace(needs=(*run.needs, name)))
    return found


def smoke_stem(spec: RunSpec) -> str:
    """000_train_lr0.1_0 of the sweep 000_train, and 000_train_0, are both smoked by 000_train_smoke."""
    stem = f"{spec.sweep or stem_without_seed(spec.stem)}{SMOKE_SUFFIX}"
    check_length(spec.experiment, stem)
    return stem


def smoke_spec(spec: RunSpec, stem: str, smoke: Smoke, cluster: Cluster) -> RunSpec:
    """The run for a few steps: the same program, in the debug partition where the profile names one."""
    time = format_slurm_time(smoke.time_s + _OVERHEAD_S)
    where = [f"--{name}={value}" for name, value in cluster.debug.items()]
    drawn = spec.search.get("drawn", {"params": {}, "derived": {}})
    return msgspec.structs.replace(
        spec,
        stem=stem,
        title=None,
        sweep=None,
        args=smoke_arguments(spec.args, smoke.args),
        env={**spec.env, **smoke.env, "SHOAL_SMOKE": "1"},
        flags=[*spec.flags, *where, *smoke.flags, f"--time={time}"],
        recovery={},
        early_stopping={},
        search={},
        params={**spec.params, **drawn["params"], **drawn["derived"]},
        smoke={"steps": smoke.steps, "time_s": smoke.time_s},
        revision=1,
    )


def smoke_arguments(args: Sequence[str], extra: Sequence[str]) -> list[str]:
    """The arguments with others behind them; `key=value` takes the place of the same key."""
    keys = {word.partition("=")[0] for word in extra if "=" in word}
    return [*(word for word in args if word.partition("=")[0] not in keys or "=" not in word), *extra]
