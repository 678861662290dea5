"""Processes by more than their number: a pid is reused, a (host, boot, pid, start time) is not."""

import os
import socket
import subprocess
from typing import Any, Dict, Mapping, Optional


def this_process() -> Dict[str, Any]:
    """An identity of this process that another command on this host can check later, and whose process it is."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started(os.getpid()), "uid": os.getuid()}


def is_ours(record: Mapping[str, Any]) -> bool:
    """Whether a submission is this user's to send, to continue and to cancel; older records name no user."""
    return record.get("uid") in (None, os.getuid())


def own_program() -> str:
    """The zip that we run from, for a process that starts itself again in another role."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def is_alive(identity: Dict[str, Any]) -> Optional[bool]:
    """Whether that very process still runs; None where nobody can tell from here: on another host, or where /proc
    hides the processes of other users (hidepid) and it is one of theirs.
    """
    if identity.get("host") != socket.gethostname():
        return None
    pid = identity.get("pid")
    alive = isinstance(pid, int) and started(pid) is not None and started(pid) == identity.get("started")
    if not alive and not is_ours(identity) and not os.access("/proc/1/stat", os.R_OK) and os.path.isdir("/proc/self"):
        return None
    return alive


def started(pid: int) -> Optional[str]:
    """When a process began, in a form that only serves to compare; None if there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return None
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s:%s" % (file.read(8), fields[19].decode())
    except (FileNotFoundError, ProcessLookupError):
        if os.path.isdir("/proc/self"):
            return None
    except (IndexError, PermissionError):
        return None
    # A laptop without /proc (macOS).
    try:
        told = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], stdout=subprocess.PIPE, check=False)
    except OSError:
        return None
    return told.stdout.decode().strip() or None
