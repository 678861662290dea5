"""What is free on a cluster now: parsers over odd text, and the real Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.clusters.load import GpuLoad, parse_nodes, parse_queue, parse_shares
from shoal.observe import QueueCache
from shoal.sandbox import Sandbox
from shoal.views.web.cluster import cluster_document
from waiting import wait_until

NODES = """\
NodeName=a1 Arch=x86_64 Gres=gpu:h100:4(S:0-1),tmp:1 GresUsed=gpu:h100:3(IDX:0-2),tmp:0 State=MIXED Partitions=main,big
NodeName=a2 Gres=gpu:h100:4 GresUsed=gpu:h100:0(IDX:N/A) State=IDLE+DRAIN Partitions=main Comment=a=b Reason=x y
NodeName=b1 Gres=gpu:4,gpu:a100:2 GresUsed=gpu:(null):1(IDX:0),gpu:a100:0(IDX:N/A) State=IDLE Partitions=main
NodeName=c1 Gres=(null) State=IDLE Partitions=cpu
nonsense
"""


def test_gpus_are_counted_by_partition_and_type_and_closed_nodes_give_none() -> None:
    assert parse_nodes(NODES) == (
        GpuLoad("big", "h100", 4, 1, 0, 1, 0),
        GpuLoad("main", "a100", 2, 2, 0, 1, 1),
        GpuLoad("main", "gpu", 4, 3, 0, 1, 0),
        GpuLoad("main", "h100", 8, 1, 4, 2, 0),
    )
    assert parse_nodes("") == () and parse_queue("a|b\n") == () and parse_shares("x\n||\n", "me") == ()
    queue = parse_queue("main,big|PENDING|(Priority)|1\nmain|RUNNING|None|2\nmain|PENDING|Resources|1\n")
    assert [(one.partition, one.running, one.pending) for one in queue] == [("big", 0, 1), ("main", 1, 2)]


@pytest.mark.slurm
def test_the_cluster_view_tells_what_is_free_why_jobs_wait_and_asks_once(
    accounting_cluster: Sandbox, tmp_path: Path
) -> None:
    environ = accounting_cluster.env(os.environ)
    sbatch = ["sbatch", "--parsable", "--account=lab", "--time=5", "--output=/dev/null"]
    for more in (["--gres=gpu:1"], ["--gres=gpu:1", "--begin=now+1hour", "--job-name=later"]):
        subprocess.run([*sbatch, *more, "--wrap", "sleep 300"], env=environ, check=True, capture_output=True)
    try:
        home = str(tmp_path / ".shoal")
        os.makedirs(home)

        def looks(name: str) -> dict[str, object]:
            place = tmp_path / name / ".shoal"
            place.mkdir(parents=True, exist_ok=True)
            return cluster_document(str(place), QueueCache(str(place), 0.0), environ)

        names = iter(range(1000))

        def running() -> dict[str, object] | None:
            found = looks(str(next(names)))
            jobs: list[dict[str, object]] = found["jobs"]  # type: ignore[assignment]
            return found if any(job["state"] == "running" for job in jobs) else None

        found = wait_until(running, 60, "one job runs")
        assert found["problem"] is None and found["silent"] == []
        gpus: list[dict[str, int]] = found["gpus"]  # type: ignore[assignment]
        assert all(one["total"] == 8 and one["free"] == 7 and one["nodes"] == 2 for one in gpus) and gpus
        later = next(job for job in found["jobs"] if job["name"] == "later")  # type: ignore[attr-defined]
        assert later["slurm_reason"] == "BeginTime" and "later time" in later["reason"]
        shares: list[dict[str, object]] = found["fair_shares"]  # type: ignore[assignment]
        assert {"lab"} <= {one["account"] for one in shares} and all(one["factor"] is not None for one in shares)
        first = cluster_document(home, QueueCache(home), environ)
        silent = {**environ, "PATH": "/nowhere"}
        assert cluster_document(home, QueueCache(home), silent)["asked"] == first["asked"], "Slurm is not asked again"
        nowhere = cluster_document(str(tmp_path / "none"), QueueCache(str(tmp_path / "none")), silent)
        assert nowhere["problem"] and nowhere["gpus"] == [] and nowhere["silent"]
    finally:
        subprocess.run(["scancel", "-u", "root"], env=environ, check=False)
