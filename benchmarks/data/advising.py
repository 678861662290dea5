"""`advise_loader` against the truth: what it predicts from one short run with one worker, and what then happens."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.data.measure import heading, load, row
from shoal.data.advise import advise_loader, measure_script

#: A loader whose items cost CPU time or waiting, and a model that is a sleep; prints its steps per second at the end.
_TRAINING = """
import sys, time, torch
cpu_s, wait_s, step_s, workers = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, number):
        end = time.thread_time() + cpu_s
        while time.thread_time() < end:
            pass
        time.sleep(wait_s)
        return torch.zeros(4)
torch.set_num_threads(1)
began = None
for count, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=16, num_workers=workers)):
    time.sleep(step_s)
    if count == 5:
        began, start = time.perf_counter(), count
    if began is not None and time.perf_counter() - began > 4:
        break
print("steps/s", (count - start) / (time.perf_counter() - began))
"""
#: cpu per item, waiting per item, step: decode-bound, balanced, model-bound, storage-bound.
_CASES = ((0.003, 0.0, 0.02), (0.003, 0.0, 0.08), (0.003, 0.0, 0.25), (0.0, 0.004, 0.02), (0.0, 0.004, 0.08))


def main() -> None:
    cores, first = os.cpu_count() or 1, _undisturbed()
    how = "at real-time priority, so that other programs do not count" if first else "beside whatever else runs"
    print("Steps per second with 0, 1, 2 (4) workers, predicted from 25 batches with one worker; batch 16.")
    print(f"The prediction was made beside whatever else runs, the truth measured {how}.\n")
    heading("item", "step", "verdict", "predicted", "measured", "worst error", "contention", "load")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "training.py"
        script.write_text(_TRAINING)
        for cpu_s, wait_s, step_s in _CASES:
            argv = [sys.executable, str(script), str(cpu_s), str(wait_s), str(step_s)]
            advice = advise_loader(measure_script([*argv, "1"], 25), cores)
            counts = [0, 1, 2] if cpu_s else [0, 1, 2, 4]
            truth = {count: _steps([*first, *argv, str(count)]) for count in counts}
            bound = "loader" if 16 * (cpu_s + wait_s) > 1.1 * step_s else "model"
            row(
                f"{1e3 * cpu_s:g} ms CPU, {1e3 * wait_s:g} ms waiting",
                f"{1e3 * step_s:g} ms",
                advice.bound + ("" if advice.bound == bound else " (WRONG)"),
                " ".join(f"{advice.predicted[count]:.1f}" for count in counts),
                " ".join(f"{truth[count]:.1f}" for count in counts),
                f"{100 * max(abs(advice.predicted[count] / truth[count] - 1) for count in counts):.0f} %",
                f"{advice.times.contention:.0%}",
                load(),
            )
    print()


def _undisturbed() -> list[str]:
    """Words before a command that let nothing else on the machine disturb it, if we may use them."""
    words = ["chrt", "-r", "1"]
    usable = shutil.which("chrt") and subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0
    return words if usable else []


def _steps(argv: list[str]) -> float:
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    found = re.search(r"steps/s ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    return float(found[1])


if __name__ == "__main__":
    main()
