"""Addresses that other nodes can reach, and ports that nobody else takes.

A node's own name is no address: it may resolve to 127.0.1.1, to several networks, or only to IPv6. Which address of
this node leads to another one is the kernel's knowledge: a datagram socket that is connected there (nothing is sent)
has it as its own.
"""

import fcntl
import os
import socket
import struct
from typing import List, Mapping, Optional, Tuple

from ...kernel import node_name
from .geometry import PORT_BASE, PORT_COUNT

_SIOCGIFADDR = 0x8915


class NoSuchInterface(Exception):
    """The profile or the launch names a network interface that this node does not have."""


def reachable_address(peers: List[str], interface: Optional[str]) -> str:
    """This node's address as the peers see it; its name where nothing better can be found out."""
    if interface:
        return interface_address(interface)
    for peer in peers:
        for family, kind, _, _, place in _resolve_host(peer):
            try:
                with socket.socket(family, kind) as probe:
                    probe.connect(place)
                    found = str(probe.getsockname()[0])
            except OSError:
                continue
            if not found.startswith("127.") and found != "::1":
                return found
    return socket.gethostname()


def interface_address(name: str) -> str:
    """The IPv4 address of an interface; NoSuchInterface names those that there are."""
    if name not in interface_names():
        raise NoSuchInterface(
            "%s has no network interface %s; it has %s" % (node_name(), name, ", ".join(interface_names()))
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise NoSuchInterface("interface %s of %s has no IPv4 address" % (name, node_name()))
    return socket.inet_ntoa(answer[20:24])


def check_interfaces(env: Mapping[str, str]) -> Optional[str]:
    """What is wrong with the interfaces that NCCL or gloo are told to use, or None. NCCL takes beginnings of names."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        words = env.get(variable, "")
        if not words or words.startswith("^"):
            continue
        exact = words.startswith("=") or variable.startswith("GLOO")
        wanted = words.lstrip("=").split(",")
        there = interface_names()
        if not any(name == word if exact else name.startswith(word) for word in wanted for name in there):
            return "%s=%s names no interface of %s; it has %s" % (
                variable,
                words,
                node_name(),
                ", ".join(there),
            )
    return None


def interface_names() -> List[str]:
    return [name for _, name in socket.if_nameindex()]


def reserve_port(seed: int) -> Tuple[int, Optional[socket.socket]]:
    """A port that is free here, by preference the one that belongs to `seed`; keep the second value while it is in use.

    Between the look and the moment when torch binds it seconds pass, so a mark that every launcher of this host sees
    holds it meanwhile: an abstract socket, which lives in the same network namespace and goes away with its owner.
    """
    for step in range(PORT_COUNT):
        port = PORT_BASE + (seed + step) % PORT_COUNT
        mark = _lock_port(port)
        if mark is None:
            continue
        if _is_free(port):
            return port, mark[0]
        if mark[0] is not None:
            mark[0].close()
    raise OSError("no free port between %d and %d" % (PORT_BASE, PORT_BASE + PORT_COUNT - 1))


def _lock_port(port: int) -> Optional[Tuple[Optional[socket.socket]]]:
    """None if another launcher holds the port; else what holds it for us, if this system can."""
    if os.uname().sysname != "Linux":
        return (None,)
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind("\0shoal-port-%d" % port)
    except OSError:
        mark.close()
        return None
    return (mark,)


def _is_free(port: int) -> bool:
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 (a probe)
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((any_address, port))
        except OSError as error:
            if family == socket.AF_INET or error.errno == 98:
                return False
    return True


def _resolve_host(peer: str) -> List[tuple]:  # type: ignore[type-arg]
    try:
        found = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
