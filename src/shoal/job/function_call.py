"""Call a Python function as the program of a run: `python -m shoal.job.function_call CALL.json [NAME=OBJECT]...`.

functions/ describes such a run; this is what its processes execute. The call record says which function, and how to get
it: imported from the code snapshot, from the script that defined it, or unpickled. Parameters come from $SHOAL_PARAMS
and $SHOAL_SEED, all other arguments are objects beside the call record. What the function leaves is in the output
directory:

    call.json      the call record, for people
    result.pkl     the returned value; result.json too where it is plain data, metrics.json where it is numbers
    error.json     why there is no result: the exception with its traceback; error.pkl where it can be rebuilt
    next_call.pkl  what `checkpoint()` of the callable returned when the time was nearly up: the next attempt's call

A pickle is a line of JSON (the versions it needs, and the attempt that wrote it) and the bytes. Only files of this user
that no one else can write are loaded, and only after their versions were compared.
"""

import errno
import importlib
import json
import os
import pickle
import signal
import sys
import traceback
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

RESULT_FILE, ERROR_FILE, EXCEPTION_FILE, CALL_FILE = "result.pkl", "error.json", "error.pkl", "call.json"
NEXT_CALL_FILE = "next_call.pkl"
#: Ends an attempt whose call was saved: the run continues in another one (`continue_exit_code` of its recovery).
EXIT_CONTINUE = 75
#: Set while a script is imported for the function in it: `shoal.submit` at its top level would submit from the job.
IMPORTING_VARIABLE = "SHOAL_IMPORTING_SCRIPT"
_EXIT_DISK = 74
_MAX_JSON_BYTES = 1 << 20


class CallError(Exception):
    """Why a function cannot be called, or its result not kept; `kind` goes into error.json."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Versions(NamedTuple):
    """What a pickle depends on beside its content; `cloudpickle` is None for one that plain pickle wrote."""

    python: str
    cloudpickle: Optional[str] = None

    def difference(self, here: "Versions") -> Optional[str]:
        """What differs here, in words; None if nothing does."""
        if self.python != here.python:
            return "Python %s, and this is Python %s" % (self.python, here.python)
        if self.cloudpickle is not None and self.cloudpickle != here.cloudpickle:
            found = "cloudpickle %s" % here.cloudpickle if here.cloudpickle else "no cloudpickle"
            return "cloudpickle %s, and this Python has %s" % (self.cloudpickle, found)
        return None


def current_versions(with_cloudpickle: bool = False) -> Versions:
    cloudpickle = None
    if with_cloudpickle:
        try:
            cloudpickle = str(importlib.import_module("cloudpickle").__version__)
        except ImportError:
            pass
    return Versions("%d.%d" % sys.version_info[:2], cloudpickle)


def pickle_file(data: bytes, versions: Versions, attempt: int = 0) -> bytes:
    """The content of a file for `load_file`."""
    head = {"python": versions.python, "cloudpickle": versions.cloudpickle, "attempt": attempt}
    return json.dumps(head).encode("ascii") + b"\n" + data


def load_file(path: str, attempt: Optional[int] = None) -> Any:
    """The object in a file; CallError before anything is loaded from a file that is not this user's own, that other
    versions wrote, or (with `attempt`) that another attempt wrote. OSError where it cannot be read."""
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            raise CallError("owner", "%s is not loaded: it belongs to another user (uid %d)" % (path, found.st_uid))
        if found.st_mode & 0o022:
            raise CallError("owner", "%s is not loaded: other users can change it (chmod 600 it)" % path)
        try:
            head = json.loads(file.readline(1024).decode("ascii"))
            wrote = Versions(str(head["python"]), head["cloudpickle"])
        except (ValueError, KeyError, TypeError):
            raise CallError("damaged", "%s is damaged: its first line is not that of shoal" % path)
        if attempt is not None and head.get("attempt") != attempt:
            raise CallError("attempt", "%s was written by attempt %s" % (path, head.get("attempt")))
        different = wrote.difference(current_versions(wrote.cloudpickle is not None))
        if different:
            raise CallError("versions", "%s is not loaded: it was written with %s" % (path, different))
        return pickle.load(file)  # noqa: S301 (this user's own file)


def main(argv: List[str]) -> int:
    path, words = argv[0], argv[1:]
    output = os.environ["SHOAL_OUTPUT_DIR"]
    try:
        record, text = _read_record(path)
        _write(os.path.join(output, CALL_FILE), text)
        objects = os.path.dirname(os.path.dirname(path))
        if record.get("checkpoints"):
            with CallSaver(output) as saver:
                call = _prepare(record, objects, words)
                result = saver.run(_saved_call(output) or call)
        else:
            call = _prepare(record, objects, words)
            result = call.function(*call.args, **call.kwargs)
        try:
            _keep_result(output, result, record["how"] == "value")
        except OSError as error:
            raise CallError("result", "its result cannot be written: %s" % error) from error
    except Checkpointed:
        return EXIT_CONTINUE
    except BaseException as error:
        return _fail(output, error)
    return 0


class LoadedCall(NamedTuple):
    """A callable and its arguments."""

    function: Callable[..., Any]
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]


class Checkpointed(BaseException):
    """The call was saved, and the function is left."""


class CallSaver:
    """Runs a callable that has a `checkpoint` method, as submitit does: at the warning before the time limit, and at
    SIGTERM, the method is called with the arguments, and what it returns (an object with `function`, `args` and
    `kwargs`) is saved as the call of the next attempt. None ends the run. A warning that comes while modules are
    imported is heard when the call is known."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._call: Optional[LoadedCall] = None
        self._state, self._warned = "running", False

    def __enter__(self) -> "CallSaver":
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: Any) -> None:
        # The function has returned: a warning comes too late, and an end is an end.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def run(self, call: LoadedCall) -> Any:
        self._call = call
        if self._warned:
            self._on_signal(signal.SIGUSR1, None)
        return call.function(*call.args, **call.kwargs)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._call is None:
            self._warned = True
            if number == signal.SIGTERM:  # nothing is lost: the next attempt makes the same call
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            return
        if self._state == "saved":
            os._exit(EXIT_CONTINUE)  # the function has caught Checkpointed, and is asked a second time
        if self._state == "saving":
            return
        self._state = "saving"
        name = signal.Signals(number).name
        sys.stderr.write("shoal: %s: calling checkpoint() of %s\n" % (name, _type_name(self._call.function)))
        method = checkpoint_method(self._call.function)
        following = method(*self._call.args, **self._call.kwargs) if method is not None else None
        if following is None:
            raise CallError("checkpoint", "checkpoint() returned None: the run is not continued")
        _save_call(self._output, following)
        self._state = "saved"
        sys.stderr.write("shoal: the call of the next attempt is saved\n")
        sys.stderr.flush()
        raise Checkpointed()


def checkpoint_method(function: Any) -> Optional[Callable[..., Any]]:
    """What is called at the warning; None for a callable that only starts over."""
    method = getattr(function, "__submitit_checkpoint__", None) or getattr(function, "checkpoint", None)
    return method if callable(method) else None


def _save_call(output: str, following: Any) -> None:
    try:
        call = LoadedCall(following.function, tuple(following.args), dict(following.kwargs))
    except (AttributeError, TypeError, ValueError):
        text = "checkpoint() returned a %s: expected DelayedSubmission(function, ...)" % _type_name(following)
        raise CallError("checkpoint", text)
    try:
        data, versions = _dump(tuple(call), False)
    except Exception as error:
        raise CallError("checkpoint", "what checkpoint() returned cannot be pickled: %s" % error) from error
    _write(os.path.join(output, NEXT_CALL_FILE), pickle_file(data, versions, _attempt()))


def _saved_call(output: str) -> Optional[LoadedCall]:
    """What an earlier attempt saved in this output directory."""
    path = os.path.join(output, NEXT_CALL_FILE)
    try:
        call = LoadedCall(*load_file(path))
    except FileNotFoundError:
        return None
    except CallError:
        raise
    except Exception as error:
        text = "%s cannot be loaded: %s: %s" % (path, type(error).__name__, error)
        raise CallError("checkpoint", text) from error
    sys.stderr.write("shoal: continuing with the call that an earlier attempt saved\n")
    return call


def _read_record(path: str) -> Tuple[Dict[str, Any], bytes]:
    with open(path, "rb", buffering=0) as file:
        text = file.readall()
    record: Dict[str, Any] = json.loads(text.decode("utf-8"))
    different = Versions(record["python"], record["cloudpickle"]).difference(
        current_versions(record["cloudpickle"] is not None)
    )
    if different:
        raise CallError("versions", "the function was submitted with %s" % different)
    return record, text


def _prepare(record: Dict[str, Any], objects: str, words: List[str]) -> LoadedCall:
    """The function and its arguments; CallError where one of them cannot be had."""
    _set_up_path(record)
    function = _load_function(record, objects)
    values: Dict[str, Any] = json.loads(os.environ["SHOAL_PARAMS"])
    for name in record.get("captured", ()):  # shown with the run, and held by the function itself
        values.pop(name, None)
    if record["seeded"] and os.environ["SHOAL_SEED"]:
        values["seed"] = int(os.environ["SHOAL_SEED"])
    for word in words:
        name, _, digest = word.partition("=")
        values[name] = _load_object(objects, digest, "argument %r" % name)
    args = [values.pop(name) for name in record["positional"]]
    args += values.pop(record["starred"], ()) if record["starred"] else ()
    owner = record.get("owner")
    if owner:  # a callable object, which the function is `__call__` of
        function = values.pop(owner) if owner in values else args.pop(0)
    return LoadedCall(function, tuple(args), values)


def _set_up_path(record: Dict[str, Any]) -> None:
    """Directories of the project on the import path, as copies of the code."""
    root = os.getcwd()
    for _ in record["subdir"].split("/") if record["subdir"] else ():
        root = os.path.dirname(root)
    own = [os.path.normpath(os.path.join(root, part)) for part in record["path"]]
    sys.path[:] = [*own, *(entry for entry in sys.path if entry not in own)]
    sys.argv = [os.path.join(root, record["file"]) if record.get("file") else record["qualname"]]


def _load_function(record: Dict[str, Any], objects: str) -> Callable[..., Any]:
    if record["how"] == "value":
        function = _load_object(objects, record["function"], "function %s" % record["qualname"])
    else:
        where = record["module"]
        try:
            module = _import_script(sys.argv[0]) if record["how"] == "script" else importlib.import_module(where)
            function = module
            for part in record["qualname"].split("."):
                function = getattr(function, part)
        except (ImportError, FileNotFoundError, AttributeError) as error:
            text = "%s:%s cannot be imported in the job: %s" % (where, record["qualname"], error)
            raise CallError("function", text) from error
    # What a decorator of shoal wraps, or a class that is called.
    return function  # type: ignore[no-any-return]


def _import_script(path: str) -> types.ModuleType:
    """A script under the name that `multiprocessing` gives it in its processes, so that its main guard is false."""
    module = types.ModuleType("__mp_main__")
    module.__file__ = path
    sys.path.insert(0, os.path.dirname(path))
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    os.environ[IMPORTING_VARIABLE] = path
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        exec(code, module.__dict__)  # noqa: S102
    finally:
        del os.environ[IMPORTING_VARIABLE]
    return module


def _load_object(objects: str, digest: str, what: str) -> Any:
    path = os.path.join(objects, digest[:2], digest + ".pkl")
    try:
        return load_file(path)
    except OSError as error:
        raise CallError("arguments", "the %s cannot be read: %s" % (what, error))
    except CallError:
        raise
    except Exception as error:
        text = "the %s cannot be rebuilt in the job: %s: %s" % (what, type(error).__name__, error)
        raise CallError("arguments", text) from error


def _keep_result(output: str, result: Any, by_value: bool) -> None:
    """Write the result; CallError if it cannot be pickled and loaded again."""
    try:
        data, versions = _dump(result, by_value)
    except Exception as error:
        raise CallError("result", "its result cannot be pickled (%s): %s" % (_type_name(result), error)) from error
    if not _is_plain(result):
        try:
            pickle.loads(data)  # noqa: S301 (made above)
        except Exception as error:
            text = "its result cannot be loaded again (%s): %s: %s" % (_type_name(result), type(error).__name__, error)
            raise CallError("result", text) from error
    numbers = _numbers(result)
    if numbers and not os.path.exists(os.path.join(output, "metrics.json")):
        _write(os.path.join(output, "metrics.json"), json.dumps(numbers).encode("ascii"), 0o666)
    if _is_plain(result) and len(data) <= _MAX_JSON_BYTES:
        _write(os.path.join(output, "result.json"), json.dumps(result).encode("ascii"))
    _write(os.path.join(output, RESULT_FILE), pickle_file(data, versions, _attempt()))


def _dump(value: Any, by_value: bool) -> Tuple[bytes, Versions]:
    """A pickle of a value. Classes that came by value, in an argument too, go back by value."""
    if not by_value:
        try:
            return pickle.dumps(value, protocol=4), current_versions()
        except Exception:
            if current_versions(True).cloudpickle is None:
                raise
    return importlib.import_module("cloudpickle").dumps(value, protocol=4), current_versions(True)


def _numbers(result: Any) -> Dict[str, float]:
    """A number, or a flat dict with text keys, as metrics; only its numbers."""
    found = result if isinstance(result, dict) else {"result": result}
    flat = all(isinstance(name, str) and isinstance(one, (str, int, float, type(None))) for name, one in found.items())
    is_number = {name: isinstance(one, (int, float)) and not isinstance(one, bool) for name, one in found.items()}
    return {name: one for name, one in found.items() if is_number[name]} if flat else {}


def _is_plain(value: Any) -> bool:
    """Whether a value is data that JSON keeps as it is."""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(name) is str and _is_plain(one) for name, one in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _fail(output: str, error: BaseException) -> int:
    """Print the error as Python does, write it down, and return the exit code."""
    cause = error.__cause__ if isinstance(error, CallError) else error
    disk = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        record = _error_record("exit", error, "the function ended the process: sys.exit(%r)" % (error.code,))
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    elif isinstance(error, CallError):
        record, code = _error_record(error.kind, error, str(error)), _EXIT_DISK if disk else 1
        if cause is not None:
            traceback.print_exception(type(cause), cause, _own_frames(cause))
        sys.stderr.write("shoal: %s\n" % error)
    else:
        record, code = _error_record("exception", error, str(error)), _EXIT_DISK if disk else 1
        traceback.print_exception(type(error), error, _own_frames(error))
    try:
        record["pickled"] = record["kind"] == "exception" and _keep_exception(output, error)
        _write(os.path.join(output, ERROR_FILE), json.dumps(record, indent=1).encode("ascii"))
    except OSError as problem:
        sys.stderr.write("shoal: %s cannot be written: %s\n" % (ERROR_FILE, problem))
    sys.stderr.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _error_record(kind: str, error: BaseException, message: str) -> Dict[str, Any]:
    shown = error.__cause__ if isinstance(error, CallError) and error.__cause__ is not None else error
    text = "".join(traceback.format_exception(type(shown), shown, _own_frames(shown)))
    return {
        "schema": 1,
        "attempt": _attempt(),
        "kind": kind,
        "type": _type_name(shown),
        "message": message,
        "traceback": text,
    }


def _keep_exception(output: str, error: BaseException) -> bool:
    """Pickle the exception if it is the same after a round trip; True if it was kept."""
    try:
        data = pickle.dumps(error, protocol=4)
        again = pickle.loads(data)  # noqa: S301 (made above)
    except Exception:
        return False
    if type(again) is not type(error) or str(again) != str(error):
        return False
    _write(os.path.join(output, EXCEPTION_FILE), pickle_file(data, current_versions(), _attempt()))
    return True


def _own_frames(error: BaseException) -> Optional[types.TracebackType]:
    """The traceback without the frames of this file at its beginning."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace or error.__traceback__


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else "%s.%s" % (kind.__module__, kind.__qualname__)


def _attempt() -> int:
    return int(os.environ.get("SHOAL_ATTEMPT") or 0)


def _write(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole; a full disk leaves what was there."""
    temp = "%s.tmp-%d" % (path, os.getpid())
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
        os.replace(temp, path)
    except OSError:
        try:
            os.unlink(temp)
        except OSError:
            pass
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
