"""`shoal plan --layouts`: the seed's comparison, with its units kept apart."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project, assert_clear_error
from shoal.actions.compare_layouts import layout_flags
from shoal.job.pack.allocator import GPU_PARTS
from shoal.plan.layouts import PackJob, assume_durations, compare_layouts, with_start_times
from shoal.sandbox import Sandbox
from shoal.units import format_duration, format_hours, parse_duration_s
from waiting import wait_until

SEED = [PackJob(k, GPU_PARTS, expect_s=0.85 * k) for k in range(1, 21)]


def test_the_seeds_comparison_with_wall_time_and_gpu_time_apart() -> None:
    found = {layout.name: layout for layout in compare_layouts(SEED, []).layouts}
    runs = sum(0.85 * k for k in range(1, 21)) / 3600
    for layout in found.values():
        assert layout.runs == pytest.approx(runs)
        assert layout.allocated == pytest.approx(layout.runs + layout.overhead)
    assert found["array"].overhead == pytest.approx(0) and found["array"].gpus_at_once == 20
    assert found["pack of 4"].makespan_s == pytest.approx(45.9)
    assert found["pack of 4"].allocated * 3600 == pytest.approx(4 * 45.9)
    assert found["4 pilots"].overhead == pytest.approx(0)


def test_on_a_small_cluster_jobs_and_pilots_wait_for_each_other() -> None:
    wide = {layout.name: layout for layout in compare_layouts(SEED, []).layouts}
    small = {layout.name: layout for layout in compare_layouts(SEED, [], max_gpus=4).layouts}
    assert wide["array"].makespan_s == pytest.approx(17) and small["array"].gpus_at_once == 4
    assert small["array"].makespan_s >= sum(0.85 * k for k in range(1, 21)) / 4
    assert small["4 pilots"].makespan_s == pytest.approx(wide["4 pilots"].makespan_s)
    assert "pack of 8" not in small and "8 pilots" not in small
    alone = compare_layouts(SEED, [], one_by_one=True).layouts
    assert [layout.name for layout in alone][:2] == ["job per run", "pack of 1"]
    assert alone[0].makespan_s == pytest.approx(sum(0.85 * k for k in range(1, 21)))


def test_what_an_allocation_pays_at_its_start_speaks_for_packs() -> None:
    without, paid = compare_layouts(SEED, []), compare_layouts(SEED, [], startup_s=480)
    assert without.cheapest in ("array", "job per run", "pack of 1") or "pilots" in without.cheapest
    assert paid.cheapest == "pack of 1"
    assert any("480 s to start up" in text for text in paid.assumptions)


def test_a_queue_that_starts_late_loses_against_one_that_starts_now() -> None:
    found = compare_layouts(SEED, [])
    starts = {layout.name: (0.0 if "pilots" in layout.name else 3600.0) for layout in found.layouts}
    assert "pilots" in with_start_times(found, starts).fastest


def test_on_a_full_cluster_pilots_are_recommended_because_nothing_starts_together() -> None:
    found = compare_layouts(SEED, [])
    full = with_start_times(
        found, {layout.name: 7200.0 if "pack" in layout.name else 1800.0 for layout in found.layouts}
    )
    assert full.full and full.fastest == "16 pilots" and any("is full" in text for text in full.assumptions)
    free = with_start_times(found, {layout.name: 0.0 for layout in found.layouts})
    assert not free.full and free.fastest in ("job per run", "array")


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
def test_hours_add_up_in_every_layout(given_jobs: list[tuple[float, int]]) -> None:
    jobs = [PackJob(at, parts, expect_s=length) for at, (length, parts) in enumerate(given_jobs)]
    found = compare_layouts(jobs, [])
    work = sum(length * parts / GPU_PARTS for length, parts in given_jobs) / 3600
    for layout in found.layouts:
        assert layout.runs == pytest.approx(work)
        assert layout.overhead >= -1e-9
        assert layout.makespan_s >= max(length for length, _ in given_jobs) - 1e-6
    names = [layout.name for layout in found.layouts]
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
    sweep_file = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-7"\n')
    where = ("--on", "c", "--json")
    pack = project.shoal("submit", sweep_file, "--layout", "pack", "--gpus", 4, "--dry-run", *where).json["runs"][0][
        "request"
    ]
    assert (pack["gpus"], pack["cpus"], pack["memory"]) == (4, 32, "32G")
    assert 2 * 3600 < pack["time_limit_s"] < 3 * 3600, "eight runs of an hour at most, four at a time"
    layouts = {
        layout["name"]: layout for layout in project.shoal("plan", sweep_file, "--layouts", *where).json["layouts"]
    }
    assert layouts["pack of 4"]["makespan_s"] == 2 * 3600 == layouts["4 pilots"]["makespan_s"]


def test_each_layout_says_what_asks_for_it_also_over_several_nodes() -> None:
    layouts = {layout.name: layout for layout in compare_layouts(SEED, []).layouts}
    said = {
        name: layout_flags(layouts[name], 8, False)
        for name in ("job per run", "array", "8 pilots", "pack of 4", "pack of 16")
    }
    assert said == {
        "job per run": "--layout job",
        "array": "--layout array",
        "8 pilots": "--pilots 8",
        "pack of 4": "--layout pack --gpus 4",
        "pack of 16": "--layout pack --nodes 2 --gpus 8",
    }
    assert layout_flags(layouts["pack of 16"], None, False) == "--layout pack --gpus 16"
    assert layout_flags(layouts["pack of 4"], None, True) == "--layout pack --slots 4"


@pytest.mark.parametrize("words", [("--gpus", 4), ("--layout", "array", "--time", "2h"), ("--layout", "job", "--bind")])
def test_flags_of_packs_without_a_pack_are_refused_and_not_forgotten(tmp_path: Path, words: tuple[object, ...]) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    sweep_file = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-1"\n')
    for command in ("submit", "plan"):
        refused = project.shoal(command, sweep_file, *words, "--on", "c", code=2)
        assert_clear_error(refused, 2, "applies to packs only")
    assert not project.home.exists()


@pytest.mark.slow
def test_pilots_with_slots_have_gpus_for_all_of_them(tmp_path: Path) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    sweep_file = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-7"\n')
    for words, gpus in (("--slots 2", 2), ("", 1), ("--slots 2 --gpus-per-run 0.5", 1), ("--gpus-per-run 0.25", 1)):
        asked = project.shoal("plan", sweep_file, "--pilots", 2, *words.split(), "--on", "c", "--json").json["runs"]
        assert asked[0]["request"]["gpus"] == gpus, words


def _sweep(project: Project, extra: str = "") -> Path:
    command = json.dumps([sys.executable, str(project.root / "train.py"), "{depth}"])
    text = (
        f'step = "train"\ncommand = {command}\n{extra}\n[sweep]\ndepth = "4:80:4"\n[request]\ngpus = 1\ntime = "20m"\n'
    )
    return project.write("experiments/002_depth/000_train.toml", text)


@pytest.mark.slow
def test_the_command_names_the_best_layouts_and_changes_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path)
    path = _sweep(project, 'cost = "depth"')
    done = project.shoal("plan", path, "--layouts", "--on", "local", "--json")
    names = [layout["name"] for layout in done.json["layouts"]]
    assert names[0] == "job per run" and all(name.startswith("pack of") for name in names[1:]), "no Slurm, no arrays"
    assert set(done.json["best"]) == {"time", "cost"} and done.json["runs"] == 20
    table = project.shoal("plan", path, "--layouts", "--on", "local").out
    assert "assumes: durations in proportion to cost" in table and "for time:" in table
    path.write_text(path.read_text().replace("gpus = 1\n", ""))
    done = project.shoal("plan", path, "--layouts", "--on", "local", "--json")
    assert done.json["unit"] == "slot-hours", "no GPU is requested, also where gpus is not said at all"
    assert all("--gpus" not in layout["command"] for layout in done.json["layouts"])
    assert not project.home.exists()


#: Sweeps whose runs differ in GPUs, shares, time and known cost; one whose runs request no GPU.
SWEEPS = {
    "equal": '[request]\ngpus = 1\ncpus = 4\nmemory = "8G"\ntime = "20m"\n',
    "wide": '[request]\ngpus = 2\ntime = "1h30m"\n',
    "shared": '[request]\ngpus = 0.25\ncpus = 1\ntime = "10m"\n',
    "long": '[request]\ngpus = 1\ntime = "2-12:00:00"\n',
    "cpu": '[request]\ngpus = 0\ncpus = 2\ntime = "45m"\n',
}


def _requests(document: dict[str, Any]) -> tuple[object, ...]:
    """Jobs, nodes, GPUs of the largest job, the longest limit and GPU-hours, as the scripts say them."""
    jobs, nodes, gpus, limits, hours = 0, 1, 0, [0], 0.0
    for planned in document["submissions"]:
        words = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", planned["script"], re.MULTILINE))
        first, _, last = words.get("array", "0").partition("%")[0].partition("-")
        count = int(last or first) + 1
        own_nodes, limit = int(words.get("nodes", 1)), parse_duration_s(words["time"])
        own_gpus = own_nodes * int(words.get("gres", "gpu:0").rpartition(":")[2])
        jobs, nodes, gpus = jobs + count, max(nodes, own_nodes), max(gpus, own_gpus)
        limits.append(limit)
        hours += count * own_gpus * limit / 3600
    return jobs, nodes, gpus, max(limits), round(hours, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cost"), [*((name, "") for name in SWEEPS), ("equal", 'cost = "depth"\n')])
def test_what_layouts_say_is_what_submit_sends_to_the_second(tmp_path: Path, name: str, cost: str) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    text = (
        f'step = "ask"\n{cost}command = ["python", "train.py", "{{depth}}"]\n[sweep]\ndepth = "1:9:1"\n{SWEEPS[name]}'
    )
    path = project.write("experiments/002_depth/000_ask.toml", text)
    compared = project.shoal("plan", path, "--layouts", "--on", "c", "--json").json
    layouts, has_gpus = compared["layouts"], name != "cpu"
    assert {"job per run", "array"} < {layout["name"] for layout in layouts} and len(layouts) > 4
    assert compared["unit"] == ("GPU-hours" if has_gpus else "slot-hours")
    for layout in layouts:
        words = shlex.split(layout["command"])
        assert words[:2] == ["shoal", "submit"]
        sent = _requests(project.shoal("submit", *words[2:], "--dry-run", "--json").json)
        gpus, hours = (layout["gpus"], round(layout["requested"], 6)) if has_gpus else (0, 0)
        assert (layout["jobs"], layout["nodes"], gpus, layout["time_limit_s"], hours) == sent, layout["name"]


@pytest.mark.slow
def test_known_durations_change_the_limit_of_packs_in_plan_and_submit_alike(tmp_path: Path) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    command = json.dumps([sys.executable, "-c", "import time; time.sleep(0.2)"])
    text = f'step = "ask"\ncommand = {command}\nseeds = "0-3"\n[request]\ngpus = 1\ntime = "1h"\n'
    path = project.write("experiments/002_depth/000_ask.toml", text)
    project.shoal("submit", path, "--on", "local")
    refused = project.shoal("plan", path, "--layouts", "--on", "c", code=2)
    assert_clear_error(refused, 2, "no run to submit")
    layouts = project.shoal("plan", path, "--layouts", "--rerun", "--on", "c", "--json").json["layouts"]
    limits = {}
    for layout in layouts:
        sent = project.shoal(*shlex.split(layout["command"])[1:], "--dry-run", "--json").json
        limits[layout["name"]] = layout["time_limit_s"]
        assert (layout["jobs"], layout["time_limit_s"]) == (_requests(sent)[0], _requests(sent)[3]), layout["name"]
        assert "--rerun" in layout["command"]
    assert limits["array"] == 3600 and limits["pack of 2"] < 200, "the request of a run; what was measured for a pack"
    for words in ("--layout array", "--layout pack --gpus 2", "--pilots 2"):
        told = project.shoal("plan", path, "--rerun", *words.split(), "--on", "c").out
        assert re.search(
            r"expected: ~\S+ GPU-hours and ~\S+ from .*, if \d GPUs are free .durations from earlier", told
        )
    grown = path.write_text(text.replace("0-3", "0-4"))
    assert grown and "durations from 4 earlier attempts" in project.shoal("plan", path, "--on", "c").out
    document = project.shoal("plan", path, "--on", "c", "--json").json
    assert document["expected"]["makespan_s"] < 60 and document["expected"]["gpus_at_once"] == 1


@pytest.mark.slow
def test_the_maximum_of_a_pack_counts_its_follow_up_jobs(tmp_path: Path) -> None:
    project = Project(tmp_path, toml=ELSEWHERE)
    path = project.write("experiments/001_a/000_ask.toml", 'step = "ask"\nseeds = "0-7"\n')
    words = ("--layout", "pack", "--gpus", 4, "--on", "c")
    document = project.shoal("plan", path, *words, "--json").json
    [pack] = document["submissions"]
    limit = pack["request"]["time_limit_s"]
    assert pack["gpu_hours"] == pytest.approx(4 * limit / 3600) and pack["max_follow_ups"] == 3
    assert pack["follow_up_gpu_hours"] == pytest.approx(3 * pack["gpu_hours"])
    assert (document["makespan_s"], document["makespan_with_follow_ups_s"]) == (limit, 4 * limit)
    told = project.shoal("plan", path, *words).out
    once = f"{format_hours(pack['gpu_hours'])} GPU-hours and {format_duration(limit)}"
    assert f"at most {once} from the first start to the last end, if 4 GPUs are free; at most" in told
    assert "with up to 3 follow-up jobs" in told
    alone = project.shoal("plan", path, *words, "--follow-ups", 0).out
    assert "follow-up" not in alone and f"at most {once}" in alone


def test_without_any_idea_of_durations_it_says_what_to_write(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.script("001_a/000_train_0.sh", "train")
    assert_clear_error(
        project.shoal("plan", script, "--layouts", "--on", "local", code=2), 2, "run durations are unknown"
    )


@pytest.mark.slurm
def test_slurm_is_asked_when_each_layout_would_start(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    done = project.shoal("plan", _sweep(project, 'cost = "depth"'), "--layouts", "--json")
    starts = {layout["name"]: layout["start_s"] for layout in done.json["layouts"]}
    assert starts["pack of 4"] is not None and starts["pack of 4"] < 3600
    assert "pack of 16" not in starts and any("pack of 16" in text for text in done.json["left_out"]), "no such node"
    table = project.shoal("plan", _sweep(project, 'cost = "depth"'), "--layouts").out
    assert "left out: pack of 16: no node" in table
    by_name = {layout["name"]: layout for layout in done.json["layouts"]}
    project.shoal(*shlex.split(by_name["pack of 4"]["command"])[1:])
    job = project.shoal("status", "--json").json["runs"][0]["job_id"]
    told = project.slurm("scontrol", "--oneliner", "show", "job", str(job))
    limit = re.search(r"TimeLimit=(\S+)", told)
    assert limit is not None and parse_duration_s(limit[1]) == math.ceil(by_name["pack of 4"]["time_limit_s"] / 60) * 60
    assert re.search(r"TresPerNode=gres[:/]gpu[:=]4\b", told) and "NumNodes=1" in told
    project.shoal("cancel", "--yes", "002_depth")


@pytest.mark.slurm
def test_a_cluster_that_is_full_is_recognised(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    nodes = len(set(project.slurm("sinfo", "-h", "-N", "-o", "%N").split()))
    job = ("sbatch", "--exclusive", f"--nodes={nodes}", "--time=20", "--output=/dev/null", "--wrap=sleep 600")
    project.slurm(*job)
    wait_until(lambda: project.slurm("squeue", "-h", "-t", "R").strip(), 60, "somebody has the whole cluster")
    path = _sweep(project, 'cost = "depth"')
    table = project.shoal("plan", path, "--layouts").out
    assert re.search(r"for time: \d+ pilots   # shoal submit .* --pilots", table) and "the cluster is full" in table
    project.shoal("submit", path, "--yes")

    def pending() -> dict[str, Any]:
        found: dict[str, Any] = project.shoal("status", "--json").json["runs"][0]
        return found if found["expected_start"] else {}

    run = wait_until(pending, 90, "Slurm expects a start")
    assert run["state"] == "pending" and run["expected_start"] > time.time() + 300, "after the job that has it all"
    assert run["cluster_gpus"] >= 4
    project.shoal("cancel", "--yes", "002_depth")
