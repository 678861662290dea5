"""Runs started through Ray: one long-lived worker for each slot, bound to the slot's node.

A bare task with a GPU costs Ray a new worker each time (0.6 s and 1.1 CPU-seconds, measured); a worker that stays costs
2 ms. It starts the run as a process of its own, as the engine does, so that a run is the same whoever starts it.
"""

import logging
import os
import queue
import signal
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ...kernel import processes
from .. import allocation
from ..child_processes import Child, ColdStarter, Program, Starter, StarterFailed
from ..usage import sampling
from .node import GpuSharing, RemoteNode, set_up_gpu_sharing
from .ray_cluster import RayCluster

_MAX_CONNECT_S = 120.0
#: `ray start` looks once a second whether its own processes live.
_WORKER_CHECK_S = 2.0
#: MPS ends within 20 s or is killed.
_MAX_CLOSE_S = 30.0
#: What Slurm tells each node; the engine knows its own.
_NODE_VARIABLES = ("SLURMD_NODENAME", "SLURM_NODEID")


class SlotWorker:
    """What runs in Ray's worker: starts a program, waits for it, passes signals on. One run at a time."""

    def __init__(self) -> None:
        self.starter = ColdStarter(os.environ)
        self.child: Optional[Child] = None
        self.sharing = GpuSharing()
        for number in (
            processes.FORWARDED_SIGNALS
        ):  # Slurm may signal all that there is on a node; the engine tells us what to do.
            signal.signal(number, lambda number, frame: None)

    def place(self, most_gpus: int, mps_logs: Optional[str]) -> Tuple[RemoteNode, List[str]]:
        """Where this worker is, and what there is to say about it. With a path for its logs MPS is started there if it
        is installed, and kept by this worker.
        """
        _unblock_signals()
        found, host = allocation.visible_gpus_of_node(os.environ), processes.node_name()
        gpus = found._replace(ids=found.ids[:most_gpus])
        messages: List[str] = []
        self.sharing = set_up_gpu_sharing(
            gpus,
            os.environ,
            mps=mps_logs is not None and bool(gpus.ids),
            prefix=self.starter.prefix,
            logs="%s.%s" % (mps_logs, host),
            say=messages.append,
        )
        return RemoteNode(host, gpus, allocation.usable_cpus(os.environ), self.sharing._replace(daemon=None)), messages

    def answers(self) -> bool:
        return True

    def run(self, program: Program) -> int:
        _unblock_signals()
        here = {name: os.environ[name] for name in _NODE_VARIABLES if name in os.environ}
        self.child = self.starter.start(program._replace(env={**program.env, **here}))
        with sampling(self.child.pid, program.use, program.env, program.log):
            os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        code = self.child.poll()
        self.child = None
        return -signal.SIGKILL if code is None else code

    def signal(self, number: int) -> None:
        if self.child is not None:
            self.child.signal(number)

    def close(self) -> None:
        self.sharing.close()


def _unblock_signals() -> None:
    """In the thread that starts something: a run, or MPS, would block signals as Ray does."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.FORWARDED_SIGNALS)


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
    """Starts runs in the slots of a Ray cluster. `waiting` until Ray's workers are there.

    `gpus` is what a node should have; one with less, or one that does not come, has no slots for us. With `mps_logs`,
    a path, runs share GPUs through MPS where it is installed.
    """

    def __init__(
        self,
        cluster: RayCluster,
        nodes: int,
        per_node: int,
        gpus: int,
        mps_logs: Optional[str],
        say: Callable[[str], None],
    ) -> None:
        os.environ.pop("RAY_ADDRESS", None)
        os.environ.update({name: value for name, value in cluster.env.items() if name.startswith("RAY_")})
        import ray  # Before it is imported, it wants to know of the token.

        self.ray: Any = ray
        self.cluster, self.say = cluster, say
        self.waiting = True
        self.per_node = per_node
        self._children: Dict[int, RayChild] = {}
        self._count = 0
        self._messages: "queue.SimpleQueue[Tuple[Any, ...]]" = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.wait_on = [self._read]
        self._places: Dict[int, RemoteNode] = {}
        self._workers: List[Any] = []
        self.dead: Set[int] = set()
        self.pids = [process.pid for process in cluster.processes]
        threading.Thread(target=self._connect, args=(nodes, gpus, mps_logs), daemon=True).start()

    def _connect(self, nodes: int, gpus: int, mps_logs: Optional[str]) -> None:
        """In a thread, because it takes seconds and signals must be heard meanwhile."""
        ray = self.ray
        logging.getLogger("ray").setLevel(logging.ERROR)  # It would warn that it cannot handle signals in a thread.
        try:
            ray.init(address=self.cluster.address, log_to_driver=False, configure_logging=False)
            joined = self._wait_for_nodes(nodes)
            made = ray.remote(max_restarts=0, max_concurrency=3, num_cpus=0)(SlotWorker)
            at = [ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False) for node in joined]
            slots = range(len(joined) * self.per_node)
            self._workers = [made.options(scheduling_strategy=at[slot // self.per_node]).remote() for slot in slots]
            asked = [worker.place.remote(gpus, mps_logs) for worker in self._workers[:: self.per_node]]
            asked += [worker.answers.remote() for worker in self._workers]
            places = ray.get(asked, timeout=_MAX_CONNECT_S)[: len(joined)]
            self._post("ready", nodes, gpus, places)
        except Exception as error:
            self._post("failed", "%s: %s" % (type(error).__name__, str(error).splitlines()[0] if str(error) else ""))

    def _wait_for_nodes(self, wanted: int) -> List[str]:
        """The ids of the nodes that have come, this one first; those that are late are not waited for for ever."""
        here, deadline = self.ray.get_runtime_context().get_node_id(), time.monotonic() + _MAX_CONNECT_S
        while True:
            found = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
            if len(found) >= wanted or self.cluster.is_complete or time.monotonic() > deadline:
                return sorted(found, key=lambda node: (node != here, node))
            time.sleep(0.1)

    def _is_up(self, nodes: int, gpus: int, places: List[Tuple[RemoteNode, List[str]]]) -> None:
        self.waiting = False
        # Ray has put a handler before ours, which prints the report of a crash.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        self._places = dict(enumerate(place for place, _ in places))
        for text in dict.fromkeys(text for _, messages in places for text in messages):
            self.say(text)
        fit = [number for number, place in self._places.items() if len(place.gpus.ids) >= gpus]
        if len(fit) < len(places):
            few = len(places) - len(fit)
            self.say("%d of %d nodes have fewer than %d GPUs: nothing is started there" % (few, nodes, gpus))
        if len(places) < nodes:
            self.say("%d of %d nodes did not come to Ray; see %s" % (nodes - len(places), nodes, self.cluster.log))
        slots = range(nodes * self.per_node)
        self.dead = {slot for slot in slots if slot // self.per_node not in fit}
        count = len(slots) - len(self.dead)
        self.say("Ray is up: %d slots on %d node%s" % (count, len(fit), "" if len(fit) == 1 else "s"))

    def _post(self, *message: Any) -> None:
        self._messages.put(message)
        os.write(self._write, b"r")

    def place(self, slot: int) -> Optional[RemoteNode]:
        return self._places.get(slot // self.per_node)

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
            last = threading.Timer(_WORKER_CHECK_S, self._ask_worker, (number, child.slot, code))
            last.daemon = True
            last.start()
        else:
            self._post("ended", number, code, error)

    def _ask_worker(self, number: int, slot: int, code: int) -> None:
        asked = self._workers[slot].answers.remote().future()
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
            self._lose_all()
        while True:
            try:
                kind, *what = self._messages.get_nowait()
            except queue.Empty:
                return
            if kind == "ready":
                self._is_up(*what)
            elif kind == "dead":
                self.dead.add(what[0])
            elif kind == "failed":
                raise StarterFailed("Ray's workers do not start: %s; see %s" % (what[0], self.cluster.log))
            else:
                self._settle(*what)

    def _lose_all(self) -> None:
        """The head is gone: its workers follow, and every run that they had is lost; end them all before we say so."""
        self.say("Ray's head has died: what ran is lost, and nothing more is started here; see %s" % self.cluster.log)
        self.broken, self.waiting = True, False
        self.cluster.close()
        for child in self._children.values():
            child.slot_lost, child.code = True, -signal.SIGKILL
        self._children = {}

    def _check_other_workers(self, slot: int) -> None:
        """A worker is gone: are the others on its node, too? Nothing should be started in their slots then."""
        first = slot - slot % self.per_node
        slots_of_node = range(first, first + self.per_node)
        if slot == first and self._places[slot // self.per_node].sharing.mps:
            self.dead.update(slots_of_node)  # MPS went with its keeper.
        for other in slots_of_node:
            if other not in self.dead:
                asked = self._workers[other].answers.remote().future()
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
            self._check_other_workers(child.slot)

    def close(self) -> None:
        """End Ray. Its workers' runs have ended or are killed with them."""
        if not self.broken:  # With its head gone there is nobody to say goodbye to, and Ray would wait for an answer.
            try:
                if self._workers:
                    closing = [worker.close.remote() for worker in self._workers[:: self.per_node]]
                    self.ray.wait(closing, num_returns=len(closing), timeout=_MAX_CLOSE_S)
                self.ray.shutdown()
            except Exception:
                pass
        self.cluster.close()
