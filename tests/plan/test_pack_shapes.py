"""`shoal plan --shapes`: the seed's comparison, with its units kept apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project, assert_clear_error
from shoal.job.pack.allocator import GPU_PARTS
from shoal.plan.layouts import PackJob, assume_durations, compare_layouts, with_start_times
from shoal.sandbox import Sandbox
from shoal.views.plan import layout_flags
from waiting import wait_until

SEED = [PackJob(k, GPU_PARTS, expect_s=0.85 * k) for k in range(1, 21)]


def test_the_seeds_comparison_with_wall_time_and_gpu_time_apart() -> None:
    found = {shape.name: shape for shape in compare_layouts(SEED, []).shapes}
    used = sum(0.85 * k for k in range(1, 21)) / 3600
    for shape in found.values():
        assert shape.used == pytest.approx(used)
        assert shape.requested >= shape.held - 1e-9 or shape.name.endswith("pilots")
    assert found["array"].time_limit_s == 21 and found["array"].idle == pytest.approx(0)
    assert found["pack of 4"].makespan_s == pytest.approx(45.9)
    assert found["pack of 4"].time_limit_s == 56
    assert found["pack of 4"].requested * 3600 == pytest.approx(4 * 56)
    assert found["4 pilots"].idle == pytest.approx(0)


def test_what_an_allocation_pays_at_its_start_speaks_for_packs() -> None:
    without, paid = compare_layouts(SEED, []), compare_layouts(SEED, [], startup_s=480)
    assert without.cheapest in ("array", "job each", "pack of 1") or "pilots" in without.cheapest
    assert paid.cheapest == "pack of 1"
    assert any("480 s to start up" in text for text in paid.assumptions)


def test_a_queue_that_starts_late_loses_against_one_that_starts_now() -> None:
    found = compare_layouts(SEED, [])
    starts = {shape.name: (0.0 if "pilots" in shape.name else 3600.0) for shape in found.shapes}
    assert "pilots" in with_start_times(found, starts).fastest


def test_on_a_full_cluster_pilots_are_recommended_because_nothing_starts_together() -> None:
    found = compare_layouts(SEED, [])
    full = with_start_times(found, {shape.name: 7200.0 if "pack" in shape.name else 1800.0 for shape in found.shapes})
    assert full.full and full.fastest == "16 pilots" and any("is full" in text for text in full.assumptions)
    free = with_start_times(found, {shape.name: 0.0 for shape in found.shapes})
    assert not free.full and free.fastest in ("job each", "array")


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([PackJob(0, cost=1, limit_s=60), PackJob(1, cost=4, limit_s=60)], "in proportion to cost"),
        ([PackJob(0, limit_s=60), PackJob(1, limit_s=30)], "its whole time limit"),
        ([PackJob(0, cost=1), PackJob(1, cost=2)], "units of cost"),
        ([PackJob(0, expect_s=1), PackJob(1, expect_s=2)], "durations from earlier"),
    ],
)
def test_it_says_what_it_assumes(jobs: list[PackJob], said: str) -> None:
    known, assumptions = assume_durations(jobs, "earlier attempts")
    assert all(job.expect_s is not None for job in known) and said in assumptions[0]


@given(
    st.lists(
        st.tuples(st.floats(1, 1000), st.sampled_from([GPU_PARTS // 4, GPU_PARTS, 2 * GPU_PARTS])),
        min_size=1,
        max_size=40,
    )
)
def test_hours_add_up_in_every_shape(given_jobs: list[tuple[float, int]]) -> None:
    jobs = [PackJob(at, parts, expect_s=length) for at, (length, parts) in enumerate(given_jobs)]
    found = compare_layouts(jobs, [])
    work = sum(length * parts / GPU_PARTS for length, parts in given_jobs) / 3600
    for shape in found.shapes:
        assert shape.used == pytest.approx(work)
        assert shape.idle >= -1e-9
        assert shape.makespan_s >= max(length for length, _ in given_jobs) - 1e-6
    names = [shape.name for shape in found.shapes]
    assert found.fastest in names and found.cheapest in names


#: A cluster that shoal knows and this machine is not; plans need no Slurm.
ELSEWHERE = """
[clusters.c]
match = { host = "nowhere" }
gpus_per_node = 8
cpus_per_node = 64
[steps.ask]
command = ["python", "train.py", "{seed}"]
output = "ask"
request = { gpus = 1, cpus = 8, memory = "8G", time = "1h" }
"""


def test_runs_that_ask_for_cpus_memory_and_time_are_laid_out_and_compared(tmp_path: Path) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    page = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-7"\n')
    where = ("--on", "c", "--json")
    pack = project.shoal("submit", page, "--shape", "pack", "--gpus", 4, "--dry-run", *where).json["runs"][0]["request"]
    assert (pack["gpus"], pack["cpus"], pack["memory"]) == (4, 32, "32G")
    assert 2 * 3600 < pack["time_limit_s"] < 3 * 3600, "eight runs of an hour at most, four at a time"
    shapes = {shape["name"]: shape for shape in project.shoal("plan", page, "--shapes", *where).json["shapes"]}
    assert shapes["pack of 4"]["makespan_s"] == 2 * 3600 == shapes["4 pilots"]["makespan_s"]


def test_each_shape_says_what_asks_for_it_also_over_several_nodes() -> None:
    shapes = {shape.name: shape for shape in compare_layouts(SEED, []).shapes}
    said = {
        name: layout_flags(shapes[name], 8, False)
        for name in ("job each", "array", "8 pilots", "pack of 4", "pack of 16")
    }
    assert said == {
        "job each": "--shape job",
        "array": "--shape array",
        "8 pilots": "--pilots 8",
        "pack of 4": "--shape pack --gpus 4",
        "pack of 16": "--shape pack --nodes 2 --gpus 8",
    }
    assert layout_flags(shapes["pack of 16"], None, False) == "--shape pack --gpus 16"
    assert layout_flags(shapes["pack of 4"], None, True) == "--shape pack --slots 4"


@pytest.mark.parametrize("words", [("--gpus", 4), ("--shape", "array", "--time", "2h"), ("--shape", "job", "--bind")])
def test_flags_of_packs_without_a_pack_are_refused_and_not_forgotten(tmp_path: Path, words: tuple[object, ...]) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    page = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-1"\n')
    for command in ("submit", "plan"):
        refused = project.shoal(command, page, *words, "--on", "c", code=2)
        assert_clear_error(refused, 2, "is about a pack")
    assert not project.home.exists()


def test_pilots_with_slots_have_gpus_for_all_of_them(tmp_path: Path) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    page = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-7"\n')
    for words, gpus in (("--slots 2", 2), ("", 1), ("--slots 2 --gpus-per-run 0.5", 1), ("--gpus-per-run 0.25", 1)):
        asked = project.shoal("plan", page, "--pilots", 2, *words.split(), "--on", "c", "--json").json["runs"]
        assert asked[0]["request"]["gpus"] == gpus, words


def _sweep(project: Project, extra: str = "") -> Path:
    command = json.dumps([sys.executable, str(project.root / "train.py"), "{depth}"])
    text = (
        f'step = "train"\ncommand = {command}\n{extra}\n[sweep]\ndepth = "4:80:4"\n[request]\ngpus = 1\ntime = "20m"\n'
    )
    return project.write("experiments/002_depth/000_train.toml", text)


def test_the_command_names_the_best_shapes_and_changes_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    path = _sweep(project, 'cost = "depth"')
    done = project.shoal("plan", path, "--shapes", "--on", "local", "--json")
    names = [shape["name"] for shape in done.json["shapes"]]
    assert {"job each", "array", "pack of 4", "4 pilots"} <= set(names)
    assert set(done.json["best"]) == {"time", "cost"} and done.json["runs"] == 20
    table = project.shoal("plan", path, "--shapes", "--on", "local").out
    assert "assumes: durations in proportion to cost" in table and "for time:" in table
    assert not project.home.exists()


def test_without_any_idea_of_durations_it_says_what_to_write(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.script("001_a/000_train_0.sh", "train")
    assert_clear_error(
        project.shoal("plan", script, "--shapes", "--on", "local", code=2), 2, "how long these runs take"
    )


@pytest.mark.slurm
def test_slurm_is_asked_when_each_shape_would_start(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    done = project.shoal("plan", _sweep(project, 'cost = "depth"'), "--shapes", "--json")
    starts = {shape["name"]: shape["start_s"] for shape in done.json["shapes"]}
    assert starts["pack of 4"] is not None and starts["pack of 4"] < 3600
    assert starts["pack of 16"] is None, "no node has 16 GPUs"


@pytest.mark.slurm
def test_a_cluster_that_is_full_is_recognised(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    nodes = len(set(project.slurm("sinfo", "-h", "-N", "-o", "%N").split()))
    job = ("sbatch", "--exclusive", f"--nodes={nodes}", "--time=20", "--output=/dev/null", "--wrap=sleep 600")
    project.slurm(*job)
    wait_until(lambda: project.slurm("squeue", "-h", "-t", "R").strip(), 60, "somebody has the whole cluster")
    path = _sweep(project, 'cost = "depth"')
    table = project.shoal("plan", path, "--shapes").out
    assert "shoal submit FILE --pilots" in table and "the cluster is full" in table
