"""Functions on a real Slurm: arrays and packs from a script's process, and a real Jupyter kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from function_project import FunctionProject
from notebook_kernel import Kernel
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm
LIMIT_S = 120.0
REQUEST = shoal.Request(cpus=1, memory="100M", time="5m")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_cluster: Sandbox) -> FunctionProject:
    root = tmp_path / "project"
    root.mkdir()
    found = FunctionProject(root, monkeypatch)
    for name, value in quiet_cluster.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHOAL_ON", "slurm")
    return found


def test_functions_are_jobs_arrays_and_packs(
    project: FunctionProject, quiet_cluster: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = shoal.map(project.module.add, {"a": [3, 1, 2]}, request=REQUEST, experiment="001_a")
    bad = shoal.submit(project.module.fail, "raise", request=REQUEST)
    killed = shoal.submit(project.module.fail, "kill", request=REQUEST)
    assert runs.results(LIMIT_S) == [{"sum": 5}, {"sum": 3}, {"sum": 4}]
    assert len({run.view.job_id.partition("_")[0] for run in runs if run.view.job_id}) == 1
    with pytest.raises(shoal.RunFailed, match="boom") as caught:
        bad.result(LIMIT_S)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(shoal.RunFailed, match="SIGKILL"):
        killed.result(LIMIT_S)
    # The whole job is killed, its agent too, and this cluster has no accounting: Slurm's queue and the lease tell.
    gone = shoal.submit(project.module.sleep, 601, request=REQUEST)
    wait_until(lambda: gone.refresh().state == "running", 60, "it runs")
    assert gone.view.job_id is not None
    quiet_cluster.run("scancel", "--signal=KILL", "--full", gone.view.job_id)
    with pytest.raises(shoal.RunFailed):
        gone.result(LIMIT_S)
    assert gone.state in ("lost", "cancelled", "failed")
    # The end of a run that completed is known from its record, without an answer from Slurm.
    seen = shoal.submit(project.module.sleep, 1, request=REQUEST)
    with monkeypatch.context() as without_slurm:
        without_slurm.setenv("SLURM_CONF", str(tmp_path / "none"))
        assert seen.result(LIMIT_S) is None
    assert seen.view.ended is not None
    packed = shoal.map(project.module.size, ["x" * n for n in range(6)], request=REQUEST, layout="pack", slots=2)
    assert packed.results(LIMIT_S) == list(range(6))
    assert len({run.view.job_id for run in packed}) == 1
    with shoal.Executor(2, request=REQUEST) as pool:
        assert list(pool.map(project.module.size, ["", "x"])) == [0, 1]
    long = shoal.submit(project.module.sleep, 600, request=REQUEST)
    assert long.cancel()
    with pytest.raises(shoal.RunCancelled):
        long.result(LIMIT_S)
    assert long.retry().state in ("pending", "running", "waiting") and long.cancel()


@pytest.fixture
def kernel(project: FunctionProject, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setenv("JPY_SESSION_NAME", "study.ipynb")
    found = Kernel(project.root)
    yield found
    found.close()


CELL = """\
import shoal, {module} as work
OFFSET = 10
class Point:
    def __init__(self, x):
        self.x = x
def shift(x):
    return Point(work.add(x)["sum"] + OFFSET)
request = shoal.Request(cpus=1, memory="100M", time="5m")
run = shoal.submit(shift, 1, request=request)
"""


def test_a_notebook_submits_shows_and_gets_back(project: FunctionProject, kernel: Kernel) -> None:
    cell = CELL.format(module=project.module_name)
    assert [one["type"] for one in kernel.run(cell)] == ["execute_input"]
    assert kernel.value("p = run.result(120); (p.x, type(p) is Point, run.name)") == "(13, True, 'study/shift_x1')"
    # The cell again is the same run; with another global, which travels with the function, it is new code.
    assert kernel.value(f"{cell}\n(run.result(120).x, run.attempts)") == "(13, 1)"
    changed = cell.replace("OFFSET = 10", "OFFSET = 20")
    assert kernel.value(f"{changed}\n(run.result(120).x, run.attempts)") == "(23, 2)"
    # So it is with a class that the function names, one with code of its own.
    changed = changed.replace("self.x = x\n", "self.x = x\n    def twice(self):\n        return 2 * self.x\n")
    assert kernel.value(f"{changed}\n(run.result(120).twice(), run.attempts)") == "(46, 3)"
    shown = kernel.run("run")[-1]["data"]["text/html"]
    assert "study/shift_x1" in shown and "completed" in shown
    live = kernel.run("runs = shoal.progress(shoal.map(work.add, {'a': [1, 2]}, request=request))")
    types = [one["type"] for one in live]
    assert "update_display_data" in types and "stream" not in types
    assert "2/2" in live[-1]["data"]["text/html"]
    refused = kernel.run(
        "data = bytes(50_000_000)\ndef reads():\n    return len(data)\n"
        "try:\n    shoal.submit(reads)\nexcept shoal.InputError as error:\n    print(error)\n"
    )
    assert "reads 'data', which has 50.0 MB" in refused[-1]["text"]
    # In another process, without the kernel's classes.
    assert shoal.result("study/shift_x1").x == 23
