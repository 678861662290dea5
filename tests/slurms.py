"""The Slurm tests on several releases of Slurm, and docs/compatibility.md from what they said: `make slurms`.

    python -m slurms --releases 24.11 26.05 --tests core        from tests/

Each release is a session of pytest with SHOAL_SANDBOX_SLURM set. Its counts replace the row of the same release and the
same tests in the table of the page; all else in the page is written by people.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from shoal.sandbox import SUITES, ensure_slurm_root

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
TABLE_HEAD = (
    "| Slurm | date | commit | tests | passed | failed | skipped | minutes |",
    "|---|---|---|---|---|---|---|---|",
)

#: What depends on the release most: submission, arrays, packs, requeue and preemption, report against sacct, adopt,
#: doctor with `sbatch --test-only`, and every parser of what Slurm prints.
CORE = (
    "tests/sandbox/test_sandbox.py",
    "tests/job/test_slurm_spine.py",
    "tests/job/test_preemption.py",
    "tests/job/test_pack_slurm.py",
    "tests/job/test_launch_slurm.py",
    "tests/kernel/test_slurm_faults.py",
    "tests/kernel/test_exactly_once.py",
    "tests/describe/test_sweep_slurm.py",
    "tests/actions/test_adopt.py",
    "tests/actions/test_batch_scripts.py",
    "tests/views/test_report_slurm.py",
    "tests/views/test_status.py",
    "tests/views/test_post_mortem.py",
    "tests/doctor/test_doctor_slurm.py",
    "tests/doctor/test_doctor_submit.py",
    "tests/doctor/test_doctor_fix_slurm.py",
    "tests/clusters",
    "tests/batch/test_quoting.py",
)


class Counts(NamedTuple):
    passed: int
    failed: tuple[str, ...]
    skipped: int


def read_counts(report: Path) -> Counts:
    """Counts of a JUnit report; an error outside of a test's body counts as failed."""
    failed, skipped, passed = [], 0, 0
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Counts(passed, tuple(dict.fromkeys(failed)), skipped)


def table_row(version: str, date: str, commit: str, tests: str, counts: Counts, minutes: float) -> str:
    cells = (version, date, commit, tests, counts.passed, len(counts.failed), counts.skipped, f"{minutes:.0f}")
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def replace_row(page: str, row: str) -> str:
    """The page with this row in place of the one for the same release and tests, or at the table's end."""
    lines = page.splitlines()
    first = lines.index(TABLE_HEAD[1]) + 1
    end = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
    rows = [line for line in lines[first:end] if _key(line) != _key(row)]
    return "\n".join([*lines[:first], *sorted([*rows, row]), *lines[end:]]) + "\n"


def _key(row: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    return ".".join(cells[0].split(".")[:2]), cells[3]


def run_release(release: str, tests: list[str], workers: int, options: list[str]) -> tuple[Counts, float]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "-m", "slurm", "-n", str(workers), "--dist", "loadfile"]
        argv += ["-p", "no:cacheprovider", f"--junitxml={report}", *options, *tests]
        begin = time.monotonic()
        subprocess.run(argv, cwd=ROOT, env={**os.environ, "SHOAL_SANDBOX_SLURM": release})
        if not report.exists():
            raise SystemExit(f"error: pytest on Slurm {release} ended without a report")
        return read_counts(report), (time.monotonic() - begin) / 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="slurms", description=__doc__)
    parser.add_argument("--releases", nargs="+", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--tests", nargs="*", default=[], help="files below the repository, or `core` (default: all)")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--no-page", action="store_true", help="leave docs/compatibility.md as it is")
    args, options = parser.parse_known_args()
    tests = [path for word in args.tests for path in (CORE if word == "core" else [word])]
    label = " ".join(args.tests) or "all"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    failed = False
    for release in args.releases:
        version = ensure_slurm_root(release, print).version
        counts, minutes = run_release(release, tests, args.workers, options)
        row = table_row(version, f"{datetime.date.today():%Y-%m-%d}", commit, label, counts, minutes)
        print(TABLE_HEAD[0], row, *counts.failed, sep="\n")
        failed |= bool(counts.failed) or not counts.passed
        if not args.no_page:
            PAGE.write_text(replace_row(PAGE.read_text(), row))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
