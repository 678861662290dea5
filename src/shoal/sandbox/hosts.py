"""Nodes that look like hosts: own address, host name, processes and /etc/hosts, over a bridge in this machine.

Each node is a set of namespaces held open by one sleeping process. When that process ends the kernel takes all of it
back: the node's processes, its mounts and its end of the cable. Only the bridge has to be removed by name. Not used is
`ip netns`: it leaves mounts behind, and what it starts sees a /sys that Slurm's cgroup plugin cannot work with.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping

from shoal.errors import ShoalError
from shoal.sandbox import conf, process
from shoal.sandbox.paths import SandboxPaths, SandboxState
from shoal.sandbox.process import SandboxProcess

# SIGCHLD stays ignored through exec, so that the kernel buries the orphans that become children of this process.
_HOLDER_SCRIPT = """hostname "$1" && mount --bind "$2" /etc/hosts &&
{ [ ! -e /etc/resolv.conf ] || mount --bind "$3" /etc/resolv.conf; } &&
trap "" CHLD && exec sleep infinity"""
_UNSHARE = ("unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc")
_DEADLINE_S = 15.0


def make_bridge(state: SandboxState, env: Mapping[str, str]) -> None:
    """The switch between nodes, and the controller's address on it."""
    bridge = _bridge_name(state)
    _ip(
        f"link add {bridge} type bridge",
        f"addr add {conf.node_address(_subnet(state), conf.BRIDGE_HOST)}/24 dev {bridge}",
        f"link set {bridge} up",
        env=env,
    )


def start_host(state: SandboxState, layout: SandboxPaths, number: int, env: Mapping[str, str]) -> SandboxProcess:
    """Make node `number` (from 1) and return the process that holds it open, the first of its pid namespace."""
    node = state.spec.node_names[number - 1]
    hold = ["sh", "-c", _HOLDER_SCRIPT, "sh", node, str(layout.hosts), str(layout.resolver)]
    outer = process.spawn([*_UNSHARE, *hold], env=env, output=layout.output(node))
    holder = find_child("sleep", outer)
    cable = _link_name(state, number)
    _ip(
        f"link add {cable} type veth peer name eth0 netns {holder.pid}",
        f"link set {cable} master {_bridge_name(state)} up",
        env=env,
    )
    _ip(
        "link set lo up",
        f"addr add {conf.node_address(_subnet(state), number)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {conf.node_address(_subnet(state), conf.BRIDGE_HOST)}",
        env=env,
        inside=holder,
    )
    return holder


def run_on_host_argv(holder: SandboxProcess, argv: list[str]) -> list[str]:
    """The command line that runs argv on that node; the program is a child of the process it starts."""
    return ["nsenter", "--target", str(holder.pid), "--net", "--uts", "--pid", "--mount", "--", *argv]


def find_child(name: str, parent: SandboxProcess) -> SandboxProcess:
    """The child of `parent` once it runs `name`; until then it may still be a shell on its way there."""
    end = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end and process.is_alive(parent):
        for pid in process.children(parent.pid):
            child = process.find_process(pid)
            if child is not None and process.command_name(child) == name:
                return child
        time.sleep(0.01)
    raise ShoalError(f"{name} did not start inside the node's namespaces", hint="run the command without --hosts")


def remove_bridge(state: SandboxState) -> None:
    """Take down the cables and the bridge; fine when they are gone or were never made."""
    names = [_link_name(state, number) for number in range(1, state.spec.nodes + 1)]
    for name in [*names, _bridge_name(state)]:
        subprocess.run(["ip", "link", "del", name], capture_output=True, timeout=20)


def _ip(*commands: str, env: Mapping[str, str], inside: SandboxProcess | None = None) -> None:
    prefix = ["nsenter", "--target", str(inside.pid), "--net", "--"] if inside else []
    lines = "\n".join(commands) + "\n"
    argv = [*prefix, "ip", "-batch", "-"]
    done = subprocess.run(argv, input=lines, env=dict(env), capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise ShoalError(f"ip could not set up the nodes' network: {done.stderr.strip()}", hint="leave out --hosts")


def _subnet(state: SandboxState) -> str:
    if state.subnet is None:
        raise ShoalError(f"the nodes of sandbox {state.spec.name!r} are not hosts of their own")
    return state.subnet


def _bridge_name(state: SandboxState) -> str:
    return f"shb{state.mark[:8]}"  # names of interfaces end at 15 bytes


def _link_name(state: SandboxState, number: int) -> str:
    return f"shv{state.mark[:8]}n{number}"
