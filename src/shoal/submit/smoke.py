"""Smoke first: for each file or sweep one short run, its first, that must pass before the real ones start.

A smoke run is a run like any other, called NAME_smoke, with a folder and a log of its own. The real ones wait for it as
stages wait for each other: `needs`, which is afterok in Slurm.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from shoal.describe import Cluster, PlannedRun, Project, Smoke
from shoal.model import RunSpec
from shoal.names import check_length, stem_without_seed
from shoal.units import format_slurm_time

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
    stem = f"{spec.sweep or stem_without_seed(spec.stem)}_smoke"
    check_length(spec.experiment, stem)
    return stem


def smoke_spec(spec: RunSpec, stem: str, smoke: Smoke, cluster: Cluster) -> RunSpec:
    """The run for a few steps: the same program, in the debug partition where the profile names one."""
    time = format_slurm_time(smoke.time_s + _OVERHEAD_S)
    where = [f"--{name}={value}" for name, value in cluster.debug.items()]
    return msgspec.structs.replace(
        spec,
        stem=stem,
        title=None,
        sweep=None,
        args=smoke_arguments(spec.args, smoke.args),
        env={**spec.env, **smoke.env, "SHOAL_SMOKE": "1"},
        flags=[*spec.flags, *where, *smoke.flags, f"--time={time}"],
        survive={},
        search={},
        smoke={"steps": smoke.steps, "time_s": smoke.time_s},
        revision=1,
    )


def smoke_arguments(args: Sequence[str], extra: Sequence[str]) -> list[str]:
    """The arguments with others behind them; `key=value` takes the place of the same key."""
    keys = {word.partition("=")[0] for word in extra if "=" in word}
    return [*(word for word in args if word.partition("=")[0] not in keys or "=" not in word), *extra]
