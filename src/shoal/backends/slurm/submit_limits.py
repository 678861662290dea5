"""How many jobs this user may have in Slurm's hands: limits of the association, of accounts above it, and of the QOS.

Without accounting nothing answers, and nothing limits; where limits are recorded but not enforced, they do not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from shoal.backends.slurm.facts import query_slurm

_ENFORCED = re.compile(r"(?m)^AccountingStorageEnforce\s*=.*\b(?:limits|safe)\b")
_PARTITION_QOS = re.compile(r"\bQoS=(\S+)")


class SubmitLimit(NamedTuple):
    """The smallest limit, and whose jobs count: those of this account and of these QOS, joined by commas."""

    most: int
    account: str
    qos: str


def submit_limit(
    environ: Mapping[str, str], user: str, account: str | None, qos: str | None, partition: str | None
) -> SubmitLimit | None:
    """The limit that holds for jobs with these options; None if nothing says so."""
    fields = "format=Account,DefaultAccount,DefaultQOS,MaxSubmitJobs,GrpSubmitJobs"
    mine = parse_association(_sacctmgr(environ, "show", "user", user, "withassoc", fields), account)
    if mine is None:
        return None
    account, default_qos, limits = mine
    tree = _sacctmgr(environ, "show", "assoc", "where", "user=", "format=Account,User,ParentName,GrpSubmitJobs")
    kinds = [kind for kind in (qos or default_qos, _partition_qos(environ, partition)) if kind]
    if kinds:
        fields = "format=Name,MaxSubmitJobsPU,MaxSubmitJobsPA,GrpSubmitJobs"
        limits += parse_qos(_sacctmgr(environ, "show", "qos", ",".join(kinds), fields))
    limits += parse_account_tree(tree, account)
    if not limits or _ENFORCED.search(query_slurm(["scontrol", "show", "config"], environ, []) or "") is None:
        return None
    return SubmitLimit(min(limits), account, ",".join(kinds))


def parse_association(text: str, account: str | None) -> tuple[str, str, list[int]] | None:
    """Account, its default QOS, and the limits of its lines; the default account where none is named."""
    lines = [line.split("|") for line in text.splitlines()]
    rows = [[field.strip() for field in fields] for fields in lines if len(fields) == 5]
    rows = [row for row in rows if (row[0] == account if account else row[0] == row[1] or not row[1])]
    if not rows:
        return None
    return rows[0][0], rows[0][2], [number for row in rows for number in _limits_in(row[3:])]


def parse_account_tree(text: str, account: str) -> list[int]:
    """The limits on all jobs of an account and of those above it."""
    rows = {fields[0]: fields for line in text.splitlines() if len(fields := line.split("|")) == 4 and not fields[1]}
    found: list[int] = []
    seen: set[str] = set()
    while account in rows and account not in seen:
        seen.add(account)
        found += _limits_in(rows[account][3:])
        account = rows[account][2]
    return found


def parse_qos(text: str) -> list[int]:
    return [number for line in text.splitlines() for number in _limits_in(line.split("|")[1:])]


def _partition_qos(environ: Mapping[str, str], partition: str | None) -> str | None:
    """A partition may have a QOS of its own, whose limits hold beside the job's."""
    if not partition or "," in partition:
        return None
    told = _PARTITION_QOS.search(query_slurm(["scontrol", "-o", "show", "partition", partition], environ, []) or "")
    return told[1] if told is not None and told[1] != "N/A" else None


def _sacctmgr(environ: Mapping[str, str], *words: str) -> str:
    return query_slurm(["sacctmgr", "--noheader", "--parsable2", *words], environ, []) or ""


def _limits_in(fields: list[str]) -> list[int]:
    return [int(field) for field in map(str.strip, fields) if field.isascii() and field.isdigit()]
