"""An order given again after its command was killed in the middle is continued: no run is executed twice for it.

D10 of the table in docs/exactly-once.md. The command is killed by its own sbatch, right after Slurm accepted the third
job; what was accepted runs to its end before the order is repeated, as it does when a person comes back after lunch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import Ledger, keeping_ledger
from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

NAMES = [f"001_a/{number:03}_train_0" for number in range(4)]
SHIM = """\
#!/bin/sh
case "$*" in *--test-only*) exec {sbatch} "$@";; esac
{sbatch} "$@"
code=$?
echo call >> {folder}/calls
if test "$(wc -l < {folder}/calls)" = "$(cat {folder}/kill_at)"; then kill -9 $PPID; fi
exit $code
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger")
    yield made
    made.end_all()


@pytest.fixture
def project(tmp_path: Path, quiet_cluster: Sandbox, ledger: Ledger) -> Project:
    made = keeping_ledger(Project(tmp_path, quiet_cluster), ledger)
    shim = tmp_path / "bin" / "sbatch"
    shim.parent.mkdir()
    shim.write_text(SHIM.format(sbatch=shutil.which("sbatch"), folder=tmp_path))
    shim.chmod(0o755)
    (tmp_path / "kill_at").write_text("0")
    made.env["PATH"] = f"{shim.parent}:{made.env['PATH']}"
    return made


@pytest.mark.parametrize(
    ("order", "code"),
    [(("submit", "experiments/001_a", "--layout", "job", "--rerun"), 0), (("retry", "001_a"), 7)],
    ids=["submit --rerun", "retry"],
)
def test_a_repeated_order_starts_each_run_once(
    order: tuple[str, ...], code: int, tmp_path: Path, project: Project, ledger: Ledger
) -> None:
    for number, name in enumerate(NAMES):  # of different size, or they would be one array
        project.script(f"{name}.sh", f"train --time=5 --mem={50 + number} -- exit={code}")
    project.shoal("submit", "experiments/001_a", "--layout", "job")
    _wait_ends(project, ledger, code, dict.fromkeys(NAMES, 1))
    accepted = _killed_after_calls(tmp_path, project, order, calls=len(NAMES) + 3)
    assert 0 < accepted < len(NAMES) + 4
    wait_until(lambda: sum(ledger.ends(name, code) for name in NAMES) == accepted, 60, "what was accepted has ended")
    _wait_idle(project)
    project.shoal(*order)
    _wait_ends(project, ledger, code, dict.fromkeys(NAMES, 2))
    _wait_idle(project)
    assert [len(ledger.executions(name)) for name in NAMES] == [2] * len(NAMES)


def test_a_repeated_resume_continues_the_run_once(tmp_path: Path, project: Project, ledger: Ledger) -> None:
    name = NAMES[0]
    project.script(f"{name}.sh", "train --time=5 --mem=50 -- save exit=7")
    project.shoal("submit", f"experiments/{name}.sh")
    _wait_ends(project, ledger, 7, {name: 1})
    assert _killed_after_calls(tmp_path, project, ("resume", name, "--yes"), calls=2) == 2
    _wait_ends(project, ledger, 7, {name: 2})
    _wait_idle(project)
    project.shoal("resume", name, "--yes", code=None)
    _wait_idle(project)
    assert len(ledger.executions(name)) == 2
    project.shoal("resume", name, "--yes")  # an order of its own: the one before is whole
    _wait_ends(project, ledger, 7, {name: 3})


def _killed_after_calls(folder: Path, project: Project, order: tuple[str, ...], calls: int) -> int:
    """Give the order to a command that is killed when this many jobs were accepted in all; how many really were."""
    (folder / "kill_at").write_text(str(calls))
    project.shoal(*order, code=-9)
    (folder / "kill_at").write_text("0")
    return len((folder / "calls").read_text().split())


def _wait_ends(project: Project, ledger: Ledger, code: int, times: dict[str, int]) -> None:
    def ended() -> bool:
        states = {run["state"] for run in project.status(*times).values()}
        return states <= {"completed", "failed"} and all(
            ledger.ends(name, code) >= count for name, count in times.items()
        )

    wait_until(ended, 60, f"every run has ended {max(times.values())} times", poll_s=0.3)


def _wait_idle(project: Project) -> None:
    """No job of this project is left, and no command has anything to settle."""
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the queue is empty")
    unsettled = ("unknown", "waiting", "pending", "running")
    wait_until(lambda: not any(run["state"] in unsettled for run in project.status().values()), 60, "all is settled")
