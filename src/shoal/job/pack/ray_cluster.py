"""Ray inside one allocation, started and stopped by us: its own token, directory, ports and sizes, for this job alone.

Ray's defaults are wrong on a shared cluster, each of them measured (docs/pack.md): it counts the machine and not the
allocation, listens without a password, joins the Ray of another job or user on the same node, runs programs at nice 15,
and `ray stop` ends everybody's. So: token authentication with a 0600 file, a short private directory, free ports, no
dashboard, explicit sizes, and an end by our own processes. The private directory is removed by its creator or, if that
process was killed, by the next one that creates such a directory.
"""

import glob
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...kernel import agent_path, files, node_name, processes
from .. import allocation
from ..cache import FileLock
from ..child_processes import StarterFailed
from .node import EngineNode

_TEMP_ROOT, _PREFIX = "/tmp", "sr"  # noqa: S108 - mkdtemp makes it ours
#: A file that the maker holds locked: the lock goes when the process does, however it ends.
_LOCK_FILE = "shoal-holds-this"


class ShortTempDir:
    """Only we may enter it. Short, because the path of a socket has 107 bytes and Ray needs 60 of them."""

    def __init__(self) -> None:
        for folder in glob.glob(os.path.join(_TEMP_ROOT, _PREFIX + "?" * 8)):
            _remove_if_stale(folder)
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMP_ROOT)
            mark = os.path.join(self.path, _LOCK_FILE)
            try:
                self._lock = FileLock(mark)
            except FileNotFoundError:
                continue  # Somebody took it for left over.
            self._lock.take(exclusive=True, wait=True)
            if os.path.exists(mark):
                return
            self._lock.close()

    def close(self) -> None:
        _remove(self.path)
        self._lock.close()


def _remove_if_stale(folder: str) -> None:
    try:
        if os.lstat(folder).st_uid != os.getuid() or not os.path.exists(os.path.join(folder, _LOCK_FILE)):
            return
        lock = FileLock(os.path.join(folder, _LOCK_FILE))
    except OSError:
        return  # It is being removed.
    if lock.take(exclusive=True):
        _remove(folder)
    lock.close()


def _remove(folder: str) -> None:
    """The mark goes last, so that what could not be removed is found again."""
    for name in files.list_names(folder):
        if name != _LOCK_FILE:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    if files.list_names(folder) == [_LOCK_FILE]:
        shutil.rmtree(folder, ignore_errors=True)


_MAX_START_S = 120.0
_MIB = 1 << 20
#: Ray's own choices are the same for every Ray of a node, and are looked at before they are taken; 0 leaves them to the
#: system, which lets nobody else come in between.
FREE_PORT_FLAGS = ("--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0")


class RayCluster:
    """Ray on the nodes of an allocation; `address` is where the driver connects. `close` leaves nothing behind."""

    def __init__(self, node: EngineNode, nodes: int, dashboard: bool = False) -> None:
        self.ray = _ray_program()
        if dashboard and importlib.util.find_spec("aiohttp_cors") is None:
            raise StarterFailed(
                "Ray's dashboard is not installed: pip install 'ray[default]', or leave --dashboard out"
            )
        self.temp = ShortTempDir()
        name = "%s-%s" % (node.me.job_id or "here", os.getpid())
        self.token = _token_file(node.folder, name)
        self.log = os.path.join(node.folder, "ray.%s.log" % name)
        self.env = ray_environment(node.environ, self.token)
        self.processes: List[Any] = []
        self.held = socket.socket()
        self.dashboard, self.page = dashboard, ""
        self.step: Any = None
        self.head: Any = None
        self.real_cpus = allocation.min_cpus(node.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        self.sizes = resource_flags(len(node.cpus), len(node.gpus.ids), allocation.memory_mb(node.environ))
        try:
            self.address = self._start_head()
            if nodes > 1:
                self._start_other_nodes(nodes)
        except BaseException:
            self.close()
            raise

    def _start_head(self) -> str:
        """Start the head and return its address. Another job may take the port in between: then the next is tried."""
        why = ""
        own = [*client_port_flags(self.held), *FREE_PORT_FLAGS, *self.sizes]
        for _ in range(3):
            port, page = free_port(), free_port()
            address = "%s:%d" % (_own_address(), port)
            argv = [self.ray, "start", "--head", "--block", "--port=%d" % port]
            # Ray looks at this port also when it starts no dashboard, and its own choice may be somebody else's.
            argv += ["--include-dashboard=%s" % str(self.dashboard).lower(), "--dashboard-port=%d" % page]
            argv += ["--node-ip-address=%s" % _own_address(), "--temp-dir=%s" % _session_dir(self.temp), *own]
            log_size = files.size_of(self.log)
            head = self._start(argv)
            if self._is_up(head, log_size):
                self.head = head
                self.page = "http://127.0.0.1:%d" % page
                return address
            _kill_session(head)
            self.processes.remove(head)
            why = _last_line(self.log) or ""
        raise StarterFailed("Ray does not start: %s" % (why or "its head does not answer"))

    def _start_other_nodes(self, nodes: int) -> None:
        """One `ray start` on each other node, as a step of the job; a node's own folder is made there."""
        here = node_name()
        argv = ["srun", "--nodes=%d" % (nodes - 1), "--ntasks=%d" % (nodes - 1), "--ntasks-per-node=1"]
        argv += [
            "--exclude=%s" % here,
            "--job-name=ray",
            "--input=all",
            "--cpu-bind=none",
        ]
        argv += ["--cpus-per-task=%d" % self.real_cpus] if self.real_cpus else []
        argv += [sys.executable, "-I", agent_path(), "ray-node", self.ray, self.address, *FREE_PORT_FLAGS, *self.sizes]
        self.step = self._start(argv, stdin=subprocess.PIPE)

    def _start(self, argv: Sequence[str], stdin: int = subprocess.DEVNULL) -> Any:
        with open(self.log, "ab") as log:
            log.write(("$ %s\n" % " ".join(argv)).encode())
            log.flush()
            process = subprocess.Popen(
                list(argv),
                env=self.env,
                stdin=stdin,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=processes.make_preexec(block_signals=True),
            )
        self.processes.append(process)
        return process

    def _is_up(self, head: Any, log_size: int) -> bool:
        """Whether this head says so itself; that somebody answers at the port may be somebody else's doing."""
        deadline = time.monotonic() + _MAX_START_S
        while time.monotonic() < deadline and head.poll() is None:
            with open(self.log, "rb") as log:
                log.seek(log_size)
                if b"Ray runtime started" in log.read():
                    return True
            time.sleep(0.05)
        return False

    @property
    def is_lost(self) -> bool:
        """Whether the head, or anything that it watches over, has died; without it Ray cannot go on."""
        return self.head is not None and self.head.poll() is not None

    @property
    def is_complete(self) -> bool:
        """Whether no further node can come: what starts Ray there has ended."""
        return self.step is not None and self.step.poll() is not None

    def close(self) -> None:
        """End what we started, and nothing of anybody else's, as `ray stop` would.

        Further nodes see that their input ends: signals are for the runs there, and of a job that is ending Slurm lets
        us signal nothing.
        """
        if self.step is not None:
            self.step.stdin.close()
            try:
                self.step.wait(20)
            except subprocess.TimeoutExpired:
                pass
        for process in self.processes:
            _kill_session(process)
        self.processes = []
        self.held.close()
        self.temp.close()


def node_main(argv: List[str]) -> int:
    """`agent ray-node RAY ADDRESS SIZES...` on a further node: its own address and folder, which Ray would guess.

    Slurm signals everything here, and Ray would end at once, with its runs; they are told by the engine, and may save.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, processes.FORWARDED_SIGNALS)
    ray, address, *rest = argv
    temp = ShortTempDir()
    words = ["start", "--block", "--address=%s" % address, "--node-ip-address=%s" % _own_address()]
    joined = subprocess.Popen(
        [ray, *words, "--temp-dir=%s" % _session_dir(temp), *rest],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=processes.die_with_parent,
    )
    threading.Thread(target=_end_with_input, args=(joined,), daemon=True).start()
    try:
        return processes.shell_exit_code(joined.wait())
    finally:
        temp.close()


def _end_with_input(process: Any) -> None:
    while os.read(0, 4096):
        pass
    _kill_session(process)


def _session_dir(temp: ShortTempDir) -> str:
    """Ray opens the folder that it is given to everybody, so it gets one inside."""
    return os.path.join(temp.path, "r")


def ray_environment(environ: Mapping[str, str], token: str) -> Dict[str, str]:
    """What Ray's processes run in: authentication on, usage reports off, GPUs and niceness left alone.

    It kills no worker because the machine, which may be shared, is short of memory, starts none before it is asked
    (that would be one for each CPU), ends at once when it is told to, because by then its runs have ended, and is never
    started by the way, when somebody asks it something before it is there.
    """
    env = {name: value for name, value in environ.items() if not name.startswith("RAY_")}
    env.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=token,
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",
        RAY_memory_monitor_refresh_ms="0",
        RAY_prestart_worker_first_driver="0",
        RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="0",
        RAY_ENABLE_AUTO_CONNECT="0",
        RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES="1",
        RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES="1",
        RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES="1",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        RAY_DEDUP_LOGS="0",
        PYTHONPATH=os.pathsep.join(filter(None, (agent_path(), environ.get("PYTHONPATH")))),
    )
    return env


def resource_flags(cpus: int, gpus: int, memory_mb: Optional[int]) -> List[str]:
    """What the allocation has, which is not what Ray finds. Hardly anything goes through its object store."""
    store_mb = 100 if memory_mb is None else max(80, min(100, memory_mb // 10))
    memory = [] if memory_mb is None else ["--memory=%d" % (memory_mb * _MIB)]
    return [
        "--num-cpus=%d" % cpus,
        "--num-gpus=%d" % gpus,
        "--object-store-memory=%d" % (store_mb * _MIB),
        *memory,
        "--disable-usage-stats",
    ]


def client_port_flags(held: socket.socket) -> List[str]:
    """A port for the server that Ray starts for clients from outside wherever grpcio is installed.

    It cannot be turned off, its port is 10001 for everybody, and when another user has that one all of this Ray ends.
    `held` keeps the port for us: gRPC shares a port with others of the same user, and takes it when it is ready.
    """
    if importlib.util.find_spec("grpc") is None:
        return []
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("", 0))
    return ["--ray-client-server-port=%d" % held.getsockname()[1]]


def _token_file(folder: str, name: str) -> str:
    """A password for this job alone, readable by its owner alone; Ray's own tool leaves it readable for everybody."""
    path = os.path.join(folder, "ray.%s.token" % name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _ray_program() -> str:
    """Where `ray` is. This Python has to have it too."""
    own = os.path.join(os.path.dirname(sys.executable), "ray")
    found = own if os.path.exists(own) else shutil.which("ray")
    if found is None or importlib.util.find_spec("ray") is None:
        raise StarterFailed("Ray is not installed beside shoal: pip install 'shoal[ray]', or leave --engine ray out")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _own_address() -> str:
    """The address under which the job's other nodes reach this one; a machine by itself needs none but its own."""
    if os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    here = node_name()
    try:
        peers = [name for name in allocation.expand_nodelist(os.environ["SLURM_JOB_NODELIST"]) if name != here]
        return socket.gethostbyname(allocation.reachable_address(peers, None))
    except (KeyError, OSError, allocation.AllocationMismatch):
        return socket.gethostbyname(socket.gethostname())


def _kill_session(process: Any) -> None:
    """Kill one `ray start` and everything in its session; workers follow. Asked politely it would take 3 s for nothing:
    Ray keeps nothing that is not in its folder, which goes too.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _last_line(path: str) -> Optional[str]:
    try:
        with open(path, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return None
    return lines[-1] if lines else None
