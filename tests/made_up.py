"""Run folders as jobs leave them, written directly: every state, any number, without Slurm and without waiting.

`MadeUp(folder)` is a project whose runs "ran on this machine"; the views see what they would see after real runs. Real
runs, on a real Slurm, are in the tests marked slurm.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from shoal.kernel import layout, processes
from shoal.kernel.records import Allocation, End, Start, non_default_fields

NOW = 1_800_000_000.0
HOST = socket.gethostname()


ME = Allocation("elsewhere", 1, None)
START = Start(
    attempt=1, generation=1, revision=1, token="t", host="h", pid=1, started=None, t=100.0, output_dir="/o",
    log_dir="/l", beat_s=20.0,
)  # fmt: skip
END = End(
    attempt=1, generation=1, revision=1, token="t", output_dir="/o", exit_code=0, success=True, began=100.0,
    ended=101.0, duration_s=1.0,
)  # fmt: skip


def put_attempt(
    folder: Path, number: int, start: dict[str, Any], end: dict[str, Any] | None = None, state: str = ""
) -> None:
    """An attempt's file under both of its names, as lease.py writes it."""
    path = folder / f"attempt.{number}.start"
    if end is not None and not end.get("note"):
        end = {**non_default_fields(END), **end}
    parts = [
        {"schema": 1, **non_default_fields(START), "attempt": number, **start},
        *([end] if end is not None else []),
    ]
    records = [json.dumps({"schema": 1, **record}) for record in parts]
    path.write_text("\n".join(records) + "\n")
    name = state or ("live.000000" if end is None else "end")
    for other in folder.glob(f"attempt.{number}.*"):
        if other != path and not other.name.endswith(".use"):
            other.unlink()
    (folder / f"attempt.{number}.{name}").hardlink_to(path)


class MadeUp:
    def __init__(self, folder: Path, now: float = NOW) -> None:
        self.root = folder
        self.home = str(folder / ".shoal")
        self.now = now
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "shoal.toml").write_text('[steps.train]\ncommand = "true"\n')
        os.makedirs(os.path.join(self.home, "runs"))

    def run(
        self,
        name: str,
        state: str = "completed",
        *,
        out: bytes = b"",
        err: bytes = b"",
        gpus: int = 2,
        began: float = -3600,
        lasted: float = 1800,
        attempt: int = 1,
        limit: int | None = 7200,
        use: dict[str, Any] | None = None,
        metrics: dict[str, float] | None = None,
        params: dict[str, Any] | None = None,
        progress: str | None = None,
        backend: str = "local",
        job_id: str | None = None,
        end: dict[str, Any] | None = None,
    ) -> Path:
        """One run with one attempt in a given state; returns its output folder."""
        folder = Path(layout.run_dir(self.home, name))
        folder.mkdir(parents=True, exist_ok=True)
        output = self.root / "outputs" / name
        output.mkdir(parents=True, exist_ok=True)
        token = f"tok{abs(hash(name)) % 10**9:09d}"
        experiment, stem = name.split("/")
        seed = stem.rsplit("_", 1)[-1]
        self._put(folder / "spec.1.json", {
            "experiment": experiment, "stem": stem, "number": 0, "step": "train", "step_kind": "train",
            "seed": int(seed) if seed.isdigit() else None, "command": ["true"], "cwd": str(self.root),
            "output": "training", "params": params or {}, "tracker_id": "x",
        })  # fmt: skip
        began_at = self.now + began
        if state == "new":
            return output
        self._put(folder / "submit.1.claim", {
            "token": token, "revision": 1, "output_dir": str(output), "log_dir": str(output), "t": began_at - 60,
        })  # fmt: skip
        submission = Path(layout.submission_dir(self.home, token))
        submission.mkdir(parents=True, exist_ok=True)
        me = processes.own_identity()
        self._put(submission / "submission.json", {
            "token": token, "backend": backend, "cluster": "local", "job_name": f"{experiment}.{stem}.{token}",
            "runs": [name], "t": began_at - 60, "time_limit_s": limit, **me,
            "asked": {"nodes": 1, "gpus": gpus, "cpus": 8, "memory_mb": 64000, "partition": "gpu"},
        })  # fmt: skip
        (submission / "script.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:2\ntrue\n")
        self._put(submission / "send.0.outcome", {"kind": "accepted", "job_id": job_id})
        if state == "pending":
            return output
        seconds = None if state == "running" else lasted
        start = {
            "attempt": attempt, "generation": 1, "revision": 1, "token": token, "t": began_at,
            "output_dir": str(output), "log_dir": str(output), "job_id": job_id, **me,
            "allocation": self._put_allocation(submission, began_at, seconds, gpus, limit),
        }  # fmt: skip
        (output / f"attempt-{attempt}.out").write_bytes(out + err)
        if progress is not None:
            (output / "progress").write_text(progress)
            os.utime(output / "progress", (self.now, self.now))
        if metrics is not None:
            (output / "metrics.json").write_text(json.dumps(metrics))
        if use is not None:
            self._put(folder / f"attempt.{attempt}.use", use)
        if state == "running":
            put_attempt(folder, attempt, start)
            return output
        put_attempt(folder, attempt, start, {
            "attempt": attempt, "generation": 1, "revision": 1, "token": token, "output_dir": str(output),
            "exit_code": 0 if state == "completed" else 1, "success": state == "completed", "began": began_at,
            "ended": began_at + lasted, "duration_s": lasted, "host": HOST, "log_dir": str(output),
            "oom": state == "oom", "stopped_by": "cancelled" if state == "cancelled" else None, **(end or {}),
        })  # fmt: skip
        return output

    @staticmethod
    def _put_allocation(submission: Path, began: float, lasted: float | None, gpus: int, limit: int | None) -> str:
        """The record of a job that waited a minute; one that runs is on this machine, so that Slurm is not asked."""
        name = f"allocation.{'local' if lasted is None else 9}.0.1"
        granted = {"nodes": 1, "gpus": gpus, "cpus": 8, "time_limit_s": limit, "submitted": began - 60}
        lines = [f"begin {began}", f"granted {json.dumps({**granted, 'eligible': began - 60, 'started': began})}"]
        lines += [] if lasted is None else [f"end {began + lasted}"]
        (submission / name).write_text("\n".join(lines) + "\n")
        return f"{submission.name}/{name}"

    def pack(
        self,
        names: list[str],
        *,
        gpus: int,
        begin: float,
        end: float,
        resizes: tuple[tuple[float, int], ...] = (),
        eligible_s: float = 0.0,
        submitted_s: float = 0.0,
    ) -> str:
        """The key of a pack that ended, still without attempts. Its begin and end count from now, all else from its
        begin."""
        token = "tok000000pack"
        submission = Path(layout.submission_dir(self.home, token))
        submission.mkdir(parents=True)
        began, asked = self.now + begin, {"nodes": 1, "gpus": gpus, "cpus": 2 * gpus}
        for index, name in enumerate(names):
            folder, (experiment, stem) = Path(layout.run_dir(self.home, name)), name.split("/")
            folder.mkdir(parents=True)
            self._put(folder / "spec.1.json", {
                "experiment": experiment, "stem": stem, "number": 0, "step": "train", "step_kind": "train", "seed": 0,
                "command": ["true"], "cwd": str(self.root), "output": "training", "params": {}, "tracker_id": "x",
            })  # fmt: skip
            claim = {"token": token, "revision": 1, "index": index, "output_dir": "/o", "log_dir": "/o", "t": began}
            self._put(folder / "submit.1.claim", claim)
        self._put(submission / "submission.json", {
            "token": token, "backend": "local", "cluster": "c", "job_name": f"pack.{token}", "runs": names, "t": began,
            "time_limit_s": 3600, "layout": "pack", "asked": asked, **processes.own_identity(),
        })  # fmt: skip
        self._put(submission / "send.0.outcome", {"kind": "accepted", "job_id": "9"})
        granted = {**asked, "time_limit_s": 3600, "started": began}
        granted |= {"submitted": began + submitted_s, "eligible": began + eligible_s}
        lines = [f"begin {began}", f"granted {json.dumps(granted)}"]
        for t, left in resizes:
            lines.append(f"resized {began + t} {json.dumps({'gpus': left, 'cpus': 2 * left})}")
        (submission / "allocation.9.0.1").write_text("\n".join([*lines, f"end {self.now + end}"]) + "\n")
        return f"{token}/allocation.9.0.1"

    def packed_attempt(
        self,
        key: str,
        name: str,
        number: int,
        begin: float,
        lasted: float,
        share: float = 1.0,
        staged_s: float = 0.0,
        gpu: str = "0",
    ) -> None:
        """An attempt of a run of `pack`; the last one of a run is its end."""
        t, token = self.now + begin, key.partition("/")[0]
        held = {"gpus": [gpu], "cpus": 2, "host": "n1", "slot": 0, "share": share}
        about = {"generation": 1, "revision": 1, "token": token, "job_id": "9", "held": held}
        start = {"t": t, "allocation": key, **about, **processes.own_identity()}
        data = [{"name": "d", "source": "s", "ready_s": staged_s}] if staged_s else []
        end = {"began": t, "ended": t + lasted, "duration_s": lasted, "exit_code": 0, "success": True, "data": data}
        put_attempt(Path(layout.run_dir(self.home, name)), number, start, {"attempt": number, **about, **end})

    def write_usage(self, name: str, use: dict[str, Any]) -> None:
        self._put(Path(layout.run_dir(self.home, name)) / "attempt.1.use", use)

    def many(self, count: int, experiment: str = "001_many") -> None:
        """A sweep in the middle of its life: most done, some running, some failed in two ways."""
        for number in range(count):
            name = f"{experiment}/000_train_lr{number % 50:02}_{number}"
            if number % 20 == 1:
                self.run(name, "failed", err=b"Traceback (most recent call last):\nRuntimeError: CUDA out of memory.\n")
            elif number % 50 == 2:
                self.run(name, "running", progress=f"{number % 100}/100")
            else:
                self.run(name, "completed")

    @staticmethod
    def _put(path: Path, record: dict[str, Any]) -> None:
        path.write_text(json.dumps({"schema": 1, **record}))


def usage(gpu: float | None = 70.0, memory_mb: float = 9000.0, idle_s: float = 0.0) -> dict[str, Any]:
    gpus = [] if gpu is None else [
        {"name": "H200", "mean_percent": gpu, "peak_percent": 100.0, "peak_memory_mb": 30000.0, "memory_mb": 141000.0,
         "idle_s": idle_s}
    ] * 2  # fmt: skip
    return {
        "every_s": 10, "duration_s": 1800.0, "cpu_s": 3600.0, "peak_memory_mb": memory_mb, "gpus": gpus,
        "gpu_problem": None if gpus else "no NVML on this node",
        "points": [[float(t), 2.0, memory_mb, gpu, 1000.0 if gpus else None] for t in range(0, 1800, 60)],
    }  # fmt: skip


def picture(folder: Path, now: float = NOW) -> MadeUp:
    """The project of the snapshots: small, with one of everything."""
    made = MadeUp(folder, now)
    (folder / "experiments" / "001_lr").mkdir(parents=True)
    for seed in range(3):
        made.run(f"001_lr/000_train_{seed}", "completed", metrics={"accuracy": 0.9 + seed / 100}, params={"lr": 0.1},
                 use=usage(), lasted=1800 + seed * 60)  # fmt: skip
        made.run(f"001_lr/001_train_{seed}", "completed", metrics={"accuracy": 0.8 + seed / 100}, params={"lr": 0.01},
                 use=usage(gpu=30.0, idle_s=600.0))  # fmt: skip
    oom = (
        b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        b"RuntimeError: CUDA out of memory. Tried to allocate %d MiB\n"
    )
    for seed in range(3, 5):
        made.run(f"001_lr/000_train_{seed}", "failed", err=oom % (seed * 20), lasted=60)
    made.run("001_lr/000_train_5", "oom", lasted=600)
    made.run("001_lr/000_train_6", "running", out=b"step 1\nstep 2\n", progress="82/200", began=-1200, use=usage())
    made.run("001_lr/000_train_7", "cancelled")
    made.run("002_new/000_train_0", "new")
    return made
