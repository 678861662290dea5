"""What the programs that start training take: which options have values, and where the program behind them begins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.batch import known_options, short_names

#: Options of srun that sbatch does not have, each: does it take a value? (srun --help of 22.05 and 24.11)
_SRUN_FLAGS = """
disable-status exact external label multi-prog no-allocate overlap preserve-env pty quit-on-interrupt unbuffered
whole interactive send-libs kill-on-bad-exit immediate resv-ports
"""
_SRUN_VALUES = """
accel-bind bcast bcast-exclude compress cpu-bind epilog het-group jobid mpi mcs-label msg-timeout overcommit prolog
relative slurmd-debug task-epilog task-prolog threads container-image container-mounts container-workdir container-name
container-env container-save tunnel treewidth use-min-nodes wait
"""
_SRUN_SHORT = {"l": "label", "u": "unbuffered", "K": "kill-on-bad-exit", "X": "disable-status", "r": "relative",
               "T": "threads", "W": "wait", "Z": "no-allocate", "E": "preserve-env", "I": "immediate"}  # fmt: skip
_PYTHON_VALUES = frozenset({"-W", "-X", "-Q"})
#: Launchers of Python programs: the options that stand alone; all others take a value.
_TORCHRUN_SWITCHES = "standalone no-python run-path module m use-env virtual-local-rank help h"
_ACCELERATE_SWITCHES = """
multi-gpu cpu tpu ipex use-xpu use-deepspeed use-fsdp use-megatron-lm module m no-python debug q quiet same-network
tpu-use-cluster no-tpu-cluster tpu-use-sudo use-mps-device enable-cpu-affinity use-parallelism-config
dynamo-use-fullgraph dynamo-use-dynamic help h
"""
_DEEPSPEED_SWITCHES = """
no-ssh no-ssh-check no-python module force-multi elastic-training no-local-rank bind-cores-to-rank save-pid venv-script
help h
"""
_SWITCHES = {
    name: frozenset(words.split())
    for name, words in (
        ("torchrun", _TORCHRUN_SWITCHES),
        ("accelerate", _ACCELERATE_SWITCHES),
        ("deepspeed", _DEEPSPEED_SWITCHES),
    )
}
#: Programs that start the rest of their words once for each rank.
MPI_STARTERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "ibrun", "horovodrun", "prun", "aprun"})
_MPI_VALUES = "-n -np -N -c -H -host --host -hostfile --hostfile -machinefile -x -map-by --map-by --bind-to -ppn"
#: Wrappers that start the rest of their words, and the options of theirs that take a value.
_WRAPPERS = {
    "exec": "", "nohup": "", "time": "", "command": "", "setsid": "", "unbuffer": "", "eval": "", "nice": "-n",
    "ionice": "-c -n", "stdbuf": "", "numactl": "", "timeout": "-s -k --signal --kill-after", "env": "-u -C",
    "xvfb-run": "-s -n -e", "sudo": "-u", "strace": "-o -e", "catchsegv": "", "srun_wrapper": "",
    "nsys": "-o -t --output --trace", "ncu": "-o", "dlprof": "", **dict.fromkeys(MPI_STARTERS, _MPI_VALUES),
    "conda": "-n -p --name --prefix", "mamba": "-n -p --name --prefix", "micromamba": "-n -p -r --name --prefix",
    "uv": "--python --with --project --directory --extra --group", "poetry": "", "pipenv": "", "pixi": "-e",
    "hatch": "", "singularity": "", "apptainer": "", "docker": "", "podman": "", "enroot": "", "shifter": "",
    "ch-run": "", "singularity_wrapper": "", "apptainer_wrapper": "",
    "taskset": "", "chrt": "", "systemd-cat": "-t", "/usr/bin/time": "-o -f",
}  # fmt: skip
_SUBCOMMANDS = {"conda": "run", "mamba": "run", "micromamba": "run", "uv": "run", "poetry": "run", "pipenv": "run",
                "pixi": "run", "hatch": "run", "nsys": "profile", "singularity_wrapper": "exec",
                "apptainer_wrapper": "exec"}  # fmt: skip
CONTAINERS = frozenset({"singularity", "apptainer", "docker", "podman", "enroot", "shifter", "ch-run"})
_CONTAINER_SWITCHES = """
--nv --rocm --cleanenv -e --contain -c --containall -C --no-home --writable-tmpfs --writable -w --fakeroot -f
--userns -u --ipc -i --pid -p --net -n --rm --rw -it -ti -t --privileged --no-mount-home --compat -q --quiet
--silent -s --nvccli --no-init --unsquash --keep-privs --home --private-tmp --write --no-passwd
"""
_CONTAINER_FLAGS = frozenset(_CONTAINER_SWITCHES.split())
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)(?:\d+(?:\.\d+)*)?")
_OPTION_LIKE = re.compile(r"--?[A-Za-z][\w.-]*")


class LauncherCall(NamedTuple):
    """A program with its own options and what follows them. Option names have dashes, whatever was written."""

    program: str
    options: Mapping[str, str | None]
    rest: tuple[str, ...]


def is_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(word)) or word in ("$PYTHON", "${PYTHON}", "$PYTHON_BIN", "$PY")


def base_name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def read_srun(words: Sequence[str]) -> LauncherCall:
    """srun's options and the words that it starts."""
    takes = {**known_options(), **dict.fromkeys(_SRUN_FLAGS.split(), 0), **dict.fromkeys(_SRUN_VALUES.split(), 2)}
    letters = {**short_names(), **_SRUN_SHORT}
    options: dict[str, str | None] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            if equals:
                options[name] = value
            elif takes.get(name) == 2 or (name not in takes and rest and not _is_program_word(rest[0])):
                options[name] = rest.pop(0) if rest else None
            else:
                options[name] = None
            continue
        for position, letter in enumerate(word[1:], start=2):
            name = letters.get(letter, letter)
            if takes.get(name) == 2:
                options[name] = word[position:] or (rest.pop(0) if rest else None)
                break
            options[name] = word[position:] if word[position:].isdigit() else None
            if options[name] is not None:
                break
    return LauncherCall("srun", options, tuple(rest))


def _is_program_word(word: str) -> bool:
    return word.startswith("-") or is_python(word) or "/" in word or "$" in word or base_name(word) in (
        "bash", "sh", "torchrun", "accelerate", "deepspeed", "singularity", "apptainer", "env", *_WRAPPERS,
    )  # fmt: skip


def unwrap(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(wrappers passed, the words behind them): nohup conda run -n x python a.py -> [nohup, conda], [python, a.py]."""
    rest, passed = list(words), list[str]()
    while rest and len(passed) < 8:
        name = base_name(rest[0])
        if name not in _WRAPPERS:
            break
        if name in _SUBCOMMANDS and _SUBCOMMANDS[name] not in rest[1:4]:
            break
        passed.append(name)
        rest = _words_after_wrapper(name, rest[1:])
    return passed, rest


def _words_after_wrapper(name: str, rest: list[str]) -> list[str]:
    if name in CONTAINERS:
        return _words_after_image(rest)
    values = _WRAPPERS[name].split()
    if name in _SUBCOMMANDS:
        rest = rest[rest.index(_SUBCOMMANDS[name]) + 1 :]
    while rest and (rest[0].startswith("-") or (name == "env" and "=" in rest[0])):
        word = rest.pop(0)
        if word == "--":
            break
        takes = word in values or (name in MPI_STARTERS and rest and not _is_program_word(rest[0]))
        if takes and rest:
            rest.pop(0)
        if word in ("-mca", "--mca", "-genv") and rest:
            rest.pop(0)  # a name and a value
    if name in ("timeout", "taskset") and rest:
        rest.pop(0)
    return rest


def _words_after_image(rest: list[str]) -> list[str]:
    """Past options and the image: the first word that is neither an option nor an option's value is the image."""
    rest = rest[1:] if rest and rest[0] in ("exec", "run", "start") else rest
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if "=" not in word and word not in _CONTAINER_FLAGS and rest and not rest[0].startswith("-"):
            rest.pop(0)
    return rest[2:] if rest[1:2] == ["--"] else rest[1:]


def read_launcher(words: Sequence[str]) -> LauncherCall | None:
    """torchrun, accelerate, deepspeed, python and their like; None for any other program."""
    if not words:
        return None
    name = base_name(words[0])
    if is_python(words[0]):
        return _read_python(words[1:])
    if name == "torchrun":
        return _read_options(name, words[1:])
    if name == "accelerate" and "launch" in words[1:2]:
        return _read_options(name, words[2:])
    if name in ("deepspeed", "deepspeed.pt"):
        return _read_options("deepspeed", words[1:])
    if name in ("ipython", "ipython3", "papermill", "jupyter", "jupyter-nbconvert"):
        return _read_notebook(words)
    if name in ("lightning", "fabric") and "run" in words[1:2]:
        return LauncherCall("fabric", {}, tuple(words[2:]))
    if name.endswith(".py"):
        return LauncherCall("python", {}, tuple(words))
    return None


def _read_notebook(words: Sequence[str]) -> LauncherCall | None:
    """ipython train.ipynb, ipython -c "run train.py", papermill, jupyter nbconvert --execute; None for a server."""
    name = base_name(words[0])
    if name.startswith("jupyter") and not ("--execute" in words and "nbconvert" in (name[8:], *words[1:2])):
        return None
    # The text of ipython -c is one word.
    pieces = [piece for word in words[1:] for piece in word.split()]
    at = next((index for index, piece in enumerate(pieces) if piece.endswith((".ipynb", ".py"))), None)
    return None if at is None else LauncherCall("python", {}, tuple(pieces[at:]))


def _read_options(name: str, words: Sequence[str]) -> LauncherCall:
    alone, options, rest = _SWITCHES[name], dict[str, str | None](), list(words)
    while rest and _OPTION_LIKE.match(rest[0]):
        written, equals, value = rest.pop(0).lstrip("-").partition("=")
        key = written.replace("_", "-")
        if equals:
            options[key] = value
        elif key in alone or not rest or (rest[0].startswith("-") and not rest[0][1:2].isdigit()):
            options[key] = None
        else:
            options[key] = rest.pop(0)
    return LauncherCall(name, options, tuple(rest))


def _read_python(words: Sequence[str]) -> LauncherCall:
    options: dict[str, str | None] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-m":
            module = rest[0] if rest else ""
            if module in ("torch.distributed.run", "torch.distributed.launch"):
                call = _read_options("torchrun", rest[1:])
                return call._replace(options={**call.options, "by-module": module})
            if module in ("accelerate.commands.launch", "deepspeed.launcher.runner"):
                return _read_options(module.split(".")[0], rest[1:])
            options["module"] = module
            return LauncherCall("python", options, tuple(rest))
        if word == "-c":
            return LauncherCall("python", {"code": rest[0] if rest else ""}, ())
        options[word.lstrip("-")] = rest.pop(0) if word in _PYTHON_VALUES and rest else None
    return LauncherCall("python", options, tuple(rest))
