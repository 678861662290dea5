"""Experiment scripts in, results out: which files, evaluated when, submitted in which order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal import secrecy
from shoal.backends.choose import choose_cluster
from shoal.config.cluster import Cluster
from shoal.config.project import Project
from shoal.errors import InputError
from shoal.names import parse_script_path
from shoal.plan.calls import Call, collect
from shoal.plan.describe import Asked, describe
from shoal.plan.inputs import NotReadyError
from shoal.submit.orders import Result, carry_out, prepare

_MOST_SEEDS = 1_000_000


class Tell(Protocol):
    """Who hears of results and remarks while they come."""

    def __call__(self, result: Result) -> None: ...
    def note(self, text: str) -> None: ...


def find_scripts(paths: Sequence[Path], project: Project) -> list[Path]:
    """The experiment scripts that paths stand for, folders in the order of their numbers; checks every name first."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.sh")) or sorted(path.glob("*/*.sh"))
            if not inside:
                raise InputError(f"there is no experiment script in {path}", hint=f"ls {path}")
            found += inside
        elif path.suffix != ".sh":
            raise InputError(
                f"{path} is not an experiment script", hint="a bash script ending in .sh, or a folder of them"
            )
        elif not path.is_file():
            raise InputError(f"there is no file {path}", hint="ls experiments/*")
        else:
            found.append(path)
    for path in found:
        parse_script_path(path, project.root)
    return list(dict.fromkeys(found))


def parse_seeds(text: str | None) -> list[int] | None:
    """ "0-2,7" -> [0, 1, 2, 7]."""
    if text is None:
        return None
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise InputError(f"{text!r} is not a list of seeds", hint="--seeds 0-2, or --seeds 0,1,7", place="--seeds")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low >= _MOST_SEEDS:
            raise InputError(f"{part!r} is not a range of seeds", hint="--seeds 0-2", place="--seeds")
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return list(seeds)


def read_scripts(
    paths: Sequence[Path], project: Project, environ: Mapping[str, str], seeds: str | None = None
) -> tuple[list[Asked], list[tuple[Path, NotReadyError]]]:
    """Everything that scripts ask for, and the scripts whose inputs do not exist yet; any other mistake is raised."""
    asked: list[Asked] = []
    waiting: list[tuple[Path, NotReadyError]] = []
    for path in find_scripts(paths, project):
        try:
            asked += [describe(call, project) for call in collect(path, environ, parse_seeds(seeds))]
        except NotReadyError as error:
            waiting.append((path, error))
    return asked, waiting


def submit_scripts(
    paths: Sequence[Path],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    tell: Tell,
    follow: bool,
    seeds: str | None = None,
    shape: str = "auto",
    again: bool = False,
) -> list[Result]:
    """Submit scripts in order. All are read first, so that a mistake in the last one stops the first.

    On this machine a script whose input does not exist yet is read once more when its turn comes.
    """
    asked, waiting = read_scripts(paths, project, environ, seeds)
    tell_secrets(environ, cluster, tell)
    results: list[Result] = []
    late = dict(waiting)
    if cluster.is_local and late:
        for path in find_scripts(paths, project):
            asked, still = read_scripts([path], project, environ, seeds)
            if still:
                raise still[0][1]
            results += submit_asked(
                asked, project, cluster, environ, tell=tell, follow=follow, shape=shape, again=again
            )
            if results[-1].did == "ran" and results[-1].state != "done":
                break
        return results
    if asked:
        results = submit_asked(asked, project, cluster, environ, tell=tell, follow=follow, shape=shape, again=again)
    if late:
        path, error = waiting[0]
        raise NotReadyError(
            f"{path.name} waits: {error.message}", hint=f"shoal submit {os.path.relpath(path)}   # when it is there"
        )
    return results


def submit_described(
    calls: Sequence[Call], project: Project, environ: Mapping[str, str], *, secret: Sequence[str], tell: Tell
) -> list[Result]:
    """What one script asked for when a person ran it with bash."""
    asked = [describe(call, project) for call in calls]
    cluster = choose_cluster(project, asked[0].on, environ)
    if secret:
        tell.note(f"{', '.join(secret)} looks secret and is not kept with the run")
    tell_secrets(environ, cluster, tell)
    return submit_asked(asked, project, cluster, environ, tell=tell, dry_run=asked[0].dry_run)


def tell_secrets(environ: Mapping[str, str], cluster: Cluster, tell: Tell) -> None:
    """Say what stays behind: a job on another machine does not get this environment's secrets from us."""
    if cluster.is_local:
        return
    _, names = secrecy.split(environ)
    from shoal.agent.environment import read_secrets

    missing = [name for name in names if name not in read_secrets(environ) and not name.startswith("SHOAL_")]
    if missing:
        tell.note(f"{', '.join(missing)} stays on this machine; to give it to jobs: {secrecy.where_to_put(missing[0])}")


def submit_asked(
    asked: Sequence[Asked],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    tell: Tell,
    follow: bool = True,
    shape: str = "auto",
    again: bool = False,
    dry_run: bool = False,
) -> list[Result]:
    """Check what is asked for and carry it out; with `dry_run`, say what would be done."""
    order = prepare(asked, project, cluster, environ, shape=shape, again=again)
    for note in order.notes:
        tell.note(note)
    if not dry_run:
        return carry_out(order, project, cluster, environ, follow=follow, tell=tell)
    for result in order.left_alone:
        tell(result)
    for planned in order.submissions:
        for run in planned.runs:
            tell(Result(run.spec.name, "would submit", "new", f"{planned.shape} on {cluster.name}"))
    return []
