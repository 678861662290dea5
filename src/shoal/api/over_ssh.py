"""Commands that are executed on a cluster over ssh: `[clusters.X.ssh]` says where, `--on X` asks for it."""

from __future__ import annotations

import os
from typing import NamedTuple

from shoal.api.projects import ProjectPath, project_or_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.describe import Cluster, Project
    from shoal.remote import OutputSink, RemoteHost, RemoteProject


class RemoteTarget(NamedTuple):
    """A profile that is reached over ssh, and the project here that its commands are about."""

    project: Project
    cluster: Cluster


def remote_target(on: str | None, *, project: ProjectPath = None) -> RemoteTarget | None:
    """The cluster that `on` or SHOAL_ON names, if it is reached over ssh from here; None for all others."""
    asked = on or os.environ.get("SHOAL_ON")
    if asked in (None, "", "local", "slurm"):  # they are this machine, whatever the settings say
        return None
    from shoal.describe import delivered_root

    if delivered_root(os.environ):
        return None
    settings = project_or_directory(project)
    cluster = settings.clusters.get(asked or "")
    if cluster is None or cluster.ssh.host is None:
        return None
    from shoal.plan import is_here

    return None if is_here(cluster, os.environ) else RemoteTarget(settings, cluster)


def execute_there(
    target: RemoteTarget,
    argv: Sequence[str],
    sink: OutputSink,
    *,
    with_code: bool,
    orders: bool,
    follows: bool = False,
    command_id: str | None = None,
    identified: bool = True,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Execute a command of shoal on the cluster, with this project's code or its settings alone; its exit code.

    `orders`: it changes something and is carried out once, detached from the connection; otherwise it ends with it.
    `follows`: it watches runs, and ends when nobody looks on. `identified`: it takes --command-id.
    """
    from shoal.remote import RemoteCommand, look, order, project_code, project_settings

    place = _remote_project(target)
    project = target.project
    tree = project_code(project, os.environ) if with_code else project_settings(project)
    inside = os.path.relpath(os.path.realpath(os.getcwd()), os.path.realpath(project.root))
    profile = profile_there(target)
    names = {} if profile is None else {"SHOAL_ON": profile}
    command = RemoteCommand(argv, tree, inside if with_code else "", {**names, **(variables or {})}, follows)
    if orders:
        return order(place, command, sink, os.environ, command_id=command_id, identified=identified)
    return look(place, command, sink)


def connect(profile: str, *, project: ProjectPath = None) -> bool:
    """Open the shared connection to a cluster; ssh may ask the person at the terminal. False: it was open already."""
    from shoal.remote import ssh

    host = _host(profile, project)
    if ssh.is_connected(host):
        return False
    if ssh.connect(host) != 0 or not ssh.is_connected(host):
        raise ssh.HostUnreachableError(
            f"cannot connect to {profile} ({host.host})", hint=f"ssh -v {host.host}   # shows what ssh tries"
        )
    return True


def disconnect(profile: str, *, project: ProjectPath = None) -> bool:
    """End the shared connection; False: there was none."""
    from shoal.remote import ssh

    return ssh.close(_host(profile, project))


def _host(profile: str, project: ProjectPath) -> RemoteHost:
    from shoal.errors import InputError
    from shoal.plan import named_cluster
    from shoal.remote import ssh

    cluster = named_cluster(project_or_directory(project), profile, "PROFILE")
    if cluster.ssh.host is None:
        raise InputError(
            f"profile {profile!r} names no ssh host", hint=f'add to shoal.toml: [clusters.{profile}.ssh] host = "HOST"'
        )
    return ssh.remote_host(profile, cluster.ssh.host, os.environ)


def _remote_project(target: RemoteTarget) -> RemoteProject:
    """Where the project is on the cluster; refuses what would be decided by settings that do not travel."""
    from shoal.errors import InputError
    from shoal.remote import RemoteProject, ssh

    project, cluster = target
    name, settings = cluster.name, cluster.ssh
    if project.toml is None:
        raise InputError(
            f"no shoal.toml in {project.root} or above it, and commands for {name} need a project", hint="shoal init"
        )
    if settings.directory is None:
        raise InputError(
            f"[clusters.{name}.ssh] does not say where the project is on {name}",
            hint=f'directory = "~/{project.root.name}"   # in [clusters.{name}.ssh] of shoal.toml',
        )
    if project.shared:
        raise InputError(
            "a project with shared = true cannot be used over ssh yet", hint=f"ssh {settings.host}   # and run it there"
        )
    stays = [
        key for key in cluster.layer.values if not key.startswith(("ssh.", "match.")) and not _travels(cluster, key)
    ]
    if stays:
        raise InputError(
            f"{stays[0]} of [clusters.{name}] is set in {cluster.origin(stays[0])}, which stays on this machine",
            hint=f"move it to [clusters.{name}] in shoal.toml, or to ~/.config/shoal/config.toml on {name}",
        )
    host = ssh.remote_host(name, settings.host or "", os.environ)
    return RemoteProject(host, settings.directory, settings.python)


def _travels(cluster: Cluster, key: str) -> bool:
    return cluster.origin(key).startswith("shoal.toml:")


def profile_there(target: RemoteTarget) -> str | None:
    """The profile's name on the cluster; None if the project's own settings, which alone travel, do not have it."""
    return target.cluster.name if any(_travels(target.cluster, key) for key in target.cluster.layer.values) else None
