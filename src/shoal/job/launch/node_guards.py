"""A guard on each further node of a run: it lets no process of the attempt run there that is not covered by a lease.

    agent            on the first node; names the nodes (kernel/lease.py), starts one srun step beside the ranks
    └── srun         carries messages: to the guards on their input, from them on their output
        └── guard    one on each further node (kernel/guard.py), and below it
            └── a process that renews the lease of its node

It is a step of its own, and not part of the ranks: it covers every launch mode, a program that calls srun itself and
replicas that are restarted. What it stops and kills are the processes on its node that carry the mark of the attempt in
their environment, and all below them.
"""

import json
import os
import select
import shutil
import subprocess
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple, Type

from ...kernel import files, guard, layout, lease, processes, slurm
from .. import allocation
from . import launch_spec

#: How long the step with the guards may take to start.
_MAX_START_S = 120.0
#: How long guards may take to leave when the run has ended; a node that does not answer keeps its names.
_MAX_EXIT_S = 10.0
_POLL_S = 0.1


class NodeGuards:
    """The guards of one attempt, as a context: they leave at its end. Nothing is done in a job of one node."""

    def __init__(
        self, held: lease.Lease, environ: Mapping[str, str], asked_to_stop: Callable[[], Optional[str]]
    ) -> None:
        self._held, self._environ, self._asked_to_stop = held, environ, asked_to_stop
        self._nodes: List[str] = []
        self._step: "Optional[subprocess.Popen[bytes]]" = None
        #: (number of the attempt, node) of each lease that its guard has renewed.
        self._renewed: Set[Tuple[int, int]] = set()
        self._changed = threading.Condition()
        self._is_over = False

    def begin(self) -> Optional[str]:
        """Start them and wait until each has renewed its lease; else why the run must not start."""
        try:
            self._nodes = _further_nodes(self._environ)
            if not self._nodes:
                return None
            lease.create_node_leases(self._held, len(self._nodes))
            self._start()
        except (OSError, allocation.AllocationMismatch) as error:
            self._close_names()
            return "no guard can be started on its further nodes: %s" % error
        threading.Thread(target=self._poll, daemon=True).start()
        problem = self._wait(self._held, _MAX_START_S, self._asked_to_stop)
        if problem is not None:
            self.close()
            self._close_names()
        return problem

    def _close_names(self) -> None:
        """Nothing of the attempt has run anywhere, whatever those guards do that came late."""
        names = layout.parse_names(files.list_names(self._held.run_dir))
        lease.close_node_leases(self._held.run_dir, self._held.number, names)

    def move(self, held: lease.Lease) -> None:
        """The program goes on as another attempt; call before the old one ends."""
        if not self._nodes or self._is_over:
            return
        lease.create_node_leases(held, len(self._nodes))
        with self._changed:
            self._held = held
        self._tell(run_dir=held.run_dir, number=held.number)
        self._wait(held, lease.timing_of(held.start).hold_s / 4)

    def close(self) -> None:
        """Let them kill what is left on their nodes, and leave."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        step = self._step
        if step is None:
            return
        self._tell(over=True)
        try:
            if step.stdin is not None:
                step.stdin.close()
        except OSError:
            pass
        try:
            step.wait(_MAX_EXIT_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _start(self) -> None:
        beat_s = lease.timing_of(self._held.start).beat_s
        count = len(self._nodes)
        # It shares its CPU with the ranks: it sleeps nearly always.
        argv = ["srun", "--overlap", "--nodes=%d" % count, "--ntasks=%d" % count, "--ntasks-per-node=1", "--gres=none"]
        argv += ["--cpus-per-task=1", "--nodelist=%s" % ",".join(self._nodes), "--job-name=guard", "--input=all"]
        argv += ["--kill-on-bad-exit=0", "--mpi=none", *launch_spec.agent_argv(), "node-guard"]
        argv += [self._held.run_dir, str(self._held.number), self._held.mark, repr(beat_s)]
        environ = {name: value for name, value in self._environ.items() if name != processes.LEASE_MARK_VARIABLE}
        self._step = subprocess.Popen(
            argv,
            env=slurm.step_environ(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=processes.make_preexec(block_signals=True),
        )

    def _poll(self) -> None:
        """Hear what the guards say. A step that ends before the attempt is started again: the names are still there."""
        while True:
            step = self._step
            for line in step.stdout if step is not None and step.stdout is not None else ():
                number, _, node = line.decode("ascii", "replace").strip().partition(" ")
                if number.isdigit() and node.isdigit():
                    with self._changed:
                        self._renewed.add((int(number), int(node)))
                        self._changed.notify_all()
            if step is not None:
                step.wait()
            with self._changed:
                self._changed.notify_all()
                if not self._renewed or self._changed.wait_for(lambda: self._is_over, _retry_s(self._held)):
                    return  # It never began, or is over.
                try:
                    self._start()
                except OSError:
                    pass  # No room for one more process: again in a moment.

    def _wait(
        self, held: lease.Lease, within_s: float, asked_to_stop: Callable[[], Optional[str]] = lambda: None
    ) -> Optional[str]:
        """Until each guard has renewed its lease of this attempt; else why that did not happen."""
        wanted = {(held.number, node) for node in range(1, len(self._nodes) + 1)}
        deadline = lease.boot_time_s() + within_s
        with self._changed:
            while not wanted <= self._renewed:
                why = asked_to_stop()
                if why is not None:
                    return "the job was stopped (%s) before the guards of its further nodes had begun" % why
                if self._step is not None and self._step.poll() is not None and not self._renewed:
                    return "the guards of %s did not start: srun ended with code %d" % (
                        ",".join(self._nodes),
                        self._step.returncode,
                    )
                if lease.boot_time_s() > deadline:
                    missing = ",".join(self._nodes[node - 1] for _, node in sorted(wanted - self._renewed))
                    return "the guards of %s did not start within %.0f s" % (missing, within_s)
                self._changed.wait(_POLL_S)
        return None

    def _tell(self, **message: Any) -> None:
        """To all guards; one that does not hear it goes by the files."""
        try:
            if self._step is not None and self._step.stdin is not None:
                self._step.stdin.write(json.dumps(message).encode("ascii") + b"\n")
                self._step.stdin.flush()
        except (OSError, ValueError):
            pass


def _further_nodes(environ: Mapping[str, str]) -> List[str]:
    """The nodes of this job but the one that we are on; none for a run that is only on this machine."""
    job, nodelist = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not nodelist or "SHOAL_TOKEN" in environ or shutil.which("srun") is None:
        return []
    here = environ.get("SLURMD_NODENAME")
    if here and int(environ.get("SLURM_JOB_NUM_NODES") or 1) < 2:
        return []
    return [node for node in allocation.expand_nodelist(nodelist) if node != here]


def _retry_s(held: lease.Lease) -> float:
    return lease.timing_of(held.start).beat_s


def main(argv: List[str]) -> int:
    """`agent node-guard RUN_DIR NUMBER MARK BEAT_S`, on one further node, as a task of a step of srun."""
    return guard.run_guarded(lambda link: _NodeLeaseRenewer(argv, link).run())


class _NodeLeaseRenewer:
    """Renews the lease of this node until its attempt is over; the guard above it then kills what is left."""

    def __init__(self, argv: List[str], link: guard.GuardLink) -> None:
        run_dir, number, self._mark, beat_s = argv
        self._link = link
        self._times = lease.timing_for_beat(float(beat_s))
        self._node = int(os.environ.get("SLURM_NODEID") or 0) + 1
        self._leases = [self._lease(run_dir, int(number))]
        self._input: Optional[int] = 0
        self._rest = b""
        self._is_over = False

    def run(self) -> int:
        while not self._is_over:
            newest = self._leases[-1]
            found = newest.renew()
            if found == "over":
                break
            if found == "held":
                self._hold(newest)
            self._listen(self._times.beat_s if found == "held" and self._input is not None else self._times.beat_s / 4)
        return 0

    def _hold(self, newest: lease.NodeLease) -> None:
        self._link.hold(newest)
        if newest.renewals == 1:
            try:
                os.write(1, b"%d %d\n" % (newest.number, self._node))
            except OSError:
                pass  # Nobody listens any more; the files tell why.
        for old in self._leases[:-1]:
            self._link.drop(old)
            lease.close_node_lease(old.run_dir, old.number, old.node, old.renewals)
        self._leases = [newest]

    def _listen(self, wait_s: float) -> None:
        """Wait, at most until the agent says something or is gone."""
        deadline = lease.boot_time_s() + wait_s
        while not self._is_over:
            inputs = [self._link.fd] + ([] if self._input is None else [self._input])
            readable, _, _ = select.select(inputs, [], [], max(0.0, deadline - lease.boot_time_s()))
            if self._link.fd in readable:
                self._link.signals()  # Slurm's, when it ends the job: the ranks hear them too, and the agent decides.
                if self._link.is_broken:
                    os._exit(guard.end_without_guard(self._leases))
            if self._input in readable:
                self._hear(os.read(0, 4096))
                return
            if not readable:
                return

    def _hear(self, data: bytes) -> None:
        if not data:
            self._input = None  # The agent is gone, or srun is: the files tell.
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            message: Dict[str, Any] = json.loads(line)
            if message.get("over"):
                self._is_over = True
            else:
                self._leases.append(self._lease(message["run_dir"], message["number"]))

    def _lease(self, run_dir: str, number: int) -> lease.NodeLease:
        return lease.NodeLease(run_dir, number, self._node, self._mark, self._times)
