"""Data for a run: staged before its processes start, locked while they run, described in its record.

A step sets `data = { imagenet = "PATH" }`; the run's processes find the directory in SHOAL_DATA_IMAGENET. On the other
nodes of an allocation a helper does the same, started once per node with srun, and ends with the run.

All processes get one path. If a node has not everything there, all nodes get the source instead: a program that lists
the directory would otherwise see less on that node. Programs that read with shoal.data (`wait = "first"`) do not need
this: they read the source where their node has no copy, in the same order.

In a pack, data is staged when the first run needs it, and locked until all runs have ended. Threads do the staging: a
run whose data is being copied has its slot and can be cancelled, while runs with other data or none continue.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..kernel import files, processes, slurm
from .child_processes import Child

if TYPE_CHECKING:
    from .staging import Stage

_POLL_S = 0.05
#: How long helpers may take to notice the end of the run before they are ended.
_MAX_HELPER_EXIT_S = 10.0


def data_variable(name: str) -> str:
    """SHOAL_DATA_<NAME>, in letters that every shell takes."""
    return "SHOAL_DATA_" + "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name).upper()


class AttemptData:
    """The data of one attempt. `bring` fills `env` or returns why the run cannot start; `close` returns the records."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        env: Dict[str, str],
        folder: str,
        say: Callable[[str], None],
    ) -> None:
        self._asked: Dict[str, Dict[str, Any]] = dict(spec.get("data") or {})
        self._env = env
        self._folder = folder
        self._say = say
        self.stages: List["Stage"] = []
        self._helpers: "Optional[subprocess.Popen[bytes]]" = None
        self._stopped: Optional[str] = None

    def bring(self) -> Optional[str]:
        """Bring the data, and wait until the run may start; `cancel` ends that."""
        if not self._asked:
            return None
        from .staging import Stage, StageError  # late: most runs stage nothing, and jobs may have little memory

        try:
            self._start_helpers()
            for name, one in self._asked.items():
                stage = Stage(name, one["path"], self._env, wait=one.get("wait", "all"), say=self._say)
                self.stages.append(stage)
                stage.begin()
            for stage in self.stages:
                self._wait(stage)
            self._wait_helpers()
            sources = {}
            for stage in self.stages:
                path = self._common_path(stage)
                self._env[data_variable(stage.name)] = path
                sources[path] = stage.source
                self._say("data %s in %s" % (stage.name, path))
            self._env["SHOAL_DATA_SOURCES"] = json.dumps(sources)
        except StageError as error:
            return "the data cannot be used: %s" % error
        return None

    def cancel(self, why: str) -> None:
        self._stopped = why

    def close(self) -> List[Dict[str, Any]]:
        """Let go of everything, here and on the other nodes; one record for each data set."""
        records = [stage.close() for stage in self.stages]
        if self._helpers is not None:
            files.replace(os.path.join(self._folder, "over"), b"", sync=False)
            try:
                self._helpers.wait(_MAX_HELPER_EXIT_S)
            except subprocess.TimeoutExpired:
                self._helpers.kill()
                self._helpers.wait()
            records += [
                dict(record, node=node) for node, found in self._answers().items() for record in found["records"]
            ]
            shutil.rmtree(self._folder, ignore_errors=True)
        return records

    def variables(self) -> Dict[str, str]:
        """What the run's processes find."""
        return {key: value for key, value in self._env.items() if key.startswith("SHOAL_DATA_")}

    def _wait(self, stage: "Stage") -> str:
        from .staging import StageError

        while True:
            self._check()
            try:
                return stage.wait(_POLL_S)
            except StageError:
                if stage.error is not None:
                    raise

    def _check(self) -> None:
        if self._stopped is not None:
            from .staging import StageError

            raise StageError("%s while its data was on the way" % self._stopped)

    def _start_helpers(self) -> None:
        """One process on each other node of the allocation; none where there is no other node."""
        nodes = self._nodes = int(self._env.get("SLURM_JOB_NUM_NODES") or 1)
        if nodes < 2 or not self._env.get("SLURM_JOB_ID") or shutil.which("srun") is None:
            return
        os.makedirs(self._folder, exist_ok=True)
        files.replace(os.path.join(self._folder, "asked.json"), files.to_json({"data": self._asked}))
        argv = ["srun", "--overlap", "--nodes=%d" % nodes, "--ntasks=%d" % nodes, "--ntasks-per-node=1", "--gres=none"]
        argv += ["--cpus-per-task=1", "--kill-on-bad-exit=0", "--input=none", sys.executable, sys.argv[0]]
        # Not marked as of the attempt: it has data to let go of when the guards end the rest.
        env = {
            name: value
            for name, value in slurm.step_environ(self._env).items()
            if name != processes.LEASE_MARK_VARIABLE
        }
        self._helpers = subprocess.Popen([*argv, "stage", self._folder], env=env)

    def _wait_helpers(self) -> None:
        while self._helpers is not None and len(self._answers()) < self._nodes:
            self._check()
            if self._helpers.poll() is not None and len(self._answers()) < self._nodes:
                return
            time.sleep(_POLL_S)

    def _common_path(self, stage: "Stage") -> str:
        """The path that all nodes can use; StageError if one of them cannot read the data at all."""
        from .staging import StageError

        if self._nodes < 2:
            return stage.path
        answers = self._answers()
        for node, one in answers.items():
            if one.get("problem"):
                raise StageError("on node %s: %s" % (node, one["problem"]))
        others = {node: one["paths"] for node, one in answers.items() if one["paths"] is not None}
        lacking = ["%s has none" % node for node, paths in others.items() if paths.get(stage.name) != stage.path]
        if len(answers) < self._nodes:
            lacking.append("%d of %d nodes did not answer" % (self._nodes - len(answers), self._nodes))
        if not lacking or stage.wait_first or stage.path == stage.source:
            return stage.path
        reason = "not every node has a copy in %s: %s" % (stage.path, ", ".join(lacking))
        stage.record.update(path=stage.source, note=reason)
        self._say("%s is read from the source on all nodes: %s" % (stage.name, reason))
        return stage.source

    def _answers(self) -> Dict[str, Any]:
        answers = {}
        for name in files.list_names(self._folder):
            if name.startswith("node-") and name.endswith(".json"):
                answers[name[5:-5]] = files.read_json(os.path.join(self._folder, name)) or {"records": [], "paths": {}}
        return answers


def main(argv: List[str]) -> int:
    """`agent stage FOLDER`: on one node of a job, stage what is asked for and hold it until the run is over."""
    from .staging import Stage, StageError

    folder = argv[0]
    asked = (files.read_json(os.path.join(folder, "asked.json")) or {})["data"]
    node = processes.node_name()
    stages = [
        Stage(name, one["path"], os.environ, wait=one.get("wait", "all"), say=_node_logger(node))
        for name, one in asked.items()
    ]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    mine = os.environ.get("SLURM_NODEID") != "0"  # The first node is the agent's own, which stages by itself.
    records: List[Dict[str, Any]] = []
    answer: Dict[str, Any] = {"records": [], "paths": {} if mine else None}
    try:
        for stage in stages if mine else []:
            stage.begin()
        for stage in stages if mine else []:
            answer["paths"][stage.name] = stage.wait()
    except StageError as error:
        answer["problem"] = str(error)
    answer_path = os.path.join(folder, "node-%s.json" % node)
    files.replace(answer_path, files.to_json(answer), sync=False)
    while not over.wait(0.2) and not os.path.exists(os.path.join(folder, "over")):
        if not os.path.isdir(folder):
            break
    for stage in stages if mine else []:
        records.append(stage.close())
    if os.path.isdir(folder):
        files.replace(answer_path, files.to_json(dict(answer, records=records)), sync=False)
    return 0


def _node_logger(node: str) -> Callable[[str], None]:
    return lambda text: print("shoal: %s: %s" % (node, text), file=sys.stderr, flush=True)


if TYPE_CHECKING:  # Most packs bring no data, and start sooner without it.
    pass

_MAX_JOIN_S = 2.0


class DataWait(Child):
    """What stands for a run's process while its data is on the way: ends with 0 when it is there."""

    def __init__(self, pid: int, wake_fd: int) -> None:
        super().__init__(pid)
        self._rope = wake_fd

    def poll(self) -> Optional[int]:
        return self.code

    def signal(self, number: int) -> None:
        if self.code is None and number not in (signal.SIGUSR1, signal.SIGUSR2):
            self.code = -number
            _wake(self._rope)

    def settle(self, problem: Optional[str]) -> None:
        if self.code is None:
            self.code, self.problem = (0, None) if problem is None else (2, problem)


class _PendingData(NamedTuple):
    handover: "AttemptData"
    thread: threading.Thread
    waiting: List[DataWait]


class SharedData:
    """The data sets of one engine. Whoever asks gets an `DataWait`; `collect` settles those whose data has come.

    Each node has an engine of its own, so none looks after the others; except one that has slots on several: `scratch`
    is where helpers on its nodes, one on each, say how far they are.
    """

    def __init__(self, wake_fd: int, say: Callable[[str], None], scratch: Optional[str] = None) -> None:
        self._rope, self._say, self._scratch = wake_fd, say, scratch
        self._count = 0
        self._coming: Dict[str, _PendingData] = {}
        self._arrived: Dict[str, Optional[str]] = {}
        self._recorded: Dict[str, bool] = {}
        self._news: "queue.SimpleQueue[Tuple[str, Optional[str]]]" = queue.SimpleQueue()

    def ask(self, spec: Mapping[str, Any], env: Mapping[str, str]) -> DataWait:
        """Let a run wait for its data, which is brought once for all that need the same."""
        self._count += 1
        child, key = DataWait(-self._count, self._rope), _data_key(spec)
        if key in self._arrived:
            child.settle(self._arrived[key])
            _wake(self._rope)
            return child
        if key not in self._coming:
            folder = "%s.%d.data" % (self._scratch, self._count) if self._scratch else ""
            handover = AttemptData(spec, self._for_helpers(env), folder, self._say)
            thread = threading.Thread(target=self._bring, args=(key, handover), daemon=True)
            self._coming[key] = _PendingData(handover, thread, [])
            thread.start()
        self._coming[key].waiting.append(child)
        return child

    def _for_helpers(self, env: Mapping[str, str]) -> Dict[str, str]:
        """Not of one run: helpers stay when the one that asked first has ended."""
        kept = {name: value for name, value in env.items() if name not in ("SHOAL_RUN", "SHOAL_ATTEMPT")}
        return kept if self._scratch else dict(kept, SLURM_JOB_NUM_NODES="1")

    def _bring(self, key: str, handover: "AttemptData") -> None:
        try:
            problem = handover.bring()
        except Exception as error:
            problem = "the data cannot be used: %s" % error
        self._news.put((key, problem))
        _wake(self._rope)

    def collect(self) -> None:
        while True:
            try:
                key, problem = self._news.get_nowait()
            except queue.Empty:
                return
            self._arrived[key] = problem
            if key in self._coming:  # Otherwise it was given up.
                for child in self._coming[key].waiting:
                    child.settle(problem)

    def variables(self, spec: Mapping[str, Any]) -> Dict[str, str]:
        """What a run whose data has come finds in its environment."""
        return self._coming[_data_key(spec)].handover.variables()

    def records(self, spec: Mapping[str, Any]) -> List[Dict[str, Any]]:
        """For a run's record: what was copied belongs to the run that asked first, the others shared it."""
        key = _data_key(spec)
        if not spec.get("data") or key not in self._coming:
            return []
        first, self._recorded[key] = key not in self._recorded, True
        found = [stage.current_record() for stage in self._coming[key].handover.stages]
        return found if first else [dict(one, how="shared", copied_bytes=0, ready_s=0.0) for one in found]

    def close(self) -> List[Dict[str, Any]]:
        """Stop what is still on its way, and let others remove what we held; returns what was brought, on all nodes."""
        records: List[Dict[str, Any]] = []
        for coming in self._coming.values():
            coming.handover.cancel("its job ends")
            coming.thread.join(_MAX_JOIN_S)
            if not coming.thread.is_alive():  # One that waits for another job's copy ends with us.
                records += coming.handover.close()
        self._coming.clear()
        return records


def _wake(wake_fd: int) -> None:
    try:
        os.write(wake_fd, b"d")
    except BlockingIOError:
        pass  # The loop has plenty to wake up for.


def _data_key(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec.get("data"), sort_keys=True)
