"""LEAD's tree in our own words: scripts below slurm/experiments that source slurm/init.sh, one line of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from project import Project, assert_clear_error
from shoal.sandbox import Sandbox
from waiting import wait_until

SHOW = """\
import json, os, sys, time
names = ("EXPERIMENT_NAME", "SCRIPT_NAME", "EXPERIMENT_SEED", "SLURM_JOB_DATE", "EXPERIMENT_RUN_ID",
         "EXPERIMENT_RUN_DIR", "TRAINING_OUTPUT_DIR", "EVALUATION_OUTPUT_DIR", "LEAD_CONFIG", "CHECKPOINT_DIR",
         "SHOAL_START_FROM", "SHOAL_RESUME_FROM", "SHOAL_PARENTS", "SLURM_JOB_PARTITION")
out = os.environ["SHOAL_OUTPUT_DIR"]
seen = {name: os.environ.get(name) for name in names}
with open(os.path.join(out, "seen-%s.json" % os.environ["SHOAL_ATTEMPT"]), "w") as file:
    json.dump(dict(seen, args=sys.argv[1:]), file)
if sys.argv[1] == "train":
    with open(os.path.join(out, "model_0030.pth"), "w") as file:
        file.write("weights")
    if os.environ["SHOAL_ATTEMPT"] == "1" and "breaks=1" in os.environ.get("LEAD_CONFIG", ""):
        sys.exit(3)
if sys.argv[1] == "route":
    while os.path.exists("hold"):
        time.sleep(0.05)
    if os.environ["SHOAL_ATTEMPT"] == "1" and sys.argv[2].endswith("2.xml"):
        sys.exit(1)
"""
TOML = """\
snapshot = false

[steps.train]
command = [{python}, "show.py", "train"]
output = "training"
checkpoint = "model_*.pth"
resume_args = ["--resume"]
request = {{ time = "5m", memory = "50M" }}

[steps.evaluate_b2d]
command = [{python}, "show.py", "route", "routes/b2d/{{route}}.xml"]
output = "evaluation"
sweep = {{ route = {{ stems = "routes/b2d/*.xml" }} }}
request = {{ time = "5m", memory = "50M" }}
budget = {{ jobs = "slurm/configs/max_parallel_b2d.txt", attempts = 2, priority = -1 }}
{recovery}

[steps.merge]
command = [{python}, "show.py", "merge"]
output = "evaluation"
request = {{ time = "5m", memory = "50M" }}
"""
PRETRAIN = """\
 #!/usr/bin/bash

source slurm/init.sh

export LEAD_CONFIG="$LEAD_CONFIG depth=3 logdir=$TRAINING_OUTPUT_DIR as_is={output_dir} in_braces={$SLURM_JOB_DATE}"

train --cpus-per-task=1 --time=0-00:05:00
"""
ROUTES = """\
#!/usr/bin/bash
source slurm/init.sh
export CHECKPOINT_DIR=outputs/training/001_drive/000_pretrain_0
evaluate_b2d
"""


class Lead(Project):
    """Experiments of LEAD's shape, three routes, and limits in files."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None, recovery: str = "") -> None:
        super().__init__(folder, cluster)
        self.write("shoal.toml", TOML.format(python=json.dumps(sys.executable), recovery=recovery))
        self.write("show.py", SHOW)
        self.write("slurm/init.sh", 'source "$(shoal shell)"\n')
        self.write("slurm/configs/max_parallel_b2d.txt", "32\n")
        for number in (1, 2, 3):
            self.write(f"routes/b2d/{number}.xml", "<route/>")
        self.experiment("000_pretrain_0", PRETRAIN)

    def experiment(self, stem: str, text: str) -> str:
        return str(self.write(f"slurm/experiments/001_drive/{stem}.sh", text).relative_to(self.root))

    def seen(self, stem: str, attempt: int = 1) -> dict[str, Any]:
        folder = max((self.root / "outputs").glob(f"*/001_drive/{stem}/*"))
        return dict(json.loads((folder / f"seen-{attempt}.json").read_text()))

    def output(self, stem: str) -> Path:
        return max((self.root / "outputs").glob(f"*/001_drive/{stem}/*"))


@pytest.mark.slow
def test_a_script_below_another_directory_runs_with_the_variables_of_its_run(tmp_path: Path) -> None:
    project = Lead(tmp_path)
    project.bash("slurm/experiments/001_drive/000_pretrain_0.sh")
    output, seen = project.output("000_pretrain_0"), project.seen("000_pretrain_0")
    assert seen["EXPERIMENT_NAME"] == "001_drive"
    assert (seen["SCRIPT_NAME"], seen["EXPERIMENT_SEED"]) == ("000_pretrain_0", "0")
    assert seen["SLURM_JOB_DATE"] == output.name
    assert seen["EXPERIMENT_RUN_ID"] == f"001_drive_000_pretrain_0_{output.name}"
    assert seen["EXPERIMENT_RUN_DIR"] == f"001_drive/000_pretrain_0/{output.name}"
    assert seen["TRAINING_OUTPUT_DIR"] == seen["EVALUATION_OUTPUT_DIR"] == str(output)
    assert seen["LEAD_CONFIG"] == f" depth=3 logdir={output} as_is={{output_dir}} in_braces={{{output.name}}}"
    again = project.bash("slurm/experiments/001_drive/000_pretrain_0.sh")
    assert "left alone" in again.out
    assert len(list((project.root / "outputs/training/001_drive/000_pretrain_0").iterdir())) == 1


def test_a_script_of_the_same_name_in_a_second_place_is_refused(tmp_path: Path) -> None:
    project = Lead(tmp_path)
    project.write("experiments/001_drive/000_pretrain_0.sh", PRETRAIN)
    done = project.shoal("plan", "slurm/experiments/001_drive/000_pretrain_0.sh", code=None)
    assert_clear_error(done, 2, "have the same name")
    outside = project.write("slurm/001_drive/000_pretrain_0.sh", PRETRAIN)
    assert_clear_error(project.shoal("plan", outside, code=None), 2, "is not in a directory experiments/")


def test_the_output_directory_in_an_sbatch_flag_is_refused(tmp_path: Path) -> None:
    project = Lead(tmp_path)
    script = project.experiment("001_note_0", PRETRAIN.replace("--cpus", "--comment=$EXPERIMENT_RUN_ID --cpus"))
    assert_clear_error(project.shoal("plan", script, code=None), 2, "known only when the run starts")


@pytest.mark.slow
def test_a_crashed_posttraining_is_resumed_by_one_more_line(tmp_path: Path) -> None:
    project = Lead(tmp_path)
    project.shoal("submit", "slurm/experiments/001_drive/000_pretrain_0.sh", "--on", "local")
    start = "posttrain outputs/training/001_drive/000_pretrain_0\n"
    text = PRETRAIN.replace("depth=3", "breaks=1").replace("\ntrain", f"\n{start}train")
    script = project.experiment("012_posttrain_2", text)
    project.shoal("submit", script, "--on", "local", code=3)
    weights = project.output("000_pretrain_0") / "model_0030.pth"
    assert project.seen("012_posttrain_2")["SHOAL_START_FROM"] == str(weights)
    crashed = project.output("012_posttrain_2")
    resume = f"resume {crashed.relative_to(project.root)}\n"
    project.experiment("012_posttrain_2", text.replace(start, start + resume))
    project.shoal("submit", script, "--on", "local")
    seen = project.seen("012_posttrain_2", attempt=2)
    assert seen["SHOAL_RESUME_FROM"] == str(crashed / "model_0030.pth")
    assert seen["args"] == ["train", "--resume"]
    assert seen["TRAINING_OUTPUT_DIR"] == str(crashed)


@pytest.mark.slow
def test_a_directory_of_before_shoal_is_resumed_as_the_run_of_its_path(tmp_path: Path) -> None:
    project = Lead(tmp_path)
    old = project.root / "outputs/training/001_drive/005_pretrain_1/20250102_030405"
    old.mkdir(parents=True)
    resume = f"resume {old.relative_to(project.root)}\n"
    script = project.experiment("005_pretrain_1", PRETRAIN.replace("\ntrain", f"\n{resume}train"))
    assert_clear_error(project.shoal("plan", script, code=None), 2, "no checkpoint matches 'model_*.pth'")
    (old / "model_0012.pth").write_text("weights of before")
    project.shoal("submit", script, "--on", "local")
    seen = json.loads((old / "seen-1.json").read_text())
    assert seen["SHOAL_RESUME_FROM"] == str(old / "model_0012.pth") and seen["args"] == ["train", "--resume"]
    assert seen["EXPERIMENT_RUN_ID"] == "001_drive_005_pretrain_1_20250102_030405"
    assert set(project.status("--all")) == {"001_drive/005_pretrain_1"}
    other = project.root / "outputs/training/001_drive/006_pretrain_1/20250102_030405"
    other.mkdir(parents=True)
    (other / "model_0012.pth").write_text("weights")
    assert_clear_error(project.shoal("resume", other, code=None), 2, "no run is recorded for this directory")
    nowhere = project.experiment("013_posttrain_1", PRETRAIN.replace("\ntrain", "\nposttrain /nowhere/m.pth\ntrain"))
    told = project.shoal("plan", nowhere, code=None)
    assert_clear_error(told, 2, "no file or directory /nowhere/m.pth")
    assert "//" not in told.err


@pytest.mark.slow
def test_a_step_with_a_sweep_is_one_run_for_each_file(tmp_path: Path) -> None:
    project = Lead(tmp_path)
    script = project.experiment("020_b2d_0", ROUTES)
    names = [run["name"] for run in project.shoal("plan", script, "--json").json["runs"]]
    assert names == [f"001_drive/020_b2d_route{number}_0" for number in (1, 2, 3)]
    project.bash(script, code=None)
    assert project.seen("020_b2d_route3_0")["args"] == ["route", "routes/b2d/3.xml"]
    assert project.seen("020_b2d_route3_0")["CHECKPOINT_DIR"] == "outputs/training/001_drive/000_pretrain_0"
    project.write("routes/b2d/4.xml", "<route/>")
    done = project.shoal("submit", script, "--on", "local", "--json")
    states = {run["name"].split("/")[1]: run["did"] for run in done.json["runs"]}
    assert states["020_b2d_route4_0"] == "ran"
    assert states["020_b2d_route1_0"] == "left alone"


def test_a_budget_file_without_a_number_is_refused(tmp_path: Path, cluster: Sandbox) -> None:
    project = Lead(tmp_path, cluster)
    project.write("slurm/configs/max_parallel_b2d.txt", "many\n")
    done = project.shoal("submit", project.experiment("020_b2d_0", ROUTES), code=None)
    assert_clear_error(done, 2, "slurm/configs/max_parallel_b2d.txt is not a file with a number")


@pytest.mark.slurm
def test_a_merge_waits_for_all_routes_and_a_crashed_route_goes_to_another_partition(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    recovery = 'recovery = { max_retries = { failed = 5 }, partition_after = { attempts = 1, partition = "low" } }'
    project = Lead(tmp_path, quiet_cluster, recovery)
    project.experiment("020_b2d_0", ROUTES)
    project.write("slurm/experiments/001_drive/050_merge.toml", 'step = "merge"\nafter = ["020_b2d_*"]\n')
    project.shoal("submit", "slurm/experiments/001_drive")
    project.wait("001_drive/050_merge", "done", "completed", deadline_s=120)
    parents = json.loads(Path(project.seen("050_merge")["SHOAL_PARENTS"]).read_text())["runs"]
    assert [run["name"] for run in parents] == [f"001_drive/020_b2d_route{number}_0" for number in (1, 2, 3)]
    assert [run["output_dir"] for run in parents] == [str(project.output(f"020_b2d_route{n}_0")) for n in (1, 2, 3)]
    assert project.seen("020_b2d_route2_0", attempt=1)["SLURM_JOB_PARTITION"] == "main"
    assert project.seen("020_b2d_route2_0", attempt=2)["SLURM_JOB_PARTITION"] == "low"
    assert project.seen("020_b2d_route1_0")["SLURM_JOB_PARTITION"] == "main"


@pytest.mark.slurm
def test_a_training_does_not_wait_behind_routes_and_limits_change_while_they_run(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    project = Lead(tmp_path, quiet_cluster)
    hold = project.write("hold", "")
    limit = project.write("slurm/configs/max_parallel_b2d.txt", "1\n")
    told = project.shoal("submit", project.experiment("020_b2d_0", ROUTES))
    assert "no room under evaluate_b2d: 1 jobs" in told.out + told.err
    project.wait("001_drive/020_b2d_route1_0", "running")
    project.shoal("submit", "slurm/experiments/001_drive/000_pretrain_0.sh")
    trained = project.wait("001_drive/000_pretrain_0", "done", "completed")
    assert "evaluate_b2d\tjobs 1 of 1, attempts 2, priority -1" in project.shoal("budget").out
    wait_until(lambda: trained["job_id"] not in project.queue("%i"), 60, "Slurm has ended the job of the training too")
    assert len(project.queue("%i")) == 1
    limit.write_text("2\n")
    project.shoal("status")
    wait_until(lambda: len(project.queue("%i")) == 2, 60, "the file lets a second route in")
    project.shoal("budget", "evaluate_b2d", "jobs=3")
    wait_until(lambda: len(project.queue("%i")) == 3, 60, "the command lets a third route in")
    project.shoal("budget", "evaluate_b2d", "none")
    hold.unlink()
    for number in (1, 3):
        project.wait(f"001_drive/020_b2d_route{number}_0", "done", "completed")
    assert_clear_error(
        project.shoal("budget", "nothing", "jobs=2", code=None), 2, "no step or experiment named 'nothing'"
    )
    assert_clear_error(project.shoal("budget", "jobs=0", code=None), 2, "jobs of a budget must be at least 1 (got 0)")


@pytest.mark.slurm
def test_the_tasks_of_an_array_that_run_at_once_change_while_it_runs(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Lead(tmp_path, quiet_cluster)
    project.write("hold", "")
    project.shoal("submit", project.experiment("020_b2d_0", ROUTES))
    array = project.queue("%F")[0]
    told = project.shoal("budget", "020_b2d_*", "max_parallel=1")
    assert told.out == f"at most 1 tasks of {array} run at once\n"
    assert "ArrayTaskThrottle=1" in project.slurm("scontrol", "show", "job", array)
    assert project.shoal("budget", "train", "max_parallel=1").out == "no array in the queue\n"
