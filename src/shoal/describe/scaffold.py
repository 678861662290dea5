"""The files of a new project, as text: shoal.toml, an example that runs as it is, lines for .gitignore.

The profile in shoal.toml is drafted from what the cluster says about itself.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.describe.cluster import LOCAL
from shoal.describe.document import Document
from shoal.describe.locate import TOML_NAME
from shoal.units import format_memory, format_slurm_time

if TYPE_CHECKING:
    from shoal.clusters import ClusterFacts, NodeKind

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


def draft_settings(
    environ: Mapping[str, str], *, shared: bool = False, steps: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """The text of shoal.toml for this machine, with these steps or an example, and which programs had no answer."""
    from shoal.clusters import read_cluster

    if shutil.which("sinfo") is None:
        return toml_text(None, shared=shared, steps=steps), ("Slurm's programs are not on PATH",)
    facts = read_cluster(environ, "nodes", "name", "user")
    return toml_text(draft_profile(facts, socket.gethostname()), shared=shared, steps=steps), facts.silent


def project_files(root: Path, text: str) -> dict[Path, str]:
    """What a new project gets: shoal.toml, an example unless there are experiments, and lines in .gitignore."""
    Document(TOML_NAME, text)  # what we write must load
    files = {root / TOML_NAME: text}
    if not (root / "experiments").exists():
        files[root / EXAMPLE_PATH] = EXAMPLE
    if any((folder / ".git").exists() for folder in (root, *root.parents)):
        ignore = root / ".gitignore"
        before = ignore.read_text(errors="surrogateescape") if ignore.is_file() else ""
        missing = [line for line in IGNORED if line not in before.splitlines()]
        if missing:
            gap = "" if not before or before.endswith("\n") else "\n"
            files[ignore] = before + gap + "".join(f"{line}\n" for line in missing)
    return files


def draft_profile(facts: ClusterFacts, host: str) -> Draft | None:
    """A first profile from the facts, or None when there are no partitions. Numbers are kept where all nodes agree."""
    nodes = [node for partition in facts.partitions if (node := facts.smallest_node(partition.name)) is not None]
    if not nodes:
        return None
    default_name = next((partition.name for partition in facts.partitions if partition.is_default), nodes[0].partition)
    default = next(node for node in nodes if node.partition == default_name)
    with_gpus = [node for node in nodes if node.gpus]
    spellings = dict.fromkeys(gpu_type for node in (default, *with_gpus) for gpu_type in node.gpu_types)
    portable = {gpu_type.lower(): gpu_type for gpu_type in spellings}
    by_type = {
        name: next(node.partition for node in (default, *with_gpus) if gpu_type in node.gpu_types)
        for name, gpu_type in portable.items()
        if name != "default"
    }
    partition = {**by_type, "default": default_name}
    limits_s = [one.max_time_s for one in facts.partitions]
    used = with_gpus or [default]
    memory_mb = _agreed([node.memory_mb for node in used], [node.memory_mb for node in nodes])
    return Draft(
        # "local" is this machine's own name in shoal.
        name=facts.name if facts.name and facts.name != LOCAL else "mycluster",
        match={"cluster": facts.name} if facts.name else {"host": host},
        account=facts.default_account,
        partition={"default": default_name} if set(partition.values()) == {default_name} else partition,
        gpu_types={name: gpu_type for name, gpu_type in portable.items() if name != gpu_type},
        gpus_per_node=_agreed([node.gpus for node in with_gpus], [node.gpus for node in nodes]),
        cpus_per_node=_agreed([node.cpus for node in used], [node.cpus for node in nodes]),
        memory_per_node=None if not memory_mb else format_memory(memory_mb),
        max_time=None if None in limits_s else format_slurm_time(max(limit for limit in limits_s if limit)),
        comments=_comments(facts, nodes),
    )


def _agreed(numbers: Sequence[int], of_all: Sequence[int]) -> int | None:
    """The one number, unless some partition has larger nodes: as a limit it would refuse what those can serve."""
    return max(of_all) if set(numbers) == {max(of_all)} else None


def _comments(facts: ClusterFacts, nodes: Sequence[NodeKind]) -> tuple[str, ...]:
    lines = [f"partition {node.partition}: {node_text(node)}" for node in nodes]
    if len(facts.accounts) > 1:
        lines.append(f"accounts of this user: {', '.join(facts.accounts)}")
    if facts.qos:
        lines.append(f"QOS of this user: {', '.join(facts.qos)}")
    return tuple(lines)


def node_text(node: NodeKind) -> str:
    """What a node has, for people: 16 CPUs, 4G, 4 GPUs a100."""
    gpus = f", {node.gpus} GPUs {' '.join(node.gpu_types)}".rstrip() if node.gpus else ""
    return f"{node.cpus} CPUs, {format_memory(node.memory_mb)}{gpus}"


def toml_text(draft: Draft | None, *, shared: bool = False, steps: str | None = None) -> str:
    """A shoal.toml that loads, with these steps or one that runs anywhere, and the drafted profile or a commented
    one."""
    own = _STEPS if steps is None else f"\n{steps}"
    return f"{_HEAD}{_SHARED if shared else ''}{own}\n{_profile(draft) if draft else _EMPTY_PROFILE}"


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
