"""The process that imports heavy modules once and forks a process for each requested run. See warm_starter.py."""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import types
from typing import Any, Dict, List, Optional

from ..child_processes import Child

#: The runner of functions, of the user's own installation: called as it is where it has been imported.
_FUNCTION_CALL = "shoal.job.function_call"
#: A process that is forked copies each page that it writes to: what has been imported is neither freed nor looked at by
#: the garbage collector there, and symbols are found once.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_kept_modules: List[types.ModuleType] = []


def main(argv: List[str]) -> int:
    link = socket.socket(fileno=int(argv[0]))
    modules = argv[1:]
    begin = time.monotonic()
    try:
        for name in modules:
            __import__(name)
    except BaseException as error:
        _send(link, {"failed": "cannot import %s: %s: %s" % (name, type(error).__name__, error)})
        return 1
    extra = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if extra:
        _send(link, {"failed": "importing %s starts threads (%s)" % (", ".join(modules), ", ".join(extra[:3]))})
        return 1
    gc.collect()
    gc.freeze()
    _send(link, {"ready": modules, "took_s": time.monotonic() - begin})
    return _serve(link)


def _serve(link: socket.socket) -> int:
    wake, wake_end = os.pipe()
    for end in (wake, wake_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The engine decides; when it is gone the kernel ends us.
    running: Dict[int, Child] = {}
    rest = b""
    while True:
        ready = select.select([link.fileno(), wake], [], [])[0]
        if wake in ready:
            _drain(wake)
        for start_id, child in list(running.items()):
            code = child.poll()
            if code is not None:
                del running[start_id]
                _send(link, {"id": start_id, "code": code})
        if link.fileno() in ready:
            data = link.recv(1 << 20)
            if not data:
                return 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    os.close(wake)
                    os.close(wake_end)
                    link.close()
                    _run_message(message)
                running[message["id"]] = Child(pid)
                _send(link, {"id": message["id"], "pid": pid})


def _run_message(message: Dict[str, Any]) -> None:
    """In the child: be the run. Never returns."""
    code = 1
    try:
        _set_up_process(message)
        code = _execute(*message["how"])
    except BaseException as error:
        sys.stderr.write("shoal: cannot start: %s\n" % error)
    finally:
        _flush()
        os._exit(code & 0xFF)


def _set_up_process(message: Dict[str, Any]) -> None:
    os.setsid()
    if _prctl is not None:
        _prctl(1, int(signal.SIGKILL), 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fd = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    if message["cpus"]:
        os.sched_setaffinity(0, message["cpus"])
    os.chdir(message["cwd"])
    for name in [name for name in os.environ if name not in message["env"]]:
        del os.environ[name]
    os.environ.update((name, value) for name, value in message["env"].items() if os.environ.get(name) != value)
    _reseed_random()
    for name in [name for name in sys.modules if name.split(".")[0] == "shoal_agent"]:
        _kept_modules.append(sys.modules.pop(name))
    _limit_gpu_memory(message["env"].get("SHOAL_GPU_MEMORY_FRACTION"))
    kind, what, args = message["how"]
    sys.argv = [what if kind == "file" else "-" + kind, *args]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(message["argv"])
    sys.path[0] = os.path.dirname(os.path.abspath(what)) if kind == "file" else ""


def _limit_gpu_memory(fraction: Optional[str]) -> None:
    """torch takes no more of a shared GPU than the run's part; it hears of it when it first touches CUDA."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if fraction and hasattr(cuda, "_lazy_call"):
        cuda._lazy_call(lambda: cuda.set_per_process_memory_fraction(float(fraction)))


def _reseed_random() -> None:
    """Children of one parent would all draw the same numbers. Python's own generator takes care of itself."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed()
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()  # The one on the CPU: those of GPUs do not exist yet.


def _execute(kind: str, what: str, args: List[str]) -> int:
    """Run the program as the interpreter would, and return its exit code."""
    code = 0
    try:
        if kind == "m" and what == _FUNCTION_CALL and what in sys.modules:
            sys.modules["__main__"] = sys.modules[what]
            sys.argv[0] = str(sys.modules[what].__file__)
            code = sys.modules[what].main(args)
        elif kind == "m":
            import runpy

            sys.path[0] = os.getcwd()
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        else:
            main = types.ModuleType("__main__")
            main.__dict__["__builtins__"] = __builtins__
            sys.modules["__main__"] = main
            exec(_compile(main, kind, what), main.__dict__)  # noqa: S102
    except SystemExit as leave:
        code = _exit_code(leave.code)
    except KeyboardInterrupt as error:
        _print_traceback(error)
        _shut_down_interpreter(130)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        _print_traceback(error)
        code = 1
    return _shut_down_interpreter(code)


def _compile(main: types.ModuleType, kind: str, what: str) -> Any:
    if kind == "c":
        return compile(what, "<string>", "exec")
    from importlib.machinery import SourceFileLoader

    if sys.version_info >= (3, 9):
        what = os.path.abspath(what)  # as the interpreter does since then
    loader = SourceFileLoader("__main__", what)
    main.__file__ = what
    main.__loader__ = loader
    main.__dict__["__cached__"] = None
    return compile(loader.get_data(what), what, "exec")


def _exit_code(given: Any) -> int:
    if given is None:
        return 0
    if isinstance(given, int):
        return given
    sys.stderr.write("%s\n" % given)
    return 1


def _print_traceback(error: BaseException) -> None:
    """The traceback as the interpreter prints it: without the frames that are ours."""
    trace, ours = error.__traceback__, _print_traceback.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename == ours:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _shut_down_interpreter(code: int) -> int:
    """What the interpreter does when a program is over: wait for threads, call what was registered, flush."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code if _flush() or code else 120


def _flush() -> bool:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True


def _send(link: socket.socket, message: Dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode("ascii") + b"\n")


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
