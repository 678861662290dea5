"""Ask a Slurm cluster what it has and allows: only what the caller names, each question with a time limit.

Everything may be absent: no programs, no controller, no accounting. A question without an answer leaves the defaults
and a sentence in `ClusterFacts.silent`, never an error.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from shoal.clusters import parse
from shoal.clusters.facts import UNKNOWN, ClusterFacts
from shoal.clusters.queries import ask

#: What can be asked, and which program answers:
#:   name          slurm.conf, else scontrol show config
#:   nodes         sinfo: partitions with name, default and time limit, and their kinds of node
#:   settings      scontrol show config: version, largest array, KillWait, what is enforced
#:   partitions    scontrol show partition: all about partitions; the cluster's defaults where settings are asked too
#:   reservations  scontrol show reservation
#:   user          sacctmgr show user: associations and default account
#:   accounts      sacctmgr show assoc: the tree of accounts and their limits
#:   qos           sacctmgr show qos: limits, of those named in `qos`, or of all
Part = Literal["name", "nodes", "settings", "partitions", "reservations", "user", "accounts", "qos"]

_CONF_PATHS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")


def read_cluster(
    environ: Mapping[str, str],
    *parts: Part,
    user: str | None = None,
    qos: Sequence[str] = (),
    known: ClusterFacts = UNKNOWN,
) -> ClusterFacts:
    """`known` and what the cluster that answers here says to these questions; each costs one program of Slurm.

    `user` is whose associations are asked, by default those of this process.
    """
    silent: list[str] = []
    facts = known

    def answer(*argv: str) -> str:
        return ask(argv, environ, silent=silent) or ""

    def accounting(*words: str, fields: Sequence[str]) -> str:
        return answer("sacctmgr", "--noheader", "--parsable2", "show", *words, f"format={','.join(fields)}")

    if "nodes" in parts:
        text = answer("sinfo", "--noheader", "--exact", f"--format={parse.SINFO_FORMAT}")
        partitions, kinds = parse.parse_sinfo(text)
        facts = facts._replace(partitions=partitions, node_kinds=kinds)
    if "name" in parts:
        facts = facts._replace(name=cluster_name(environ))
        silent += ["scontrol: no ClusterName"] if facts.name is None else []
    settings: dict[str, str] = {}
    if "settings" in parts:
        settings = parse.parse_config(answer("scontrol", "show", "config"))
        facts = _with_settings(facts, settings)
    if "partitions" in parts:
        told = tuple(parse.parse_partitions(answer("scontrol", "--oneliner", "show", "partition"), settings))
        facts = facts._replace(partitions=told or facts.partitions)
    if "reservations" in parts:
        told_text = answer("scontrol", "--oneliner", "show", "reservation")
        facts = facts._replace(reservations=tuple(parse.parse_reservations(told_text)), read_at_s=time.time())
    if "user" in parts:
        name = user or getpass.getuser()
        associations, default = parse.parse_user(accounting("user", name, "withassoc", fields=parse.USER_FIELDS), name)
        facts = facts._replace(associations=associations, default_account=default)
    if "accounts" in parts:
        tree = parse.parse_accounts(accounting("assoc", "where", "user=", fields=parse.ACCOUNT_FIELDS))
        facts = facts._replace(parent_accounts=tree)
    if "qos" in parts:
        limits = parse.parse_qos(accounting("qos", *([",".join(qos)] if qos else []), fields=parse.QOS_FIELDS))
        facts = facts._replace(qos_limits=limits)
    return facts._replace(silent=(*facts.silent, *silent))


def _with_settings(facts: ClusterFacts, settings: Mapping[str, str]) -> ClusterFacts:
    return facts._replace(
        version=parse.parse_version(settings.get("SLURM_VERSION", "")),
        max_array_size=parse.parse_number(settings.get("MaxArraySize", "")),
        kill_wait_s=parse.parse_number(settings.get("KillWait", "").split(" ")[0]),
        kills_invalid_dependencies="kill_invalid_depend" in settings.get("DependencyParameters", ""),
        enforces_limits=parse.enforces_limits(settings),
    )


def cluster_name(environ: Mapping[str, str]) -> str | None:
    """Slurm's ClusterName: from the text of slurm.conf, which costs nothing, else from the controller."""
    asked = environ.get("SLURM_CONF")
    for path in (asked,) if asked else _CONF_PATHS:
        try:
            text = Path(path).read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if (name := parse.parse_cluster_name(text)) is not None:
            return name
    return parse.parse_cluster_name(ask(["scontrol", "show", "config"], environ) or "")
