"""Advice on what to request next time: from enough samples, with their number, and a line that works where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from made_up import NOW, MadeUp, usage
from project import Project
from shoal.model import RunSpec
from shoal.observe import AttemptUsage, RunView
from shoal.observe.run_files import AssignedResources, RequestedResources
from shoal.observe.usage import NodeUsage
from shoal.views.report.accounting import AttemptHistory, RunHistory, group_failures
from shoal.views.report.advice import MIN_RUNS, MIN_SAMPLES, advice_text, request_advice
from shoal.views.report.gather import gather_report

GPU = {"name": "H200", "mean_percent": 20.0, "peak_percent": 90.0, "peak_memory_mb": 9000.0, "memory_mb": 141000.0}


def attempt(number: int, samples: int, **changes: Any) -> AttemptHistory:
    """A run of 1 GPU, 16 CPUs and 64 GB, which needs less of all of them."""
    record = {
        "every_s": 10,
        "duration_s": 10.0 * samples,
        "cpu_s": 20.0 * samples,
        "peak_memory_mb": 8000,
        "gpus": [GPU],
    }
    use = AttemptUsage([msgspec.convert(record, NodeUsage)])
    asked = RequestedResources(nodes=1, gpus=1, cpus=16, memory_mb=65536)
    one = AttemptHistory(
        f"001_a/000_train_{number}", 1, "n", None, NOW, NOW + 600, "completed", True, asked, 14400, use
    )
    return one._replace(**changes)


def codes(attempts: list[AttemptHistory]) -> set[str]:
    return {one.code for one in request_advice(attempts)}


def test_few_samples_and_few_runs_are_no_reason_to_request_less() -> None:
    few = [attempt(0, MIN_SAMPLES - 1)]
    assert codes(few) == set()
    assert codes([attempt(0, MIN_SAMPLES)]) == {"memory_low", "cpus_low", "gpu_idle"}, "one run says nothing about time"
    assert "time_low" in codes([attempt(at, 1) for at in range(MIN_RUNS)])


def test_advice_says_what_it_rests_on() -> None:
    found = {one.code: one for one in request_advice([attempt(at, 100) for at in range(12)])}
    assert "(from 12 runs, 1,200 samples)" in found["memory_low"].sentence
    assert "(from 12 runs)" in found["time_low"].sentence
    assert "used (from 12 runs, 1,200 samples); two runs would fit on one GPU" in found["gpu_idle"].sentence
    assert (found["gpu_idle"].runs, found["gpu_idle"].samples) == (12, 1200)


def test_runs_that_share_a_gpu_are_not_advised_to_share_it() -> None:
    held = AssignedResources(slot=0, gpus=["0"], share=0.25, cpus=16, engine="1")
    shared = [attempt(at, 100, held=held, share=0.25, time_limit_s=None) for at in range(8)]
    assert "gpu_idle" not in codes(shared)
    alone = [one._replace(held=held, share=1.0) for one in shared]
    assert "gpu_idle" in codes(alone)
    flags = {one.code: one.flag for one in request_advice(shared)}
    assert flags["cpus_low"] == "--cpus-per-run=3", "a slot of a pack, and no task of Slurm"


def test_runs_on_several_gpus_do_not_fit_on_one() -> None:
    wide = [attempt(at, 100, asked=RequestedResources(nodes=1, gpus=4)) for at in range(3)]
    [found] = [one for one in request_advice(wide) if one.code == "gpu_idle"]
    assert "fit" not in found.sentence and found.flag is None


@pytest.mark.parametrize(
    ("changes", "file", "line", "place"),
    [
        ({"script": {"path": "job.sbatch"}}, None, "#SBATCH --mem=10G", "job.sbatch"),
        ({}, "experiments/001_a/000_train_0.sh", "train --mem=10G", "experiments/001_a/000_train_0.sh"),
        ({}, "experiments/001_a/000_train.toml", 'memory = "10G"', "[request] of experiments/001_a/000_train.toml"),
        ({}, None, 'memory = "10G"', "[steps.train.request]"),
    ],
)
def test_the_line_is_written_as_the_request_of_the_run_is(
    changes: dict[str, Any], file: str | None, line: str, place: str
) -> None:
    spec = RunSpec(
        experiment="001_a", stem="000_train_0", step="train", step_kind="train", seed=0, command=["x"], cwd="/",
        output="o", **changes,
    )  # fmt: skip
    found = {one.code: one for one in request_advice([attempt(at, 100) for at in range(3)], spec, file)}
    assert (found["memory_low"].line, found["memory_low"].place) == (line, place)
    assert advice_text(found["memory_low"]) == f"next time, in {place}: {line}"
    share = found["gpu_idle"].line
    assert share == (f"shoal submit {file} --layout=pack --gpus=1 --gpus-per-run=0.5" if file else "")


@pytest.mark.slow
def test_the_lines_of_a_sweep_file_work_when_they_are_pasted(tmp_path: Path) -> None:
    toml = """
[clusters.c]
match = { host = "nowhere" }
gpus_per_node = 8
[steps.ask]
command = ["python", "train.py", "{seed}"]
output = "ask"
"""
    project = Project(tmp_path, toml=toml)
    text = 'step = "ask"\nseeds = "0-2"\n[request]\ngpus = 1\n'
    path = project.write("experiments/001_a/000_ask.toml", text)
    spec = RunSpec(
        experiment="001_a", stem="000_ask_0", step="ask", step_kind="ask", seed=0, command=["x"], cwd=str(project.root),
        output="o",
    )  # fmt: skip
    name = "experiments/001_a/000_ask.toml"
    found = request_advice([attempt(at, 100) for at in range(3)], spec, name)
    share = next(one.line for one in found if one.code == "gpu_idle").split()
    packed = project.shoal(*share[1:], "--on", "c", "--dry-run", "--json").json["submissions"][0]
    assert (packed["layout"], packed["request"]["gpus"]) == ("pack", 1)
    lines = [one.line for one in found if one.place.startswith("[request]")]
    assert len(lines) == 3
    path.write_text(text + "\n".join(lines) + "\n")
    request = project.shoal("plan", path, "--on", "c", "--json").json["runs"][0]["request"]
    assert (request["memory"], request["cpus"], request["time"]) == ("10G", 3, "00:15:00")


def test_a_failure_costs_what_was_allocated_to_it(tmp_path: Path) -> None:
    """A job with 2 GPUs for 10 minutes, in which the run failed after 1."""
    made = MadeUp(tmp_path / "project")
    made.run("001_a/000_train_0", "failed", lasted=60, gpus=2, use=usage())
    [record] = Path(made.home, "submissions").glob("*/allocation.*")
    lines = record.read_text().splitlines()
    began = float(lines[0].split()[1])
    record.write_text("\n".join([*lines[:2], f"end {began + 600}"]) + "\n")
    report = gather_report(made.home, [], clock=lambda: NOW)
    [failure] = report.failures
    assert failure.gpu_hours == pytest.approx(2 * 600 / 3600, abs=1e-4)
    [one] = [attempt for run in json_of(report)["runs"] for attempt in run["attempts"]]
    assert one["allocated_gpu_hours"] == pytest.approx(2 * 600 / 3600, abs=1e-4)
    assert one["gpu_hours"] == pytest.approx(2 * 60 / 3600, abs=1e-4)


def test_a_run_whose_set_up_failed_is_a_failure_too() -> None:
    history = RunHistory(RunView(name="001_a/000_train_0", state="failed"), None, [])
    [failure] = group_failures([history], {}, {("001_a/000_train_0", 0): 0.5})
    assert (failure.times, failure.gpu_hours, failure.runs) == (1, 0.5, ["001_a/000_train_0"])


def json_of(report: Any) -> dict[str, Any]:
    from shoal.views.report.gather import report_document

    found: dict[str, Any] = json.loads(json.dumps(report_document(report)))
    return found
