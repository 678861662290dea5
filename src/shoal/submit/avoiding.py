"""Runs under which a node failed ask for other nodes when they are started again; agent/nodes.py knows which failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.agent import layout, nodes
from shoal.backends.slurm.flags import parse_flags
from shoal.backends.slurm.options import resolve
from shoal.config.cluster import Cluster
from shoal.config.project import Project
from shoal.plan.submissions import PlannedRun
from shoal.store.fold import RunView


def avoid_failed_nodes(
    start: Sequence[PlannedRun],
    views: Mapping[str, RunView],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
) -> tuple[list[PlannedRun], list[str]]:
    """The runs, with --exclude among their flags where a node failed before, and a note for each. Asks Slurm whether
    others could run the job, and only about runs that have such a node.
    """
    if cluster.is_local:
        return list(start), []
    ask = nodes.ask_slurm(environ)
    found, notes = [], []
    for run in start:
        bad = list(run.avoid)
        if views[run.spec.name].claims:
            bad += nodes.failed(layout.run_dir(str(project.home), run.spec.name), ask)
        if bad:
            run, words = _without(run, bad, project, cluster, ask)
            notes += [f"{run.spec.name} {words}"] if words else []
        found.append(run)
    return found, notes


def _without(
    run: PlannedRun, bad: Sequence[str], project: Project, cluster: Cluster, ask: nodes.Ask
) -> tuple[PlannedRun, str]:
    spec = run.spec
    flags = parse_flags(spec.flags, nodes=spec.request.nodes)
    resolved = resolve(
        spec.request, flags, cluster, project.clusters, launch=spec.launch, settings=spec.launch_settings
    )
    argv, words = nodes.avoid(resolved.argv(), list(dict.fromkeys(bad)), ask)
    changed = [word for word in argv if word.startswith("--exclude=")]
    return run._replace(spec=msgspec.structs.replace(spec, flags=[*spec.flags, *changed])), words
