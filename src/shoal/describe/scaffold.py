"""The files of a new project, as text: shoal.toml, an example that runs as it is, lines for .gitignore."""

from __future__ import annotations

import json

import msgspec

EXAMPLE_PATH = "experiments/001_example/000_hello_0.sh"
EXAMPLE = """\
#!/usr/bin/env bash
# Run it with:  shoal run experiments/001_example/000_hello_0.sh   (or: bash, from the project's root)
source "$(shoal shell)"
train
"""
IGNORED = (".shoal/", "outputs/")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A first profile, as far as a cluster told. `comments` are things that a person has to decide."""

    name: str
    match: dict[str, str]
    account: str | None = None
    partition: dict[str, str] = {}
    gpu_types: dict[str, str] = {}
    gpus_per_node: int | None = None
    cpus_per_node: int | None = None
    memory_per_node: str | None = None
    max_time: str | None = None
    comments: tuple[str, ...] = ()


def toml_text(draft: Draft | None, *, shared: bool = False) -> str:
    """A shoal.toml that loads, with a step that runs anywhere and the drafted profile, or a commented one."""
    return f"{_HEAD}{_SHARED if shared else ''}{_STEPS}\n{_profile(draft) if draft else _EMPTY_PROFILE}"


_HEAD = """\
# shoal.toml: the steps of this project, and the clusters it runs on.
"""

_SHARED = """\
shared = true                       # the group of this folder submits, cancels and retries too
"""

_STEPS = """\

[steps.train]
# What to run. Words are split as a shell would; a list is taken as it is.
command = ["python3", "-c", "import os; print('hello from', os.environ.get('SHOAL_RUN', 'nowhere'))"]
output = "training"                 # outputs/training/<experiment>/<script>/<time>/
# checkpoint = "model_*.pth"        # what resume looks for in the output folder
request = { cpus = 1, time = "10m" }
"""

_EMPTY_PROFILE = """\
# No Slurm answered here, so runs stay on this machine. A cluster looks like this:
# [clusters.mycluster]
# match = { cluster = "mycluster" }           # Slurm's ClusterName, or host = "login*"
# account = "mylab"
# partition = { a100 = "gpu-a100", default = "gpu" }
# gpus_per_node = 8
# cpus_per_node = 128
# memory_per_node = "1000G"
"""


def _profile(draft: Draft) -> str:
    """The profile as a table; optional things that nobody told are left as comments."""
    lines = [f"[clusters.{_key(draft.name)}]", f"match = {_inline(draft.match)}"]
    lines.append(f"account = {_text(draft.account)}" if draft.account else '# account = "mylab"')
    if set(draft.partition) == {"default"}:
        lines.append(f"partition = {_text(draft.partition['default'])}")
    elif draft.partition:
        lines.append(f"partition = {_inline(draft.partition)}")
    if draft.gpu_types:
        lines.append(f"gpu_types = {_inline(draft.gpu_types)}")
    for name in ("gpus_per_node", "cpus_per_node"):
        if (number := getattr(draft, name)) is not None:
            lines.append(f"{name} = {number}")
    for name in ("memory_per_node", "max_time"):
        if (text := getattr(draft, name)) is not None:
            lines.append(f"{name} = {_text(text)}")
    lines += ['# setup = "source env.sh"         # shell lines at the start of every job']
    lines += [f"# {comment}" for comment in draft.comments]
    return "\n".join(lines) + "\n"


def _inline(table: dict[str, str]) -> str:
    return "{ " + ", ".join(f"{_key(name)} = {_text(value)}" for name, value in table.items()) + " }"


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else _text(name)


def _text(value: str) -> str:
    # A JSON string is also a TOML string, except for DEL, which no name of ours has.
    return json.dumps(value, ensure_ascii=False)
