"""Smoke first: a few steps must pass before the real runs start; on this machine and as a Slurm dependency."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.actions.decide import smoke_arguments
from shoal.job import single_run
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

#: steps=N says how many steps it does, at=F prints them in that form, fail=K breaks at step K, hang=K stops moving.
#: As a smoke run it stops moving at step 20, so that it never ends before it is stopped, however late that is.
STEPPING = """\
import json, os, sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:])
with open(os.path.join(ROOT, "marks", os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
    kept = {key: os.environ.get(key) for key in ("SHOAL_SMOKE", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "WANDB_MODE")}
    file.write(json.dumps({"what": "start", "args": sys.argv[1:], "env": kept}) + "\\n")
total = int(words["steps"])
for step in range(1, total + 1):
    if step == int(words.get("fail", 0)) and not os.path.exists(os.path.join(ROOT, "fixed")):
        sys.exit("RuntimeError: shapes cannot be multiplied")
    if step >= int(words.get("hang", total + 1)) or (step >= 20 and "SHOAL_SMOKE" in os.environ):
        time.sleep(600)
    time.sleep(0.05)
    print("step %d/%d loss 0.1" % (step, total), flush=True)
"""
TOML = """
[steps.pretrain]
command = [{python}, "-S", {program}]
request = {{ time = "3h", memory = "50M" }}
env = {{ SHOAL_LOOK_S = "0.2" }}
"""
NAME, SMOKE = "001_a/000_train_0", "001_a/000_train_smoke"


def project_with(folder: Path, cluster: Sandbox | None = None, toml: str = "") -> Project:
    words = {"python": json.dumps(sys.executable), "program": json.dumps(str(folder / "project" / "stepping.py"))}
    project = Project(folder, cluster, toml=TOML.format(**words) + toml)
    project.write("stepping.py", f"ROOT = {str(project.root)!r}\n{STEPPING}")
    return project


def test_key_value_arguments_take_the_place_of_their_key_and_others_follow() -> None:
    args = ["--lr", "0.1", "trainer.max_steps=1000", "--steps=50"]
    assert smoke_arguments(args, ["trainer.max_steps=3", "--steps=2", "--fast"]) == [
        "--lr", "0.1", "trainer.max_steps=3", "--steps=2", "--fast",
    ]  # fmt: skip


def test_a_long_program_is_stopped_after_three_steps_and_then_runs_in_full(tmp_path: Path) -> None:
    project = project_with(tmp_path)
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=40")
    told = project.shoal("submit", script, "--on", "local", "--smoke", "--json").json["runs"]
    assert [(run["name"], run["did"], run["state"]) for run in told] == [
        (SMOKE, "ran", "completed"),
        (NAME, "ran", "completed"),
    ]
    assert "passed at step" in told[0]["reason"]
    assert project.marks(SMOKE)[0]["env"]["SHOAL_SMOKE"] == "1" and project.marks(NAME)[0]["env"]["SHOAL_SMOKE"] is None
    end = project.records(SMOKE, "attempt.*.end")[0]
    assert end["stopped_by"] == "smoke" and end["success"] and end["exit_code"] == 0
    log = (Path(told[0]["output_dir"]) / "attempt-1.out").read_text()
    assert "step 3/40" in log and "step 40/40" not in log
    again = project.shoal("submit", script, "--on", "local", "--smoke", "--json").json["runs"]
    assert [(run["name"], run["did"]) for run in again] == [(NAME, "left alone")]


@pytest.mark.parametrize("door", ["bash", "submit", "python"])
def test_a_script_and_a_python_file_may_ask_for_it_themselves(tmp_path: Path, door: str) -> None:
    project = project_with(tmp_path)
    if door == "python":
        added = 'exp.add("pretrain", name="000_train", args=["steps=5"], seeds=[0])'
        sweep_file = f'import shoal\nexp = shoal.Experiment("001_a")\n{added}\nexp.submit(on="local", smoke=True)\n'
        project.run([sys.executable, project.write("experiments/001_a/sweep.py", sweep_file)])
    else:
        script = project.script("001_a/000_train_0.sh", "pretrain --on local --smoke -- steps=5")
        other = project.script("001_a/001_train_0.sh", "pretrain --on local -- steps=5")
        project.bash(script) if door == "bash" else project.shoal("submit", script, other)
    assert [project.status()[name]["state"] for name in (SMOKE, NAME)] == ["completed", "completed"]
    assert [len(project.marks(name)) for name in (SMOKE, NAME)] == [1, 1]
    assert len(project.status()) == (3 if door == "submit" else 2)


def test_a_failing_smoke_holds_the_real_runs_and_the_next_submit_smokes_again(tmp_path: Path) -> None:
    project = project_with(tmp_path)
    sweep = 'step = "pretrain"\nargs = ["steps=5", "fail=2"]\nseeds = "0-2"\n[sweep]\nlr = "0.1,0.2"\n'
    sweep_file = project.write("experiments/001_a/000_train.toml", sweep)
    done = project.shoal("submit", sweep_file, "--on", "local", "--smoke", "--json", code=4)
    told = {run["name"]: run for run in done.json["runs"]}
    assert told[SMOKE]["state"] == "failed" and len(told) == 7
    real = [name for name in told if name != SMOKE]
    assert {told[name]["did"] for name in real} == {"held"}
    assert told[real[0]]["reason"] == f"{SMOKE} did not complete"
    assert all(project.marks(name) == [] for name in real)
    why = project.shoal("why", SMOKE).out
    assert "shapes cannot be multiplied" in why
    (project.root / "fixed").touch()
    project.shoal("submit", sweep_file, "--on", "local", "--smoke", "-q")
    assert {run["state"] for run in project.status().values()} == {"completed"}
    assert len(project.marks(SMOKE)) == 2


def test_a_program_that_shows_no_step_in_time_has_not_passed(tmp_path: Path) -> None:
    project = project_with(tmp_path, toml='smoke = { time = "8s", steps = 2 }\n')
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=40 hang=2")
    told = project.shoal("submit", script, "--on", "local", "--smoke", "--json", code=4).json["runs"]
    assert [(run["name"], run["did"], run["state"]) for run in told] == [
        (SMOKE, "ran", "failed"), (NAME, "held", "new"),
    ]  # fmt: skip
    assert "only step 1/40" in told[0]["reason"] and "2 steps would have passed" in told[0]["reason"]


def test_arguments_shorten_the_program_and_it_may_end_by_itself(tmp_path: Path) -> None:
    toml = 'smoke = { args = ["steps=2"], env = { WANDB_MODE = "offline" } }\n'
    project = project_with(tmp_path, toml=toml)
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=9")
    project.shoal("submit", script, "--on", "local", "--smoke", "-q")
    assert project.marks(SMOKE)[0]["args"] == ["steps=2"] and project.marks(SMOKE)[0]["env"]["WANDB_MODE"] == "offline"
    assert project.records(SMOKE, "attempt.*.end")[0]["stopped_by"] is None
    assert project.marks(NAME)[0]["args"] == ["steps=9"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("smoke = { stps = 3 }", "stps"),
        ("smoke = { steps = 0 }", "steps"),
        ('smoke = { time = "soon" }', "soon"),
        ('smoke = "yes"', "smoke"),
    ],
)
def test_a_wrong_table_is_told_with_its_line(tmp_path: Path, table: str, words: str) -> None:
    project = project_with(tmp_path, toml=table + "\n")
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=9")
    assert_clear_error(project.shoal("submit", script, "--smoke", code=2), 2, words, "shoal.toml:")


@pytest.mark.slurm
def test_real_runs_wait_for_the_smoke_run_in_the_debug_partition(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    toml = 'smoke = { time = "5m", cpus = 1 }\n[clusters.sandbox]\nmatch = { host = "*" }\npartition = "main"\n'
    project = project_with(tmp_path, quiet_cluster, toml + 'debug = { partition = "low" }\n')
    sweep_file = 'step = "pretrain"\nargs = ["steps=30", "hang={stop}"]\nseeds = "0-1"\n[sweep]\nstop = "31,32"\n'
    sweep = project.write("experiments/001_a/000_train.toml", sweep_file)
    planned = project.shoal("plan", sweep, "--smoke", "--json").json
    assert [len(one["runs"]) for one in planned["submissions"]] == [1, 4]
    told = project.shoal("submit", sweep, "--smoke", "--json").json["runs"]
    assert told[0]["name"] == SMOKE and len(told) == 5
    for run in told[1:]:
        project.wait(run["name"], "completed")
    assert project.marks(SMOKE)[0]["env"]["SLURM_JOB_PARTITION"] == "low"
    assert project.marks(told[1]["name"])[0]["env"]["SLURM_JOB_PARTITION"] == "main"
    assert project.status()[SMOKE]["state"] == "completed"
    smoked = project.records(SMOKE, "attempt.*.end")[0]["ended"]
    assert all(project.records(run["name"], "attempt.*.start")[0]["t"] >= smoked for run in told[1:])


@pytest.mark.slurm
def test_after_a_failed_smoke_nothing_starts_and_status_and_why_say_so(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = project_with(tmp_path, quiet_cluster)
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=30 fail=2")
    project.shoal("submit", script, "--smoke")
    project.wait(SMOKE, "failed")
    ended = project.wait(NAME, "cancelled", "lost")
    why = project.shoal("why", NAME, "--json").json
    assert SMOKE in why["headline"] and any("shapes cannot be multiplied" in line for line in why["evidence"]), why
    assert why["next"][0] == f"shoal why {SMOKE}" and "--smoke" in why["next"][1]
    assert SMOKE in ended["reason"], ended
    assert project.marks(NAME) == []
    (project.root / "fixed").touch()
    project.shoal("submit", script, "--smoke")
    project.wait(NAME, "completed")
    assert len(project.marks(SMOKE)) == 2 and len(project.marks(NAME)) == 1


@pytest.mark.slurm
def test_a_submit_that_was_killed_after_the_smoke_is_taken_up(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = project_with(tmp_path, quiet_cluster, toml='smoke = { time = "5m" }\n')
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=60")
    # The second submission never gets further than its claim: the mark counts up with every claim.
    killed = project.shoal("submit", script, "--smoke", code=None, SHOAL_FAILPOINT="after-outcome")
    assert killed.code not in (0, 2)
    told = project.shoal("submit", script, "--smoke", "--json").json["runs"]
    wait_until(lambda: project.marks(SMOKE), 60, "the smoke run began")
    assert {run["name"]: run["did"] for run in told}[NAME] == "submitted"
    project.wait(NAME, "completed")
    assert len(project.marks(NAME)) == 1


@pytest.mark.slurm
def test_a_pack_waits_for_its_smoke_run(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = project_with(tmp_path, quiet_cluster)
    sweep_file = 'step = "pretrain"\nargs = ["steps=8"]\nseeds = "0-2"\n'
    sweep = project.write("experiments/001_a/000_train.toml", sweep_file)
    project.shoal("submit", sweep, "--smoke", "--layout", "pack", "--slots", "3")
    for seed in range(3):
        project.wait(f"001_a/000_train_{seed}", "completed")
    smoked = project.records(SMOKE, "attempt.*.end")[0]["ended"]
    assert all(project.records(f"001_a/000_train_{seed}", "attempt.*.start")[0]["t"] >= smoked for seed in range(3))


@pytest.mark.slurm
def test_a_smoke_run_here_stands_before_jobs_there(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = project_with(tmp_path, quiet_cluster)
    script = project.script("001_a/000_train_0.sh", "pretrain -- steps=30 fail=2")
    told = project.shoal("submit", script, "--smoke-here", "--json", code=4).json["runs"]
    assert [(run["name"], run["did"]) for run in told] == [(SMOKE, "ran"), (NAME, "held")]
    assert project.jobs() == []
    (project.root / "fixed").touch()
    told = project.shoal("submit", script, "--smoke-here", "--json").json["runs"]
    assert [(run["name"], run["did"]) for run in told] == [(SMOKE, "ran"), (NAME, "submitted")]
    project.wait(NAME, "completed")


def test_the_progress_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    stops: list[str] = []

    class Listener:
        stop = staticmethod(stops.append)

    (tmp_path / "progress").write_text("30/100\n")
    look = single_run.smoke_watcher({"smoke": {"steps": 3, "time_s": 600}}, str(tmp_path), [])
    assert look is not None
    look(Listener)  # type: ignore[arg-type]
    assert stops == []
    (tmp_path / "progress").write_text("4/100\n")
    look(Listener)  # type: ignore[arg-type]
    assert stops == [single_run.SMOKE_PASSED]
