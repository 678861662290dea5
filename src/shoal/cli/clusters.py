"""Cluster profiles: which there are, where each value came from, which one fits here, whether Slurm takes its words.

shoal clusters list
shoal clusters show NAME      every value and the file and line it came from
shoal clusters detect         what this machine's Slurm says, and the profile that is chosen here
shoal clusters test NAME      asks Slurm with sbatch --test-only; nothing is submitted
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.clusters import ClusterFacts
    from shoal.describe import Cluster, Project


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "detect", "test"))
    parser.add_argument("name", nargs="?", metavar="NAME", help="a profile (default: the one that fits here)")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    parser.add_argument("-q", "--quiet", action="store_true", help="no notes")


def run(args: argparse.Namespace) -> int:
    from shoal.describe import project_or_bare

    project = project_or_bare(Path.cwd(), os.environ)
    actions = {"list": list_profiles, "show": show_profile, "detect": detect_profile, "test": test_profile}
    document, rows, notes = actions[args.action](project, args.name)
    if args.json:
        print(json.dumps({"schema": 1, **document}))
    else:
        sys.stdout.write(_table(rows))
        sys.stderr.writelines(f"note: {note}\n" for note in notes if not args.quiet)
    return 1 if document.get("ok") is False else 0


TableRows = Sequence[tuple[str, ...]]
CommandOutput = tuple[dict[str, Any], TableRows, list[str]]


def list_profiles(project: Project, name: str | None) -> CommandOutput:
    """All profiles, and which one is chosen here."""
    from shoal.describe import LOCAL, UNNAMED
    from shoal.plan import choose_cluster, named_cluster

    chosen = choose_cluster(project, None, os.environ)
    if name is not None:
        named_cluster(project, name, "clusters list")
    names = [*project.clusters, *(built_in for built_in in (LOCAL, UNNAMED) if built_in not in project.clusters)]
    found = [_summary(named_cluster(project, one), chosen) for one in names if name in (None, one)]
    rows = [("NAME", "HERE", "MATCHES", "WRITTEN IN")]
    rows += [(one["name"], "yes" if one["chosen"] else "", one["matches"], one["origin"]) for one in found]
    return {"clusters": found}, rows, []


def _summary(cluster: Cluster, chosen: Cluster) -> dict[str, Any]:
    from shoal.describe import UNNAMED

    words = [f"cluster {cluster.match.cluster}" if cluster.match.cluster else ""]
    words.append(f"host {cluster.match.host}" if cluster.match.host else "")
    built_in = {True: "no sbatch, or inside a job"}.get(cluster.is_local) or (
        "any other Slurm" if cluster.name == UNNAMED else f"cluster {cluster.name}"
    )
    origins = dict.fromkeys(sourced.origin.rsplit(":", 1)[0] for sourced in cluster.layer.values.values())
    return {
        "name": cluster.name,
        "chosen": cluster.name == chosen.name,
        "matches": ", ".join(word for word in words if word) or built_in,
        "origin": ", ".join(origins) or "default",
    }


def show_profile(project: Project, name: str | None) -> CommandOutput:
    """Every value of a profile with its origin, those that nobody wrote included."""
    from shoal.plan import choose_cluster, named_cluster

    chosen = choose_cluster(project, None, os.environ)
    cluster = chosen if name is None else named_cluster(project, name, "clusters show")
    values = _values(cluster)
    if cluster.name == chosen.name and not cluster.is_local:
        from shoal.clusters import cluster_name

        values["cluster_name"] = {"value": cluster_name(os.environ), "origin": "detected"}
    rows = [("KEY", "VALUE", "FROM")]
    rows += [(key, _format_value(one["value"]), one["origin"]) for key, one in values.items()]
    return {"name": cluster.name, "values": values}, rows, []


def _values(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Written values in the order of the profile's keys, defaults, presets, and what differs under each QOS."""
    from shoal.describe import CLUSTER_KEYS, NETWORKS

    found: dict[str, dict[str, Any]] = {"name": {"value": cluster.name, "origin": "default"}}
    if cluster.layer.values:
        found["name"]["origin"] = next(iter(cluster.layer.values.values())).origin.rsplit(":", 1)[0]
    for key in CLUSTER_KEYS:
        written = {
            name: {"value": sourced.value, "origin": sourced.origin}
            for name, sourced in cluster.layer.values.items()
            if name == key or name.startswith(f"{key}.")
        }
        is_table = key in ("match", "price", "ssh")  # whose keys are written or not
        default = None if is_table else getattr(cluster, key, None) or None
        found.update(written or {key: {"value": default, "origin": "default"}})
    if cluster.network:
        preset = NETWORKS[cluster.network]
        for name, value in {**preset.env, **preset.prepend}.items():
            found.setdefault(f"env.{name}", {"value": value, "origin": f"network {cluster.network}"})
    for qos, values in cluster.layer.qos.items():
        found.update({f"qos.{qos}.{key}": {"value": one.value, "origin": one.origin} for key, one in values.items()})
    return found


def detect_profile(project: Project, name: str | None) -> CommandOutput:
    """What this machine says, and the profile that follows from it."""
    import shutil
    import socket

    from shoal.clusters import UNKNOWN, read_cluster
    from shoal.describe import node_text
    from shoal.errors import InputError
    from shoal.plan import choose_cluster

    if name is not None:
        raise InputError(f"{name} has no effect: detect looks at this machine", hint=f"shoal clusters show {name}")
    chosen = choose_cluster(project, None, os.environ)
    if shutil.which("sinfo"):
        facts = read_cluster(os.environ, "nodes", "name", "user")
    else:
        facts = UNKNOWN._replace(silent=("sinfo: not on PATH",))
    rows = [("profile", chosen.name), ("host", socket.gethostname()), ("cluster", facts.name or "unknown")]
    for partition in facts.partitions:
        if (node := facts.smallest_node(partition.name)) is not None:
            name = f"{partition.name} (default)" if partition.is_default else partition.name
            rows.append(("partition", f"{name}: {node_text(node)}"))
    rows += [("account", account) for account in facts.accounts]
    rows += [("qos", qos) for qos in facts.qos]
    document = {"profile": chosen.name, "host": socket.gethostname(), "facts": _facts(facts)}
    return document, rows, [f"no answer from {reason}" for reason in facts.silent]


def _facts(facts: ClusterFacts) -> dict[str, Any]:
    nodes = [(partition, facts.smallest_node(partition.name)) for partition in facts.partitions]
    return {
        "cluster": facts.name,
        "partitions": [
            {
                "name": partition.name,
                "is_default": partition.is_default,
                "max_time_s": partition.max_time_s,
                "cpus_per_node": node.cpus,
                "memory_per_node_mb": node.memory_mb,
                "gpus_per_node": node.gpus,
                "gpu_types": node.gpu_types,
            }
            for partition, node in nodes
            if node is not None
        ],
        "accounts": facts.accounts,
        "default_account": facts.default_account,
        "qos": facts.qos,
        "silent": facts.silent,
    }


def test_profile(project: Project, name: str | None) -> CommandOutput:
    """Ask Slurm whether it would take the profile's words: once plainly, once for each GPU type."""
    from shoal.errors import InputError
    from shoal.plan import choose_cluster, named_cluster

    chosen = choose_cluster(project, None, os.environ, inside_job=False)
    cluster = chosen if name is None else named_cluster(project, name, "clusters test")
    if cluster.is_local:
        raise InputError("this machine has no scheduler to ask", hint="shoal clusters list")
    results = [
        _test_request(project, cluster, kind)
        for kind in (None, *(key for key in cluster.partition if key != "default"))
    ]
    rows = [("ASKED", "RESULT", "SLURM SAYS")]
    rows += [(" ".join(one["options"]), "ok" if one["ok"] else "refused", one["answer"]) for one in results]
    notes = [f"the Slurm on this machine matches profile {chosen.name}"] if chosen.name != cluster.name else []
    return {"name": cluster.name, "ok": all(one["ok"] for one in results), "tests": results}, rows, notes


def _test_request(project: Project, cluster: Cluster, gpu_type: str | None) -> dict[str, Any]:
    from shoal.batch import SbatchFlags
    from shoal.clusters import check_with_sbatch
    from shoal.errors import SchedulerError
    from shoal.model import Request
    from shoal.plan import resolve_request

    request = Request(nodes=1, gpus=1 if gpu_type else None, gpu_type=gpu_type, time="1m")
    options = resolve_request(request, SbatchFlags(), cluster, project.clusters).argv()
    check = check_with_sbatch(options, os.environ, timeout_s=30.0)
    if check.problem is not None:
        raise check.problem
    answer = " ".join(check.text.split()).removeprefix("sbatch: ").removeprefix("error: ")
    if check.accepted is None:
        raise SchedulerError(f"Slurm does not answer: {answer}", hint="scontrol ping")
    return {"options": options, "ok": check.accepted, "answer": answer}


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    return "; ".join(value) if isinstance(value, tuple | list) else str(value)


def _table(rows: TableRows) -> str:
    """Aligned on a terminal, tab-separated and complete elsewhere."""
    if not sys.stdout.isatty():
        return "".join("\t".join(row) + "\n" for row in rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
                   for row in rows)  # fmt: skip
