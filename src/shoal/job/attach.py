"""A command beside a running program, on its node: the program's environment and working directory.

    agent.pyz attach MARK DIRECTORY COMMAND ...

The program is found by the mark that its attempt puts into the environment of everything it starts. The command does
not carry the mark: it is not part of the run, and the run does not wait for it.
"""

import os
import sys
from typing import Dict, List, Mapping

from ..kernel import processes

#: These belong to the terminal and the step of the person who attaches.
_OWN_VARIABLES = ("TERM", "COLORTERM", "LANG", "LC_ALL", "SSH_AUTH_SOCK", "SSH_TTY", "COLUMNS", "LINES")
_NOT_FOUND = 72


def main(argv: List[str]) -> int:
    mark, directory, command = argv[0], argv[1], argv[2:]
    pids = processes.marked_pids(mark)
    if not pids:
        node = processes.node_name()
        sys.stderr.write("error: no process of this run is on %s\nhint: add --node NODE\n" % node)
        return _NOT_FOUND
    pid = _first_process(pids)
    environ = _environ_of(pid, os.environ)
    os.chdir(_directory_of(pid, directory))
    try:
        os.execvpe(command[0], command, environ)  # noqa: S606 - what the user typed
    except OSError as error:
        sys.stderr.write("error: %s: %s\n" % (command[0], error.strerror))
        return 127


def _first_process(pids: List[int]) -> int:
    """The one that the others come from; the oldest where there are several such."""
    first = processes.top_processes(pids) or pids
    return min(first, key=lambda pid: (processes.process_start_time(pid) or "", pid))


def _environ_of(pid: int, own: Mapping[str, str]) -> Dict[str, str]:
    with open("/proc/%d/environ" % pid, "rb") as file:
        pairs = (os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair)
        environ = {name: value for name, _, value in pairs}
    environ.pop(processes.LEASE_MARK_VARIABLE, None)
    environ.update((name, own[name]) for name in _OWN_VARIABLES if name in own)
    return environ


def _directory_of(pid: int, otherwise: str) -> str:
    """Its working directory; one that this node shows only to the program's container is replaced."""
    try:
        found = os.readlink("/proc/%d/cwd" % pid)
    except OSError:
        return otherwise
    return found if os.path.isdir(found) else otherwise
