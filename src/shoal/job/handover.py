"""Data for a run: staged before its processes start, held while they live, told in its record.

A step says `data = { imagenet = "PATH" }`; the run's processes find the folder in SHOAL_DATA_IMAGENET. On the other
nodes of an allocation a helper does the same, started once per node with srun, and ends when the run has ended.

All processes find one path. If a node has not everything there, all nodes get the source instead: a program that lists
the folder would else see less on that node. Who reads with shoal.data (`wait = "first"`) needs no such care: it reads
the source where its node has no copy, in the same order.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from ..kernel import files, process, slurm
from .staging import Stage, StageError

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
        self.stages: List[Stage] = []
        self._helpers: "Optional[subprocess.Popen[bytes]]" = None
        self._stopped: Optional[str] = None

    def bring(self) -> Optional[str]:
        """Bring the data, and wait until the run may start; `give_up` ends that."""
        if not self._asked:
            return None
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
            records += [dict(record, node=node) for node, found in self._told().items() for record in found["records"]]
            shutil.rmtree(self._folder, ignore_errors=True)
        return records

    def variables(self) -> Dict[str, str]:
        """What the run's processes find."""
        return {key: value for key, value in self._env.items() if key.startswith("SHOAL_DATA_")}

    def _wait(self, stage: Stage) -> str:
        while True:
            self._check()
            try:
                return stage.wait(_POLL_S)
            except StageError:
                if stage.error is not None:
                    raise

    def _check(self) -> None:
        if self._stopped is not None:
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
            name: value for name, value in slurm.step_environ(self._env).items() if name != process.LEASE_MARK_VARIABLE
        }
        self._helpers = subprocess.Popen([*argv, "stage", self._folder], env=env)

    def _wait_helpers(self) -> None:
        while self._helpers is not None and len(self._told()) < self._nodes:
            self._check()
            if self._helpers.poll() is not None and len(self._told()) < self._nodes:
                return
            time.sleep(_POLL_S)

    def _common_path(self, stage: Stage) -> str:
        """The path that all nodes can use; StageError if one of them cannot read the data at all."""
        if self._nodes < 2:
            return stage.path
        told = self._told()
        for node, one in told.items():
            if one.get("problem"):
                raise StageError("on node %s: %s" % (node, one["problem"]))
        others = {node: one["paths"] for node, one in told.items() if one["paths"] is not None}
        lacking = ["%s has none" % node for node, paths in others.items() if paths.get(stage.name) != stage.path]
        if len(told) < self._nodes:
            lacking.append("%d of %d nodes did not answer" % (self._nodes - len(told), self._nodes))
        if not lacking or stage.wait_first or stage.path == stage.source:
            return stage.path
        reason = "not every node has a copy in %s: %s" % (stage.path, ", ".join(lacking))
        stage.record.update(path=stage.source, note=reason)
        self._say("%s is read from the source on all nodes: %s" % (stage.name, reason))
        return stage.source

    def _told(self) -> Dict[str, Any]:
        told = {}
        for name in files.list_names(self._folder):
            if name.startswith("node-") and name.endswith(".json"):
                told[name[5:-5]] = files.read_json(os.path.join(self._folder, name)) or {"records": [], "paths": {}}
        return told


def main(argv: List[str]) -> int:
    """`agent stage FOLDER`: on one node of a job, stage what is asked for and hold it until the run is over."""
    folder = argv[0]
    asked = (files.read_json(os.path.join(folder, "asked.json")) or {})["data"]
    node = process.node_name()
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
    told = os.path.join(folder, "node-%s.json" % node)
    files.replace(told, files.to_json(answer), sync=False)
    while not over.wait(0.2) and not os.path.exists(os.path.join(folder, "over")):
        if not os.path.isdir(folder):
            break
    for stage in stages if mine else []:
        records.append(stage.close())
    if os.path.isdir(folder):
        files.replace(told, files.to_json(dict(answer, records=records)), sync=False)
    return 0


def _node_logger(node: str) -> Callable[[str], None]:
    return lambda text: print("shoal: %s: %s" % (node, text), file=sys.stderr, flush=True)
