"""What happens beside the runs of a pack: what they use is sampled, and a person is told, as single jobs do it."""

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import Iterator, Mapping, Optional, Tuple

from ...kernel import layout
from .. import notices, tree, usage
from ..environment import read_secrets
from .node import Node
from .running import Running


class Beside:
    """One thread samples all runs of this node. Telling, which may wait for a network, holds nothing up."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # On this machine the command that started the pack tells, when all of it is through.
        self._tells = bool(node.me.get("job_id"))
        self._told_failure = False
        self._sampler = usage.Sampler(node.environ)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._sampler.run, args=(self._over,), daemon=True)]

    def began(self, running: Running, env: Mapping[str, str]) -> None:
        if not running.child.is_here:
            return
        if self._threads[0].ident is None:
            self._threads[0].start()
        pid, home, begun = running.child.pid, self._node.home, running.begun

        def tell_if_quiet() -> None:
            if self._tells:
                notices.when_quiet(home, running.item.name, [begun.out, begun.err], running.began, env)

        self._sampler.add(running.use_file, env, lambda: tree.use_of(pid, {}), also=tell_if_quiet)

    def ended(self, running: Running) -> None:
        self._sampler.end(running.use_file)

    def failed(self, running: Running) -> None:
        """The first failure is told while the others run on."""
        if self._tells and not self._told_failure:
            self._told_failure = True
            self._threads.append(threading.Thread(target=self._tell, args=(running.item.name, False), daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)

    def all_ended(self, name: str) -> None:
        """This engine has no more to do; if no other has, the experiment of that run is over."""
        if self._tells:
            self._tell(name, True)

    def _tell(self, name: str, last: bool) -> None:
        env = dict(self._node.environ, **read_secrets(self._node.environ))
        try:
            notices.after_end(self._node.home, name, env, last=last)
        except Exception as error:  # the ends of runs matter more
            sys.stderr.write("shoal: telling failed: %s\n" % error)


@contextmanager
def sampled(pid: int, use: Optional[str], env: Mapping[str, str], streams: Tuple[str, str]) -> Iterator[None]:
    """Sample one run by itself, in the process that started it: for engines that start runs through others."""
    if use is None:
        yield
        return
    home, began = layout.home_of(os.path.dirname(use)), time.time()

    def tell_if_quiet() -> None:
        if env.get("SLURM_JOB_ID"):
            notices.when_quiet(home, env["SHOAL_RUN"], list(streams), began, env)

    sampler, over = usage.Sampler(env), threading.Event()
    sampler.add(use, env, lambda: tree.use_of(pid, {}), also=tell_if_quiet)
    thread = threading.Thread(target=sampler.run, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        sampler.end(use)
        over.set()
        thread.join(30)
