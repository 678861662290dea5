"""Which Python a command uses and which packages that has, read from names of files: nothing is started for it."""

import functools
import hashlib
import os
import re
import shutil
from typing import Any, Dict, List, Mapping, Optional

from ..kernel import files

_PYTHON = re.compile(r"python[0-9.]*\Z")
_DIST_INFO = re.compile(r"(.+?)-([^-]+?)(?:-py[\d.]+)?\.(?:dist|egg)-info\Z")
_LIB_DIRS = ("lib/python3*", "lib64/python3*", "local/lib/python3*")


def record_packages(home: str, command: List[str], env: Mapping[str, str], cwd: str) -> Optional[Dict[str, Any]]:
    """{python, version, packages}: the last is the file under `home` that lists them, written once. None without a
    Python, or where a folder cannot be read or written: it is only a record.
    """
    try:
        return _record_once(home, command[0], env.get("PATH", os.defpath), cwd)
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _record_once(home: str, program: str, path: str, cwd: str) -> Optional[Dict[str, Any]]:
    """Once for all runs of a pack that have the same command."""
    python = interpreter_of([program], {"PATH": path}, cwd)
    return None if python is None else _record(home, python)


def _record(home: str, python: str) -> Dict[str, Any]:
    folders = _package_dirs(python)
    found = sorted(
        "%s==%s" % match.groups()
        for folder in folders
        for match in (_DIST_INFO.match(name) for name in files.list_names(folder))
        if match
    )
    record = {"schema": 1, "python": python, "version": _version(python, folders), "packages": found}
    data = files.to_json(record)
    path = os.path.join(home, "packages", "%s.json" % hashlib.sha256(data).hexdigest()[:16])
    if not os.path.exists(path):
        files.make_dir(os.path.dirname(path))
        files.create_exclusive(path, data)
    return {"python": python, "version": record["version"], "packages": path}


def interpreter_of(command: List[str], env: Mapping[str, str], cwd: str) -> Optional[str]:
    """The interpreter of a command: itself, the one that its first line names, or else what `python` is around it."""
    path = env.get("PATH", os.defpath)
    program = shutil.which(os.path.join(cwd, command[0]) if "/" in command[0] else command[0], path=path)
    for candidate in (program, _shebang_interpreter(program)):
        if candidate and _PYTHON.match(os.path.basename(candidate)):
            return candidate
    return shutil.which("python", path=path) or shutil.which("python3", path=path)


def _shebang_interpreter(program: Optional[str]) -> Optional[str]:
    """What a script says about itself: torchrun and its like are scripts of the Python that they belong to."""
    try:
        with open(program or "", "rb") as file:
            first = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    return words[0] if words and os.path.isabs(words[0]) else None


def _package_dirs(python: str) -> List[str]:
    """Its folders of packages: those of the environment it stands in, and Debian's."""
    import glob

    prefix = os.path.dirname(os.path.dirname(python))
    roots = [os.path.join(glob.escape(prefix), pattern) for pattern in _LIB_DIRS]
    found = [path for root in roots for name in ("site", "dist") for path in glob.glob("%s/%s-packages" % (root, name))]
    return [path for path in found if os.path.isdir(path)] + (
        ["/usr/lib/python3/dist-packages"] if prefix == "/usr" else []
    )


def _version(python: str, folders: List[str]) -> Optional[str]:
    config = os.path.join(os.path.dirname(os.path.dirname(python)), "pyvenv.cfg")
    try:
        with open(config, encoding="utf-8", errors="replace") as file:
            told = re.search(r"(?m)^version(?:_info)?\s*=\s*([\d.]+)", file.read())
            if told:
                return told.group(1)
    except OSError:
        pass
    told = re.search(r"python(3\.\d+)", os.path.realpath(python)) or re.search(r"python(3\.\d+)/", " ".join(folders))
    return told.group(1) if told else None
