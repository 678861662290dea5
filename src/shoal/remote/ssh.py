"""The user's own ssh: its arguments, the shared connection of `shoal connect`, and what its errors mean.

Every call is an argument list. Host, user, port, keys and ProxyJump are what the user's ssh configuration says about
the host; nothing about host keys is changed. Only `connect` may ask the person something (a password, a one-time code,
a new host key): all other calls use BatchMode, over the connection that it left open, or a new one where ssh needs no
question for that.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

from shoal.errors import InputError, ShoalError

CONNECT_TIMEOUT_S = 10
#: `shoal connect` keeps the connection for this long after its last use.
PERSIST = "8h"
#: Nothing on the cluster needs the laptop's keys, display or ports.
_CLOSED = ("ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "PermitLocalCommand=no")
_ALIVE = ("ServerAliveInterval=5", "ServerAliveCountMax=3", f"ConnectTimeout={CONNECT_TIMEOUT_S}")
#: The kernel's limit for the path of a socket is 108 bytes; ssh adds 17 while it makes one.
_MAX_SOCKET_PATH = 90


class HostUnreachableError(ShoalError):
    """No connection to the cluster, or it broke."""

    exit_code = 5


class RemoteHost(NamedTuple):
    """Where a profile leads: its name, the Host of the ssh configuration, and the options that choose a connection."""

    profile: str
    host: str
    options: tuple[str, ...]

    @property
    def connect_hint(self) -> str:
        return f"shoal connect {shlex.quote(self.profile)}"


def remote_host(profile: str, host: str, environ: Mapping[str, str]) -> RemoteHost:
    """The host of a profile. The user's own ControlPath is used where the ssh configuration has one."""
    if shutil.which("ssh", path=environ.get("PATH")) is None:
        raise InputError("no ssh on this machine", hint="install OpenSSH's client: openssh-client")
    own = _configuration(host).get("controlpath", "none")
    path = () if own != "none" else (f"ControlPath={os.path.join(_socket_directory(environ), '%C')}",)
    return RemoteHost(profile, host, path)


def channel_argv(remote: RemoteHost, command: str) -> list[str]:
    """ssh to the program that answers on the cluster; `command` is one of ours, without any word of the user."""
    batch = ("BatchMode=yes", "ControlMaster=no", "Compression=yes", "LogLevel=ERROR", *_ALIVE)
    return ["ssh", "-T", *_as_options(*batch, *_CLOSED, *remote.options), "--", remote.host, command]


def connect(remote: RemoteHost) -> int:
    """Open the shared connection; ssh talks to the person at the terminal. Returns its exit code."""
    master = ("ControlMaster=yes", f"ControlPersist={PERSIST}", *_ALIVE)
    argv = ["ssh", "-N", "-f", *_as_options(*master, *_CLOSED, *remote.options), "--", remote.host]
    return subprocess.run(argv, check=False).returncode


def is_connected(remote: RemoteHost) -> bool:
    return _ask_master(remote, "check") == 0


def close(remote: RemoteHost) -> bool:
    """End the shared connection; False if there was none."""
    return _ask_master(remote, "exit") == 0


def _ask_master(remote: RemoteHost, what: str) -> int:
    argv = ["ssh", "-O", what, *_as_options("BatchMode=yes", *remote.options), "--", remote.host]
    try:
        return subprocess.run(argv, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=10).returncode
    except subprocess.TimeoutExpired:
        return 255


def connection_error(remote: RemoteHost, text: str, why: str) -> HostUnreachableError:
    """What ssh wrote, as an error with the command that helps; `why` is what is known without that."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("@")]
    short = next((line for line in lines if _TELLING.search(line)), f"{why} ({lines[-1]})" if lines else why)
    if "HOST IDENTIFICATION HAS CHANGED" in text or "Host key verification failed" in text:
        changed = "HAS CHANGED" in text
        return HostUnreachableError(
            f"cannot connect to {remote.profile} ({remote.host}): "
            + ("its host key has changed, so it may be another machine" if changed else "its host key is not known"),
            hint=f"ssh-keygen -R {shlex.quote(remote.host)}   # only after its administrators confirmed the new key"
            if changed
            else f"{remote.connect_hint}   # compare the key's fingerprint with the one that your site publishes",
        )
    if "Permission denied" in text:
        return HostUnreachableError(
            f"no open connection to {remote.profile} ({remote.host}), and it asks for a password or code: {short}",
            hint=remote.connect_hint,
        )
    return HostUnreachableError(
        f"cannot connect to {remote.profile} ({remote.host}): {short}", hint=remote.connect_hint
    )


_TELLING = re.compile(
    r"Permission denied|timed out|refused|resolve|unreachable|No route|closed|reset|broken|verification|too long|"
    r"Bad (?:owner|configuration)|Session open"
)


def _configuration(host: str) -> dict[str, str]:
    """What the user's ssh configuration says about a host; keys are in lower case."""
    try:
        done = subprocess.run(
            ["ssh", "-G", "--", host], check=False, capture_output=True, text=True, errors="replace", timeout=10
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"ssh -G {host} did not answer within 10 s", hint="look for Match exec in ~/.ssh/config"
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"ssh cannot read its configuration: {reason}", hint=f"ssh -G {shlex.quote(host)}")
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {key.lower(): value for key, _, value in pairs}


def _socket_directory(environ: Mapping[str, str]) -> str:
    """A folder for the sockets of connections that only this user can enter."""
    uid = os.getuid()
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if os.path.isabs(runtime) and os.path.isdir(runtime) else tempfile.gettempdir()
    path = os.path.join(base, "shoal-ssh" if base == runtime else f"shoal-ssh-{uid}")
    if len(path) + 41 > _MAX_SOCKET_PATH:
        path = f"/tmp/shoal-ssh-{uid}"  # noqa: S108 (its owner and mode are checked)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise InputError(
            f"{path} is not a directory that only you can enter, so connections in it cannot be trusted",
            hint=f"ls -ld {path}   # then remove it, or: chmod 700 {path}",
        )
    return path


def _as_options(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("-o", setting)]
