"""Stages: runs that build on other runs, as a graph; on this machine and with Slurm's dependencies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import cancel_all
from project import Project
from shoal.describe.dependencies import check_dependencies, order_runs
from shoal.describe.run_specs import PlannedRun
from shoal.errors import InputError
from shoal.kernel.slurm_text import replace_job
from shoal.model import RunSpec
from shoal.sandbox import Sandbox
from waiting import wait_until

REQUEST = '[request]\ntime = "5m"\nmemory = "50M"\n'
PRETRAIN = f'step = "train"\nargs = ["save=7", "wait=go"]\n{REQUEST}'
POSTTRAIN = f"""\
step = "posttrain"
seeds = "0-2"
start_from = "000_pretrain"
args = ["save=9", "exit={{code}}"]
[derived]
code = "CODE"
{REQUEST}"""
EVALUATE = f'step = "evaluate"\nseeds = "0-2"\nstart_from = "010_posttrain_{{seed}}"\nafter = "000_pretrain"\n{REQUEST}'


def write(project: Project, code: str = "0") -> Path:
    project.write("experiments/001_lead/000_pretrain.toml", PRETRAIN)
    project.write("experiments/001_lead/010_posttrain.toml", POSTTRAIN.replace("CODE", code))
    project.write("experiments/001_lead/020_evaluate.toml", EVALUATE)
    return project.root / "experiments" / "001_lead"


def spec(name: str, *parents: str) -> RunSpec:
    return RunSpec(
        experiment="e", stem=name, number=None, step="s", step_kind="s", seed=None, command=["x"], cwd="/", output="o",
        parents=[f"e/{parent}" for parent in parents],
    )  # fmt: skip


def test_parents_come_first_and_a_bad_one_holds_its_own_branch_alone() -> None:
    runs = [spec("c", "b"), spec("b", "a"), spec("a"), spec("z", "old"), spec("y", "bad"), spec("x", "y")]
    placed, held = order_runs([PlannedRun(one) for one in runs], {"e/old": "completed", "e/bad": "failed"})
    assert [run.spec.stem for run in placed] == ["a", "b", "c", "z"]
    assert [run.needs for run in placed] == [(), ("e/a",), ("e/b",), ()]
    assert {one.run.spec.stem: one.reason for one in held} == {
        "y": "its parent e/bad failed",
        "x": "its parent e/y waits itself",
    }


def test_a_circle_and_an_unknown_parent_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="circle: e/a -> e/b -> e/c -> e/a"):
        check_dependencies([spec("a", "b"), spec("b", "c"), spec("c", "a"), spec("d")], [])
    with pytest.raises(InputError, match="e/a builds on e/bb, which does not exist; did you mean b"):
        check_dependencies([spec("a", "bb"), spec("b")], [])
    check_dependencies([spec("a", "old"), spec("b", "a"), spec("c", "a", "b")], ["e/old"])


def test_a_chain_of_ten_thousand_stages_is_no_trouble() -> None:
    runs = [spec(f"r{index}", *([f"r{index + 1}"] if index < 9999 else [])) for index in range(10_000)]
    check_dependencies(runs, [])
    placed, held = order_runs([PlannedRun(one) for one in runs], {})
    assert not held and placed[0].spec.stem == "r9999"


@pytest.mark.parametrize(
    ("waits", "now"),
    [
        ("afterok:12(unfulfilled)", "afterok:99"),
        ("afterok:12_3(unfulfilled),afterany:9(unfulfilled)", None),
        ("afterok:7:12,afterany:120", "afterok:7:99,afterany:120"),
        ("afterok:112", None),
        ("", None),
    ],
)
def test_one_job_is_replaced_in_a_dependency_and_no_other(waits: str, now: str | None) -> None:
    assert replace_job(waits, "12", "99") == now


@pytest.mark.slow
def test_stages_run_one_after_another_on_this_machine(tmp_path: Path) -> None:
    project = Project(tmp_path)
    folder = write(project)
    (project.root / "go").touch()
    plan = project.shoal("plan", "--json", "--on", "local", folder).json
    assert len(plan["runs"]) == 7
    project.shoal("submit", folder, "--on", "local", "-q")
    assert {run["state"] for run in project.status().values()} == {"completed"}
    post = project.marks("001_lead/010_posttrain_1")[0]["env"]
    assert post["SHOAL_START_FROM"].endswith("model_7.pth") and "000_pretrain" in post["SHOAL_PARENT_DIR"]
    evaluated = project.marks("001_lead/020_evaluate_2")[0]["args"][0]
    assert evaluated.endswith("model_9.pth") and "010_posttrain_2" in evaluated


@pytest.mark.slow
def test_a_failed_parent_stops_its_branch_and_a_later_submit_goes_on(tmp_path: Path) -> None:
    project = Project(tmp_path)
    folder = write(project, "5 if seed == 1 else 0")
    (project.root / "go").touch()
    told = project.shoal("submit", folder, "--on", "local", "--json", code=4).json["runs"]
    assert {run["name"][9:]: run["did"] for run in told}["020_evaluate_1"] == "held"
    states = {name[9:]: run["state"] for name, run in project.status().items()}
    assert states["010_posttrain_1"] == "failed" and states["020_evaluate_0"] == states["020_evaluate_2"] == "completed"
    assert "020_evaluate_1" not in states
    write(project)
    again = project.shoal("submit", folder, "--on", "local", "--json").json["runs"]
    assert sorted(run["name"][9:] for run in again if run["did"] == "ran") == ["010_posttrain_1", "020_evaluate_1"]
    assert {run["state"] for run in project.status().values()} == {"completed"}


@pytest.mark.slow
def test_a_parent_without_a_good_checkpoint_is_told_before_anything_is_queued(tmp_path: Path) -> None:
    project = Project(tmp_path)
    sweep_file = project.write("experiments/001_lead/000_pretrain.toml", 'step = "train"\n')
    project.shoal("submit", sweep_file, "--on", "local", "-q")
    output = Path(project.status()["001_lead/000_pretrain"]["output_dir"])
    child = project.write("experiments/001_lead/010_post.toml", 'step = "posttrain"\nstart_from = "000_pretrain"\n')
    (output / "model_1.pth").touch()
    (output / "model_2.pth.tmp").write_text("half")
    done = project.shoal("plan", child, "--on", "local", code=2)
    assert "001_lead/010_post cannot start: its parent 001_lead/000_pretrain has no checkpoint model_*.pth" in done.err
    (output / "model_1.pth").write_text("weights")
    project.shoal("submit", child, "--on", "local", "-q")


@pytest.mark.slow
def test_an_unknown_parent_and_a_circle_in_files_end_with_code_2(tmp_path: Path) -> None:
    project = Project(tmp_path)
    folder = write(project)
    (folder / "000_pretrain.toml").unlink()
    done = project.shoal("plan", folder, code=2)
    assert "builds on 001_lead/000_pretrain, which does not exist" in done.err
    project.write(
        "experiments/001_lead/000_pretrain.toml", PRETRAIN.replace("args", 'start_from = "020_evaluate_0"\nargs')
    )
    assert "in a circle" in project.shoal("plan", folder, code=2).err


@pytest.fixture
def slurm(cluster: Sandbox) -> Iterator[Sandbox]:
    yield cluster
    cancel_all(cluster)


@pytest.mark.slurm
def test_a_graph_of_three_stages_with_seeds_waits_in_slurm(tmp_path: Path, slurm: Sandbox) -> None:
    project = Project(tmp_path, slurm)
    folder = write(project, "5 if seed == 1 else 0")
    project.shoal("submit", folder)
    project.wait_started("001_lead/000_pretrain")
    rows = project.queue("%T|%E")
    assert len(rows) == 7 and sum("PENDING|afterok" in row for row in rows) == 6
    (project.root / "go").touch()
    for seed in (0, 2):
        project.wait(f"001_lead/020_evaluate_{seed}", "completed")
    project.wait("001_lead/010_posttrain_1", "failed")
    ended = project.wait("001_lead/020_evaluate_1")
    assert ended["state"] in ("cancelled", "lost"), ended
    assert project.marks("001_lead/020_evaluate_1") == []
    assert project.marks("001_lead/020_evaluate_2")[0]["args"][0].endswith("model_9.pth")


@pytest.mark.slurm
def test_a_parent_that_goes_on_in_a_follow_up_takes_its_children_along(tmp_path: Path, slurm: Sandbox) -> None:
    toml = f"""
[steps.slow]
command = [{json.dumps(sys.executable)}, "slow.py"]
checkpoint = "model_*.pth"
request = {{ time = "5m", memory = "50M" }}
recovery = {{ continue_exit_code = 85, max_follow_ups = 3 }}
"""
    project = Project(tmp_path, slurm, toml=toml)
    project.write(
        "slow.py",
        "import os, sys, time\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "k = os.environ['SHOAL_ATTEMPT']\n"
        "open(os.path.join(os.environ['SHOAL_OUTPUT_DIR'], 'model_%s.pth' % k), 'w').write('w')\n"
        "sys.exit(85 if k in '12' else 0)\n",
    )
    project.write("experiments/001_lead/000_slow.toml", 'step = "slow"\n')
    child = f'step = "evaluate"\nseeds = "0-1"\nstart_from = "000_slow"\n{REQUEST}'
    project.write("experiments/001_lead/010_evaluate.toml", child)
    project.shoal("submit", project.root / "experiments" / "001_lead")
    (project.root / "go").touch()
    for seed in (0, 1):
        project.wait(f"001_lead/010_evaluate_{seed}", "completed", deadline_s=120)
        assert project.marks(f"001_lead/010_evaluate_{seed}")[0]["args"][0].endswith("model_3.pth")
    assert len(project.records("001_lead/000_slow", "attempt.*.end")) == 3


@pytest.mark.slurm
def test_stages_wait_on_disk_under_a_budget_as_well(tmp_path: Path, slurm: Sandbox) -> None:
    project = Project(tmp_path, slurm)
    folder = write(project)
    project.shoal("submit", "--budget", "jobs=2", folder)
    project.wait_started("001_lead/000_pretrain")
    (project.root / "go").touch()
    wait_until(
        lambda: {run["state"] for run in project.status().values()} == {"completed"},
        120,
        "all seven completed",
        poll_s=0.5,
    )
    assert len(project.status()) == 7


def scripts(project: Project, *more: str) -> Path:
    """The same graph as bash scripts: each names the run it builds on, which need not exist yet."""
    flags = "--time=5 --mem=50"
    project.script("001_lead/000_pretrain.sh", f"train {flags} -- save=7 {' '.join(more)}")
    project.script("001_lead/010_posttrain.sh", f"posttrain 000_pretrain --seeds=0-2 {flags} -- save=9")
    project.script("001_lead/020_evaluate.sh", f'evaluate "010_posttrain_$SHOAL_SEED" --seeds 0-2 {flags}')
    return project.root / "experiments" / "001_lead"


@pytest.mark.slurm
def test_bash_scripts_build_on_each_other_by_name_in_one_submit(tmp_path: Path, slurm: Sandbox) -> None:
    project = Project(tmp_path, slurm)
    folder = scripts(project, "wait=go")
    project.shoal("submit", folder)
    project.wait_started("001_lead/000_pretrain")
    rows = project.queue("%T|%E")
    assert len(rows) == 7 and sum("PENDING|afterok" in row for row in rows) == 6
    (project.root / "go").touch()
    for seed in range(3):
        project.wait(f"001_lead/020_evaluate_{seed}", "completed")
        mark = project.marks(f"001_lead/010_posttrain_{seed}")[0]
        assert mark["env"]["SHOAL_START_FROM"].endswith("model_7.pth")
        assert f"010_posttrain_{seed}/" in project.marks(f"001_lead/020_evaluate_{seed}")[0]["args"][0]
    project.assert_ran_once(*project.status())
    assert {run["did"] for run in project.shoal("submit", "--json", folder).json["runs"]} == {"left alone"}


@pytest.mark.slow
def test_a_script_names_its_seeds_and_its_parent_like_a_sweep_file(tmp_path: Path) -> None:
    project = Project(tmp_path)
    folder = scripts(project)
    planned = {run["name"]: run["parents"] for run in project.shoal("plan", folder, "--json").json["runs"]}
    assert list(planned)[1:] == [f"001_lead/0{k}_{seed}" for k in ("10_posttrain", "20_evaluate") for seed in range(3)]
    assert planned["001_lead/010_posttrain_2"] == ["001_lead/000_pretrain"]
    assert planned["001_lead/020_evaluate_2"] == ["001_lead/010_posttrain_2"]
    by_hand = project.bash(folder / "010_posttrain.sh", code=2)
    assert "builds on 001_lead/000_pretrain, which does not exist" in by_hand.err
    project.bash(folder / "000_pretrain.sh")
    project.bash(folder / "010_posttrain.sh")
    assert len(project.marks("001_lead/010_posttrain_1")) == 1
    told = project.bash(folder / "020_evaluate.sh", code=2)
    assert "uses $SHOAL_SEED and names several seeds" in told.err and "hint: shoal submit" in told.err
    project.script("001_lead/021_evaluate.sh", "evaluate 010_posttrain_{seed} --seeds=1")
    project.bash(folder / "021_evaluate.sh")
    assert "010_posttrain_1/" in project.marks("001_lead/021_evaluate_1")[0]["args"][0]
