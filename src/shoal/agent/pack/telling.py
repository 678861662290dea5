"""A person is told of the first failure of a pack, and when all of it is over, as single jobs do it."""

import sys
import threading
from typing import List

from .. import notices
from ..environment import read_secrets
from .node import Node


class Telling:
    """Telling may wait for a network; it holds nothing up."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # On this machine the command that started the pack tells, when all of it is through.
        self._tells = bool(node.me.job_id)
        self._threads: List[threading.Thread] = []

    def failed(self, name: str) -> None:
        """The first failure is told while the others run on."""
        if self._tells and not self._threads:
            self._threads.append(threading.Thread(target=self._tell, args=(name, False), daemon=True))
            self._threads[-1].start()

    def all_ended(self, name: str) -> None:
        """This engine has no more to do; if no other has, the experiment of that run is over."""
        if self._tells:
            self._tell(name, True)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(30)

    def _tell(self, name: str, last: bool) -> None:
        env = dict(self._node.environ, **read_secrets(self._node.environ))
        try:
            notices.after_end(self._node.home, name, env, last=last)
        except Exception as error:  # the ends of runs matter more
            sys.stderr.write("shoal: telling failed: %s\n" % error)
