"""Runs started through Ray: one long-lived worker for each slot, on whichever node Ray put it.

A bare task with a GPU costs Ray a new worker each time (0.6 s and 1.1 CPU-seconds, measured); a worker that stays costs
2 ms. It starts the run as a process of its own, as the engine does, so that a run is the same whoever starts it.
"""

import os
import queue
import signal
import threading
from typing import Any, Dict, List, Optional, Set, Tuple

from .. import nvml
from . import machine
from .beside import sampled
from .books import WHOLE
from .children import Child, ColdStarter, Program, Starter
from .ray_cluster import Cluster, RayProblem
from .sharing import memory_environment

_UP_S = 120.0
#: `ray start` looks once a second whether its own processes live.
_DOUBT_S = 2.0


class SlotWorker:
    """What runs in Ray's worker: starts a program, waits for it, passes signals on. One run at a time."""

    def __init__(self, slot: int, per_node: int, share: int) -> None:
        self.starter = ColdStarter(os.environ)
        self.child: Optional[Child] = None
        self.slot, self.share = slot, share
        gpus = machine.gpus_here(os.environ)
        wide = max(1, share // WHOLE)
        place = slot % max(1, per_node)
        first = place * wide if share >= WHOLE else place * share // WHOLE
        self.chosen = [] if not share else [index % max(1, len(gpus.ids)) for index in range(first, first + wide)]
        self.gpus = gpus
        shared = nvml.identity(gpus.ids[self.chosen[0]]) if self.chosen and gpus.ids and gpus.is_nvidia else None
        self.memory = shared.memory if shared else None

    def place(self) -> Dict[str, Any]:
        ids = [self.gpus.ids[index] for index in self.chosen if index < len(self.gpus.ids)]
        return {"host": os.environ.get("SLURMD_NODENAME") or os.uname().nodename, "gpus": ids}

    def run(self, program: Program) -> int:
        env = dict(program.env)
        if self.chosen and self.gpus.ids:
            env.update(machine.gpu_environment(self.gpus, self.chosen))
        if 0 < self.share < WHOLE:
            env.update(memory_environment(self.share, self.memory, env))
        self.child = self.starter.start(program._replace(env=env, cpus=()))
        with sampled(self.child.pid, program.use, env, program.streams):
            os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        code = self.child.poll()
        self.child = None
        return -signal.SIGKILL if code is None else code

    def signal(self, number: int) -> None:
        if self.child is not None:
            self.child.signal(number)


class RayChild(Child):
    """A run in a worker of Ray: its end comes as a message. `slot_lost` when the worker itself is gone."""

    is_here = False

    def __init__(self, number: int, owner: "RayStarter", slot: int) -> None:
        super().__init__(number)
        self._owner, self.slot = owner, slot
        self.was_signalled = False

    def poll(self) -> Optional[int]:
        if self.code is None:
            self._owner.collect()
        return self.code

    def signal(self, number: int) -> None:
        if self.code is None:
            self.was_signalled = True
            self._owner.signal(self.slot, number)


class RayStarter(Starter):
    """Starts runs in the slots of a Ray cluster. `waiting` until Ray's workers are there."""

    def __init__(self, cluster: Cluster, slots: int, per_node: int, share: int, say: Any) -> None:
        os.environ.update({name: value for name, value in cluster.env.items() if name.startswith("RAY_")})
        try:
            import ray
        except ImportError:
            raise RayProblem("Ray is not installed beside shoal: pip install 'shoal[ray]', or leave --engine ray out")
        self.ray, self.cluster, self.say = ray, cluster, say
        self.waiting = True
        self.one_node = slots == per_node
        self._children: Dict[int, RayChild] = {}
        self._count = 0
        self._messages: "queue.SimpleQueue[Tuple[Any, ...]]" = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.wait_on = [self._read]
        self._places: Dict[int, Dict[str, Any]] = {}
        self._workers: List[Any] = []
        self.dead: Set[int] = set()
        self.pids = [process.pid for process in cluster.processes]
        threading.Thread(target=self._connect, args=(slots, per_node, share), daemon=True).start()

    def _connect(self, slots: int, per_node: int, share: int) -> None:
        """In a thread, because it takes seconds and signals must be heard meanwhile."""
        ray = self.ray
        try:
            ray.init(address=self.cluster.address, log_to_driver=False, configure_logging=False)
            made = ray.remote(max_restarts=0, max_concurrency=3)(SlotWorker)
            options = {"num_cpus": 0, "num_gpus": share / WHOLE} if share else {"num_cpus": 1}
            self._workers = [made.options(**options).remote(slot, per_node, share) for slot in range(slots)]
            places = ray.get([worker.place.remote() for worker in self._workers], timeout=_UP_S)
            self._post("ready", places)
        except Exception as error:
            self._post("failed", "%s: %s" % (type(error).__name__, str(error).splitlines()[0] if str(error) else ""))

    def _post(self, *message: Any) -> None:
        self._messages.put(message)
        os.write(self._write, b"r")

    def place(self, slot: int) -> Dict[str, Any]:
        return self._places.get(slot, {})

    def start(self, program: Program) -> Child:
        self._count += 1
        slot = int(program.env["SHOAL_SLOT"])
        child = self._children[self._count] = RayChild(self._count, self, slot)
        done = self._workers[slot].run.remote(program)
        done.future().add_done_callback(lambda future, number=self._count: self._ended(number, child, future))
        return child

    def _ended(self, number: int, child: "RayChild", future: Any) -> None:
        error = future.exception()
        code = None if error is not None else future.result()
        if code is not None and code < 0 and not child.was_signalled:
            # Nobody here killed it. A Ray that dies kills runs first: does the worker outlive it?
            last = threading.Timer(_DOUBT_S, self._ask_worker, (number, child.slot, code))
            last.daemon = True
            last.start()
        else:
            self._post("ended", number, code, error)

    def _ask_worker(self, number: int, slot: int, code: int) -> None:
        asked = self._workers[slot].place.remote().future()
        asked.add_done_callback(lambda future: self._post("ended", number, code, future.exception()))

    def signal(self, slot: int, number: int) -> None:
        self._workers[slot].signal.remote(int(number))

    def collect(self) -> None:
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass
        if self.cluster.is_lost and not self.broken:
            self._break()
        while True:
            try:
                kind, *what = self._messages.get_nowait()
            except queue.Empty:
                return
            if kind == "ready":
                self.waiting = False
                self._places = dict(enumerate(what[0]))
                hosts = {place["host"] for place in what[0]}
                self.say(
                    "Ray is up: %d slots on %d node%s" % (len(what[0]), len(hosts), "" if len(hosts) == 1 else "s")
                )
            elif kind == "dead":
                self.dead.add(what[0])
            elif kind == "failed":
                raise RayProblem("Ray's workers do not start: %s; see %s" % (what[0], self.cluster.log))
            else:
                self._settle(*what)

    def _break(self) -> None:
        """The head is gone: its workers follow, and every run that they had is lost; end them all before we say so."""
        self.say("Ray's head has died: what ran is lost, and nothing more is started here; see %s" % self.cluster.log)
        self.broken, self.waiting = True, False
        self.cluster.close()
        for child in self._children.values():
            child.slot_lost, child.code = True, -signal.SIGKILL
        self._children = {}

    def _look_beside(self, slot: int) -> None:
        """A worker is gone: are the others on its node, too? Nothing should be started in their slots then."""
        host = self._places.get(slot, {}).get("host")
        for other, place in self._places.items():
            if place.get("host") == host and other not in self.dead:
                asked = self._workers[other].place.remote().future()
                asked.add_done_callback(
                    lambda future, other=other: self._post("dead", other) if future.exception() else None
                )

    def _settle(self, number: int, code: Optional[int], error: Any) -> None:
        child = self._children.pop(number, None)
        if child is None:
            return
        cause = getattr(error, "cause", error)
        if error is None:
            child.code = code
        elif isinstance(cause, OSError):
            child.problem = "cannot start %s: %s" % (cause.filename, cause.strerror)
            child.code = 127 if isinstance(cause, FileNotFoundError) else 126
        else:
            self.say("a worker of Ray is gone: %s" % str(error).splitlines()[0])
            child.slot_lost = True
            child.code = -signal.SIGKILL
            self._look_beside(child.slot)

    def close(self) -> None:
        """End Ray. Its workers' runs have ended or are killed with them."""
        if not self.broken:  # With its head gone there is nobody to say goodbye to, and Ray would wait for an answer.
            try:
                self.ray.shutdown()
            except Exception:
                pass
        self.cluster.close()
