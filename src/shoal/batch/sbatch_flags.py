"""sbatch flags as people write them: what is portable becomes a Request, the rest stays word for word.

    train --cpus-per-task=32 -p a100-galvani -t 3-00:00:00 --gres=gpu:4 --exclusive

Every spelling of sbatch is understood: --name=value, --name value, -c 32, -c32, bundled -Hk, unique beginnings of long
names. A flag that this table does not know is passed on; it takes the word behind it as its value unless that begins
with a dash, which is safe because a word that belongs to no flag is refused anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from shoal.batch.quoting import refuse_line_breaks
from shoal.errors import InputError
from shoal.model import Request
from shoal.units import format_memory, format_slurm_time, parse_memory_mb, parse_slurm_time_s

#: `sbatch --help` of 22.05, each tried for whether it takes a value, and the options that later releases added.
_NO_VALUE = """
contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue spread-job test-only
usage use-min-nodes verbose version wait
"""
_OPTIONAL_VALUE = "exclusive get-user-env nice no-kill propagate"
_VALUE = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container container-id
core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode oom-kill-step output partition power prefer priority profile qos reservation segment signal
sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes
wckey wrap
"""
#: no value: 0, optional: 1, value: 2
_ARITY = {name: takes for takes, names in enumerate((_NO_VALUE, _OPTIONAL_VALUE, _VALUE)) for name in names.split()}
_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold",
    "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet", "S": "core-spec",
    "V": "version", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "h": "help", "i": "input", "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip

#: What shoal decides itself, why, and what to do instead.
RESERVED_OPTIONS = {
    "job-name": ("the job is named after the run", "rename the script"),
    "output": ("each attempt has its own log", "shoal logs RUN"),
    "error": ("each attempt has its own log", "shoal logs RUN"),
    "open-mode": ("logs are always appended to", "leave it out"),
    "parsable": ("shoal reads the answer of sbatch itself", "leave it out"),
    "wrap": ("the command is the step's", "write the command in shoal.toml"),
    "array": ("every run has its own name", "write one script for each seed"),
    "wait": ("shoal follows a run in its own way", "shoal run FILE"),
    "test-only": ("shoal tries a request in its own way", "shoal plan FILE"),
    "export": ("it cuts values at commas", "export the variable in the script"),
    "export-file": ("the environment comes from the script", "export the variables in the script"),
    "chdir": ("a run starts in the project's root", "cd in the command itself"),
    "clusters": ("the cluster is chosen by its profile", "--on NAME"),
    "help": ("it prints instead of submitting", "sbatch --help"),
    "usage": ("it prints instead of submitting", "sbatch --usage"),
    "version": ("it prints instead of submitting", "sbatch --version"),
    "quiet": ("the answer of sbatch must be readable", "leave it out"),
}
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_COUNT = re.compile(r"\d{1,6}", re.ASCII)
_OPTION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


class SbatchFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags, understood. `other` are the rest as `--name` or `--name=value`, in order, each name once."""

    request: Request = Request()
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    requeue: bool | None = None
    other: tuple[str, ...] = ()

    def over(self, base: SbatchFlags) -> SbatchFlags:
        """These flags on top of others, as if they came later on one command line."""
        names = {name for flag in self.other for name in _replaced_options(option_name(flag))}
        names |= _replaced_options("mem") if self.request.memory is not None else set()
        kept = tuple(flag for flag in base.other if option_name(flag) not in names)
        own = {
            name: value
            for name in ("partition", "account", "qos", "constraint", "requeue")
            if (value := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(base, request=self.request.over(base.request), other=kept + self.other, **own)


def known_options() -> dict[str, int]:
    """Long name of every sbatch option -> 0 if it takes no value, 1 if it may, 2 if it does."""
    return _ARITY


def short_names() -> dict[str, str]:
    """Letter -> long name."""
    return _SHORT


def long_name(written: str) -> str:
    """The option that a written long name stands for: itself, or the only one that begins like it."""
    return _full_name(written)


def option_name(flag: str) -> str:
    """`--mem=4G` -> `mem`."""
    return flag.removeprefix("--").partition("=")[0]


def _replaced_options(name: str) -> set[str]:
    """The options whose place a later one takes: its own, and those that Slurm does not allow beside it."""
    return set(_MEMORY) if name in _MEMORY else {name}


def parse_flags(words: Sequence[str], *, nodes: int | None = None) -> SbatchFlags:
    """Understand sbatch flags; `nodes` is what holds when they say nothing about nodes.

    InputError for a flag that shoal owns, a value that Slurm would not take, and a word that belongs to no flag.
    """
    last: dict[str, str | None] = {}
    for name, value in _option_pairs(words):
        for other in _replaced_options(name):
            last.pop(other, None)  # as in sbatch, the later one counts
        last[name] = value
    return _to_request(last, nodes)


def _option_pairs(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """(long name, value) of each flag, in order."""
    found: list[tuple[str, str | None]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            new = [_long_option(word, rest)]
        elif word.startswith("-") and len(word) > 1 and word != "--":
            new = _short_options(word, rest)
        else:
            raise _stray_word_error(word)
        for name, value in new:
            if name in RESERVED_OPTIONS:
                why, instead = RESERVED_OPTIONS[name]
                raise InputError(f"--{name} belongs to shoal: {why}", hint=instead, place=word)
            refuse_line_breaks(value or "", f"--{name}")
        found += new
    return found


def _long_option(word: str, rest: list[str]) -> tuple[str, str | None]:
    written, equals, value = word[2:].partition("=")
    name = _full_name(written)
    takes = _ARITY.get(name)
    if takes is None and not _OPTION_NAME.fullmatch(name):
        raise InputError(f"{word!r} is not an sbatch flag")
    if equals:
        if takes == 0:
            raise InputError(f"--{name} takes no value", place=word)
        return name, value
    if takes == 2 or (takes is None and rest and not rest[0].startswith("-")):
        return name, _next_value(name, word, rest)
    return name, None


def _short_options(word: str, rest: list[str]) -> list[tuple[str, str | None]]:
    """-c 32, -c32, or several letters of which only the last may take a value."""
    found: list[tuple[str, str | None]] = []
    for position, letter in enumerate(word[1:], start=2):
        name = _SHORT.get(letter)
        if name is None:
            raise InputError(f"sbatch has no flag -{letter}", place=word)
        if _ARITY[name] == 2:
            return [*found, (name, word[position:] or _next_value(name, word, rest))]
        found.append((name, None))
    return found


def _next_value(name: str, word: str, rest: list[str]) -> str:
    if not rest:
        raise InputError(f"--{name} needs a value", place=word)
    return rest.pop(0)


def _full_name(written: str) -> str:
    """A known name, or the only known name that begins like this; anything else is left as it is."""
    if written in _ARITY:
        return written
    near = [name for name in _ARITY if name.startswith(written)]
    return near[0] if len(near) == 1 and written else written


def _stray_word_error(word: str) -> InputError:
    if word[:1] in DASHES and word:
        return InputError(f"{word!r} begins with a dash that is not the one on the keyboard", hint="retype it with --")
    if word == ":":
        return InputError("shoal does not submit heterogeneous jobs, which ':' would begin")
    return InputError(
        f"{word!r} is not an sbatch flag", hint="flags begin with - or --; a value with blanks needs quotes"
    )


def _to_request(last: dict[str, str | None], nodes: int | None) -> SbatchFlags:
    """Move what a Request can say out of the flags."""
    portable: dict[str, int | str] = {}
    plain: dict[str, str] = {}
    if (text := last.get("nodes")) is not None and _COUNT.fullmatch(text):
        nodes = portable["nodes"] = _count("nodes", text, 1)
        del last["nodes"]
    requeue: bool | None = None
    other: list[str] = []
    for name, value in last.items():
        if value is not None and name in ("partition", "account", "qos", "constraint"):
            if not value:
                raise InputError("the value is empty", place=f"--{name}")
            plain[name] = value
        elif name in ("requeue", "no-requeue"):
            requeue = name == "requeue"
        elif value is None or (left := _take_portable(name, value, nodes, portable)) == value:
            other.append(f"--{name}" if value is None else f"--{name}={value}")
        elif left:
            other.append(f"--{name}={left}")
    return SbatchFlags(request=Request(**portable), requeue=requeue, other=tuple(other), **plain)  # type: ignore[arg-type]


def _take_portable(name: str, value: str, nodes: int | None, portable: dict[str, int | str]) -> str:
    """Take what is portable in one flag; return what is left of its value, all of it when nothing was taken."""
    if name == "nodes" and not re.fullmatch(r"\d+[kK]?-\d+[kK]?|\d+[kK]|[\d,:-]+", value, re.ASCII):
        raise InputError(f"{value!r} is not a number of nodes", place=f"--{name}")
    if name == "cpus-per-task":
        portable["cpus"] = _count(name, value, 1)
    elif name == "mem" and value.strip() != "0":
        portable["memory"] = format_memory(parse_memory_mb(value, bare_is_mb=True, place="--mem"))
    elif name == "time" and value.strip() != "0" and (seconds := parse_slurm_time_s(value, place="--time")) is not None:
        portable["time"] = format_slurm_time(seconds)
    elif name == "gres":
        return _gres(value, portable)
    elif name == "gpus-per-node" or (name == "gpus" and (nodes or 1) == 1):
        if (gpu := _gpu(value)) is None:
            raise InputError(
                f"{value!r} is not a number of GPUs, such as 4 or a100:4", hint=f"--{name}=4", place=f"--{name}"
            )
        portable.update(gpu)
    else:
        return value
    return ""


def _gres(value: str, portable: dict[str, int | str]) -> str:
    """The GPUs of a gres list go into the request; two kinds of GPU cannot, and other gres stay."""
    items = [item.removeprefix("gres:").removeprefix("gres/") for item in value.split(",")]
    gpus = [item for item in items if item == "gpu" or item.startswith("gpu:")]
    if len(gpus) != 1:
        return value
    if (gpu := _gpu(gpus[0][4:] or "1")) is None:
        raise InputError(
            f"{gpus[0]!r} is not a GPU request, such as gpu:4 or gpu:a100:4", hint="--gres=gpu:4", place="--gres"
        )
    portable.update(gpu)
    return ",".join(item for item in items if item != gpus[0])


def _gpu(text: str) -> dict[str, int | str] | None:
    """`4`, `a100`, `a100:4` as parts of a request."""
    kind, colon, count = text.rpartition(":")
    if not colon and not _COUNT.fullmatch(text):
        kind, count = text, "1"
    if not _COUNT.fullmatch(count) or (kind and not _TYPE.fullmatch(kind)):
        return None
    return {"gpus": int(count), "gpu_type": kind} if kind else {"gpus": int(count)}


def _count(name: str, text: str, minimum: int) -> int:
    if not _COUNT.fullmatch(text) or int(text) < minimum:
        raise InputError(
            f"{text!r} is not a whole number from {minimum} upwards", hint=f"--{name}=4", place=f"--{name}"
        )
    return int(text)
