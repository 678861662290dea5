"""200 scripts in a folder: how long `shoal doctor` takes, beside how long `bash -n` takes to parse the same files.

    python -m benchmarks doctor

The scripts are those of tests/corpus, repeated under other names and lengthened to the 2 to 3 KiB that scripts have in
public repositories, with the programs that they start beside them. The promise is less than 2 s for 200 scripts, start
of Python included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shoal.doctor.check import find_files

CORPUS = Path(__file__).parent.parent / "tests" / "corpus"
SCRIPTS = 200
#: What people write around the training: messages, folders, variables, checks.
FILLER = """
echo "job $SLURM_JOB_ID on $(hostname) at $(date)"
mkdir -p "runs/$SLURM_JOB_ID"/{logs,checkpoints}
export DATA_ROOT=${DATA_ROOT:-/data/sets} CACHE="$HOME/.cache/project"
if [[ ! -d "$DATA_ROOT" || -z "$SLURM_JOB_ID" ]]; then
    echo "no data in $DATA_ROOT" >&2
fi
for name in train val test; do
    [ -f "$DATA_ROOT/$name.tar" ] && ls -l "$DATA_ROOT/$name.tar" | awk '{print $5, $9}'
done
"""
REPEATS = 5
PROMISE_S = 2.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        size = fill(folder)
        command = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())"]
        whole = best(lambda: run([*command, "doctor", "--no-cluster", "-q", "scripts"], folder, (3,)))
        empty = best(lambda: run([*command, "--version"], folder))
        paths = sorted((folder / "scripts").iterdir())
        bash = best(lambda: parse_each(paths, folder))
    print(f"{SCRIPTS} scripts, {size / 1024:.0f} KiB, best of {REPEATS}; wall and processor seconds\n")
    print("| what | wall s | processor s | baseline (wall s) | ratio | goal |\n|---|---|---|---|---|---|")
    against = f"bash -n ({bash.wall:.2f}) | {whole.wall / bash.wall:.1f}"
    print(f"| shoal doctor | {whole.wall:.2f} | {whole.cpu:.2f} | {against} | {PROMISE_S:g} s |")
    print(f"| of which shoal --version | {empty.wall:.2f} | {empty.cpu:.2f} | | | |")


def fill(folder: Path) -> int:
    """SCRIPTS scripts of the corpus in folder/scripts, and their programs beside it; returns the bytes written."""
    shutil.copytree(CORPUS / "programs", folder / "programs")
    target = folder / "scripts"
    target.mkdir()
    originals = [path for path in find_files([CORPUS / "good", CORPUS / "bad"]) if path.suffix in (".sh", ".slurm")]
    size = 0
    for number in range(SCRIPTS):
        original = originals[number % len(originals)]
        copy = target / f"{number:03}_{original.name}"
        copy.write_bytes(original.read_bytes() + (FILLER * 5).encode())
        size += copy.stat().st_size
    return size


def parse_each(paths: list[Path], folder: Path) -> None:
    for path in paths:
        run(["bash", "-n", str(path)], folder, (0, 1, 2, 126))


def run(argv: list[str], folder: Path, allowed: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in allowed:
        raise SystemExit(f"{argv[0]} ended with code {done.returncode}: {done.stderr}")


class Took(NamedTuple):
    wall: float
    cpu: float


def best(action: Callable[[], object]) -> Took:
    """The shortest of several times, with the processor time of what was started: others are busy here."""
    times = []
    for _ in range(REPEATS):
        start, before = time.perf_counter(), os.times()
        action()
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        times.append(Took(time.perf_counter() - start, used))
    return min(times)


if __name__ == "__main__":
    main()
