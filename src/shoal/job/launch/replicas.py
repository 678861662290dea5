"""The supervisor of fault-tolerant replicas: one lighthouse, R units, and what to do when one of them dies.

A lighthouse that dies ends the round: a new one would count its quorums from zero among replicas that remember others,
and all would fail (measured). So the run starts over from its checkpoints, as after a requeue.
"""

import glob
import json
import os
import signal
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...kernel import checkpoints, tree
from .. import environment
from . import container, entry, failures, family, lighthouse, network, steps, words
from .geometry import LaunchGeometry, slice_gpus
from .policy import ReplicaStates, replica_limits
from .rank import visible_gpus
from .unit import RankGroup

_POLL_S = 0.05
_ACTIVITY_CHECK_S = 1.0
_LIGHTHOUSE_LOST = -1
_EXIT_TEMPFAIL = 75


def supervise(plan: Dict[str, Any], environ: Mapping[str, str]) -> int:
    """Run all replicas to the run's end; its exit code."""
    try:
        return ReplicaSupervisor(plan, environ).run()
    except lighthouse.LighthouseNotReady as error:
        family.log_message(str(error))
        return 127
    finally:
        tree.kill_descendants()


class ReplicaSupervisor:
    def __init__(self, plan: Dict[str, Any], environ: Mapping[str, str]) -> None:
        self.plan = plan
        self.environ = dict(environ)
        self.environ.pop("TORCHFT_MANAGER_PORT", None)  # equal for two replicas of one host, the second would fail
        self.geometry: LaunchGeometry = entry.geometry_of(plan)
        self.settings = plan["settings"]
        self.stopping: Optional[int] = None
        self._alive: Dict[int, _ReplicaAttempt] = {}
        self._inbox = family.SignalQueue()

    def run(self) -> int:
        code = self._rounds()
        if self.plan["slurm"]:
            steps.note_end_by_slurm(self.plan)
        return code

    def _rounds(self) -> int:
        for start in range(1, self.settings["run_restarts"] + 2):
            code = self._round(start)
            if code != _LIGHTHOUSE_LOST or self.stopping is not None:
                return code
            family.log_message("the lighthouse is gone: all replicas start over from their checkpoints")
        family.log_message("the lighthouse was lost %d times" % (self.settings["run_restarts"] + 1))
        return _EXIT_TEMPFAIL

    def _round(self, start: int) -> int:
        """One lighthouse and all replicas around it, until the run is decided or the lighthouse is gone."""
        board = ReplicaStates(replica_limits(self.settings, self.geometry.replicas, self.geometry.min_replicas))
        program = self._lighthouse()
        log = os.path.join(self.plan["folder"], "lighthouse%s.log" % ("" if start == 1 else "-%d" % start))
        beacon = lighthouse.Lighthouse(program, self.settings, self.geometry.min_replicas, log)
        url = lighthouse.http_address(self._own_address(), beacon.port)
        family.log_message("lighthouse at %s, log in %s" % (url, log))
        looked = 0.0
        try:
            while True:
                now = time.monotonic()
                for signal_number in self._inbox.take():
                    self._signal(signal_number)
                self._reap(board, now)
                if self.stopping is not None:
                    if not self._alive:
                        return board.first_code
                    board.due.clear()
                elif not beacon.is_alive():
                    return 0 if len(board.finished) >= board.limits.finish else _LIGHTHOUSE_LOST
                code = board.verdict()
                if code is not None and self.stopping is None:
                    return code
                for number in board.to_start(now) if self.stopping is None else ():
                    self._start(board, number, start, url, now)
                if now - looked >= _ACTIVITY_CHECK_S:
                    looked = now
                    self._look(board, now)
                time.sleep(_POLL_S)
        finally:
            self._end_all()
            beacon.stop()

    def _start(self, board: ReplicaStates, number: int, start: int, url: str, now: float) -> None:
        attempt = board.started(number, now)
        name = "replica-%d%s.try-%d" % (number, "" if start == 1 else ".start-%d" % start, attempt)
        unit, env = self._unit(number, start, name, url)
        self._alive[number] = _ReplicaAttempt(unit, env, self._argv(unit), self.plan)
        family.log_message("%s started%s" % (name, " on %s" % ",".join(unit.nodes) if self.plan["slurm"] else ""))

    def _unit(self, number: int, start: int, name: str, url: str) -> Tuple[RankGroup, Dict[str, str]]:
        """The unit of one try, and the environment of the process that starts it."""
        geometry, plan = self.geometry, self.plan
        nodes = plan["nodes"]
        if geometry.nodes_per_replica > 1:
            nodes = nodes[number * geometry.nodes_per_replica : (number + 1) * geometry.nodes_per_replica]
        else:
            nodes = [nodes[number // geometry.replicas_per_node]]
        values = dict(plan["values"], replica=str(number), replicas=str(geometry.replicas), lighthouse=url)
        env = {
            "TORCHFT_LIGHTHOUSE": url,
            "REPLICA_GROUP_ID": str(number),
            "NUM_REPLICA_GROUPS": str(geometry.replicas),
            "SHOAL_REPLICA": str(number),
            "SHOAL_REPLICAS": str(geometry.replicas),
            "SHOAL_MIN_REPLICAS": str(geometry.min_replicas),
            "SHOAL_UNIT": name + ".",
        }
        if number > 0:
            env["SHOAL_PROGRESS"] = os.path.join(plan["folder"], "replica-%d.progress" % number)
        if geometry.replicas_per_node > 1:
            # Two groups of one host on parts of its GPUs: NCCL must not take them for peers within one process group.
            env["NCCL_HOSTID"] = "%s-%d" % (plan["id"], number)
        if start > 1 and plan["checkpoint"]:
            newest = checkpoints.newest_checkpoint(plan["output_dir"], plan["checkpoint"]) or ""
            env["SHOAL_RESUME_FROM"] = values["resume_from"] = newest
        for key, template in (self.settings.get("env") or {}).items():
            env[key] = environment.fill_all([template], values)[0]
        argv = environment.run_argv(plan, values) + environment.fill_all(self.settings.get("args") or [], values)
        port = -1 if len(nodes) > 1 else 0
        log = os.path.join(plan["folder"], name + ".")
        unit = entry.make_rank_group(plan, geometry, argv, nodes, port, log, name)
        cpus = None if unit.cpus is None else unit.cpus // geometry.replicas_per_node
        unit = unit._replace(cpus=cpus, env=env)
        unit.save()
        return unit, dict(self.environ, **self._gpus(number))

    def _gpus(self, number: int) -> Dict[str, str]:
        """On one machine, each replica sees its slice of the GPUs; on Slurm its step has only its own."""
        if self.plan["slurm"] or not self.geometry.gpus:
            return {}
        there = visible_gpus(self.environ) or [str(device) for device in range(self.geometry.gpus)]
        part = slice_gpus(there[: self.geometry.gpus], self.geometry.replicas)[number]
        return {"CUDA_VISIBLE_DEVICES": ",".join(part)}

    def _argv(self, unit: RankGroup) -> List[str]:
        argv = [*unit.wrapper, "node", unit.path]
        if not self.plan["slurm"]:
            return argv
        per_node = self.geometry.replicas_per_node
        memory = self.plan["memory_mb"]
        share = words.step_share(unit.gpus, None if memory is None else memory // per_node)
        step = words.srun_argv(
            len(unit.nodes), 1, unit.cpus, name=unit.id, nodelist=unit.nodes, share=[*share, "--immediate=60"]
        )
        step += unit.step_flags
        return step + argv

    def _reap(self, board: ReplicaStates, now: float) -> None:
        for number, one in list(self._alive.items()):
            if one.process.poll() is None:
                continue
            del self._alive[number]
            code = one.code()
            if self.stopping is None and self.plan["slurm"] and steps.slurm_is_ending(self.plan["job"]):
                self.stopping = signal.SIGTERM  # Slurm has told all of them, and in a grace time nobody else.
            wait = board.ended(number, code, now)
            if code == 0:
                family.log_message("replica %d finished" % number)
                continue
            next_step = "starts again in %.1f s" % wait if wait is not None else "is not started again"
            if self.stopping is not None:
                next_step = "was told to stop"
            family.log_message(
                "replica %d ended with code %d and %s; its log: %s" % (number, code, next_step, one.unit.out)
            )

    def _look(self, board: ReplicaStates, now: float) -> None:
        """Who has written something since the last look; who stands still for too long is killed."""
        for number, one in self._alive.items():
            if one.has_moved():
                board.moved(number, now, one.has_output())
        for number in board.hanging_replicas(now) if self.stopping is None else ():
            family.log_message(
                "replica %d has written nothing for %.0f s: killed" % (number, now - board.progress[number])
            )
            board.moved(number, now)  # it is killed once
            self._alive[number].kill()

    def _signal(self, number: int) -> None:
        if number in family.STOP_SIGNALS:
            self.stopping = number
        if self.plan["slurm"] and steps.slurm_is_ending(self.plan["job"]):
            return
        for one in list(self._alive.values()):
            one.signal(number)

    def _end_all(self) -> None:
        for one in self._alive.values():
            one.kill()
        for one in self._alive.values():
            one.process.wait()
        self._alive.clear()

    def _lighthouse(self) -> List[str]:
        """How it is called: from the command's own environment, which may be a container."""
        plan = self.plan
        box = container.container_args(plan, self.environ, plan["places"], gpus=False)
        if box.step_flags:
            share = ["--overlap", "--gres=none", *box.step_flags]
            step = words.srun_argv(1, 1, 1, name="lighthouse", nodelist=plan["nodes"][:1], share=share)
            return [*step, lighthouse.lighthouse_path(plan["command"])]
        if box.around:
            return [*box.around, lighthouse.lighthouse_path(plan["command"])]
        return [lighthouse.lighthouse_program(plan["command"], self.environ)]

    def _own_address(self) -> str:
        others = self.plan["nodes"][1:]
        if not self.plan["slurm"] or not others:
            return "127.0.0.1"
        return network.reachable_address(others, self.settings.get("interface"))


class _ReplicaAttempt:
    """One try of a replica: its process, its log, and signs of life."""

    def __init__(self, unit: RankGroup, env: Dict[str, str], argv: List[str], plan: Dict[str, Any]) -> None:
        self.unit = unit
        self._seen: Any = None
        with open(unit.out, "ab") as out:
            runner = steps.SlurmStep if plan["slurm"] else steps.LocalNode
            self.runner = runner(argv, unit, env, plan["job"], out)
        self.process = self.runner.process

    def signal(self, number: int) -> None:
        self.runner.signal(number)

    def kill(self) -> None:
        self.runner.signal(signal.SIGKILL)

    def code(self) -> int:
        return failures.first_exit_code(self.process.returncode, self.unit.out, 0)

    def has_output(self) -> bool:
        """Whether its program has said something: the log is longer than when rank 0 became the program."""
        if _file_size(self.unit.env.get("SHOAL_PROGRESS", "")):
            return True
        try:
            with open(self.unit.rank_record(0)) as file:
                before = int(json.load(file)["log_bytes"])
        except (OSError, ValueError, KeyError):
            return False
        return _file_size(self.unit.out) > before

    def has_moved(self) -> bool:
        """Whether any log of the replica, or its progress file, is other than at the last look."""
        paths = [*glob.glob(glob.escape(self.unit.log) + "*"), self.unit.env.get("SHOAL_PROGRESS", "")]
        now = {path: _file_stamp(path) for path in paths}
        moved = bool(now != self._seen)
        self._seen = now
        return moved


def _file_size(path: str) -> int:
    stamp = _file_stamp(path)
    return 0 if stamp is None else stamp[0]


def _file_stamp(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
