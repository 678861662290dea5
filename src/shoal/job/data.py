"""Data of runs that take turns in one allocation: staged when the first one asks, held until all are over.

It is brought in threads. A run whose data is on the way holds its slot and waits like one that works, so that it can be
cancelled and stopped, while runs that need other data or none go on.
"""

import json
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .children import Child

if TYPE_CHECKING:  # Most packs bring no data, and start sooner without it.
    from .handover import AttemptData

_MAX_JOIN_S = 2.0


class DataWait(Child):
    """What stands for a run's process while its data is on the way: ends with 0 when it is there."""

    def __init__(self, pid: int, rope: int) -> None:
        super().__init__(pid)
        self._rope = rope

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

    def __init__(self, rope: int, say: Callable[[str], None], scratch: Optional[str] = None) -> None:
        self._rope, self._say, self._scratch = rope, say, scratch
        self._count = 0
        self._coming: Dict[str, _PendingData] = {}
        self._arrived: Dict[str, Optional[str]] = {}
        self._told: Dict[str, bool] = {}
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
            from .handover import AttemptData

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
        first, self._told[key] = key not in self._told, True
        found = [stage.told() for stage in self._coming[key].handover.stages]
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


def _wake(rope: int) -> None:
    try:
        os.write(rope, b"d")
    except BlockingIOError:
        pass  # The loop has plenty to wake up for.


def _data_key(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec.get("data"), sort_keys=True)
