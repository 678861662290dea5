"""The cluster as the page shows it: my jobs with reasons, free GPUs by type, the queue, fair share and limits.

Slurm is asked once for all pages and watchers of a project: my jobs come from the answer that `status` and `watch`
share, and the rest is kept in `.shoal/cache/` for a minute.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from shoal.clusters import UNKNOWN, ClusterFacts, ClusterLoad, read_cluster, read_load
from shoal.kernel import make_dir, replace
from shoal.observe import AskQueue
from shoal.views.pending import explain_reason

_KEEP_S = 60.0
_MAX_JOBS = 500


def cluster_document(
    home: str, ask: AskQueue, environ: Mapping[str, str], clock: Callable[[], float] = time.time
) -> dict[str, Any]:
    """`problem` says why my jobs are not known; `silent` which questions got no answer."""
    queue = ask(environ, 0.0)
    rows = [row for rows in queue.rows.values() for row in rows if not row.has_ended]
    rows.sort(key=lambda row: (row.word != "RUNNING", row.started or 0.0, row.job_id))
    jobs = [
        {
            "job_id": row.label, "name": row.name, "state": row.word.lower(), "node": row.node,
            "reason": explain_reason(row.reason).sentence if row.word == "PENDING" else "",
            "slurm_reason": row.reason if row.word == "PENDING" else None, "started": row.started,
            "account": row.account,
        }
        for row in rows[:_MAX_JOBS]
    ]  # fmt: skip
    return {
        "problem": queue.problem,
        "jobs": jobs,
        "jobs_left_out": len(rows) - len(jobs),
        **_kept(home, environ, queue.problem, clock()),
    }


def _kept(home: str, environ: Mapping[str, str], problem: str | None, now: float) -> dict[str, Any]:
    """What the cluster has, from the file of an earlier question or asked anew; a controller that does not answer is
    not asked five more times."""
    path, conf = os.path.join(home, "cache", f"cluster-{os.getuid()}.json"), environ.get("SLURM_CONF", "")
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(path, "rb") as file:  # noqa: PTH123
        known = json.loads(file.read())
        is_ours = known["conf"] == conf and os.fstat(file.fileno()).st_uid == os.getuid()
        if is_ours and (problem or 0 <= now - known["t"] < _KEEP_S):
            return dict(known["cluster"])
    if problem:
        return _document(ClusterLoad(silent=(problem,)), UNKNOWN, now)
    cluster = _document(read_load(environ, getpass.getuser()), read_cluster(environ, "name", "user", "qos"), now)
    with contextlib.suppress(OSError):
        make_dir(os.path.dirname(path))
        replace(path, json.dumps({"t": now, "conf": conf, "cluster": cluster}).encode(), sync=False)
    return cluster


def _document(load: ClusterLoad, facts: ClusterFacts, now: float) -> dict[str, Any]:
    mine = set(facts.qos)
    return {
        "name": facts.name,
        "asked": now,
        "gpus": [one._asdict() for one in load.gpus],
        "queue": [
            {**one._asdict(), "reasons": [[explain_reason(word).sentence, word, n] for word, n in one.reasons]}
            for one in load.queue
        ],
        "fair_shares": [one._asdict() for one in load.fair_shares],
        "limits": [
            {"what": f"QOS {one.name}", "max_time_s": one.max_time_s, "max_gpus": one.max_gpus,
             "max_jobs": min(one.submit_limits, default=None)}
            for one in facts.qos_limits
            if one.name in mine
        ] + [
            {"what": f"account {one.account}", "max_time_s": None, "max_gpus": None,
             "max_jobs": min(one.submit_limits, default=None)}
            for one in facts.associations
        ],
        "silent": sorted({*load.silent, *facts.silent}),
    }  # fmt: skip
