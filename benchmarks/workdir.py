"""What a working directory of its own costs a run, by the number of files of the code.

    python -m benchmarks.workdir

A pack of short runs on this machine, in a repository of 10, 300 and 3,000 files; beside it the same pack with
`snapshot = false`, in which all runs work in the project's folder. The two take turns; the fastest of the repeats,
and the processor time of it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHOAL = Path(sys.executable).with_name("shoal")
RUNS, SLOTS, REPEATS = 60, 2, 3


def main() -> None:
    print("| files | own directory, s | project's folder, s | a run costs more, ms | of that processor, ms |")
    print("|---|---|---|---|---|")
    for count in (10, 300, 3000):
        with tempfile.TemporaryDirectory() as folder:
            kinds = {kind: _repository(Path(folder) / kind, count, kind == "own") for kind in ("own", "same")}
            taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for repeat in range(REPEATS):
                for kind, root in kinds.items():
                    taken[kind].append(_pack(root, repeat))
        (own, own_cpu), (same, same_cpu) = (map(min, zip(*taken[kind], strict=True)) for kind in ("own", "same"))
        more, more_cpu = ((a - b) / RUNS * 1000 for a, b in ((own, same), (own_cpu, same_cpu)))
        print(f"| {count} | {own:.2f} | {same:.2f} | {more:.1f} | {more_cpu:.1f} |", flush=True)


def _repository(root: Path, count: int, own: bool) -> Path:
    """Files of half a KB; all are copied for each run."""
    for number in range(count):
        path = root / f"pkg{number // 50}" / (f"c{number}.yaml" if number % 10 == 0 else f"m{number}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\n" * 50)
    (root / "shoal.toml").write_text("" if own else "snapshot = false\n")
    (root / ".gitignore").write_text(".shoal/\noutputs/\n")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


def _pack(root: Path, repeat: int) -> tuple[float, float]:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["pack", "-q", "--slots", str(SLOTS), "--name", f"try{repeat}", "--set", f"x=1:{RUNS}", "--", "true", "{x}"]
    subprocess.run([str(SHOAL), *words], cwd=root, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
