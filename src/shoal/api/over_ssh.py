"""Commands that are executed on a cluster over ssh: `[clusters.X.ssh]` says where, `--on X` asks for it."""

from __future__ import annotations

import os
from typing import NamedTuple

from shoal.api.projects import ProjectPath, project_or_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.describe import Cluster, Project
    from shoal.remote import OutputListing, OutputSink, PulledFile, RemoteHost, RemoteProject


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


class PullReport(NamedTuple):
    """Files of a run's output directory, and the directory on this machine that they are in or come to; `left_out`
    counts links and special files there."""

    run: str
    cluster: str
    target: str
    files: list[PulledFile]
    left_out: int


def output_files(run: str, *, project: ProjectPath = None) -> OutputListing:
    """What is in the newest output directory of a run, on the machine where it is."""
    from shoal.api.looking import find_run
    from shoal.errors import InputError
    from shoal.observe import observe
    from shoal.remote import list_output

    found = find_run(run, project=project)
    output_dir = observe(found.home, [found.name]).views[found.name].output_dir
    if output_dir is None or not os.path.isdir(output_dir):
        raise InputError(f"{found.name} has no output directory yet", hint=f"shoal why {found.name}")
    return list_output(found.name, output_dir, str(project_or_directory(project).root / "outputs"))


def pull(
    target: RemoteTarget,
    listing: OutputListing,
    patterns: Sequence[str] = (),
    *,
    to: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    note: Callable[[str], None],
) -> PullReport:
    """Bring files of a run from a cluster, whole and with the content that they have there, or leave them.

    They come to `to`, or to the place below the project's outputs/ that they have there. With `dry_run` files are only
    compared.
    """
    from shoal.errors import InputError
    from shoal.remote import Pull, choose_files

    files = choose_files(listing, patterns)
    if not files:
        raise InputError(
            f"no file in the output directory of {listing.run} is like {' or '.join(patterns)}"
            if patterns
            else f"the output directory of {listing.run} is empty",
            hint=f"shoal pull {listing.run} --dry-run --on {target.cluster.name}",
        )
    directory = to if to is not None else _pull_directory(target, listing)
    pulling = Pull(_remote_project(target), listing, directory, note)
    try:
        compared = pulling.compare(files)
        done = compared if dry_run else list(pulling.bring(compared, overwrite=overwrite))
    finally:
        pulling.close()
    return PullReport(listing.run, target.cluster.name, directory, done, listing.left_out)


def _pull_directory(target: RemoteTarget, listing: OutputListing) -> str:
    """The same place below outputs/ as on the cluster, which cannot choose another one: not through a link either."""
    from shoal.errors import InputError

    outputs = target.project.root / "outputs"
    path = None if listing.place is None else outputs / listing.place
    if path is None or not path.resolve().is_relative_to(outputs.resolve()):
        raise InputError(
            f"the output directory of {listing.run} has no place below {outputs}: {listing.output_dir!r}",
            hint=f"shoal pull {listing.run} --to DIR --on {target.cluster.name}",
        )
    return str(path)


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
