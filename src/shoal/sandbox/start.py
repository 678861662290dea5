"""Start a sandbox, step by step; each step records what `Sandbox.down` needs to undo it."""

from __future__ import annotations

import os
import secrets
import socket
import stat
import subprocess
import time
from pathlib import Path

from shoal.errors import ShoalError
from shoal.kernel import slurm
from shoal.sandbox import conf, hosts, machine
from shoal.sandbox.daemons import Daemons
from shoal.sandbox.paths import SandboxPaths, SandboxState, SlurmRoot, directory_lock
from shoal.sandbox.spec import SandboxSpec

_NULL_DEVICE = os.makedev(1, 3)


def start_sandbox(spec: SandboxSpec, root: SlurmRoot | None, layout: SandboxPaths, deadline_s: float) -> None:
    """Start everything and wait until all nodes are idle; on an error the caller tears down."""
    end = time.monotonic() + deadline_s
    state = _reserve_ports(spec, root, layout)
    _write_files(state, layout)
    daemons = Daemons(state, layout)
    daemons.start("munged", end - time.monotonic())
    if spec.accounting:
        _start_accounting(daemons, end)
    if spec.hosts:
        hosts.make_bridge(state, daemons.env())
        for number in range(1, spec.nodes + 1):
            daemons.make_host(number)
    daemons.start("slurmctld", end - time.monotonic())
    for node in spec.node_names:
        daemons.launch(node)
    for node in spec.node_names:
        daemons.wait_ready(node, end - time.monotonic())
    daemons.wait_idle(end - time.monotonic())
    if spec.accounting:
        for words in conf.sacctmgr_commands_after_controller():
            _sacctmgr(daemons, words, end)
    layout.save_state(_mark_as_up(state))


def _reserve_ports(spec: SandboxSpec, root: SlurmRoot | None, layout: SandboxPaths) -> SandboxState:
    """Choose ports and subnet while no other sandbox of this user does, and put the choice on record."""
    cgroups = spec.cgroups != "off" and machine.cgroups_usable()
    if cgroups and (strangers := machine.cgroups_of(spec.node_names)):
        # Ours are gone by now. Sharing them would mix up job ids, and `down` would end somebody else's jobs.
        raise ShoalError(
            f"the cgroup {strangers[-1]} is there already, from another sandbox named {spec.name!r}",
            hint="take another --name, or --cgroups off",
        )
    with directory_lock(layout.home):
        others = layout.others()
        taken_ports = {port for other in others for port in other.ports.all()}
        taken_subnets = {other.subnet for other in others if other.subnet}
        state = SandboxState(
            mark=secrets.token_hex(16),
            spec=spec,
            ports=machine.free_ports(spec, taken_ports),
            cgroups=cgroups,
            subnet=machine.free_subnet(taken_subnets) if spec.hosts else None,
            slurm_version=root.version if root is not None else machine.installed_slurm_version(),
            slurm_root=root,
        )
        layout.save_state(state)
    return state


def _write_files(state: SandboxState, layout: SandboxPaths) -> None:
    user, host = machine.user_name(), socket.gethostname()
    layout.make()
    _write_private(layout.munge_key, secrets.token_bytes(128))
    _write_private(layout.conf, conf.slurm_conf(state, layout, host=host, user=user).encode())
    _write_private(layout.folder / "gres.conf", conf.gres_conf(state.spec, layout).encode())
    if state.cgroups:
        _write_private(layout.folder / "cgroup.conf", conf.cgroup_conf().encode())
    if state.spec.accounting:
        _write_private(layout.slurmdbd_conf, conf.slurmdbd_conf(state, layout, user=user).encode())
    if state.spec.hosts:
        _write_private(layout.hosts, conf.hosts_file(state, host=host).encode())
        layout.hosts.chmod(0o644)
        # No name server is in reach of these nodes: the real one would be asked in vain, ten seconds for each question.
        _write_private(layout.resolver, b"nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        layout.resolver.chmod(0o644)
    for number in range(state.spec.gpus):
        _make_device(layout.devices / f"gpu{number}")


def _start_accounting(daemons: Daemons, end: float) -> None:
    _install_database(daemons, end)
    daemons.start("mariadbd", end - time.monotonic())
    daemons.start("slurmdbd", end - time.monotonic())
    for words in conf.sacctmgr_commands(daemons.state.spec.name, daemons.user):
        _sacctmgr(daemons, words, end)


def _sacctmgr(daemons: Daemons, words: list[str], end: float) -> None:
    done = slurm.run_command(["sacctmgr", "-i", "-Q", *words], max(1.0, end - time.monotonic()), daemons.env())
    if done.failure:
        raise ShoalError(done.stderr, hint="allow more time: --deadline 180")
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()
        raise daemons.failure("slurmdbd", f"refused `sacctmgr {' '.join(words)}` ({output})")


def _install_database(daemons: Daemons, end: float) -> None:
    argv = conf.install_database_argv(
        daemons.program("mariadb-install-db"), daemons.state, daemons.layout, daemons.user
    )
    done = _command(daemons, argv, end)
    if done.returncode != 0:
        raise ShoalError(f"mariadb-install-db failed: {(done.stdout + done.stderr).strip()[-500:]}")


def _command(daemons: Daemons, argv: list[str], end: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, env=daemons.env(), capture_output=True, text=True, timeout=max(1.0, end - time.monotonic())
        )
    except subprocess.TimeoutExpired:
        raise ShoalError(f"{Path(argv[0]).name} did not end in time", hint="allow more time: --deadline 180")


def _mark_as_up(state: SandboxState) -> SandboxState:
    import msgspec

    return msgspec.structs.replace(state, is_up=True)


def _write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)


def _make_device(path: Path) -> None:
    """A GPU for Slurm to count: a twin of /dev/null, or a link to it where mknod is not allowed."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, _NULL_DEVICE)
    except PermissionError:
        path.symlink_to(os.devnull)
