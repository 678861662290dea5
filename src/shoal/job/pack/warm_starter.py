"""Warm starts: a parent that has imported the heavy modules once, and runs that are forked from it.

The server is a process of the user's own Python (`agent warm FD MODULE...`). A run that is forked from it finds what it
would have found after `python train.py ...`: its arguments, environment, working folder, `__main__`, import path,
unseeded random numbers, exit code and tracebacks, and a session of its own. The modules must not touch CUDA when they
are imported (torch and jax do not); threads that they start in Python would be lost by the fork, so then runs start
cold, as they do when they use interpreter options that cannot be had afterwards.
"""

import json
import os
import re
import signal
import socket
import subprocess
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ...kernel import agent_path
from ..child_processes import Child, ColdStarter, Program, Starter

_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?\Z")
_MAX_REPLY_S = 60.0


class WarmChild(Child):
    """A run that the server forked: its end comes as a message."""

    def __init__(self, pid: int, collect: Callable[[], None]) -> None:
        super().__init__(pid)
        self._collect = collect

    def poll(self) -> Optional[int]:
        if self.code is None:
            self._collect()
        return self.code


class WarmStarter(Starter):
    """Starts Python runs from the server and all others as usual. `waiting` while the modules are being imported."""

    def __init__(
        self, cold: ColdStarter, modules: Sequence[str], python: str, env: Mapping[str, str], cwd: str, say: Any
    ) -> None:
        self.cold, self.say = cold, say
        self.waiting = True
        self._env = dict(env)
        self._python = cold.find(python, env.get("PATH", os.defpath), cwd)
        self._children: Dict[int, WarmChild] = {}
        self._count = 0
        self._rest = b""
        ours, theirs = socket.socketpair()
        self._socket: Optional[socket.socket] = ours
        argv = [*cold.prefix, self._python, "-u", agent_path(), "warm", str(theirs.fileno()), *modules]
        self._server = subprocess.Popen(
            argv,
            env=dict(env, PYTHONUNBUFFERED="1"),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            preexec_fn=cold.setup,
        )
        theirs.close()
        ours.setblocking(False)
        self.pids, self.wait_on = [self._server.pid], [ours]

    def start(self, program: Program) -> Child:
        """Fork the run if it can be had that way; else start it like any other."""
        argv, env, cwd, log, cpus, *_ = program
        how = parse_python_command(argv)
        if self._socket is None or how is None or not self._fits(argv[0], env, cwd):
            return self.cold.start(program)
        self._count += 1
        number = self._count
        message = {"id": number, "argv": list(argv), "how": how, "env": dict(env), "cwd": cwd}
        child = self._children[number] = WarmChild(0, self.collect)
        self._send(dict(message, log=log, cpus=list(cpus)))
        self._wait_for(child)
        return child if child.pid else self.cold.start(program)

    def _fits(self, program: str, env: Mapping[str, str], cwd: str) -> bool:
        """The same interpreter, and nothing in the environment that it reads only when it starts."""
        try:
            same = self.cold.find(program, env.get("PATH", os.defpath), cwd) == self._python
        except OSError:
            return False
        names = {
            name for name in (*env, *self._env) if name.startswith(("PYTHON", "LD_")) and name != "PYTHONUNBUFFERED"
        }
        return same and all(env.get(name) == self._env.get(name) for name in names)

    def collect(self) -> None:
        """Take in what the server says; when it is gone, so are its children."""
        while self._socket is not None:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._give_up("the warm parent has died; runs start cold from now on")
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: Dict[str, Any]) -> None:
        if "ready" in message:
            self.waiting = False
            self.say("imported %s in %.1f s; runs start from there" % (", ".join(message["ready"]), message["took_s"]))
        elif "failed" in message:
            self._give_up("runs start cold: %s" % message["failed"])
        elif "code" in message and message["id"] in self._children:
            self._children.pop(message["id"]).code = message["code"]
        elif "pid" in message:
            self._children[message["id"]].pid = message["pid"]

    def _wait_for(self, child: WarmChild) -> None:
        """Return when a run that was just ordered has a process, or the server has died instead."""
        while self._socket is not None and not child.pid:
            self._socket.settimeout(_MAX_REPLY_S)
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            finally:
                if self._socket is not None:
                    self._socket.setblocking(False)
            if not data:
                self._give_up("the warm parent does not answer; runs start cold from now on")
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _send(self, message: Dict[str, Any]) -> None:
        if self._socket is None:
            return
        self._socket.settimeout(_MAX_REPLY_S)
        try:
            self._socket.sendall(json.dumps(message).encode("ascii") + b"\n")
        except OSError:
            self._give_up("the warm parent does not answer; runs start cold from now on")
        finally:
            if self._socket is not None:
                self._socket.setblocking(False)

    def _give_up(self, why: str) -> None:
        self.say(why)
        self.waiting = False
        if self._socket is not None:
            self._socket.close()
            self._socket, self.wait_on = None, ()
        self._server.kill()
        self._server.wait()
        for child in self._children.values():
            if child.pid:
                child.signal(signal.SIGKILL)
                child.code = -signal.SIGKILL
        self._children = {}


def parse_python_command(argv: Sequence[str]) -> Optional[Tuple[str, str, List[str]]]:
    """(kind, what, its arguments) of `python [-u] script|-m module|-c code ...`; None if it is anything else."""
    if not argv or not _PYTHON.match(argv[0]):
        return None
    words = list(argv[1:])
    while words and words[0] == "-u":
        words.pop(0)
    if not words:
        return None
    if words[0] in ("-m", "-c") and len(words) > 1:
        return words[0][1], words[1], words[2:]
    if words[0].startswith("-"):
        return None
    return "file", words[0], words[1:]


def is_python(word: str) -> bool:
    return _PYTHON.match(word) is not None


def server_environment(base: Mapping[str, str]) -> Dict[str, str]:
    """What the server runs in: no GPU is hidden or chosen, since it must not look at any."""
    return {name: value for name, value in base.items() if not name.startswith("SHOAL_")}
