"""What a run uses, sampled from inside its job: CPUs and memory from /proc, GPUs from NVML where it is installed.

Cheap by design: one sample every ten seconds, only of the run's own processes, and one small file that never grows past
a few hundred points (older ones are averaged in pairs). What cannot be read is noted, and sampling continues. Each node
of a run has its own file. On further nodes torchrun's parent samples in a thread (launch/node.py); srun's tasks become
the user's program by exec, so there a small process beside the ranks samples them.
"""

import os
import resource
import signal
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol

from ..kernel import files, layout, processes
from . import notifications, usage_readers

_MAX_POINTS = 240
#: Samples between two writes.
_SAMPLES_PER_WRITE = 3
#: A GPU that does less than this is called idle; an empty CUDA context shows 0, a data loader's trickle 1 or 2.
_IDLE_PERCENT = 5.0
#: Where nothing is sampled, the output is still looked at so often.
_QUIET_CHECK_S = 30.0
#: Sampling many runs may take this part of one processor.
_MAX_SAMPLING_SHARE = 0.02


class StopEvent(Protocol):
    """A threading.Event, or what answers like one: has it ended, within so many seconds?"""

    def wait(self, timeout: float) -> bool: ...


class UsageSampler:
    """Looks at one run, or at all runs of a pack, from one thread. Nothing here ever raises into the caller."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.every_s = _parse_number(env.get("SHOAL_SAMPLE_S"), 10.0)
        self._subjects: Dict[str, _SampledRun] = {}
        self._ended: List[_SampledRun] = []
        self._lock = threading.Lock()

    def add(
        self,
        path: str,
        env: Mapping[str, str],
        look: Callable[[], usage_readers.ResourceUse],
        alone: bool = False,
        log: Optional[str] = None,
    ) -> None:
        """Keep the record at `path` up to date; tell a person when the GPUs, or the output in `log`, rest for long.

        `alone`: no other run is a child of this process.
        """
        with self._lock:
            self._subjects[path] = _SampledRun(path, env, look, self.every_s, alone, log)

    def move(self, path: str, to: str) -> None:
        """The process goes on as another attempt: from now on its samples are that one's."""
        with self._lock:
            subject = self._subjects.pop(path, None)
            if subject is None:
                return
            self._subjects[to] = subject.continued(to)
            if subject.record.has_samples:
                subject.record.close()
                self._ended.append(subject)

    def end(self, path: str) -> None:
        """The run is over. One that was never sampled leaves no record: that would cost short runs a file each."""
        with self._lock:
            subject = self._subjects.pop(path, None)
            if subject is not None and subject.record.has_samples:
                subject.record.close()
                self._ended.append(subject)

    def run(self, over: StopEvent) -> None:
        """Sample until `over`, then close every record."""
        wait_s = min(1.0, self.every_s) or _QUIET_CHECK_S
        while not over.wait(wait_s):
            begin = time.monotonic()
            with self._lock:
                subjects = list(self._subjects.values())
                ended, self._ended = self._ended, []
            for subject in ended:
                subject.write()
            # With many runs each is written more seldom: a file server counts files, not runs.
            write_every_s = _SAMPLES_PER_WRITE * self.every_s * (1 + len(subjects) // 16)
            for subject in subjects:
                if subject.path in self._subjects:
                    subject.sample(write_every_s)
            wait_s = max(self.every_s or _QUIET_CHECK_S, (time.monotonic() - begin) / _MAX_SAMPLING_SHARE)
        if self.every_s > 0:
            for subject in self._subjects.values():
                subject.record.close()
            for subject in (*self._subjects.values(), *self._ended):
                subject.write()


def sample_until(
    path: str, env: Mapping[str, str], look: Callable[[], usage_readers.ResourceUse], over: StopEvent
) -> None:
    """Sample one run until `over`."""
    sampler = UsageSampler(env)
    sampler.add(path, env, look, alone=True)
    sampler.run(over)


@contextmanager
def sampling(pid: int, use: Optional[str], env: Mapping[str, str], log: str) -> Iterator[None]:
    """Sample one run by itself, in the process that started it: for engines that start runs through others."""
    if use is None:
        yield
        return
    sampler, over = UsageSampler(env), threading.Event()
    sampler.add(use, env, lambda: usage_readers.process_use(pid, {}), log=log)
    thread = threading.Thread(target=sampler.run, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        sampler.end(use)
        over.set()
        thread.join(30)


class _SampledRun:
    """One run: how to look at it, and where that is written."""

    def __init__(
        self,
        path: str,
        env: Mapping[str, str],
        look: Callable[[], usage_readers.ResourceUse],
        every_s: float,
        alone: bool,
        log: Optional[str],
    ) -> None:
        self.path, self.env, self.look, self.log, self._alone = path, env, look, log, alone
        self.record = UsageRecord(every_s, alone)
        self._began = time.time()
        self._gpus: Optional[List[usage_readers.NvmlGpu]] = None
        self._written = 0.0

    def continued(self, path: str) -> "_SampledRun":
        """The same processes, with a record that begins now."""
        other = _SampledRun(path, self.env, self.look, self.record.every_s, self._alone, self.log)
        other.record.leave_out(self.record)
        return other

    def sample(self, write_every_s: float) -> None:
        try:
            if self.record.every_s > 0:
                if self._gpus is None:
                    self._gpus = self._open()
                self.record.add(self.look(), [gpu.read() for gpu in self._gpus])
            if time.monotonic() - self._written >= write_every_s:
                if self.record.every_s > 0:
                    self.write()
                home, run = layout.state_dir_of(os.path.dirname(self.path)), self.env.get("SHOAL_RUN", "")
                notifications.notify_if_idle(home, run, self.record.idle_for_s, self.env)
                if self.log:
                    notifications.notify_if_quiet(home, run, self.log, self._began, self.env)
        except Exception:  # a full disk or a vanished process costs one sample, not the run
            pass

    def write(self) -> None:
        self._written = time.monotonic()
        try:
            files.replace(self.path, files.to_json(self.record.as_json()), sync=False)
        except OSError:
            pass

    def _open(self) -> List[usage_readers.NvmlGpu]:
        try:
            gpus, self.record.gpu_problem = usage_readers.open_gpus(self.env)
        except Exception as error:  # a driver may do anything, and the run matters more
            gpus, self.record.gpu_problem = [], "NVML failed: %s" % error
        return gpus


class UsageRecord:
    """Samples of one attempt on one node, and what they add up to."""

    def __init__(self, every_s: float, alone: bool) -> None:
        self.every_s, self.alone = every_s, alone
        self.gpu_problem: Optional[str] = None
        #: How long all GPUs have done nothing, up to now.
        self.idle_for_s = 0.0
        self._began = self._last = self._sampled = time.monotonic()
        self._cpu_s = self._peak_mb = self._earlier_cpu_s = 0.0
        self._points: List[List[Optional[float]]] = []
        self._gpus: List[Dict[str, Any]] = []
        self._before = _children_cpu_s()

    @property
    def has_samples(self) -> bool:
        return bool(self._points)

    def leave_out(self, earlier: "UsageRecord") -> None:
        """Processor time that another record has of the same processes is not counted again."""
        self._earlier_cpu_s = earlier._earlier_cpu_s + earlier._cpu_s
        self._before = earlier._before
        self._sampled = earlier._sampled

    def add(self, use: usage_readers.ResourceUse, gpus: List[Optional[Mapping[str, Any]]]) -> None:
        now = time.monotonic()
        span = max(1e-6, now - self._last)
        cpu_s = use.cpu_s - self._earlier_cpu_s
        cpus = max(0.0, cpu_s - self._cpu_s) / max(1e-6, now - self._sampled)
        self._cpu_s = max(self._cpu_s, cpu_s)
        self._peak_mb = max(self._peak_mb, use.memory_mb)
        known = [gpu for gpu in gpus if gpu is not None]
        self._add_gpus(known, span)
        mean = sum(gpu["percent"] for gpu in known) / len(known) if known else None
        memory = sum(gpu["used_mb"] for gpu in known) if known else None
        self._points.append([now - self._began, cpus, use.memory_mb, mean, memory])
        self._last = self._sampled = now
        if len(self._points) > _MAX_POINTS:
            self._points = [_mean_rows(a, b) for a, b in zip(self._points[::2], self._points[1::2])]

    def close(self) -> None:
        """The kernel's own sum, where it is this run's: it also knows processes that lived between two samples."""
        self._last = time.monotonic()
        if self.alone:
            self._cpu_s = max(self._cpu_s, _children_cpu_s() - self._before - self._earlier_cpu_s)
            self._peak_mb = max(self._peak_mb, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0)

    def as_json(self) -> Dict[str, Any]:
        gpus = [
            {
                "name": gpu["name"],
                "mean_percent": gpu["area"] / gpu["seen_s"] if gpu["seen_s"] else 0.0,
                "peak_percent": gpu["peak"],
                "peak_memory_mb": gpu["peak_mb"],
                "memory_mb": gpu["total_mb"],
                "idle_s": gpu["idle_s"],
            }
            for gpu in self._gpus
        ]
        return {
            "schema": 1,
            "host": processes.node_name(),
            "every_s": self.every_s,
            "duration_s": self._last - self._began,
            "cpu_s": self._cpu_s,
            "peak_memory_mb": self._peak_mb,
            "gpus": gpus,
            "gpu_problem": self.gpu_problem,
            "gpu_idle_for_s": self.idle_for_s,
            "points": [[None if value is None else round(value, 2) for value in point] for point in self._points],
        }

    def _add_gpus(self, gpus: List[Mapping[str, Any]], span: float) -> None:
        if not self._gpus:
            numbers = dict.fromkeys(("area", "seen_s", "peak", "peak_mb", "total_mb", "idle_s"), 0.0)
            self._gpus = [dict(numbers, name="") for _ in gpus]
        for kept, gpu in zip(self._gpus, gpus):
            kept["name"], kept["total_mb"] = gpu["name"], gpu["total_mb"]
            kept["area"] += gpu["percent"] * span
            kept["seen_s"] += span
            kept["peak"] = max(kept["peak"], gpu["percent"])
            kept["peak_mb"] = max(kept["peak_mb"], gpu["used_mb"])
            kept["idle_s"] += span if gpu["percent"] < _IDLE_PERCENT else 0.0
        idle = bool(gpus) and all(gpu["percent"] < _IDLE_PERCENT for gpu in gpus)
        self.idle_for_s = self.idle_for_s + span if idle else 0.0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _mean_rows(a: List[Optional[float]], b: List[Optional[float]]) -> List[Optional[float]]:
    pairs = list(zip(a, b))
    return [b[0]] + [None if x is None or y is None else (x + y) / 2 for x, y in pairs[1:]]


def _parse_number(text: Optional[str], default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        return default


_RANK_POLL_S = 0.5


def sample_node(path: str, env: Dict[str, str]) -> None:
    """Leave a process behind that samples this job on this node until the caller's process has ended.

    It is no child of the caller: a program that waits for all its children must not wait for ours.
    """
    rank = os.getpid()
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return
        if os.fork():
            os._exit(0)
    except OSError:
        return  # No room for one more process: the run matters more.
    try:
        _detach()
        sampler = UsageSampler(env)
        sampler.add(path, env, lambda: usage_readers.job_use(env))
        sampler.run(_RankProcess(rank))
    finally:
        os._exit(0)


def _detach() -> None:
    """Hold nothing open that somebody waits for, and outlive the signals that are for the ranks."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(3, 1024)
    os.chdir("/")
    for number in processes.FORWARDED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _RankProcess:
    """The rank's life, asked as a threading.Event is: has it ended?"""

    def __init__(self, pid: int) -> None:
        self._pid, self._started = pid, usage_readers.process_start(pid)

    def wait(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while usage_readers.process_start(self._pid) == self._started:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_RANK_POLL_S, left_s))
        return True
