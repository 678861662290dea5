"""What runs use: sampled on every node, in packs too; GPUs through NVML, idle ones told; "no data" where there is none.

There is no GPU here, so a small library (nvml.c) answers in NVML's place; everything else is real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_up import NOW, MadeUp
from made_up import usage as made_up_usage
from project import Project, read_record
from shoal.job import usage, usage_readers
from shoal.kernel import processes, slurm
from shoal.kernel.records import AssignedResources, Start
from shoal.observe import usage as reading
from shoal.observe.run_files import RequestedResources
from shoal.sandbox import Sandbox
from shoal.views import status, why
from shoal.views.report.accounting import AttemptHistory
from shoal.views.terminal import Screen
from shoal.views.timeline import attempts_timeline
from shoal.views.tui.panes import tab_text
from waiting import wait_until

#: Burns a processor, and on a further node also holds 150 MB, until the file `go` is there.
BURN = """\
import os, time
held = bytearray(150 << 20 if int(os.environ.get("GROUP_RANK") or os.environ.get("NODE_RANK") or 0) else 1)
while not os.path.exists({go!r}):
    sum(range(100000))
"""


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for LD_LIBRARY_PATH."""
    return compile_nvml(tmp_path_factory.mktemp("nvml"))


def compile_nvml(folder: Path, *without: str) -> Path:
    """The library in a folder, complete or without some of its functions."""
    compiler = shutil.which("tcc") or shutil.which("cc")
    if compiler is None:
        pytest.fail("this needs a C compiler: apt-get install tcc", pytrace=False)
    source = Path(__file__).parents[1] / "nvml.c"
    flags = ["-shared", "-nostdlib", *(f"-D{name}=no_{name}" for name in without)]
    subprocess.run([compiler, *flags, "-o", folder / "libnvidia-ml.so.1", source], check=True, timeout=300)
    return folder


def gpu_env(fake_nvml: Path, busy: Path, percent: int) -> dict[str, str]:
    busy.write_text(str(percent))
    return {"LD_LIBRARY_PATH": str(fake_nvml), "FAKE_NVML": str(busy), "CUDA_VISIBLE_DEVICES": "0,1"}


def burning(folder: Path, cluster: Sandbox | None = None, toml: str = "") -> Project:
    project = Project(folder, cluster, toml=toml)
    project.write("burn.py", BURN.format(go=str(project.root / "go")))
    step = (
        f'\n[steps.burn]\ncommand = [{json.dumps(sys.executable)}, "-S", {json.dumps(str(project.root / "burn.py"))}]\n'
    )
    project.write("shoal.toml", (project.root / "shoal.toml").read_text() + step)
    return project


def beside(project: Project, done: Callable[[], object]) -> threading.Thread:
    """Let the program end when something is so; for runs on this machine, which the command waits for."""
    thread = threading.Thread(target=lambda: (wait_until(done, 60, "sampled"), project.write("go", "")))
    thread.start()
    return thread


@pytest.mark.slow
def test_gpus_are_read_through_nvml_and_shown_in_report_and_record(tmp_path: Path, fake_nvml: Path) -> None:
    project = burning(tmp_path)
    project.script("001_use/000_burn_0.sh", "burn --gres=gpu:2")

    def enough() -> bool:
        found = project.records("001_use/000_burn_0", "attempt.1.use")
        return any(one["cpu_s"] > 0.3 and len(one["points"]) > 2 for one in found)

    go = beside(project, enough)
    env = gpu_env(fake_nvml, tmp_path / "busy", 63)
    project.shoal("submit", "experiments/001_use", SHOAL_SAMPLE_S="0.2", environ=env)
    go.join(60)
    (record,) = project.records("001_use/000_burn_0", "attempt.1.use")
    assert [(gpu["name"], round(gpu["mean_percent"])) for gpu in record["gpus"]] == [("Paper GPU", 63)] * 2
    assert record["gpu_problem"] is None and record["gpus"][0]["peak_memory_mb"] == 10240
    assert record["cpu_s"] > 0.3 and record["peak_memory_mb"] > 5 and len(record["points"]) > 2
    attempt = project.shoal("report", "--json").json["runs"][0]["attempts"][0]
    assert attempt["mean_gpu_percent"] == pytest.approx(63) and attempt["nodes"][0]["gpu_idle_s"] == 0


@pytest.mark.slow
def test_idle_gpus_are_told_once_and_pointed_out(tmp_path: Path, fake_nvml: Path) -> None:
    told = tmp_path / "told"
    notify = f'\n[notify]\ncommand = "sh -c \'cat >> {told}\'"\non = ["idle"]\nidle_after = "1s"\n'
    project = burning(tmp_path, toml=notify)
    project.script("001_idle/000_burn_0.sh", "burn --gres=gpu:2")
    go = beside(project, lambda: told.exists() and told.read_text())
    env = gpu_env(fake_nvml, tmp_path / "busy", 0)
    project.shoal("submit", "experiments/001_idle", SHOAL_SAMPLE_S="0.2", environ=env)
    go.join(60)
    assert told.read_text().count("has left its GPUs on") == 1
    assert told.read_text().startswith("001_idle: 001_idle/000_burn_0 has left its GPUs on ")


def test_without_nvml_it_says_no_data_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", absent)
    assert usage_readers.open_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ([], "no NVML on this node")
    assert usage_readers.open_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ([], None), (
        "a run that asked for none misses nothing"
    )
    assert usage_readers.open_gpus({"SLURM_JOB_ID": "1"}) == ([], None)


def test_a_record_stays_small_and_idle_time_begins_anew_after_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    record = usage.UsageRecord(10.0, alone=False)
    gpu = {"name": "x", "used_mb": 1.0, "total_mb": 2.0}
    for second in range(5000):
        now[0] += 10
        busy = 50.0 if second == 4000 else 0.0
        record.add(usage_readers.ResourceUse(second * 5.0, 100.0), [{**gpu, "percent": busy}, {**gpu, "percent": 0.0}])
    found = record.as_json()
    assert len(found["points"]) <= 240 and found["points"][-1][0] == pytest.approx(50000, rel=0.01)
    assert found["gpu_idle_for_s"] == pytest.approx(9990) and found["gpus"][0]["idle_s"] == pytest.approx(49990)
    assert found["gpus"][1]["idle_s"] == pytest.approx(50000) and found["cpu_s"] == 4999 * 5.0
    record.add(usage_readers.ResourceUse(0.0, 1.0), [None, None])
    assert record.as_json()["gpu_idle_for_s"] == 0, "what cannot be read is not called idle"


def test_a_sampler_of_many_runs_writes_each_and_only_those_it_saw(tmp_path: Path) -> None:
    sampler, over = usage.UsageSampler({"SHOAL_SAMPLE_S": "0.05"}), threading.Event()
    thread = threading.Thread(target=sampler.run, args=(over,))
    paths = [str(tmp_path / "runs" / "e" / str(n) / "attempt.1.use") for n in range(3)]
    for path in paths[:2]:
        os.makedirs(os.path.dirname(path))
        sampler.add(path, {}, lambda: usage_readers.process_use(os.getpid(), {}))
    thread.start()
    wait_until(lambda: all(map(os.path.exists, paths[:2])), 20, "both are written")
    os.makedirs(os.path.dirname(paths[2]))
    os.unlink(paths[0])
    sampler.end(paths[0])
    over.set()
    thread.join(300)
    quick = usage.UsageSampler({})
    quick.add(paths[2], {}, lambda: usage_readers.process_use(os.getpid(), {}))
    quick.end(paths[2])
    quick.run(over)
    assert not os.path.exists(paths[2]), "a run that ended before a sample was taken leaves no file"
    found = [json.loads(Path(path).read_text()) for path in paths[:2]]
    assert all(one["peak_memory_mb"] > 5 and one["points"] for one in found)
    assert not usage.UsageSampler({"SHOAL_SAMPLE_S": "0"})._subjects


def test_samples_of_a_process_that_goes_on_as_another_run_are_that_runs(tmp_path: Path) -> None:
    """A job that takes a run over: each record has its own time, and no processor second is in both."""
    sampler, over = usage.UsageSampler({"SHOAL_SAMPLE_S": "0.05"}), threading.Event()
    paths = [tmp_path / "runs" / "e" / name / "attempt.1.use" for name in ("replacement", "run")]
    for path in paths:
        path.parent.mkdir(parents=True)
    used = [0.0]

    def look() -> usage_readers.ResourceUse:
        used[0] += 0.01
        return usage_readers.ResourceUse(used[0], 100.0)

    thread = threading.Thread(target=sampler.run, args=(over,))
    sampler.add(str(paths[0]), {}, look)
    thread.start()
    wait_until(paths[0].exists, 20, "a sample before the switch")
    sampler.move(str(paths[0]), str(paths[1]))
    wait_until(paths[1].exists, 20, "a sample after it")
    sampler.end(str(paths[1]))
    over.set()
    thread.join(300)
    first, second = (json.loads(path.read_text()) for path in paths)
    assert first["cpu_s"] > 0 and second["cpu_s"] > 0
    assert first["cpu_s"] + second["cpu_s"] == pytest.approx(used[0], abs=0.011), "one more look may be on its way"
    assert second["points"][0][1] < 10, "what was used before is no peak at the beginning"


def two_nodes(made: MadeUp, name: str, idle_for_s: float) -> None:
    made.run(name, "running", use=made_up_usage() | {"host": "gpu01"}, progress="3/9", began=-1200)
    folder = Path(made.home) / "runs" / name
    other = made_up_usage(gpu=0.0, memory_mb=20000.0, idle_s=900.0)
    gpus = [gpu | {"peak_percent": 0.0} for gpu in other["gpus"]]
    other |= {"host": "gpu02", "gpu_idle_for_s": idle_for_s, "gpus": gpus}
    (folder / "attempt.1.use1").write_text(json.dumps({"schema": 1, **other}))
    (folder / "attempt.1.use12x").write_text("{}")


def test_views_add_the_nodes_of_a_run_up_and_point_out_the_idle_one(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    two_nodes(made, "001_two/000_train_0", 1500.0)
    found = reading.read_usage(made.home, "001_two/000_train_0", 1)
    assert found is not None and [node.host for node in found.nodes] == ["gpu01", "gpu02"]
    assert (found.peak_memory_mb, found.gpu_percent, found.cpu_s) == (20000.0, 35.0, 7200.0)
    assert found.mean_cpus == pytest.approx(2.0), "per node, as CPUs are asked for"
    report = status.gather_status(made.home, clock=lambda: NOW)
    screen = Screen(tty=True, width=100)
    shown = "\n".join(status.status_lines(report, report.views, screen))
    assert "1 run with idle GPUs" in shown and "GPUs idle for 25m" in shown and "33%" in shown
    assert status.status_document(report)["runs"][0]["gpu_idle_s"] == 1500.0
    told = why.explain_run(made.home, "001_two/000_train_0", {}, clock=lambda: NOW)
    assert told.headline == "it runs, but its GPUs have done nothing for 25m"
    assert "on gpu02: 2.0 CPUs busy, 19.5 GB of memory, 2 GPUs at 0%" in told.evidence
    two_nodes(made, "001_two/000_train_1", 0.0)
    told = why.explain_run(made.home, "001_two/000_train_1", {}, clock=lambda: NOW)
    assert told.headline == "it runs, but 2 of its 4 GPUs have done nothing so far"
    lines = tab_text("metrics", made.home, report.views[0], report.details["001_two/000_train_0"])
    assert any(line.startswith("GPU      idle for 25m") for line in lines) and any("gpu01" in line for line in lines)


def test_gpu_memory_is_what_programs_have_as_in_nvidia_smi(tmp_path: Path, fake_nvml: Path) -> None:
    """A driver before 510 tells it only together with what it reserves for itself."""
    code = "import os; from shoal.job import usage_readers; print(usage_readers.open_gpus(os.environ)[0][0].read())"
    (tmp_path / "old").mkdir()
    for library, used in ((fake_nvml, 10240), (compile_nvml(tmp_path / "old", "nvmlDeviceGetMemoryInfo_v2"), 11264)):
        env = {**os.environ, **gpu_env(library, tmp_path / "busy", 40)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
        assert f"'used_mb': {used}.0, 'total_mb': 81920.0" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "missing",
    [
        ("nvmlInit_v2",),
        ("nvmlDeviceGetCount_v2",),
        ("nvmlDeviceGetHandleByIndex_v2",),
        ("nvmlDeviceGetUtilizationRates",),
        ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"),
    ],
)
def test_a_missing_nvml_function_costs_the_samples_only(missing: tuple[str, ...], tmp_path: Path) -> None:
    env = {**os.environ, **gpu_env(compile_nvml(tmp_path, *missing), tmp_path / "busy", 40)}
    code = (
        "import os; from shoal.job import usage_readers as readers; gpus, problem = readers.open_gpus(os.environ); "
        "print([gpu.read() for gpu in gpus], problem, readers.gpu_identity('0'))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    opens = missing[0] in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo")
    assert done.stdout.startswith("[None, None] None None" if opens else "[] NVML does not "), done.stdout


@pytest.mark.slow
def test_runs_share_a_gpu_where_nvml_does_not_tell_its_uuid(tmp_path: Path, fake_nvml: Path) -> None:
    project = burning(tmp_path)
    (project.root / "go").touch()
    env = gpu_env(fake_nvml, tmp_path / "busy", 40)
    words = ("--set", "k=1,2", "--gpus-per-run", "0.5", "--on", "local", "--", sys.executable, "-S", "burn.py", "{k}")
    project.shoal("pack", *words, environ=env)
    assert project.shoal("status", "--json").json["counts"] == {"completed": 2}


@pytest.mark.slow
def test_runs_of_a_pack_are_sampled(tmp_path: Path, fake_nvml: Path) -> None:
    project = burning(tmp_path)
    names = [f"001_p/000_pack_k{k}" for k in (1, 2)]
    go = beside(project, lambda: len(list((project.home / "runs").glob("*/*/attempt.1.use"))) == 2)
    env = gpu_env(fake_nvml, tmp_path / "busy", 40)
    words = ("--set", "k=1,2", "--slots", "2", "--on", "local", "--", sys.executable, "-S", "burn.py", "{k}")
    project.shoal("pack", *words, SHOAL_SAMPLE_S="0.2", environ=env)
    go.join(60)
    found = [read_record(path) for path in (project.home / "runs").glob("*/*/attempt.1.use")]
    assert len(found) == len(names)
    assert all(len(one["gpus"]) == 1 and one["gpus"][0]["mean_percent"] == pytest.approx(40) for one in found)
    assert all(one["peak_memory_mb"] > 5 and one["points"] for one in found)


@pytest.mark.slurm
@pytest.mark.parametrize("launch", ["srun", "torchrun"])
def test_every_node_of_a_run_tells_what_it_uses(tmp_path: Path, host_cluster: Sandbox, launch: str) -> None:
    project = burning(tmp_path, host_cluster)
    toml = (project.root / "shoal.toml").read_text()
    request = f'launch = "{launch}"\nrequest = {{ nodes = 2, gpus = 1, cpus = 2, time = "5m" }}\n'
    project.write("shoal.toml", toml + request)
    name = "001_two/000_burn_0"
    project.script(f"{name}.sh", "burn")
    project.shoal("submit", "experiments/001_two", SHOAL_SAMPLE_S="0.3")

    def both() -> list[dict[str, Any]]:
        found = project.records(name, "attempt.1.use*")
        if len(found) < 2 or any(one["cpu_s"] < 0.5 for one in found):
            return []
        return found if found[1]["peak_memory_mb"] > found[0]["peak_memory_mb"] + 80 else []

    first, second = wait_until(both, 120, "both nodes have told")
    assert first["host"] != second["host"]
    told = project.shoal("why", name, "--json").json["evidence"]
    assert sum("CPUs busy" in line for line in told) == 2 and any("GPU use: no data" in line for line in told)
    project.write("go", "")
    project.wait(name, "completed")
    document = project.shoal("report", "--json").json
    assert {node["host"] for node in document["nodes"]} == {first["host"], second["host"]}
    assert {bar["lane"].partition(":")[0] for bar in document["timeline"]} == {first["host"], second["host"]}
    assert "NODE" in project.shoal("report").out


@pytest.mark.slurm
def test_a_pack_on_slurm_tells_its_first_failure_and_its_end(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    told = tmp_path / "told"
    notify = f"\n[notify]\ncommand = \"sh -c '(cat; echo; echo ===) >> {told}'\"\n"
    project = Project(tmp_path, quiet_cluster, toml=notify)
    for seed in range(3):
        project.script(
            f"001_p/000_train_{seed}.sh", f"train --time=5 --mem=50 -- {'exit=3' if seed < 1 else 'wait=go'}"
        )
    project.shoal("submit", "experiments/001_p", "--layout", "pack", "--slots", "3", "--time", "5m")
    wait_until(lambda: told.exists() and told.read_text().count("===\n") == 1, 60, "the failure")
    assert "first failure: 001_p/000_train_0" in told.read_text() and "exit code 3" in told.read_text()
    project.write("go", "")
    wait_until(lambda: told.read_text().count("===\n") == 2, 60, "the end")
    assert "all runs have ended\n2 completed, 1 not" in told.read_text()


def test_a_node_has_slurms_name_in_every_lane_and_record() -> None:
    """Whether a run was sampled or too short for that, and also in a pack, whose job has several nodes."""
    start = Start(1, 1, 1, "t", "n1.cluster.example", 1, None, 0.0, "/o", "/l", node="n1", nodes="n[1-2]")
    assert start.place == "n[1-2]" and start._replace(nodes=None).place == "n1"
    assert (
        start._replace(held=AssignedResources(host="n2")).place == "n2"
        and start._replace(held=AssignedResources()).place == "n1"
    )
    assert processes.node_name({"SLURMD_NODENAME": "n1"}) == "n1" and processes.node_name({}) == processes.host_name()
    assert slurm.current_job({"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"})["node"] == "n1"

    def attempt(number: int, node: str | None) -> AttemptHistory:
        use = reading.AttemptUsage([reading.NodeUsage(every_s=1, duration_s=1, host=node)]) if node else None
        return AttemptHistory(
            f"e/r{number}", 1, "n1", None, number, number + 1, "completed", True, RequestedResources(gpus=1), None, use
        )

    by_lane = attempts_timeline([attempt(0, "n1"), attempt(1, None)]).by_lane()
    assert {lane: len(bars) for lane, bars in by_lane.items()} == {"n1:0": 2}
