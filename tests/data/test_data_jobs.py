"""Data in runs: a step names it, the agent stages it, the process finds it, the record tells it; here and on Slurm."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shoal.data
from conftest import cancel_all
from data_sets import SHOAL, contents, make_data, make_folder, with_data
from project import Project
from shoal.data.advise import BatchTimes, advise_loader, batch_times, measure_delivery, predict
from shoal.data.bench import BenchResult, BenchRow, drop_cache
from shoal.describe.steps import resolve_data
from shoal.job import cache
from shoal.job.run_data import DataWait
from shoal.sandbox import Sandbox
from staging_cases import Gate


def staged(project: Project, name: str) -> list[dict[str, Any]]:
    (end,) = project.records(name, "attempt.*.end")
    found: list[dict[str, Any]] = end["data"]
    return found


@pytest.mark.slow
def test_a_run_finds_its_data_and_its_record_tells_what_was_copied(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    project = Project(tmp_path)
    with_data(project, 'data = { images = "../data", labels = { path = "../src" } }')
    (tmp_path / "scratch").mkdir()
    for number in range(2):
        project.script(f"001_a/00{number}_train_0.sh", f"train -- print={number}")
    project.shoal("submit", "experiments/001_a", SHOAL_SCRATCH=str(tmp_path / "scratch"))
    env = project.marks("001_a/000_train_0")[0]["env"]
    assert contents(Path(env["SHOAL_DATA_IMAGES"])) == contents(data)
    assert contents(Path(env["SHOAL_DATA_LABELS"])) == contents(tmp_path / "src")
    assert json.loads(env["SHOAL_DATA_SOURCES"])[env["SHOAL_DATA_IMAGES"]] == str(data)
    first, second = (staged(project, f"001_a/00{number}_train_0") for number in range(2))
    assert [record["how"] for record in first] == ["staged", "staged"]
    assert first[1]["copied_bytes"] == first[1]["bytes"] == sum(map(len, contents(tmp_path / "src").values()))
    assert [(record["how"], record["copied_bytes"]) for record in second] == [("shared", 0), ("shared", 0)]
    assert {record["name"] for record in first} == {"images", "labels"}
    report = project.shoal("report", "--json").json["data"]
    assert [(one["name"], one["times"], one["copied_bytes"]) for one in report] == [
        (record["name"], 2, record["bytes"]) for record in first
    ]
    assert [one["saved_bytes"] for one in report] == [record["bytes"] for record in first]
    assert "images" in project.shoal("report").out


@pytest.mark.slow
def test_without_scratch_a_run_reads_the_source_and_says_so(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    project = Project(tmp_path)
    with_data(project, 'data = { images = "../data" }')
    project.script("001_a/000_train_0.sh", "train")
    done = project.shoal("submit", "experiments/001_a", SHOAL_SCRATCH="", TMPDIR="", SLURM_TMPDIR="")
    assert project.marks("001_a/000_train_0")[0]["env"]["SHOAL_DATA_IMAGES"] == str(data)
    (record,) = staged(project, "001_a/000_train_0")
    assert record["how"] == "source" and "SHOAL_SCRATCH" in record["note"]
    assert "read from the source" in done.err


@pytest.mark.slow
def test_a_run_whose_data_is_not_there_fails_before_it_starts(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with_data(project, 'data = { images = "../nowhere" }')
    project.script("001_a/000_train_0.sh", "train")
    project.shoal("submit", "experiments/001_a", code=None, SHOAL_SCRATCH=str(tmp_path))
    assert project.marks("001_a/000_train_0") == []
    (end,) = project.records("001_a/000_train_0", "attempt.*.end")
    assert end["problem"].startswith("the data cannot be used: ") and "nowhere cannot be read" in end["problem"]
    assert project.status()["001_a/000_train_0"]["state"] == "failed"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('data = { "a b" = "x" }', "'a b' cannot be the name of a data set"),
        ('data = { a = "" }', "data.a = '': expected a string that is not empty"),
        ("data = { a = 3 }", "invalid steps.train.data.a = 3: expected a string"),
        ('data = { a = { path = "x", wait = "long" } }', "data.a.wait = 'long': expected one of all, first"),
        ('data = { a = { paht = "x" } }', "paht"),
        ('data = "x"', "invalid steps.train.data = 'x': expected a table"),
    ],
)
def test_a_mistake_in_the_data_of_a_step_is_told_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    project = Project(tmp_path)
    with_data(project, line)
    project.script("001_a/000_train_0.sh", "train")
    done = project.shoal("plan", "experiments/001_a", code=2)
    assert said in done.err and "shoal.toml:" in done.err


@pytest.mark.slow
def test_the_data_of_a_run_is_part_of_what_it_is(tmp_path: Path) -> None:
    assert resolve_data({"a": {"path": "x/../y", "wait": "first"}}, "/root")["a"]["path"] == "/root/y"
    make_data(tmp_path)
    project = Project(tmp_path)
    project.script("001_a/000_train_0.sh", "train")
    project.shoal("submit", "experiments/001_a")
    with_data(project, 'data = { images = "../data" }')
    again = project.shoal("submit", "experiments/001_a", code=None)
    assert len(project.marks("001_a/000_train_0")) == 1 or "differ" in again.err + again.out


@pytest.mark.slow
def test_a_training_begins_before_staging_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from shoal.data.for_torch import Loader
    from shoal.job.staging import Stage

    data = make_data(tmp_path)
    (tmp_path / "scratch").mkdir()
    gate = Gate(monkeypatch)
    stage = Stage("images", str(data), {"SHOAL_SCRATCH": str(tmp_path / "scratch")}, threads=1, wait="first")
    stage.begin()
    gate.let(2)
    place = stage.wait()
    shards = len(json.loads((data / "manifest.json").read_text())["shards"])

    def decode(sample: tuple[str, bytes, int]) -> tuple[str, torch.Tensor, int]:
        return sample[0], torch.frombuffer(bytearray(sample[1][:64]), dtype=torch.uint8).float() / 255, sample[2]

    loader = Loader(shoal.data.open(place, fields=("__key__", "jpg", "cls"), transform=decode), batch_size=4, seed=0)
    model = torch.nn.Linear(64, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: Counter[str] = Counter()
    here_at_first = None
    for names, images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch says nothing
        optimizer.step()
        seen.update(names)
        if here_at_first is None:
            here_at_first = sum(name.endswith(".tar") for name in os.listdir(place))
            gate.open()
    stage.join()
    stage.close()
    assert here_at_first is not None and here_at_first < shards
    assert len(seen) == 200 and set(seen.values()) == {1}


@pytest.fixture
def node_scratch(tmp_path: Path, quiet_cluster: Sandbox) -> str:
    """A profile of the sandbox whose nodes have a scratch folder each, as real nodes do; they share this machine's."""
    name = next(
        line.split("=")[1].strip()
        for line in quiet_cluster.run("scontrol", "show", "config").stdout.splitlines()
        if line.startswith("ClusterName")
    )
    return (
        f'\n[clusters.here]\nmatch = {{ cluster = "{name}" }}\n'
        f'setup = ["export SHOAL_SCRATCH={tmp_path}/scratch/$SLURMD_NODENAME", "mkdir -p $SHOAL_SCRATCH"]\n'
    )


def nodes_of(cluster: Sandbox) -> list[str]:
    return sorted(cluster.run("sinfo", "-h", "-N", "-o", "%N").stdout.split())


@pytest.mark.slurm
def test_eight_jobs_on_two_nodes_share_one_copy_per_node(
    tmp_path: Path, quiet_cluster: Sandbox, node_scratch: str
) -> None:
    data = make_data(tmp_path)
    project = Project(tmp_path, quiet_cluster, toml=node_scratch)
    with_data(project, f'data = {{ images = "{data}" }}')
    kept, others = sorted(set(nodes_of(quiet_cluster)))[:2], sorted(set(nodes_of(quiet_cluster)))[2:]
    for number in range(8):
        project.script(
            f"001_a/{number:03d}_train_0.sh",
            f"train --time=5 --mem=100M --gres=gpu:1 --exclude={','.join(others)} -- wait=go",
        )
    names = [f"001_a/{number:03d}_train_0" for number in range(8)]
    project.shoal("submit", "experiments/001_a")
    for name in names:
        project.wait_started(name)
    (project.root / "go").touch()
    for name in names:
        project.wait(name, "completed")
    records = [record for name in names for record in staged(project, name)]
    assert len(records) == 8
    paths = Counter(record["path"] for record in records)
    assert sorted(path.split("/scratch/")[1].split("/")[0] for path in paths) == kept
    assert sorted(paths.values()) == [4, 4]
    size = records[0]["bytes"]
    assert sum(record["copied_bytes"] for record in records) == 2 * size
    for path in paths:
        assert contents(Path(path)) == contents(data)


@pytest.mark.slurm
def test_scratch_that_a_person_exported_reaches_the_job_before_that_of_the_profile(
    tmp_path: Path, quiet_cluster: Sandbox, node_scratch: str
) -> None:
    data = make_data(tmp_path)
    profile = node_scratch[: node_scratch.index("setup =")] + f'scratch = "{tmp_path}/nodes/$SLURMD_NODENAME"\n'
    project = Project(tmp_path, quiet_cluster, toml=profile)
    with_data(project, f'data = {{ images = "{data}" }}')
    for folder in ("mine", *(f"nodes/{name}" for name in nodes_of(quiet_cluster))):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for number, scratch in (
        ("000", {}),
        ("001", {"SHOAL_SCRATCH": str(tmp_path / "mine"), "SHOAL_SCRATCH_LIMIT": "1"}),
    ):
        name = f"001_a/{number}_train_0"
        script = project.script(f"{name}.sh", "train --time=5 --mem=100M")
        project.shoal("submit", script, environ=scratch)
        project.wait(name, "completed")
        log = project.shoal("logs", name, "--slurm").out
        if not scratch:
            places = [f"{tmp_path}/nodes/{node}/shoal-data" for node in nodes_of(quiet_cluster)]
            assert any(f"images goes to {place}, from SHOAL_SCRATCH" in log for place in places)
            assert staged(project, name)[0]["how"] == "staged"
        else:
            assert f"images goes to {tmp_path}/mine/shoal-data, from SHOAL_SCRATCH" in log
            assert "no room for" in log, "the limit reached the job"


@pytest.mark.slurm
def test_every_node_of_a_job_gets_the_data(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    """The sandbox's nodes share one disk, so the second node finds what the first one copied, and says so."""
    data = make_data(tmp_path)
    project = Project(tmp_path, quiet_cluster)
    with_data(project, f'data = {{ images = {{ path = "{data}", wait = "all" }} }}')
    (tmp_path / "scratch").mkdir()
    project.script("001_a/000_train_0.sh", "train --nodes=2 --ntasks-per-node=1 --time=5 --mem=100M -- wait=go")
    project.shoal("submit", "experiments/001_a", SHOAL_SCRATCH=str(tmp_path / "scratch"))
    place = project.wait_started("001_a/000_train_0")["env"]["SHOAL_DATA_IMAGES"]
    assert contents(Path(place)) == contents(data)
    assert cache.is_locked(os.path.join(os.path.dirname(place).replace("/objects/", "/use/")))
    (project.root / "go").touch()
    project.wait("001_a/000_train_0", "completed")
    here, there = staged(project, "001_a/000_train_0")
    assert "node" not in here and there["node"] in nodes_of(quiet_cluster)
    assert here["copied_bytes"] + there["copied_bytes"] == here["bytes"]
    assert not list(project.root.rglob("data-1"))
    assert not cache.is_locked(os.path.join(os.path.dirname(place).replace("/objects/", "/use/")))


@pytest.mark.slurm
def test_bench_measures_with_a_job_array_that_starts_in_step(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    (tmp_path / "scratch").mkdir()
    words = [
        "--storage",
        tmp_path,
        "--scratch",
        tmp_path / "scratch",
        "--files",
        40,
        "--file-size",
        5,
        "--readers",
        "3",
        "--repeats",
        "2",
    ]
    done = project.shoal("data", "bench", *words, "--slurm", "--json", "--", "--time=5", "--mem=200M")
    rows = done.json["rows"]
    assert [(row["method"], row["readers"]) for row in rows] == [("folder", 3), ("tar", 3), ("shards", 3)]
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 and row["estimate_s"] is None for row in rows)
    assert all(sum(row["nodes"].values()) == 3 and set(row["nodes"]) <= set(nodes_of(quiet_cluster)) for row in rows)
    assert os.listdir(tmp_path / "scratch") == []
    assert not list(tmp_path.glob("shoal-bench-*"))
    cancel_all(quiet_cluster)


@pytest.mark.slow
def test_bench_runs_here_and_draws_a_picture(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (tmp_path / "scratch").mkdir()
    words = [
        "--storage",
        tmp_path,
        "--scratch",
        tmp_path / "scratch",
        "--files",
        30,
        "--file-size",
        5,
        "--readers",
        "1,2",
    ]
    done = project.shoal("data", "bench", *words, "--picture", tmp_path / "bench.svg", "--estimate", 10)
    lines = done.out.splitlines()
    assert "share its cores, link, memory and scratch disk" in lines[1] and f"2 on {os.uname().nodename}" in lines[1]
    assert [line.split("\t")[:2] for line in lines[4:-1]] == [
        [method, readers] for readers in "12" for method in ("folder", "tar", "shards")
    ]
    assert all(re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", line.split("\t")[2]) for line in lines[4:-1])
    assert {line.split("\t")[-1] for line in lines[4:-1]} == {"-"}, "no 10 GB from a fraction of a second"
    assert "nothing is estimated from less than 3 s; try --files " in lines[-1]
    assert (tmp_path / "bench.svg").read_text().count("<rect") == 6
    assert sorted(os.listdir(tmp_path)) == ["bench.svg", "home", "project", "scratch"]
    assert project.shoal("data", "bench", "--storage", tmp_path / "no", code=2).err.startswith(
        "error: there is no folder"
    )


ADVISED = """
import sys, time, torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, number):
        time.sleep(float(sys.argv[1]))
        return torch.zeros(4)

for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=int(sys.argv[3])):
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item_s", "step_s", "workers", "bound"), [(0.01, 0.001, 1, "loader"), (0.0001, 0.3, 1, "model")]
)
def test_advise_watches_a_training_and_tells_who_waits(
    tmp_path: Path, item_s: float, step_s: float, workers: int, bound: str
) -> None:
    project = Project(tmp_path)
    project.write("advised.py", ADVISED)
    words = [sys.executable, project.root / "advised.py", item_s, step_s, workers]
    advice = project.shoal("data", "advise", "--batches", 20, "--json", "--", *words).json
    assert advice["bound"] == bound
    assert advice["times"]["batch"] == 4 and advice["times"]["workers"] == workers
    assert advice["times"]["prep_s"] >= 4 * item_s and advice["times"]["step_s"] >= step_s
    if bound == "loader":
        assert advice["workers"] > 10 and any(
            "most likely for storage: write shards" in said for said in advice["sentences"]
        )


@pytest.mark.slow
def test_advise_takes_a_step_time_and_a_decoder_and_refuses_to_guess(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    project = Project(tmp_path)
    project.write("mine.py", "import time\ndef decode(sample):\n    time.sleep(0.002)\n    return len(sample[0])\n")
    words = ["data", "advise", data, "--field", "jpg", "--decode", "mine:decode", "--batch", 8]
    advice = project.shoal(*words, "--step-time", 0.001, "--json").json
    assert advice["bound"] == "loader" and advice["delivery"]["prep_per_s"] < 500 < advice["delivery"]["read_per_s"]
    assert project.shoal(*words[:3], "--step-time", 60, "-q").out == "model\n"
    assert "nothing says how fast the model is" in project.shoal("data", "advise", data, code=2).err
    assert (
        "cannot be loaded" in project.shoal("data", "advise", data, "--decode", "mine:no", "--step-time", 1, code=2).err
    )
    broken = project.shoal("data", "advise", "--", sys.executable, "-c", "raise SystemExit(3)", code=1)
    assert "exit code 3" in broken.err


@pytest.mark.slow
def test_packed_runs_share_what_the_first_of_them_staged(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    project = Project(tmp_path)
    with_data(project, 'data = { images = { path = "../data", wait = "all" } }')
    (tmp_path / "scratch").mkdir()
    for number in range(3):
        project.script(f"001_a/00{number}_train_0.sh", f"train -- print={number}")
    project.shoal("submit", "experiments/001_a", "--layout", "pack", SHOAL_SCRATCH=str(tmp_path / "scratch"))
    names = [f"001_a/00{number}_train_0" for number in range(3)]
    for name in names:
        env = project.marks(name)[0]["env"]
        assert contents(Path(env["SHOAL_DATA_IMAGES"])) == contents(data)
    records = [record for name in names for record in staged(project, name)]
    assert len(records) == 3
    assert sorted(record["copied_bytes"] for record in records) == [0, 0, records[0]["bytes"]]


def test_a_long_measurement_is_estimated_with_its_spread() -> None:
    row = BenchRow("shards", 1, [3.0, 4.0, 3.5], [0.1, 0.1, 0.2], 500_000_000, {"n1": 1}, True)
    assert row.estimate_s(1) == [6.0, 8.0, 7.0]
    assert row._replace(seconds=[2.9, 4.0]).estimate_s(1) is None
    bench = BenchResult("/from", "/to", 5000, 500_000_000, [row, row._replace(seconds=[1.0], cold=None)])
    assert bench.cold is None and bench.enough_files == 23_000


def test_advise_says_warm_or_cold_as_it_was_and_decoding_only_if_something_was_decoded(tmp_path: Path) -> None:
    data = shoal.data.open(str(make_data(tmp_path)), fields=("jpg",))
    data.batch(range(len(data)))
    warm = measure_delivery(data, 8, seconds=0.2)
    assert warm.in_memory == 1.0 and warm.decode_per_s is None and not warm.staged
    times = BatchTimes(step_s=0.01, prep_s=0.001, batch=8, workers=1)
    (line,) = [said for said in advise_loader(times, 2, warm).sentences if "reading gives" in said]
    assert line.endswith("(warm cache)") and "decoding" not in line
    cold = warm._replace(in_memory=0.0, decode_per_s=5.0)
    assert any(said.endswith("(cold cache), with decoding 5") for said in advise_loader(times, 2, cold).sentences)
    half, unknown = (advise_loader(times, 2, warm._replace(in_memory=share)).sentences[-1] for share in (0.4, None))
    assert "(40% of it cached)" in half and "does not tell" in unknown


def test_advise_sees_a_cold_cache(tmp_path: Path) -> None:
    make_folder(tmp_path / "src", 200, size=100_000)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "data"))
    data = shoal.data.open(str(tmp_path / "data"), fields=("jpg",))
    drop_cache(str(tmp_path / "data"))
    if data.table.in_memory([5, 100, 150]) != [False] * 3:
        pytest.skip("this file system does not forget what it has in memory")
    drop_cache(str(tmp_path / "data"))
    found = measure_delivery(data, 64, seconds=0.001)
    assert found.in_memory is not None and found.in_memory < 1


def test_advise_gives_no_advice_that_is_followed_already(tmp_path: Path) -> None:
    slow = BatchTimes(step_s=0.001, prep_s=0.2, batch=8, workers=2, cpu_share=0.8)
    assert not any("use " in said for said in advise_loader(slow, 2).sentences), (
        "there are two workers on two cores already"
    )
    waiting = BatchTimes(step_s=0.001, prep_s=0.2, batch=8, workers=2, cpu_share=0.1)
    told = {
        data: "".join(advise_loader(waiting._replace(data=data), 2).sentences) for data in ("", "sharded", "staged")
    }
    assert "write shards (shoal data shard) and stage them" in told[""]
    assert "stage the shards" in told["sharded"] and "write shards" not in told["sharded"]
    assert "staged already" in told["staged"] and "write shards" not in told["staged"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sharded", "staged"])
def test_advise_knows_what_a_loader_of_shoal_reads(tmp_path: Path, kind: str) -> None:
    data = make_data(tmp_path)
    project = Project(tmp_path)
    project.write("read.py", READS_SHARDS)
    (tmp_path / "scratch").mkdir()
    words = [sys.executable, project.root / "read.py"]
    if kind == "staged":
        words = [*SHOAL, "data", "stage", data, "-q", "--", *words]
    env = {"SHOAL_SCRATCH": str(tmp_path / "scratch"), "SHOAL_DATA": str(data)}
    advice = project.shoal("data", "advise", "--batches", 8, "--json", "--", *words, environ=env).json
    assert advice["times"]["data"] == kind


READS_SHARDS = """
import os, time
import shoal.data
from shoal.data.for_torch import Loader

loader = Loader(shoal.data.open(os.environ["SHOAL_DATA"], fields=("cls",)), batch_size=4)
for epoch in range(4):
    for batch in loader:
        time.sleep(0.001)
"""


def test_advise_takes_out_what_other_programs_cost_and_says_so() -> None:
    """A worker that needs 48 ms of CPU for a batch and a model of 80 ms, on cores that are contended or not."""

    def records(prep_queued_s: float, step_queued_s: float, wait_s: float) -> list[dict[str, Any]]:
        prep = {"kind": "prep", "s": 0.048 + prep_queued_s, "cpu_s": 0.048, "queued_s": prep_queued_s}
        step = {"kind": "batch", "workers": 1, "size": 16, "cpu_s": 0.001, "queued_s": step_queued_s}
        return [prep, {**step, "wait_s": wait_s, "step_s": 0.08 + step_queued_s}] * 10

    free, contended = batch_times(records(0.0, 0.0, 0.001)), batch_times(records(0.1, 0.02, 0.05))
    assert free is not None and contended is not None
    quiet, busy = advise_loader(free, 2), advise_loader(contended, 2)
    assert (quiet.bound, busy.bound) == ("model", "model")
    assert busy.predicted == pytest.approx(quiet.predicted) and quiet.predicted[1] == pytest.approx(12.5)
    assert contended.contention == pytest.approx(0.12 / 0.248) and contended.cpu_share == pytest.approx(1.0)
    assert "contended" in busy.sentences[0] and "48%" in busy.sentences[0]
    assert not any("contended" in said for said in quiet.sentences)


def test_advise_counts_the_cpu_work_of_the_model_too() -> None:
    times = BatchTimes(step_s=0.05, prep_s=0.06, batch=8, workers=1, step_cpu_s=0.05)
    assert predict(times, 8, cores=2) == pytest.approx(1 / 0.055)
    assert predict(times, 8, cores=16) == pytest.approx(20.0)


def test_a_run_that_waits_for_its_data_is_stopped_at_once_and_not_by_a_warning() -> None:
    woken, rope = os.pipe()
    try:
        waiting = DataWait(-1, rope)
        waiting.signal(signal.SIGUSR1)
        assert waiting.poll() is None
        waiting.signal(signal.SIGTERM)
        assert waiting.poll() == -signal.SIGTERM and os.read(woken, 1), "the loop wakes up to see it"
    finally:
        os.close(woken)
        os.close(rope)
