"""How many jobs this user may have in Slurm's hands: limits of the association, of accounts above it, and of the QOS.

Without accounting nothing answers, and nothing limits; where limits are recorded but not enforced, they do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.clusters.facts import UNKNOWN, Association, ClusterFacts
from shoal.clusters.read import Part, read_cluster


class SubmitLimit(NamedTuple):
    """The smallest limit, and whose jobs count: those of this account and of these QOS, joined by commas."""

    most: int
    account: str
    qos: str


def read_submit_limit(
    environ: Mapping[str, str],
    user: str,
    account: str | None,
    qos: str | None,
    partition: str | None,
    known: ClusterFacts = UNKNOWN,
) -> SubmitLimit | None:
    """The limit that holds for jobs with these options; None if nothing says so.

    Asks one question where there is no accounting. `known` may hold the settings already.
    """
    facts = read_cluster(environ, "user", user=user, known=known)
    mine = associations_of(facts, account)
    if not mine:
        return None
    # Several partitions in one request have no one QOS.
    has_partition = bool(partition) and "," not in (partition or "")
    more: tuple[Part, ...] = ("accounts", "partitions") if has_partition else ("accounts",)
    facts = read_cluster(environ, *more, known=facts)
    partition_qos = next((one.qos for one in facts.chosen(partition)), None) if has_partition else None
    names = [name for name in (qos or mine[0].default_qos, partition_qos) if name]
    if names:
        facts = read_cluster(environ, "qos", qos=names, known=facts)
    limits = submit_limits(facts, mine)
    if limits and facts.version is None:
        facts = read_cluster(environ, "settings", known=facts)
    if not limits or not facts.enforces_limits:
        return None
    return SubmitLimit(min(limits), mine[0].account, ",".join(names))


def associations_of(facts: ClusterFacts, account: str | None) -> list[Association]:
    """The user's associations with an account, or with the default account: one for each partition that has its own."""
    wanted = account or facts.default_account
    return [association for association in facts.associations if wanted in (association.account, None)]


def submit_limits(facts: ClusterFacts, mine: Sequence[Association]) -> list[int]:
    """Every limit on jobs of these associations: their own, of their account and those above it, and of the QOS."""
    parents = {account.account: account for account in facts.parent_accounts}
    chain: list[str] = []
    account = mine[0].account
    while account in parents and account not in chain:
        chain.append(account)
        account = parents[account].parent
    limits = [association.submit_limits for association in (*mine, *(parents[name] for name in chain))]
    limits += [qos.submit_limits for qos in facts.qos_limits]
    return [limit for several in limits for limit in several]
