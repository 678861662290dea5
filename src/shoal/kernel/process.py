"""Processes by more than their number: a pid is reused; a (host, boot, pid namespace, pid, start time) is not."""

import os
import subprocess
from typing import Any, Dict, List, Mapping, Optional

#: In the environment of everything that an attempt starts: which attempt that is.
LEASE_MARK_VARIABLE = "SHOAL_LEASE"


def host_name() -> str:
    """This machine's name, without the 2 ms that loading `socket` costs a job."""
    return os.uname().nodename


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """The name that people know this machine by: Slurm's for a node of a job, else its own."""
    return environ.get("SLURMD_NODENAME") or host_name()


def own_identity() -> Dict[str, Any]:
    """An identity of this process that another command on this host can check later."""
    return process_identity(os.getpid())


def process_identity(pid: int) -> Dict[str, Any]:
    return {"host": host_name(), "pid": pid, "started": process_start_time(pid), "uid": os.getuid()}


def is_own_record(record: Mapping[str, Any]) -> bool:
    """Whether a submission is this user's to send, to continue and to cancel; older records name no user."""
    return record.get("uid") in (None, os.getuid())


def agent_path() -> str:
    """The zip that we run from, for a process that starts itself again in another role."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def is_process_alive(identity: Mapping[str, Any]) -> Optional[bool]:
    """Whether that very process still runs; None where nobody can tell from here: it lives on another host, in another
    boot or pid namespace, or belongs to somebody whose processes may be hidden from us (hidepid)."""
    pid, began = identity.get("pid"), identity.get("started")
    if identity.get("host") != host_name() or not isinstance(pid, int) or not began:
        return None
    now = process_start_time(pid)
    if now == began:
        return True
    mine = process_start_time(os.getpid()) or ""
    if os.path.isdir("/proc/self") and mine.partition(":")[0] != str(began).partition(":")[0]:
        return None
    visible = is_own_record(identity) or os.access("/proc/1/stat", os.R_OK) or not os.path.isdir("/proc/self")
    return False if visible else None


def marked_pids(mark: str) -> List[int]:
    """Our processes whose environment carries the mark of an attempt; what ended but was not collected is left out."""
    wanted = ("%s=%s" % (LEASE_MARK_VARIABLE, mark)).encode()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def process_start_time(pid: int) -> Optional[str]:
    """When a process began, in a form that only serves to compare; None if there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return None
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s-%s:%s" % (file.read(8), os.stat("/proc/self/ns/pid").st_ino, fields[19].decode())
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
