"""The supervisor of fault-tolerant replicas: one torchft lighthouse, R rank groups, and restarts of those that fail.

The lighthouse has no notion of jobs: two runs at one lighthouse average each other's weights (measured). So each run
has its own, bound to port 0, with the address that it prints, as a child of the supervisor on the job's first node; it
is ready before the replicas start. A lighthouse that dies ends the attempt: a new one would count its quorums from zero
among replicas that remember others, and all would fail (measured). The run then starts again from its checkpoints, as
after a requeue.
"""

import glob
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...kernel import checkpoints, processes, slurm
from .. import allocation, environment
from . import container, launcher, launcher_args, srun_steps
from .geometry import LaunchGeometry, slice_gpus
from .rank import visible_gpus
from .rank_group import RankGroup
from .replica_policy import ReplicaStates, replica_limits

_LISTENING = re.compile(r"Lighthouse listening on: http://\S*:(\d+)")
#: It imports torch first, which may lie on a cold file server; its death is seen at once.
_MAX_START_S = 300.0


class LighthouseNotReady(Exception):
    """The lighthouse did not come up; the message says why."""


def lighthouse_program(command: List[str], environ: Mapping[str, str]) -> str:
    """The lighthouse of the command's Python, or the one on the search path; LighthouseNotReady without one."""
    own = lighthouse_path(command)
    if "/" in own and os.access(own, os.X_OK):
        return own
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
            argv = launcher_args.lighthouse_argv(program, settings, min_replicas, host)
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
                        preexec_fn=processes.make_preexec(block_signals=False),
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


_POLL_S = 0.05
_ACTIVITY_CHECK_S = 1.0
_LIGHTHOUSE_LOST = -1
_EXIT_TEMPFAIL = 75


def supervise(plan: Dict[str, Any], environ: Mapping[str, str]) -> int:
    """Run all replicas to the run's end; its exit code."""
    try:
        return ReplicaSupervisor(plan, environ).run()
    except LighthouseNotReady as error:
        processes.log_message(str(error))
        return 127
    finally:
        processes.kill_descendants()


class ReplicaSupervisor:
    def __init__(self, plan: Dict[str, Any], environ: Mapping[str, str]) -> None:
        self.plan = plan
        self.environ = dict(environ)
        self.environ.pop("TORCHFT_MANAGER_PORT", None)  # equal for two replicas of one host, the second would fail
        self.geometry: LaunchGeometry = launcher.geometry_of(plan)
        self.settings = plan["settings"]
        self.stopping: Optional[int] = None
        self._alive: Dict[int, _ReplicaAttempt] = {}
        self._inbox = processes.SignalQueue()

    def run(self) -> int:
        code = self._rounds()
        if self.plan["slurm"]:
            srun_steps.note_end_by_slurm(self.plan)
        return code

    def _rounds(self) -> int:
        for start in range(1, self.settings["run_restarts"] + 2):
            code = self._round(start)
            if code != _LIGHTHOUSE_LOST or self.stopping is not None:
                return code
            processes.log_message("the lighthouse is gone: all replicas start over from their checkpoints")
        processes.log_message("the lighthouse was lost %d times" % (self.settings["run_restarts"] + 1))
        return _EXIT_TEMPFAIL

    def _round(self, start: int) -> int:
        """One lighthouse and all replicas around it, until the run is decided or the lighthouse is gone."""
        board = ReplicaStates(replica_limits(self.settings, self.geometry.replicas, self.geometry.min_replicas))
        program = self._lighthouse()
        log = os.path.join(self.plan["folder"], "lighthouse%s.log" % ("" if start == 1 else "-%d" % start))
        beacon = Lighthouse(program, self.settings, self.geometry.min_replicas, log)
        url = http_address(self._own_address(), beacon.port)
        processes.log_message("lighthouse at %s, log in %s" % (url, log))
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
                    return 0 if len(board.finished) >= board.limits.min_finished else _LIGHTHOUSE_LOST
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
        name = "replica-%d%s.attempt-%d" % (number, "" if start == 1 else ".start-%d" % start, attempt)
        group, env = self._rank_group(number, start, name, url)
        self._alive[number] = _ReplicaAttempt(group, env, self._argv(group), self.plan)
        processes.log_message("%s started%s" % (name, " on %s" % ",".join(group.nodes) if self.plan["slurm"] else ""))

    def _rank_group(self, number: int, start: int, name: str, url: str) -> Tuple[RankGroup, Dict[str, str]]:
        """The group of one attempt, and the environment of the process that starts it."""
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
            "SHOAL_RANK_GROUP": name + ".",
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
        group = launcher.make_rank_group(plan, geometry, argv, nodes, port, log, name)
        cpus = None if group.cpus is None else group.cpus // geometry.replicas_per_node
        group = group._replace(cpus=cpus, env=env)
        group.save()
        return group, dict(self.environ, **self._gpus(number))

    def _gpus(self, number: int) -> Dict[str, str]:
        """On one machine, each replica sees its slice of the GPUs; on Slurm its step has only its own."""
        if self.plan["slurm"] or not self.geometry.gpus:
            return {}
        there = visible_gpus(self.environ) or [str(device) for device in range(self.geometry.gpus)]
        part = slice_gpus(there[: self.geometry.gpus], self.geometry.replicas)[number]
        return {"CUDA_VISIBLE_DEVICES": ",".join(part)}

    def _argv(self, group: RankGroup) -> List[str]:
        argv = [*group.wrapper, "node", group.path]
        if not self.plan["slurm"]:
            return argv
        per_node = self.geometry.replicas_per_node
        memory = self.plan["memory_mb"]
        share = launcher_args.step_share(group.gpus, None if memory is None else memory // per_node)
        step = launcher_args.srun_argv(
            len(group.nodes), 1, group.cpus, name=group.id, nodelist=group.nodes, share=[*share, "--immediate=60"]
        )
        step += group.step_flags
        return step + argv

    def _reap(self, board: ReplicaStates, now: float) -> None:
        for number, one in list(self._alive.items()):
            if one.process.poll() is None:
                continue
            del self._alive[number]
            code = one.code()
            if self.stopping is None and self.plan["slurm"] and srun_steps.slurm_is_ending(self.plan["job"]):
                self.stopping = signal.SIGTERM  # Slurm has told all of them, and in a grace time nobody else.
            wait = board.ended(number, code, now)
            if code == 0:
                processes.log_message("replica %d finished" % number)
                continue
            next_step = "starts again in %.1f s" % wait if wait is not None else "is not started again"
            if self.stopping is not None:
                next_step = "was told to stop"
            processes.log_message(
                "replica %d ended with code %d and %s; its log: %s" % (number, code, next_step, one.group.out)
            )

    def _look(self, board: ReplicaStates, now: float) -> None:
        """Who has written something since the last look; who stands still for too long is killed."""
        for number, one in self._alive.items():
            if one.has_moved():
                board.moved(number, now, one.has_output())
        for number in board.hanging_replicas(now) if self.stopping is None else ():
            processes.log_message(
                "replica %d has written nothing for %.0f s: killed" % (number, now - board.progress[number])
            )
            board.moved(number, now)  # it is killed once
            self._alive[number].kill()

    def _signal(self, number: int) -> None:
        if number in processes.STOP_SIGNALS:
            self.stopping = number
        if self.plan["slurm"] and srun_steps.slurm_is_ending(self.plan["job"]):
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
        wrapping = container.container_args(plan, self.environ, plan["places"], gpus=False)
        if wrapping.step_flags:
            share = ["--overlap", "--gres=none", *wrapping.step_flags]
            step = launcher_args.srun_argv(1, 1, 1, name="lighthouse", nodelist=plan["nodes"][:1], share=share)
            return [*step, lighthouse_path(plan["command"])]
        if wrapping.around:
            return [*wrapping.around, lighthouse_path(plan["command"])]
        return [lighthouse_program(plan["command"], self.environ)]

    def _own_address(self) -> str:
        others = self.plan["nodes"][1:]
        if not self.plan["slurm"] or not others:
            return "127.0.0.1"
        return allocation.reachable_address(others, self.settings.get("interface"))


class _ReplicaAttempt:
    """One attempt of a replica: its process, its log, and signs of life."""

    def __init__(self, group: RankGroup, env: Dict[str, str], argv: List[str], plan: Dict[str, Any]) -> None:
        self.group = group
        self._seen: Any = None
        with open(group.out, "ab") as out:
            runner = srun_steps.SlurmStep if plan["slurm"] else srun_steps.LocalNode
            self.runner = runner(argv, group, env, plan["job"], out)
        self.process = self.runner.process

    def signal(self, number: int) -> None:
        self.runner.signal(number)

    def kill(self) -> None:
        self.runner.signal(signal.SIGKILL)

    def code(self) -> int:
        return launcher.first_exit_code(self.process.returncode, self.group.out, 0)

    def has_output(self) -> bool:
        """Whether its program has said something: the log is longer than when rank 0 became the program."""
        if _file_size(self.group.env.get("SHOAL_PROGRESS", "")):
            return True
        try:
            with open(self.group.rank_record(0)) as file:
                before = int(json.load(file)["log_bytes"])
        except (OSError, ValueError, KeyError):
            return False
        return _file_size(self.group.out) > before

    def has_moved(self) -> bool:
        """Whether any log of the replica, or its progress file, is other than at the last look."""
        paths = [*glob.glob(glob.escape(self.group.log) + "*"), self.group.env.get("SHOAL_PROGRESS", "")]
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
