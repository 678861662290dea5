"""Pickles of functions and arguments in the state directory, by content: `.shoal/objects/<uid>/ab/<digest>.pkl`.

Loading a pickle executes code, so the directory is private (0700, files 0600), and what is loaded must be this user's
own file. `status`, `ui` and `report` load none. job/function_call.py has the format, because jobs read it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from shoal.errors import InputError
from shoal.functions.calls import FunctionSource, refuse_large_globals
from shoal.job import function_call
from shoal.kernel import files, layout

INSTALL_HINT = "pip install 'shoal[functions]'"
_MAX_FUNCTION_BYTES = 1 << 20


def store_argument(home: str, digest: str, value: Any, what: str, *, by_value: bool) -> None:
    """Keep an argument under the digest of its content; once, however many runs have it."""
    path = _object_path(home, digest, "pkl")
    if _is_stored(path):
        return
    try:
        data, versions = pickle.dumps(value, protocol=5), function_call.current_versions()
        if b"__main__" in data and by_value:
            data, versions = _cloudpickle(what)(value), function_call.current_versions(True)
    except InputError:
        raise
    except Exception as error:
        if not by_value:
            raise InputError(
                f"{what} cannot be pickled ({type(value).__qualname__}): {error}",
                hint="pass what it is made from, such as a path, and make it in the function",
            ) from error
        data, versions = _dump(value, _cloudpickle(what), what), function_call.current_versions(True)
    _store(path, function_call.pickle_file(data, versions))


def store_function(home: str, source: FunctionSource) -> str:
    """Keep a function that travels by value; returns its digest."""
    dumps = _cloudpickle(source.label)
    refuse_large_globals(source, dumps)
    data = _dump(source.function, dumps, source.label)
    if len(data) > _MAX_FUNCTION_BYTES:
        raise InputError(
            f"the pickle of {source.label} has {len(data) / 1e6:.1f} MB: it contains data",
            hint="pass data as arguments, which are kept once",
        )
    content = function_call.pickle_file(data, function_call.current_versions(True))
    digest = hashlib.sha256(content).hexdigest()
    _store(_object_path(home, digest, "pkl"), content)
    return digest


def store_record(home: str, record: dict[str, Any]) -> str:
    """Keep a call record; returns its path."""
    content = json.dumps(record, sort_keys=True, indent=1).encode("utf-8", "surrogatepass")
    path = _object_path(home, hashlib.sha256(content).hexdigest(), "json")
    _store(path, content)
    return path


def load(path: str, attempt: int | None = None) -> Any:
    """The object in a file; function_call.CallError, OSError, or what its own code raises."""
    # A class of a script is pickled in a job under the name that multiprocessing gives the script's copy.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    return function_call.load_file(path, attempt)


def cloudpickle_version() -> str:
    """The version here; InputError with the command that installs it."""
    return _module("a function that is not in a module").__version__  # type: ignore[no-any-return]


def _module(what: str) -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise InputError(f"{what} travels as a pickle, which needs cloudpickle", hint=INSTALL_HINT) from None
    return cloudpickle


def _cloudpickle(what: str) -> Callable[[Any], bytes]:
    dumps: Callable[[Any], bytes] = _module(what).dumps
    return dumps


def _dump(value: Any, dumps: Callable[[Any], bytes], what: str) -> bytes:
    try:
        return dumps(value)
    except Exception as error:
        raise InputError(
            f"{what} cannot be pickled ({type(value).__qualname__}): {error}",
            hint="let it make what cannot be pickled, instead of reading a global",
        ) from error


def _object_path(home: str, digest: str, suffix: str) -> str:
    return os.path.join(layout.objects_dir(home), digest[:2], f"{digest}.{suffix}")


def _is_stored(path: str) -> bool:
    """Whether an object is there; if so it counts as used now, and `shoal clean` leaves it."""
    try:
        os.utime(path)
    except OSError:
        return os.path.exists(path)
    return True


def _store(path: str, content: bytes) -> None:
    if _is_stored(path):
        return
    files.make_private_dir(os.path.dirname(os.path.dirname(path)))
    files.make_private_dir(os.path.dirname(path))
    files.create_exclusive(path, content)
