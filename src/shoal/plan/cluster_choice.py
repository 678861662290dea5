"""Which cluster a command uses: --on, else this machine, else the profile that matches this machine's Slurm."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from fnmatch import fnmatchcase

from shoal.describe import LOCAL, UNNAMED, Cluster, Project
from shoal.errors import InputError


def choose_cluster(
    project: Project, on: str | None, environ: Mapping[str, str], inside_job: bool | None = None
) -> Cluster:
    """The profile to use. "local" is this machine; "slurm" is the Slurm found here, with nothing known about it.

    `on` (or SHOAL_ON) decides alone. Without it: no Slurm here, or already inside a Slurm job, means local; else
    the profile that matches Slurm's ClusterName and this host; else "slurm". InputError when the name is unknown, or
    when two profiles match equally well.
    """
    asked, flag = (on, "--on") if on else (environ.get("SHOAL_ON"), "SHOAL_ON")
    if asked:
        return named_cluster(project, asked, flag)
    if inside_job is None:
        inside_job = bool(environ.get("SLURM_JOB_ID"))
    if inside_job or not has_slurm(environ):
        return named_cluster(project, LOCAL)
    if any(name not in (LOCAL, UNNAMED) for name in project.clusters):
        from shoal.clusters import cluster_name

        return match_cluster(project, cluster_name(environ), socket.gethostname())
    return named_cluster(project, UNNAMED)


def is_here(cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Whether this machine is part of a profile's cluster, so that nothing has to go over ssh."""
    if not has_slurm(environ):
        return False
    from shoal.clusters import cluster_name

    return _match_score(cluster, cluster_name(environ), socket.gethostname()) > 0


def has_slurm(environ: Mapping[str, str]) -> bool:
    """Whether there is a Slurm to talk to: its programs, and a configuration. A controller that is down still counts.

    Programs without any configuration are a package that somebody installed, and no cluster.
    """
    if shutil.which("sbatch", path=environ.get("PATH")) is None:
        return False
    from shoal.clusters import cluster_name

    return bool(environ.get("SLURM_CONF")) or cluster_name(environ) is not None


def named_cluster(project: Project, name: str, flag: str = "--on") -> Cluster:
    """A profile by name; "local" and "slurm" exist without being written anywhere."""
    if name in project.clusters:
        return project.clusters[name]
    if name in (LOCAL, UNNAMED):
        return Cluster(name=name)
    from difflib import get_close_matches

    known = sorted({*project.clusters, LOCAL, UNNAMED})
    near = get_close_matches(name, known, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"there is no cluster {name!r} among {', '.join(known)}{guess}", hint="shoal clusters list", place=flag
    )


def match_cluster(project: Project, cluster_name: str | None, host: str) -> Cluster:
    """The profile that fits best: name and host, then name, then host. A profile without `match` means its own name."""
    ranked: dict[int, list[Cluster]] = {}
    for cluster in project.clusters.values():
        if not cluster.is_local and (rank := _match_score(cluster, cluster_name, host)):
            ranked.setdefault(rank, []).append(cluster)
    if not ranked:
        return named_cluster(project, UNNAMED)
    best = ranked[max(ranked)]
    if len(best) > 1:
        names = " and ".join(cluster.name for cluster in best)
        raise InputError(
            f"the profiles {names} match this cluster equally well", hint=f"choose one: --on {best[0].name}"
        )
    return best[0]


def _match_score(cluster: Cluster, cluster_name: str | None, host: str) -> int:
    """0 for no match. Slurm compares cluster names without case."""
    wanted = cluster.match.cluster or (None if cluster.match.host else cluster.name)
    if wanted is not None and wanted.lower() != (cluster_name or "").lower():
        return 0
    if cluster.match.host is not None and not fnmatchcase(host.lower(), cluster.match.host.lower()):
        return 0
    return (2 if wanted is not None else 0) + (1 if cluster.match.host is not None else 0)
