"""`shoal.submit` and `shoal.map`: calls of a function as runs, each submitted once.

    run = shoal.submit(train, lr=0.1, seed=0, request=shoal.Request(gpus=1, time="2h"), experiment="002_lr")
    runs = shoal.map(train, {"lr": [0.1, 0.01]}, seeds=range(3), layout="pack", slots=4)

A run is named `<experiment>/<function>_<arguments>_<seed>`. The same call again is the same run: an active one is
attached to, a completed one has its result, and one that failed stays so until `retry()` or `rerun=True`. If the code
of the function has changed since, `on_change` decides. The command of such a run is job/function_call.py.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.describe import (
    PlannedRun,
    Project,
    RequestedRun,
    Step,
    SweepNaming,
    SweepPoint,
    find_project,
    parse_seeds,
    project_or_bare,
    run_stems,
)
from shoal.errors import InputError
from shoal.functions import objects
from shoal.functions.calls import (
    BoundCall,
    FunctionSource,
    bind_arguments,
    checkpoint_policy,
    experiment_of,
    find_function,
    import_paths,
    owner_parameter,
    script_path,
)
from shoal.functions.delivery import send_runs
from shoal.functions.digests import digest_value
from shoal.functions.run_handle import Run, Runs
from shoal.job import function_call
from shoal.model import ACTIVE_STATES, Request, RunSpec
from shoal.names import check_length, make_slug
from shoal.observe import RunReader, RunView, observe, open_state_dir
from shoal.units import shorten_list

ON_CHANGE = ("rerun", "keep", "error")
_MAX_CALLS = 100_000


class CallOptions(NamedTuple):
    """How calls become runs; the keywords of `submit` and `map` that are not the function's."""

    request: Request | Mapping[str, Any] | None = None
    experiment: str | None = None
    name: str | None = None
    layout: str = "auto"
    slots: int | None = None
    on: str | None = None
    rerun: bool = False
    on_change: str = "rerun"
    checkpoint: str | None = None
    preload: tuple[str, ...] = ()
    project: str | os.PathLike[str] | None = None
    flags: tuple[str, ...] = ()
    max_parallel: int | None = None
    #: Of a callable with a `checkpoint` method: when that is called, and how many times the run continues.
    warn_before_s: int | None = None
    max_follow_ups: int | None = None


class Call(NamedTuple):
    """Arguments of one call, as a user gives them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _Default:
    """The default of an option of `submit`, told apart from the same value given by a caller; shown as the value."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)


_NONE: Any = _Default(None)
_FALSE: Any = _Default(False)
_RERUN: Any = _Default("rerun")


def submit(
    function: Callable[..., Any],
    /,
    *args: Any,
    request: Request | Mapping[str, Any] | None = _NONE,
    experiment: str | None = _NONE,
    name: str | None = _NONE,
    on: str | None = _NONE,
    rerun: bool = _FALSE,
    on_change: str = _RERUN,
    checkpoint: str | None = _NONE,
    project: str | os.PathLike[str] | None = _NONE,
    **kwargs: Any,
) -> Run:
    """Submit one call and return its run at once; all other arguments are the function's.

    A keyword that is an option here and a parameter of the function too is refused, because either could be meant:
    `map(function, [{...}])` keeps the two apart. `name` replaces the function's name in the run's, and is needed for a
    lambda. `checkpoint` is the pattern of its checkpoints in the output directory, such as "model_*.pt": an attempt
    that continues gets the newest one as `shoal.context().resume_from`. What cannot be submitted raises here:
    InputError, RefusedError, SchedulerError.
    """
    options = {
        "request": request,
        "experiment": experiment,
        "name": name,
        "on": on,
        "rerun": rerun,
        "on_change": on_change,
        "checkpoint": checkpoint,
        "project": project,
    }
    given: dict[str, Any] = {key: value for key, value in options.items() if not isinstance(value, _Default)}
    _refuse_ambiguous(function, given)
    return submit_calls(function, [Call(args, kwargs)], CallOptions(**given))[0]


def map(
    function: Callable[..., Any],
    points: Mapping[str, Iterable[Any]] | Iterable[Any],
    /,
    *,
    seeds: Sequence[int] | str | int | None = None,
    request: Request | Mapping[str, Any] | None = None,
    experiment: str | None = None,
    name: str | None = None,
    layout: str = "auto",
    slots: int | None = None,
    on: str | None = None,
    rerun: bool = False,
    on_change: str = "rerun",
    checkpoint: str | None = None,
    preload: Sequence[str] = (),
    project: str | os.PathLike[str] | None = None,
) -> Runs:
    """Submit many calls at once and return their runs in order.

    `points` is a grid, {"lr": [0.1, 0.01], "depth": [4, 8]}, or a list: of dicts with the arguments, or of values for
    the first argument. `seeds` multiplies them. `layout` is auto, job, array, pack or pilots; with pack and pilots,
    `slots` is how many run at a time, and `preload` names modules that are imported once for all of them.
    """
    options = CallOptions(
        request, experiment, name, layout, slots, on, rerun, on_change, checkpoint, tuple(preload), project
    )
    return submit_calls(function, expand_calls(points, seeds), options)


def expand_calls(
    points: Mapping[str, Iterable[Any]] | Iterable[Any], seeds: Sequence[int] | str | int | None
) -> list[Call]:
    """The calls of a grid or a list, each once for each seed."""
    if isinstance(points, str | bytes):
        raise InputError(f"invalid points {points!r}: expected a dict of lists, or a list", hint='{"lr": [0.1, 0.01]}')
    calls: list[Call]
    if isinstance(points, Mapping):
        wrong = [name for name, values in points.items() if isinstance(values, str) or not isinstance(values, Iterable)]
        if wrong:
            raise InputError(
                f"invalid values of {wrong[0]!r}: expected a list, got {points[wrong[0]]!r}", hint='{"lr": [0.1, 0.01]}'
            )
        rows = itertools.product(*(list(values) for values in points.values()))
        calls = [Call((), dict(zip(points, row, strict=True))) for row in rows]
    else:
        calls = [Call((), dict(one)) if isinstance(one, Mapping) else Call((one,), {}) for one in points]
    numbers = parse_seeds(list(seeds) if isinstance(seeds, range) else seeds, place="seeds")
    if numbers is not None:
        calls = [Call(one.args, {**one.kwargs, "seed": seed}) for one in calls for seed in numbers]
    if not 0 < len(calls) <= _MAX_CALLS:
        raise InputError(f"this describes {len(calls):,} calls: expected 1 to {_MAX_CALLS:,}")
    return calls


def find_api_project(given: str | os.PathLike[str] | None) -> Project:
    """The project of a call: as given, or around the working directory; without shoal.toml, that directory itself."""
    return find_project(Path(given), os.environ) if given is not None else project_or_bare(Path.cwd(), os.environ)


def submit_calls(
    function: Callable[..., Any], calls: Sequence[Call], options: CallOptions, serials: Sequence[str] | None = None
) -> Runs:
    """Submit what has to be started of these calls; the runs of all of them, in order.

    With `serials` each call is a run of its own, named after its serial and not after its arguments.
    """
    _refuse_wrong_use(options)
    project = find_api_project(options.project)
    source = find_function(function, str(project.root), options.name, unnamed=None if serials is None else "call")
    bound = [bind_arguments(source, one.args, one.kwargs) for one in calls]
    specs = _describe_runs(source, bound, project, options, serials)
    home = str(project.home)
    views = observe(home, [spec.name for spec in specs], environ=os.environ).views
    chosen = _choose(specs, views, home, options)
    starting = [place for place, one in enumerate(chosen) if one is not None]
    if starting:
        open_state_dir(project.home, project.shared_by)
        commands = _store_calls(home, source, [bound[place] for place in starting], project)
        asked = [
            RequestedRun(PlannedRun(msgspec.structs.replace(specs[place], command=words)), rerun=bool(chosen[place]))
            for place, words in zip(starting, commands, strict=True)
        ]
        send_runs(
            asked,
            project,
            on=options.on,
            layout=options.layout,
            slots=options.slots,
            preload=options.preload,
            max_parallel=options.max_parallel,
        )
    known = {spec.name: spec.function["code"] for spec in specs}
    return Runs(Run(home, spec.name, project, code=known[spec.name], source=source) for spec in specs)


def _refuse_wrong_use(options: CallOptions) -> None:
    if function_call.IMPORTING_VARIABLE in os.environ:
        script = os.environ[function_call.IMPORTING_VARIABLE]
        raise InputError(
            f"{script} submits while a job imports it", hint='put what submits under: if __name__ == "__main__":'
        )
    if options.on_change not in ON_CHANGE:
        raise InputError(f"invalid on_change={options.on_change!r}: expected one of {', '.join(ON_CHANGE)}")


def _refuse_ambiguous(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse keywords that are options of shoal and parameters of the function."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return
    label = getattr(function, "__name__", "function")
    for name in sorted(names & set(given)):
        raise InputError(
            f"{name}= is an option of shoal and a parameter of {label}",
            hint=f'shoal.map({label}, [{{"{name}": {given[name]!r}}}])[0]   # gives it to {label}',
        )


def _describe_runs(
    source: FunctionSource,
    bound: Sequence[BoundCall],
    project: Project,
    options: CallOptions,
    serials: Sequence[str] | None,
) -> list[RunSpec]:
    """What each call is as a run, but for its command, which is known when its arguments are stored."""
    root = str(project.root)
    experiment = make_slug(options.experiment or experiment_of(source, root, os.environ))
    label = make_slug(source.label)
    check_length(experiment, label)
    step = project.steps.get(label) or Step(name=label, command=(), output=label, origin="functions")
    request = _request(options.request).over(step.request)
    if serials is None:
        points = [SweepPoint(dict(one.shown), {}, one.seed, request, None, source.label) for one in bound]
        stems = run_stems(points, label, experiment, SweepNaming())
    else:
        stems = [f"{label}_{serial}" for serial in serials]
    subdir = os.path.relpath(os.path.realpath(os.getcwd()), os.path.realpath(root))
    checkpoint, recovery = options.checkpoint or step.checkpoint, step.recovery
    if source.checkpoints:
        checkpoint = checkpoint or function_call.NEXT_CALL_FILE
        policy = checkpoint_policy(request.time_limit_s, options.warn_before_s, options.max_follow_ups)
        recovery = {**policy, **step.recovery}
    return [
        RunSpec(
            experiment=experiment,
            stem=stem,
            step=label,
            step_kind=label,
            seed=one.seed,
            command=[],
            args=[f"{name}={digest}" for name, digest in sorted(one.digests.items())],
            params=dict(sorted(one.labels.items())),
            cwd=root,
            subdir="" if subdir == "." or subdir.startswith("..") else subdir,
            output=step.output,
            env=dict(step.env),
            checkpoint=checkpoint,
            resume_args=None if checkpoint is None else list(step.resume_args or ()),
            metrics=list(step.metrics),
            request=request,
            flags=list(options.flags),
            recovery=recovery,
            sweep=label,
            function=_function_record(source, one),
        )
        for stem, one in zip(stems, bound, strict=True)
    ]


def _function_record(source: FunctionSource, call: BoundCall) -> dict[str, Any]:
    code = digest_value([source.code, dict(call.code)])[:16] if call.code else source.code
    record: dict[str, Any] = {"name": source.identity, "code": code, "how": source.how}
    record |= {"checkpoints": True} if source.checkpoints else {}
    return {**record, "defaults": dict(call.defaults)} if call.defaults else record


def _request(given: Request | Mapping[str, Any] | None) -> Request:
    if given is None or isinstance(given, Request):
        return given or Request()
    try:
        return Request(**given)
    except TypeError as error:
        known = ", ".join(name for name in Request.__struct_fields__ if name != "gpu_share")
        raise InputError(f"invalid request: {error}", hint=f"a request has {known}") from None


def _choose(
    specs: Sequence[RunSpec], views: Mapping[str, RunView], home: str, options: CallOptions
) -> list[bool | None]:
    """For each run: None to leave it, else whether it starts over. Warns about code that changed under a run."""
    reader = RunReader(home)
    found: list[bool | None] = []
    stale: list[str] = []
    for spec in specs:
        view, kept = views[spec.name], reader.spec(spec.name)
        changed = kept is not None and kept.function.get("code") != spec.function["code"]
        if kept is not None and kept.function.get("name") != spec.function["name"]:
            other = kept.function.get("name") or "a command"
            raise InputError(
                f"{spec.name} is the name of a run of {other}, and would be one of {spec.function['name']} too",
                hint="give it another name: name= or experiment=",
            )
        if kept is not None and view.state != "new":
            _refuse_other_arguments(spec, kept)
        if changed and options.on_change == "error" and view.state != "new":
            raise InputError(
                f"the code of {spec.function['name']} changed since {spec.name} was submitted",
                hint='use on_change="rerun" to run it again, or "keep" to take the old result',
            )
        if view.state == "new":
            found.append(changed and kept is not None and view.attempt > 0)
        elif view.state in ACTIVE_STATES:
            found.append(None)
            stale += [spec.name] if changed else []
        elif options.rerun or (changed and options.on_change == "rerun"):
            found.append(True)
        else:
            found.append(None)
            stale += [spec.name] if changed else []
    if stale:
        warnings.warn(
            f"the code of {specs[0].function['name']} changed since the submission of {shorten_list(stale, 3)}",
            stacklevel=4,
        )
    return found


def _refuse_other_arguments(spec: RunSpec, kept: RunSpec) -> None:
    """Calls that differ only in the type of a value, 1 and "1", have one name; the result of one is not the other's."""

    def arguments(one: RunSpec) -> str:
        return json.dumps([one.params, one.args, one.seed], sort_keys=True)

    if arguments(kept) != arguments(spec):
        raise InputError(
            f"{spec.name} is the name of a call with {kept.params}, and would be one with {spec.params} too",
            hint="give one of the two another name: name= or experiment=",
        )


def _store_calls(home: str, source: FunctionSource, bound: Sequence[BoundCall], project: Project) -> list[list[str]]:
    """Write the function and all arguments; the command of each call. Calls of one form share a record."""
    by_value = source.how == "value"
    root = str(project.root)
    subdir = os.path.relpath(os.path.realpath(os.getcwd()), os.path.realpath(root))
    for one in bound:
        for name, value in one.objects.items():
            what = f"argument {name!r} of {source.label}"
            objects.store_argument(home, one.digests[name], value, what, by_value=source.how != "script")
    record: dict[str, Any] = {
        "schema": 1,
        "how": source.how,
        "module": source.module,
        "qualname": source.qualname,
        "function": objects.store_function(home, source) if by_value else "",
        "file": script_path(source, root),
        "path": import_paths(source, root),
        "subdir": "" if subdir == "." or subdir.startswith("..") else subdir,
        "python": function_call.current_versions().python,
        "cloudpickle": objects.cloudpickle_version() if by_value else None,
        "code": source.code,
        "source": source.source,
        "checkpoints": source.checkpoints,
        "owner": owner_parameter(source),
    }
    stored: dict[tuple[Any, ...], str] = {}
    for form in {_form_of(one) for one in bound}:
        positional, starred, seeded, captured = form
        more = {"positional": list(positional), "starred": starred, "seeded": seeded, "captured": list(captured)}
        stored[form] = objects.store_record(home, {**record, **more})
    return [[sys.executable, "-m", "shoal.job.function_call", stored[_form_of(one)]] for one in bound]


def _form_of(call: BoundCall) -> tuple[tuple[str, ...], str | None, bool, tuple[str, ...]]:
    """How its arguments are passed."""
    return call.positional, call.starred, call.seed is not None, call.captured
