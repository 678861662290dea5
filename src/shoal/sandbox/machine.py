"""What this machine has and allows: programs, rights, cgroups, free ports and subnets."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from shoal.errors import InputError, ShoalError
from shoal.sandbox.paths import Ports
from shoal.sandbox.spec import SandboxSpec

_PACKAGE_OF = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "scontrol": "slurm-wlm",
}
_PACKAGE_OF_ACCOUNTING = {
    "slurmdbd": "slurmdbd slurm-wlm-mysql-plugin",
    "sacctmgr": "slurm-wlm",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
_PACKAGE_OF_HOSTS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}

# Below the ports that the kernel gives to outgoing connections (32768 and up), away from well-known services.
_PORT_RANGE = range(20000, 32000)
_SUBNET_PREFIX = "10.77"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_CONTROLLERS = ("memory", "freezer", "cpuset", "cpuacct", "devices", "cpu")


def find_program(name: str) -> str | None:
    """Where a program is: on PATH, or in the sbin next to a bin on PATH, which ordinary users do not have there."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    siblings = [str(Path(folder).parent / "sbin") for folder in folders if Path(folder).name == "bin"]
    return shutil.which(name, path=os.pathsep.join([*folders, *siblings]))


def check_programs(spec: SandboxSpec) -> None:
    """Refuse, with the command that installs them, when packages are missing."""
    wanted = {} if spec.slurm else dict(_PACKAGE_OF)
    if spec.accounting and not spec.slurm:
        wanted |= _PACKAGE_OF_ACCOUNTING
    if spec.hosts:
        wanted |= _PACKAGE_OF_HOSTS
    missing = [name for name in wanted if find_program(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(wanted[name] for name in missing))
        sudo = "" if os.geteuid() == 0 else "sudo "
        raise ShoalError(
            f"the sandbox needs programs that are not installed: {', '.join(missing)}",
            hint=f"{sudo}apt-get install -y --no-install-recommends {packages}",
        )


def installed_slurm_version() -> str:
    """As "22.05.8"; empty when slurmctld does not say it."""
    done = subprocess.run([find_program("slurmctld") or "slurmctld", "-V"], capture_output=True, text=True, timeout=20)
    return done.stdout.split()[-1] if done.stdout.split() else ""


def check_rights(spec: SandboxSpec) -> None:
    """Refuse what this user may not do here, and say what would work."""
    if spec.hosts and not _may_make_namespaces():
        who = "root lacks the capabilities for it here" if os.geteuid() == 0 else "only root may make them"
        raise ShoalError(
            f"--hosts needs network and process namespaces, and {who}",
            hint="leave out --hosts (everything else works), or run the command with sudo on the machine itself",
        )
    if spec.cgroups == "on" and not cgroups_usable():
        raise ShoalError(
            "memory limits need root and the memory and freezer controllers of cgroup v1, which are not usable here",
            hint="leave out --cgroups on; jobs then run without memory limits",
        )


def cgroups_usable() -> bool:
    """Whether Slurm can make cgroups here; only v1 is offered, as v2 wants systemd to delegate to slurmd."""
    needed = [_CGROUP_ROOT / "memory/memory.limit_in_bytes", _CGROUP_ROOT / "freezer/cgroup.procs"]
    return os.geteuid() == 0 and all(os.access(path, os.W_OK) for path in needed)


def cgroups_of(nodes: Iterable[str]) -> list[Path]:
    """Existing cgroups of these nodes, innermost first, so that they can be removed in this order."""
    tops = [_CGROUP_ROOT / controller / f"slurm_{node}" for node in nodes for controller in _CGROUP_CONTROLLERS]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


def pids_in(cgroup: Path) -> list[int]:
    try:
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def free_ports(spec: SandboxSpec, taken: Collection[int]) -> Ports:
    """Ports nobody listens on now and no other sandbox was promised; another program may still be quicker."""
    chosen: list[int] = []
    for port in random.sample(_PORT_RANGE, len(_PORT_RANGE)):
        if port not in taken and _is_free(port):
            chosen.append(port)
        if len(chosen) == spec.nodes + 2:
            return Ports(slurmctld=chosen[0], slurmdbd=chosen[1], slurmd=tuple(chosen[2:]))
    raise ShoalError(f"no free ports between {_PORT_RANGE.start} and {_PORT_RANGE.stop}", hint="ss -ltn")


def free_subnet(taken: Collection[str]) -> str:
    """The first three numbers of a /24 that no route of this machine and no other sandbox uses."""
    routes = _routes()
    for third in random.sample(range(256), 256):
        subnet = f"{_SUBNET_PREFIX}.{third}"
        first = int.from_bytes(socket.inet_aton(f"{subnet}.0"), "big")
        if subnet not in taken and not any((first & mask) == (net & mask) for net, mask in routes):
            return subnet
    raise ShoalError(f"no free subnet in {_SUBNET_PREFIX}.0.0/16", hint="ip route")


def user_name() -> str:
    """Who runs the daemons: the one who asks."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise InputError(f"user id {os.getuid()} has no name, which Slurm needs", hint="getent passwd")


def _may_make_namespaces() -> bool:
    if os.geteuid() != 0:
        return False
    argv = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount", "--mount-proc", "ip", "link", "set", "lo", "up"]
    return subprocess.run(argv, capture_output=True, timeout=20).returncode == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def _routes() -> list[tuple[int, int]]:
    """(network, mask) of every route but the default; /proc/net/route prints them as little-endian hex."""
    rows = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    pairs = [(_host_order(row[1]), _host_order(row[7])) for row in rows]
    return [(net, mask) for net, mask in pairs if mask]


def _host_order(little_endian_hex: str) -> int:
    return int.from_bytes(bytes.fromhex(little_endian_hex), "little")
