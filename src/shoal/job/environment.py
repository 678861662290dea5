"""The environment and the complete command of the user's process; which Python a command uses, and its packages.

Python and packages are read from file names: no process is started for it.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ..kernel import fence, files, processes, records
from . import trackers, workdir

#: {lr}; with the braces around it, because {{lr}} stands for {lr} itself and ${lr} is the shell's.
_PLACEHOLDER = re.compile(r"(\$?)(\{+)([A-Za-z_][A-Za-z0-9_.]*)(\}+)", re.ASCII)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
#: Between shoal's own processes; none of the program's business.
_INTERNAL_VARIABLES = (
    "SHOAL_TOKEN",
    "SHOAL_ALLOCATION",
    "SHOAL_FOLLOW",
    "SHOAL_ON",
    "SHOAL_SHELL_BASE",
    "SHOAL_COLLECT",
    "SHOAL_CLAIMING",
    "SHOAL_CONTAINER",
)
_SECRET_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")
#: What placeholders stand for beside parameters; {output_dir} is $SHOAL_OUTPUT_DIR. No parameter may be called so.
BUILT_IN_PLACEHOLDERS = (
    "run",
    "experiment",
    "step",
    "seed",
    "attempt",
    "output_dir",
    "output_name",
    "resume_from",
    "start_from",
    "parent_dir",
)
#: The runs that a run waited for, with their output directories; a file in its own.
PARENTS_FILE = "parents.json"
SECRETS_FILE = os.path.join("shoal", "secrets.env")


def run_environment(
    spec: Mapping[str, Any], claim: fence.Claim, attempt: int, resume_from: Optional[str], base: Mapping[str, str]
) -> Dict[str, str]:
    """The child's environment: the job's own, the user's secrets, what the experiment set, and shoal's variables."""
    name = "%s/%s" % (spec["experiment"], spec["stem"])
    seed = spec.get("seed")
    own = {
        "SHOAL_RUN": name,
        "SHOAL_EXPERIMENT": spec["experiment"],
        "SHOAL_STEP": spec["step"],
        "SHOAL_SEED": "" if seed is None else str(seed),
        "SHOAL_NUMBER": "" if spec.get("number") is None else str(spec["number"]),
        "SHOAL_ATTEMPT": str(attempt),
        "SHOAL_OUTPUT_DIR": claim.output_dir,
        "SHOAL_OUTPUT_NAME": os.path.basename(claim.output_dir),
        "SHOAL_RESUME_FROM": resume_from or "",
        "SHOAL_START_FROM": spec.get("start_from") or "",
        "SHOAL_PARENT_DIR": spec.get("parent_dir") or "",
        "SHOAL_PARENTS": os.path.join(claim.output_dir, PARENTS_FILE) if spec.get("parents") else "",
        "SHOAL_PARAMS": json.dumps(spec.get("params") or {}, sort_keys=True),
        "SHOAL_COMMIT": workdir.commit_of(spec),
        "SHOAL_PROGRESS": os.path.join(claim.output_dir, "progress"),
        "PYTHONUNBUFFERED": "1",
    }
    env = {key: value for key, value in base.items() if key not in _INTERNAL_VARIABLES}
    trackers.remove_inherited(env)
    env.update(read_secrets(base))
    values = placeholder_values(spec, own)
    env.update((key, fill_placeholders(value, values)) for key, value in (spec.get("env") or {}).items())
    env.update(own)
    trackers.set_tracker_variables(env, spec, claim.output_dir, own["SHOAL_COMMIT"])
    policy = spec.get("recovery") or {}
    if policy.get("warn_before_s"):
        env.update(
            SHOAL_STOP_FILE=os.path.join(claim.output_dir, "stop-%d" % attempt),
            SHOAL_WARN_S=str(policy["warn_before_s"]),
            SHOAL_WARN_WITH=policy["warn_with"],
        )
    return env


def format_value(value: Any) -> str:
    """A parameter's value as the program gets it: in a placeholder, in a flag, and in the run's name."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def placeholder_values(spec: Mapping[str, Any], env: Mapping[str, str]) -> Dict[str, str]:
    """What placeholders stand for in the words of a run: its parameters, and what its environment tells of it."""
    values = {name: format_value(value) for name, value in (spec.get("params") or {}).items()}
    values.update((name, env["SHOAL_" + name.upper()]) for name in BUILT_IN_PLACEHOLDERS)
    return values


def fill_all(words: List[str], values: Mapping[str, str]) -> List[str]:
    """Fill {seed}, {lr}, {output_dir} and the like into the words of a command; {{lr}} stands for {lr} itself."""
    return [fill_placeholders(word, values) for word in words]


def run_argv(spec: Mapping[str, Any], values: Mapping[str, str]) -> List[str]:
    """The whole command of a run, or of a launch plan: the step's, the run's arguments, and those of a resume."""
    more = spec.get("resume_args") or () if values.get("resume_from") else ()
    return fill_all([*spec["command"], *(spec.get("args") or ()), *more], values)


def fill_placeholders(word: str, values: Mapping[str, str]) -> str:
    """One word, complete. Braces that are not around a name, as in JSON, and the shell's ${name} stay as they are."""

    def one(found: "re.Match[str]") -> str:
        dollar, left, name, right = found.groups()
        if _is_shell(dollar, left):
            return found.group(0)
        pairs = min(len(left), len(right))
        # Of each two pairs one is meant; an odd one is the placeholder's own.
        inner = values.get(name, "{%s}" % name) if pairs % 2 else name
        kept = pairs // 2
        return dollar + left[pairs - kept :] + inner + right[pairs - kept :]

    return _PLACEHOLDER.sub(one, word) if "{" in word else word


def fill_known_placeholders(word: str, values: Mapping[str, str]) -> str:
    """A word with some of its values, for `fill_placeholders` to complete: what is put in stays as it is then."""
    return _PLACEHOLDER.sub(lambda found: _known_value(found, values), word)


def escape_placeholders(texts: Iterable[str]) -> List[str]:
    """Texts as words that `fill_placeholders` turns into just these texts."""

    def double(found: "re.Match[str]") -> str:
        dollar, left, name, right = found.groups()
        pairs = 0 if _is_shell(dollar, left) else min(len(left), len(right))
        return dollar + left + "{" * pairs + name + "}" * pairs + right

    return [_PLACEHOLDER.sub(double, text) for text in texts]


def placeholder_names(words: Iterable[str]) -> List[str]:
    """The names that words want to be filled in."""
    found: List[str] = []
    for word in words:
        if "{" in word:
            for dollar, left, name, right in _PLACEHOLDER.findall(word):
                if not _is_shell(dollar, left) and min(len(left), len(right)) % 2:
                    found.append(name)
    return found


def _known_value(found: "re.Match[str]", values: Mapping[str, str]) -> str:
    dollar, left, name, right = found.groups()
    wanted = not _is_shell(dollar, left) and min(len(left), len(right)) % 2 and name in values
    return escape_placeholders([fill_placeholders(found.group(0), values)])[0] if wanted else found.group(0)


def _is_shell(dollar: str, left: str) -> bool:
    return bool(dollar) and len(left) == 1


class VariableNotSet(Exception):
    """A variable that a path names has no value here; the message is its name."""


def expand_path(text: str, environ: Mapping[str, str]) -> str:
    """A path with its $NAMES and ~ as on this node, or VariableNotSet. A node tells its name and its user even
    where the environment does not."""

    def value(match: "re.Match[str]") -> str:
        name = match.group(1) or match.group(2)
        found = environ.get(name) or _node_variable(name)
        if not found:
            raise VariableNotSet(name)
        return found

    return os.path.expanduser(_VARIABLE.sub(value, text))


def _node_variable(name: str) -> Optional[str]:
    if name == "SLURMD_NODENAME":
        return processes.host_name()
    return records.user_name() if name == "USER" else None


def read_secrets(base: Mapping[str, str]) -> Dict[str, str]:
    """NAME=value lines of the user's secrets file, which only the user may read; anything else about it is ignored.

    `export` before a line is fine. Secrets reach a job this way and no other: never through its script, its arguments,
    Slurm or the run's record.
    """
    config = base.get("XDG_CONFIG_HOME") or os.path.join(base.get("HOME") or os.path.expanduser("~"), ".config")
    path = os.path.join(config, SECRETS_FILE)
    try:
        with open(path) as file:
            mode = os.fstat(file.fileno())
            if mode.st_uid != os.getuid() or stat.S_IMODE(mode.st_mode) & 0o077:
                sys.stderr.write("shoal: %s is not read: other people could read it (chmod 600 it)\n" % path)
                return {}
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_SECRET_LINE.match(line) for line in lines)
    return {match.group(1): match.group(2).strip().strip("\"'") for match in found if match}


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
            match = re.search(r"(?m)^version(?:_info)?\s*=\s*([\d.]+)", file.read())
            if match:
                return match.group(1)
    except OSError:
        pass
    match = re.search(r"python(3\.\d+)", os.path.realpath(python)) or re.search(r"python(3\.\d+)/", " ".join(folders))
    return match.group(1) if match else None
