"""A script run with bash: a step that fails ends it, and posttrain and resume say what the next step starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from project import Project, assert_clear_error

pytestmark = pytest.mark.slow

PRETRAIN = "001_example/000_pretrain1_0"
POSTTRAIN = "001_example/010_postrain32_0"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Where posttrain is not a step, as in LEAD."""
    made = Project(tmp_path)
    toml = (made.root / "shoal.toml").read_text()
    before, _, rest = toml.partition("[steps.posttrain]")
    made.write("shoal.toml", before + rest[rest.index("[steps.evaluate]") :])
    return made


@pytest.fixture
def trained(project: Project) -> Project:
    project.bash(project.script("001_example/000_pretrain1_0.sh", "train -- save=2 save=10 exit=9"), code=9)
    return project


def folder(project: Project) -> str:
    (found,) = (project.root / "outputs/training" / PRETRAIN).iterdir()
    return str(found.relative_to(project.root))


@pytest.mark.parametrize(
    "line", ["posttrain nowhere/at/all", "train -- exit=7", "train -- exit=7 | cat", "(train -- exit=7)", "evaluate_x"]
)
def test_a_step_that_fails_ends_the_script(project: Project, line: str) -> None:
    script = project.script("001_example/010_postrain32_0.sh", line, "touch reached", "evaluate --rerun -- second")
    done = project.bash(script, code=None)
    if line == "evaluate_x":  # not a step: bash goes on, as it does
        assert (project.root / "reached").exists()
        return
    assert done.code != 0
    if not line.startswith("posttrain"):  # posttrain speaks when the step comes
        assert not (project.root / "reached").exists()
    assert all(mark["args"] != ["second"] for mark in project.marks(POSTTRAIN))


def test_the_exit_code_is_the_steps(project: Project) -> None:
    assert project.bash(project.script("001_example/000_a_0.sh", "train -- exit=7", "true"), code=7)


@pytest.mark.parametrize("how", ["bash", "submit"])
def test_posttrain_says_what_the_next_step_starts_from(trained: Project, how: str) -> None:
    lines = ("export TEST_CONFIG=planner", f"posttrain {folder(trained)}", "train --on local --time=5 -- second")
    script = trained.script("001_example/010_postrain32_0.sh", *lines)
    (planned,) = trained.shoal("plan", "--json", script).json["runs"]
    assert (planned["name"], planned["request"]["time"]) == (POSTTRAIN, "00:05:00")
    done = trained.bash(script) if how == "bash" else trained.shoal("submit", script)
    assert "model_10.pth (step 10)" in done.err
    (mark,) = trained.marks(POSTTRAIN)
    assert mark["env"]["SHOAL_START_FROM"] == str(trained.root / folder(trained) / "model_10.pth")
    assert mark["args"] == ["second"] and mark["env"]["TEST_CONFIG"] == "planner"
    assert "training/001_example/010_postrain32_0" in mark["env"]["SHOAL_OUTPUT_DIR"]


@pytest.mark.parametrize("how", ["bash", "submit"])
@pytest.mark.parametrize("last", ["train --on local --time=7", "", "trap 'touch own-trap' EXIT"])
def test_resume_continues_a_run_in_its_own_folder(trained: Project, how: str, last: str) -> None:
    lines = (last, f"resume {folder(trained)}") if "trap" in last else (f"resume {folder(trained)}", last)
    script = trained.script("001_example/001_again_0.sh", *lines)
    done = trained.bash(script, code=9) if how == "bash" else trained.shoal("submit", script, code=9)
    assert "continues from" in done.err and "model_10.pth (step 10)" in done.err
    first, second = [mark["env"] for mark in trained.marks(PRETRAIN)]
    assert second["SHOAL_RESUME_FROM"].endswith("/model_10.pth")
    assert first["SHOAL_OUTPUT_DIR"] == second["SHOAL_OUTPUT_DIR"]
    assert (trained.root / "own-trap").exists() == ("trap" in last)
    assert trained.marks("001_example/001_again_0") == []


def test_a_resumed_run_is_told_of_settings_that_it_does_not_take(trained: Project) -> None:
    script = trained.script("001_example/001_again_0.sh", "export TEST_LR=2", f"resume {folder(trained)}", "train")
    assert (
        "keeps TEST_LR as it was, and not as experiments/001_example/001_again_0.sh sets it"
        in trained.shoal("submit", "--on", "local", script, code=9).err
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("posttrain 000_pretrain1_0",), "posttrain 000_pretrain1_0 is not followed by a step"),
        (("posttrain 000_pretrain1_0 --gres=gpu:4",), "shoal.toml has no step 'posttrain', so posttrain takes"),
        (("posttrain a", "posttrain b", "train"), "'posttrain b' stands after 'posttrain a': a run has one start"),
        (("resume a", "posttrain b", "train"), "'posttrain b' stands after 'resume a'"),
        (("posttrain a", "train b"), "'train b' stands after 'posttrain a'"),
        (("posttrain a | cat", "train"), "posttrain a is not followed by a step"),
        (("resume 000_pretrain1_0", "train -- lr=3"), "an argument for the program has no effect"),
        (("resume 000_pretrain1_0", "train --rerun"), "--rerun has no effect"),
        (("resume 000_pretrain1_0", "evaluate"), "is a run of step 'train' and cannot be resumed by evaluate"),
        (("train --layout pack",), "--layout is a flag of shoal submit, not of train"),
    ],
)
def test_a_modifier_that_would_do_nothing_is_refused(trained: Project, lines: tuple[str, ...], message: str) -> None:
    script = trained.script("001_example/010_postrain32_0.sh", *lines)
    assert_clear_error(trained.shoal("plan", script, code=None), 2, message)
    by_bash = trained.bash(script, code=None)
    assert by_bash.code != 0 and message in by_bash.err
    assert trained.marks(POSTTRAIN) == [] and len(trained.marks(PRETRAIN)) == 1


def test_posttrain_that_is_a_step_is_a_run_of_its_own(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.bash(project.script("001_example/000_pretrain1_0.sh", "train -- save=1"))
    script = project.script("001_example/010_postrain32_0.sh", "posttrain 000_pretrain1_0", "train --time=5")
    assert_clear_error(project.shoal("plan", script, code=None), 2, "asked for twice", "remove [steps.posttrain]")
    assert_clear_error(project.bash(script, code=None), 2, "with other settings")


@pytest.mark.parametrize("how", ["bash", "submit"])
@pytest.mark.parametrize("last", ["trap 'touch own-trap' EXIT", "exec true", "echo done"])
def test_resume_alone_is_not_lost(trained: Project, how: str, last: str) -> None:
    script = trained.script("001_example/001_again_0.sh", f"resume {folder(trained)}", last)
    done = trained.bash(script, code=9) if how == "bash" else trained.shoal("submit", script, code=9)
    assert "continues from" in done.err and len(trained.marks(PRETRAIN)) == 2


@pytest.mark.parametrize("trap", ["", 'trap "echo got TERM" TERM', 'trap "" TERM', "set -u"])
@pytest.mark.parametrize(
    "line", ["(train -- exit=7)", "train -- exit=7 | cat", "x=$(train -- exit=7)", "train -- exit=7 & wait"]
)
def test_a_step_that_fails_in_a_subshell_ends_the_script_with_its_exit_code(
    project: Project, tmp_path: Path, trap: str, line: str
) -> None:
    script = project.script("001_example/010_a_0.sh", trap, line, "touch reached", "evaluate -- second")
    (tmp_path / "tmp").mkdir()
    done = project.bash(script, code=7, TMPDIR=str(tmp_path / "tmp"))
    assert not (project.root / "reached").exists() and "got TERM" not in done.out
    assert len(project.marks("001_example/010_a_0")) == 1
    assert not list((tmp_path / "tmp").glob("shoal-failed*"))
