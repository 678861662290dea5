"""Runs under which a node failed ask for other nodes when they are started again; job/nodes.py knows which failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.batch import parse_flags
from shoal.describe import Cluster, PlannedRun, Project
from shoal.job import nodes
from shoal.kernel import layout
from shoal.observe import RunView
from shoal.plan import PlannedSubmission, resolve_request


class NodeExclusions:
    """What is known about the nodes of some runs; asks Slurm whether others could run a job, and only about runs that
    have such a node.
    """

    def __init__(
        self, views: Mapping[str, RunView], project: Project, cluster: Cluster, environ: Mapping[str, str]
    ) -> None:
        self._views, self._project, self._cluster = views, project, cluster
        self._ask = nodes.ask_slurm(environ)

    def under(self, run: PlannedRun) -> list[str]:
        """Nodes that this run is to keep away from."""
        if self._cluster.is_local:
            return []
        name = run.spec.name
        tried = self._views[name].claims > 0
        known = nodes.failed_nodes(layout.run_dir(str(self._project.home), name), self._ask) if tried else []
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
        argv, words = nodes.exclude_nodes(planned.resolved.argv(), bad, self._ask)
        if not words:
            return planned, []
        options = [option for option in planned.resolved.options if option[0] != "exclude"]
        options += [("exclude", word.partition("=")[2]) for word in argv if word.startswith("--exclude=")]
        resolved = msgspec.structs.replace(planned.resolved, options=tuple(options))
        return planned._replace(resolved=resolved), [f"the {planned.shape} {words}"]

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
        )
        argv, words = nodes.exclude_nodes(resolved.argv(), bad, self._ask)
        changed = [word for word in argv if word.startswith("--exclude=")]
        return run._replace(spec=msgspec.structs.replace(spec, flags=[*spec.flags, *changed])), words
