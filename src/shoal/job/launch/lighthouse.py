"""torchft's lighthouse: one for each run, on a port of its own, ready before anybody needs it.

It has no notion of jobs: two runs at one lighthouse average each other's weights (measured). So it is bound to port 0,
and its address is what it says itself. It runs as a child of the supervisor, on the job's first node.
"""

import http.client
import os
import re
import shutil
import subprocess
import time
from typing import Any, List, Mapping, Optional

from ...kernel import slurm
from . import family, words

_LISTENING = re.compile(r"Lighthouse listening on: http://\S*:(\d+)")
#: It imports torch first, which may lie on a cold file server; its death is seen at once.
_MAX_START_S = 300.0


class LighthouseNotReady(Exception):
    """The lighthouse did not come up; the message says why."""


def lighthouse_program(command: List[str], environ: Mapping[str, str]) -> str:
    """The lighthouse that belongs to the command's Python, or the one on the search path; NotReady if there is none."""
    beside = lighthouse_path(command)
    if "/" in beside and os.access(beside, os.X_OK):
        return beside
    found = shutil.which("torchft_lighthouse", path=environ.get("PATH"))
    if found is None:
        raise LighthouseNotReady("torchft is not installed in the job's environment: pip install torchft")
    return found


def lighthouse_path(command: List[str]) -> str:
    """Its path beside the command's Python; only its name if that is found on a search path."""
    return os.path.join(os.path.dirname(command[0]), "torchft_lighthouse")


class Lighthouse:
    """`port` is where it listens; `log` has what it says."""

    def __init__(self, program: List[str], settings: Mapping[str, Any], min_replicas: int, log: str) -> None:
        self.log = log
        self.port = 0
        for host in ("[::]", "0.0.0.0"):  # noqa: S104 (replicas of other nodes must reach it)
            argv = words.lighthouse_argv(program, settings, min_replicas, host)
            try:
                with open(log, "ab") as file:
                    begin = file.tell()
                    self.process = subprocess.Popen(
                        argv,
                        env=slurm.step_environ(os.environ),
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=file,
                        start_new_session=True,
                        preexec_fn=family.make_preexec(deaf=False),
                    )
            except OSError as error:
                raise LighthouseNotReady("cannot start %s: %s" % (program[0], error.strerror))
            if self._wait_until_ready(begin):
                return
        raise LighthouseNotReady("the lighthouse ended with code %s: see %s" % (self.process.returncode, log))

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.is_alive():
            self.process.kill()
        self.process.wait()

    def _wait_until_ready(self, begin: int) -> bool:
        """True when it listens and answers; False when it has ended, as on a host without IPv6."""
        deadline = time.monotonic() + _MAX_START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            self.port = self.port or self._logged_port(begin)
            if self.port and _is_answering(self.port):
                return True
            time.sleep(0.02)
        self.stop()
        raise LighthouseNotReady("the lighthouse was not ready after %.0f s: see %s" % (_MAX_START_S, self.log))

    def _logged_port(self, begin: int) -> int:
        with open(self.log, "rb") as file:
            file.seek(begin)
            match = _LISTENING.search(file.read().decode("utf-8", "replace"))
        return int(match[1]) if match else 0


def _is_answering(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/status")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def http_address(host: str, port: int, path: Optional[str] = None) -> str:
    return "http://%s:%d" % ("[%s]" % host if ":" in host else host, port)
