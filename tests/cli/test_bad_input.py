"""What people and machines get wrong: a clear error with its place and a remedy, nothing half-written, nothing sent."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import empty, fill, small_disk
from project import Project, assert_clear_error
from shoal.sandbox import Sandbox

RUN = "001_a/000_train_0"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _assert_nothing_happened(project: Project) -> None:
    assert not (project.root / "outputs").exists() and not list((project.root / "marks").iterdir())
    assert not project.submissions()


# --- shoal.toml -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["no shoal.toml", "shoal init"]),
        ("[steps.train\ncommand = 1", ["shoal.toml:1"]),
        ("[steps.train]\ncommand = 'true'\ncheckpoin = 'x'", ["shoal.toml:3", "checkpoin"]),
        ("[step.train]\ncommand = 'true'", ["shoal.toml:1", "step"]),
        ("[steps.train]\n", ["shoal.toml:1", "missing key 'steps.train.command'"]),
        ("[steps.train]\ncommand = 'a \"b'", ["shoal.toml:2", "split into words"]),
        ("[steps.train]\ncommand = 'true'\nrequest = { time = '25' }", ["shoal.toml:3", "not a duration"]),
        ("[steps.train]\ncommand = 'true'\nrequest = { time = '25:61:00' }", ["shoal.toml:3"]),
        ("[steps.train]\ncommand = 'true'\nrequest = { memory = '12' }", ["shoal.toml:3", "memory"]),
        ("[steps.train]\ncommand = 'true'\nrequest = { gpus = -1 }", ["shoal.toml:3"]),
        ("[steps.train]\ncommand = 'true'\n[clusters.a]\npartitions = 'x'", ["shoal.toml:4", "partitions"]),
        ("[steps.cd]\ncommand = 'true'", ["shoal.toml:1", "cd"]),
        ("\ufeff\0", ["shoal.toml"]),
        ("x = '" + "y" * 100, ["shoal.toml:1"]),
    ],
)
def test_a_missing_or_broken_shoal_toml_is_told_with_its_line(
    project: Project, text: str | None, words: list[str]
) -> None:
    script = project.script("001_a/000_train_0.sh")
    if text is None:
        (project.root / "shoal.toml").unlink()
    else:
        project.write("shoal.toml", text)
    assert_clear_error(project.shoal("submit", script, code=None), 2, *words)
    _assert_nothing_happened(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "word"),
    [(None, "no shoal.toml"), ("[steps.train\ncommand = 1", "shoal.toml:1"), ("[steps.train]\n", "shoal.toml:1")],
)
def test_every_command_that_reads_a_broken_shoal_toml_tells_so(project: Project, text: str | None, word: str) -> None:
    script = project.script("001_a/000_train_0.sh")
    (project.root / "shoal.toml").unlink() if text is None else project.write("shoal.toml", text)
    for done in (project.shoal("plan", script, code=None), project.bash(script, code=None)):
        assert_clear_error(done, 2, word)
    _assert_nothing_happened(project)


# --- what scripts say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train --time=abc", ["--time", "abc"]),
        ("train --time=25:61:00", ["--time"]),
        ("train --mem=12Q", ["--mem", "12Q"]),
        ("train --mem=-1", ["--mem"]),
        ("train --nodes=0", ["nodes"]),
        ("train --cpus-per-task=x", ["--cpus-per-task"]),
        ("train --gres=gpu:x:y", ["--gres"]),
        ("train --on nowhere", ["nowhere", "--on"]),
        ("train --on", ["--on needs a value"]),
        ("train --job-name=x", ["belongs to shoal"]),
        ("train --output=x", ["belongs to shoal"]),
        ("train -- ok -- fine\ntrain", ["000_train_0"]),
        ("train $'--comment=a\\nb'", ["line breaks"]),
        ("train –time=5", ["dash"]),
        ("true", ["calls no step"]),
        ("exit 3", ["exit code 3"]),
    ],
)
def test_what_a_script_says_wrong_is_told_before_anything_happens(
    project: Project, line: str, words: list[str]
) -> None:
    script = project.script("001_a/000_train_0.sh", line)
    assert_clear_error(project.shoal("submit", script, code=None), 2, *words)
    _assert_nothing_happened(project)


@pytest.mark.slow
def test_a_mistake_in_the_last_script_stops_the_first(project: Project) -> None:
    project.script("001_a/000_train_0.sh")
    project.script("001_a/001_train_0.sh", "train --time=never")
    assert_clear_error(project.shoal("submit", "experiments/001_a", code=None), 2, "--time")
    _assert_nothing_happened(project)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit"], "hint: shoal run -- python train.py"),
        (["submit", "nothing.sh"], "no such file"),
        (["submit", "x.sh", "--layout", "round"], "'round'"),
        (["submit", "shoal.toml"], "shoal.toml"),
        (["submit", "train.txt"], "neither an experiment file"),
        (["run", "bash", "x.txt"], "hint: shoal run -- bash x.txt"),
        (["run", "--time", "1h", "bash", "x", "--lr", "1"], "hint: shoal run --time 1h -- bash x --lr 1"),
        (["run", "--set", "lr", "0.1", "--", "true"], "hint: use --set lr=0.1,0.01"),
        (["run", "--set", "lr=1,", "--", "true"], "hint: use 1"),
        (["submit", "experiments"], "no experiment file"),
        (["frobnicate"], "no command"),
        (["status", "nothing"], "no run named 'nothing'"),
        (["logs", "nothing"], "no run named 'nothing'"),
        (["cancel", "nothing"], "no run named 'nothing'"),
        (["resume", "nothing"], "no run named 'nothing'"),
        (["status", "--nope"], "hint: shoal status --help"),
        (["data", "shard", "only-one-path"], "hint: shoal data shard --help"),
        (["sandbox", "upwards"], "hint: shoal sandbox --help"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_a_hint(project: Project, words: list[str], said: str) -> None:
    done = project.shoal(*words, code=None)
    assert_clear_error(done, 2, said)
    assert "usage:" not in done.err
    _assert_nothing_happened(project)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "000_train_0.sh",
        "001_a/b/000_train_0.sh",
        "a/000_train_0.sh",
        "001_a/train.sh",
        "001_a/-rf_0.sh",
        "-001_a/000_train_0.sh",
        "001_a/000_tr\nain_0.sh",
        "001_a/000_\x1b[31m_0.sh",
        "001_a/000_" + "x" * 100 + "_0.sh",
        "001_" + "x" * 70 + "/000_" + "y" * 70 + "_0.sh",
    ],
)
def test_a_path_that_names_no_run_is_refused(project: Project, path: str) -> None:
    script = project.script(path)
    assert_clear_error(project.shoal("submit", script, code=None), 2)
    assert_clear_error(project.bash(script, code=None), 2)
    _assert_nothing_happened(project)


@pytest.mark.slow
def test_a_script_outside_of_experiments_is_refused(project: Project, tmp_path: Path) -> None:
    inside = project.write("scripts/001_a/000_train_0.sh", 'source "$(shoal shell)"\ntrain\n')
    outside = tmp_path / "000_train_0.sh"
    shutil.copy(inside, outside)
    assert_clear_error(project.shoal("submit", inside, code=None), 2, "not in a directory experiments/", "mkdir -p")
    assert_clear_error(project.bash(inside, code=None), 2, "not in a directory experiments/")
    assert_clear_error(project.shoal("submit", outside, code=None), 2, "not in a directory experiments/")
    assert_clear_error(project.bash(outside, code=None), 2, "no shoal.toml")
    _assert_nothing_happened(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stem", ["000_a b_0", "000_it's_0", '000_"q"_0', "000_50%j_0", "000_größe_0", "000_日本_0", "000_$(id)_0"]
)
def test_an_odd_name_runs_under_a_safe_one_and_keeps_the_real_one(project: Project, stem: str) -> None:
    script = project.script(f"001_a/{stem}.sh", "train")
    project.bash(script)
    ((name, run),) = project.status().items()
    assert run["state"] == "completed" and name.isascii() and not set(name) & set(" '\"%$()")
    (spec,) = project.records(name, "spec.*.json")
    assert spec["title"] == f"001_a/{stem}"
    project.shoal("submit", script)
    assert len(project.marks(name)) == 1


@pytest.mark.slow
def test_two_odd_names_that_look_alike_are_two_runs(project: Project) -> None:
    for stem in ("000_a b_0", "000_a\u00a0b_0", "000_a+b_0", "000_a-b_0"):
        project.script(f"001_a/{stem}.sh", "train")
    project.shoal("submit", "experiments/001_a")
    assert len(project.status()) == 4


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own; what else could be full or read-only without harm?"""
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.mark.slow
def test_a_read_only_state_folder_is_told_and_looking_still_works(project: Project, mounted: Path) -> None:
    script = project.script("001_a/000_train_0.sh")
    project.shoal("submit", script, SHOAL_HOME=str(mounted))
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    other = project.script("001_a/001_train_0.sh")
    assert_clear_error(
        project.shoal("submit", other, code=None, SHOAL_HOME=str(mounted)), 74, "read-only", "SHOAL_HOME"
    )
    assert project.shoal("status", "--json", SHOAL_HOME=str(mounted)).json["runs"][0]["state"] == "completed"
    assert project.marks("001_a/001_train_0") == []
    subprocess.run(["mount", "-o", "remount,rw", mounted], check=True)
    project.shoal("submit", other, SHOAL_HOME=str(mounted))
    assert len(project.marks("001_a/001_train_0", "end")) == 1


@pytest.mark.slurm
def test_a_disk_that_fills_up_at_any_point_sends_nothing_unclaimed_and_works_again_later(
    project: Project, mounted: Path, tmp_path: Path, cluster: Sandbox
) -> None:
    """The disk has room for the first n blocks only, for every n at which something is written."""
    project = Project(tmp_path, cluster, name="full")
    script = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    home = mounted / "home"
    project.env["SHOAL_HOME"] = str(home)
    project.shoal("submit", project.script("000_b/000_train_0.sh"), "--on", "local")  # the agent itself is there
    codes = []
    for blocks in range(24):
        fill(mounted, leave=blocks * 4096)
        done = project.shoal("submit", script, code=None)
        codes.append(done.code)
        if done.code == 0:
            break
        assert_clear_error(done, 74, "no space left", str(mounted), "SHOAL_HOME")
        assert not list(home.rglob("*.tmp-*")) if home.exists() else True
        assert project.slurm("squeue", "-h", "-t", "all", "-n", "none,001_a", "-o", "%j") == ""
    empty(mounted)
    project.shoal("submit", script)
    project.wait(RUN, "completed")
    assert len(project.marks(RUN)) == len(project.marks(RUN, "end")) == 1
    assert len(codes) > 3 and set(codes[:-1]) == {74}, codes


# --- damaged and newer state ------------------------------------------------------------------------------------------


DAMAGE = ("", '{"schema": 1}', '{"schema": 99, "t": 1.0, "token": "x"}')


@pytest.mark.slow
def test_one_damaged_record_hides_no_other_run(project: Project, tmp_path: Path) -> None:
    for number in range(12):
        project.script(f"001_a/{number:03}_train_0.sh", "train -- exit=1" if number % 2 else "train")
    project.shoal("submit", "experiments/001_a", code=4)
    damaged = {
        "000": "attempt.1.start", "001": "attempt.1.start", "002": "attempt.1.end", "003": "attempt.1.start",
        "004": "submit.1.claim", "005": "submit.1.claim", "008": "spec.1.json", "009": "spec.1.json",
    }  # fmt: skip
    for kind, text in enumerate(DAMAGE):
        home = tmp_path / f"damaged{kind}"
        shutil.copytree(project.home, home)
        project.env["SHOAL_HOME"] = str(home)
        for digits, name in damaged.items():
            (home / f"runs/001_a/{digits}_train_0" / name).write_text(text)
        runs = project.status()
        assert len(runs) == 12
        for digits in ("002", "006", "008", "010"):
            assert runs[f"001_a/{digits}_train_0"]["state"] == "completed"
        for digits in ("000", "001"):
            run = runs[f"001_a/{digits}_train_0"]
            assert run["state"] == "unknown" and "attempt.1.start" in run["reason"]
        for words in (
            ["submit", "experiments/001_a/009_train_0.sh"],
            ["logs", "003_train_0"],
            ["resume", "009_train_0"],
        ):
            assert_clear_error(project.shoal(*words, code=None), 2, "restore that file")
        left = project.shoal("submit", "experiments/001_a/001_train_0.sh")
        assert "left alone" in left.out and "attempt.1.start" in left.out
    assert len(project.marks("001_a/001_train_0")) == 1


@pytest.mark.slow
def test_a_damaged_submission_or_project_record_is_told(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "train -- exit=1")
    project.shoal("submit", script, code=1)
    (project.submissions()[0] / "submission.json").write_text("{")
    assert "submission.json" in project.status()[RUN]["reason"]
    (project.home / "project.json").write_text("{")
    other = project.script("001_a/001_train_0.sh")
    assert_clear_error(project.shoal("submit", other, code=None), 2, "project.json")
    assert project.marks("001_a/001_train_0") == []


@pytest.mark.slow
def test_strange_things_in_the_state_folder_are_passed_over(project: Project) -> None:
    project.shoal("submit", project.script("001_a/000_train_0.sh"))
    for path in (
        "runs/stray",
        "runs/001_a/stray",
        f"runs/{RUN}/.nfs0001",
        f"runs/{RUN}/attempt.x.end",
        "submissions/x",
    ):
        (project.home / path).write_text("?")
    (project.home / "runs/001_a/empty").mkdir()
    states = {name: run["state"] for name, run in project.status().items()}
    assert states == {RUN: "completed", "001_a/empty": "new"}


def test_a_state_folder_that_anybody_may_write_is_refused(project: Project) -> None:
    project.home.mkdir()
    project.home.chmod(0o777)
    done = project.shoal("submit", project.script("001_a/000_train_0.sh"), code=None)
    assert_clear_error(done, 2, "anybody may write", "chmod o-w")
    assert project.marks(RUN) == []


# --- requests that Slurm cannot serve ---------------------------------------------------------------------------------


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--partition=nowhere", ["unknown partition 'nowhere'", "main"]),
        ("--gres=gpu:99", ["99 GPUs", "--gpus-per-node=4"]),
        ("--mem=900G", ["memory"]),
        ("--cpus-per-task=999", ["CPUs"]),
        ("--time=30-0", ["time"]),
    ],
)
def test_a_request_that_no_partition_can_serve_is_refused_before_it_is_sent(
    flags: str, words: list[str], tmp_path: Path, cluster: Sandbox
) -> None:
    project = Project(tmp_path, cluster)
    assert_clear_error(
        project.shoal("submit", project.script("001_a/000_train_0.sh", f"train {flags}"), code=None), 3, *words
    )
    _assert_nothing_happened(project)


@pytest.mark.slurm
@pytest.mark.parametrize(
    "flags", ["--account=nobody --licenses=gold:3", "--reservation=none", "--constraint=nosuch", "--frob=1"]
)
def test_what_slurm_refuses_is_told_in_its_words_and_is_no_run(flags: str, tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train_0.sh", f"train --time=5 {flags}")
    assert_clear_error(project.shoal("submit", script, code=None), 2, "Slurm refused 001_a/000_train_0")
    assert project.status() == {} and project.jobs() == [], "nothing stays behind as a new run"
    assert "Slurm refused it: " in project.shoal("why", RUN).out
    assert project.status(RUN)[RUN]["state"] == "new" and RUN not in project.shoal("report").out
    outcome = json.loads((project.submissions()[0] / "send.0.outcome").read_text())
    assert outcome["kind"] == "void" and outcome["refused"]
    project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    project.shoal("submit", script)
    project.wait(RUN, "completed")
    project.assert_ran_once(RUN)
