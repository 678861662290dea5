"""A resume is what the program does, not what is said of it: known, told, asked or refused; and a copy is kept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.describe.program_source import find_reader
from shoal.job.environment import run_argv
from shoal.kernel import checkpoints
from terminal import run_in_terminal

pytestmark = pytest.mark.slow

#: As nanoGPT: it prints its steps, writes one checkpoint over and over, and continues only when it is told to.
LOOP = """\
import os, sys
out = os.environ.get("SHOAL_OUTPUT_DIR", ".")
path = os.path.join(out, "ckpt.pt")
start = 0
if "--init_from=resume" in sys.argv:
    start = int(open(path).read())
for step in range(start, start + 5):
    print("iter %d: loss 1.0" % step, flush=True)
    open(path, "w").write(str(step))
sys.exit(0 if "--init_from=resume" in sys.argv else 3)
"""
STEP = """
[steps.loop]
command = [{python}, "loop.py"]
checkpoint = "ckpt.pt"
"""
RUN = "001_a/000_loop_0"
FILE = "experiments/001_a/000_loop_0.sh"


def make(folder: Path, more: str = "") -> Project:
    project = Project(folder, toml=STEP.format(python=json.dumps(sys.executable)) + more)
    project.write("loop.py", LOOP)
    project.script("001_a/000_loop_0.sh", "loop")
    return project


def outputs(project: Project) -> list[Path]:
    return sorted((project.root / "outputs/loop/001_a/000_loop_0").iterdir())


def test_a_program_that_is_not_known_to_resume_is_told_at_plan_and_refused_at_resume(tmp_path: Path) -> None:
    project = make(tmp_path)
    assert "no file of its program reads SHOAL_RESUME_FROM" in " ".join(project.shoal("plan", FILE).out.split())
    project.shoal("submit", FILE, code=3)
    refused = project.shoal("resume", RUN, code=None)
    assert_clear_error(refused, 3, "cannot tell whether", "ckpt.pt", 'resume_args = ["--resume={resume_from}"]')
    script = project.script("001_a/001_again_0.sh", "resume 000_loop_0")
    assert_clear_error(project.bash(script, code=None), 3, "cannot tell whether", "--yes")
    [folder] = outputs(project)
    assert (folder / "ckpt.pt").read_text() == "4" and project.status()[RUN]["attempt"] == 1


def test_a_forced_resume_that_starts_over_is_told_and_the_checkpoint_is_kept(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.shoal("submit", FILE, code=3)
    project.write("loop.py", LOOP.replace("start + 5", "start + 2"))
    done = project.shoal("resume", RUN, "--yes", code=3)
    [folder] = outputs(project)
    assert (folder / "ckpt.pt").read_text() == "1" and (folder / "before-attempt-2/ckpt.pt").read_text() == "4"
    told = "attempt 2 did not continue from ckpt.pt: its progress begins at step 0, and step 4 was reached before"
    assert f"warning: {told}" in done.err
    assert told in " ".join(project.shoal("why", RUN).out.split())
    assert told in " ".join(project.shoal("status").out.split())
    assert project.status()[RUN]["restart"] == told
    assert "before-attempt-2" in done.err and "may start over" in done.err


def test_arguments_of_a_resume_are_given_to_it_alone_and_may_be_added_after_the_crash(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.shoal("submit", FILE, code=3)
    toml = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", toml + 'resume_args = ["--init_from=resume", "from={resume_from}"]\n')
    project.write("loop.py", LOOP.replace("start = 0", "start = 0; print(sys.argv[1:])"))
    done = project.shoal("resume", RUN)
    [folder] = outputs(project)
    assert "continues from" in done.err and not (folder / "before-attempt-2").exists()
    assert (
        (folder / "attempt-2.out")
        .read_text()
        .startswith(f"['--init_from=resume', 'from={folder}/ckpt.pt']\niter 4: loss")
    )
    assert project.status()[RUN]["state"] == "completed" and project.status()[RUN]["restart"] is None
    assert "did not continue" not in done.err


def test_resume_args_need_a_checkpoint_pattern(tmp_path: Path) -> None:
    project = Project(tmp_path, toml='[steps.bare]\ncommand = "python x.py"\nresume_args = []\n')
    assert_clear_error(
        project.shoal("plan", "experiments", code=None),
        2,
        "resume_args: the step has no checkpoint pattern",
        "checkpoint =",
    )


def test_submit_of_a_crashed_run_continues_where_the_program_can_and_says_so(tmp_path: Path) -> None:
    project = make(tmp_path, 'resume_args = ["--init_from=resume"]\n')
    project.shoal("submit", FILE, code=3)
    plan = project.shoal("plan", FILE)
    assert "resume from outputs/loop" in " ".join(plan.out.split()) and "--fresh starts it over" in plan.out
    assert project.shoal("plan", FILE, "--json").json["runs"][0]["resume_from"].endswith("/ckpt.pt")
    fresh = project.shoal("submit", FILE, "--fresh", code=3)
    assert "starts over in a new folder (--fresh); its checkpoint" in fresh.err
    first, second = outputs(project)
    assert (first / "ckpt.pt").read_text() == (second / "ckpt.pt").read_text() == "4"
    done = project.shoal("submit", FILE)
    assert "continues from" in done.err and "failed before; --fresh starts it over" in done.err
    assert outputs(project) == [first, second] and (second / "ckpt.pt").read_text() == "8"


def test_submit_of_a_crashed_run_starts_over_where_the_program_may_not_continue_and_says_so(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.shoal("submit", FILE, code=3)
    again = project.shoal("submit", FILE, code=3)
    assert "starts over in a new folder; its checkpoint outputs/loop" in again.err
    assert "no file of its program reads SHOAL_RESUME_FROM" in again.err
    retried = project.shoal("retry", RUN, code=3)
    assert "starts over in a new folder; its checkpoint" in retried.err and len(outputs(project)) == 3
    assert_clear_error(project.shoal("submit", FILE, "--resume", code=None), 3, "cannot tell whether")
    assert project.shoal("submit", FILE, "--resume", "--fresh", code=2).err
    assert_clear_error(project.shoal("submit", FILE, "--resume", "--rerun", code=None), 2, "cannot be used with")
    project.shoal("submit", FILE, "--resume", "--yes", code=3)
    assert (outputs(project)[-1] / "before-attempt-4/ckpt.pt").is_file() and len(outputs(project)) == 3


def test_a_checkpoint_of_other_settings_is_not_continued(tmp_path: Path) -> None:
    project = make(tmp_path, 'resume_args = ["--init_from=resume"]\n')
    project.shoal("submit", FILE, code=3)
    project.script("001_a/000_loop_0.sh", "loop -- --lr=2")
    assert "continues" not in project.shoal("submit", FILE, code=3).err and len(outputs(project)) == 2
    project.write("loop.py", "print('nothing is saved'); raise SystemExit(1)")
    (outputs(project)[1] / "ckpt.pt").unlink()
    assert_clear_error(project.shoal("resume", RUN, code=None), 2, "no checkpoint ckpt.pt")


@pytest.mark.parametrize(("typed", "folders", "attempts"), [(b"resume\n", 1, 2), (b"f\n", 2, 2), (b"\n", 1, 1)])
def test_a_terminal_is_asked(typed: bytes, folders: int, attempts: int, tmp_path: Path) -> None:
    project = make(tmp_path, 'resume_args = ["--init_from=resume"]\n')
    project.shoal("submit", FILE, code=3)
    seen = run_in_terminal(["submit", FILE], project.root, typed=typed, base=project.env)
    assert "continue from the checkpoint, or start over? [resume/fresh/cancel]" in seen
    assert len(outputs(project)) == folders and project.status()[RUN]["attempt"] == attempts


def test_a_terminal_is_asked_before_a_resume_that_may_start_over(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.shoal("submit", FILE, code=3)
    assert "resume it anyway?" in run_in_terminal(["resume", RUN], project.root, typed=b"n\n", base=project.env)
    assert project.status()[RUN]["attempt"] == 1
    run_in_terminal(["resume", RUN], project.root, typed=b"y\n", base=project.env)
    assert project.status()[RUN]["attempt"] == 2


def test_an_argument_that_is_empty_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    project = make(tmp_path)
    toml = (project.root / "shoal.toml").read_text().replace('"loop.py"]', '"loop.py", "ckpt_path={resume_from}"]')
    project.write("shoal.toml", toml)
    notes = project.shoal("plan", FILE, "--json").json["notes"]
    assert any('resume_args = ["ckpt_path={resume_from}"]' in note and "'ckpt_path='" in note for note in notes)


def test_words_of_a_resume_stand_behind_all_others() -> None:
    spec = {"command": ["train", "{seed}"], "args": ["more"], "resume_args": ["ckpt_path={resume_from}"]}
    assert run_argv(spec, {"seed": "3", "resume_from": ""}) == ["train", "3", "more"]
    assert run_argv(spec, {"seed": "3", "resume_from": "/a"}) == ["train", "3", "more", "ckpt_path=/a"]


@pytest.mark.parametrize(
    ("files", "command", "found"),
    [
        ({"a.py": "os.environ['X_Y']"}, ["python", "a.py"], "a.py"),
        ({"a.py": "import b.c", "b/c.py": "X_Y"}, ["python", "a.py"], "b/c.py"),
        (
            {"a.py": "from b import (c,\n d)", "b/c.py": "from . import e", "b/e.py": "X_Y"},
            ["python", "a.py"],
            "b/e.py",
        ),
        ({"src/b/__main__.py": "from b.c import d", "src/b/c.py": "X_Y"}, ["python", "-m", "b"], "src/b/c.py"),
        ({"run.sh": 'exec python "$HERE/a.py"', "a.py": "X_Y"}, ["bash", "run.sh"], "a.py"),
        ({"a.py": "print(1)", "conf/x.yaml": "path: ${oc.env:X_Y}"}, ["bash", "-c", "python a.py"], "conf/x.yaml"),
        ({"a.py": "print(1)", "other.py": "X_Y"}, ["python", "a.py"], ""),
        ({"conf/x.yaml": "X_Y"}, ["some-program"], ""),
        ({"a.py": "# TODO: continue from X_Y\nprint(1)  # X_Y"}, ["python", "a.py"], ""),
        ({"a.py": '"""Run it with X_Y."""\nimport b', "b.py": "def f():\n    'reads X_Y'"}, ["python", "a.py"], ""),
        ({"a.py": "# X_Y\nprint 1\n"}, ["python", "a.py"], ""),
        ({"a.py": "print 1\nprint os.environ['X_Y']\n"}, ["python", "a.py"], "a.py"),
        ({"a.py": "path = os.getenv(f'{P}X_Y')"}, ["python", "a.py"], "a.py"),
        ({"run.sh": "# X_Y\npython a.py $# # X_Y", "a.py": "print(1)"}, ["bash", "run.sh"], ""),
        ({"run.sh": 'python a.py "$X_Y"', "a.py": "print(1)"}, ["bash", "run.sh"], "run.sh"),
        ({"a.py": "print(1)", "conf/x.yaml": "# X_Y\na: 1 # X_Y"}, ["python", "a.py"], ""),
    ],
)
def test_what_a_program_reads_is_seen_in_its_files(
    files: dict[str, str], command: list[str], found: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert find_reader("X_Y", tmp_path, command) == found


def test_a_program_that_only_names_the_variable_gets_a_copy_until_it_was_seen_to_continue(tmp_path: Path) -> None:
    """A comment is no proof at all, and a line of code that need not run is not enough to go without a copy."""
    project = make(tmp_path)
    project.write("loop.py", "# TODO: continue from SHOAL_RESUME_FROM\n" + LOOP)
    project.shoal("submit", FILE, code=3)
    assert "starts over in a new folder" in project.shoal("submit", FILE, code=3).err
    project.write("loop.py", "import os; given = os.environ.get('SHOAL_RESUME_FROM')\n" + LOOP)
    again = project.shoal("submit", FILE, code=3)
    assert "continues from" in again.err and "a copy of that checkpoint is kept in" in again.err
    folder = outputs(project)[-1]
    assert (folder / "before-attempt-3/ckpt.pt").read_text() == "4"
    itself = LOOP.replace('"--init_from=resume" in sys.argv', "given").replace("sys.exit(0", "sys.exit(3")
    project.write("loop.py", "import os; given = os.environ.get('SHOAL_RESUME_FROM')\n" + itself)
    assert "a copy" in project.shoal("submit", FILE, code=3).err, "this one continued"
    assert "a copy" not in project.shoal("submit", FILE, code=3).err
    assert sorted(path.name for path in folder.glob("before-*")) == ["before-attempt-3", "before-attempt-4"]


def _bar(*counts: int) -> str:
    return "\r".join(f" {count}%|###| {count}/100 [00:01<00:09, 1it/s]" for count in counts)


@pytest.mark.parametrize(
    ("first", "second", "checkpoint", "continued"),
    [
        ("iter 0\niter 10\niter 500\n", "iter 400\niter 410\n", "ckpt.pt", True),
        ("iter 0\niter 10\niter 500\n", "iter 0\niter 10\n", "ckpt.pt", False),
        ("iter 0\niter 10\niter 500\n", "iter 0\n", "ckpt.pt", None),
        ("iter 0\niter 10\niter 500\n", "loading\n", "ckpt.pt", None),
        ("Epoch 0\nEpoch 1\nEpoch 2\n", "Epoch 2\nEpoch 3\n", "epoch_2.ckpt", True),
        ("Epoch 0\nEpoch 1\nEpoch 2\n", "Epoch 0\nEpoch 1\n", "epoch_2.ckpt", False),
        (_bar(0, 2, 60), _bar(0, 51), "checkpoint-50", True),
        (_bar(0, 2, 60), _bar(0, 3), "checkpoint-50", False),
        (_bar(0, 50, 100) + "\n" + _bar(0, 50, 100), _bar(0, 3), "last.ckpt", None),
        ("step 9\nstep 29\nstep 189\n", "step 11\nstep 31\n", "last.bin", False),
        ("step 9\nstep 29\n", "step 11\nstep 31\n", "last.bin", None),
        ("step 0\nstep 100\n", "step 0\nstep 100\n", "last.bin", None),
        ("step 0\nstep 10\nstep 500\n", "step 100\nstep 110\n", "last.bin", None),
        ("step 0\nstep 10\nstep 500\n", "step 100\nstep 110\n", "step_100.bin", True),
        ("", "step 1\nstep 2\n", "checkpoint-50", False),
        ("", "step 51\nstep 52\n", "checkpoint-50", True),
        ("", "Epoch 1\nEpoch 2\n", "checkpoint-50", None),
    ],
)
def test_the_first_progress_tells_whether_an_attempt_continued(
    first: str, second: str, checkpoint: str, continued: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "attempt-1.out").write_text(first)
    (tmp_path / "attempt-2.out").write_text(second)
    began = checkpoints.check_resume(str(tmp_path), 2, f"/x/{checkpoint}")
    assert (None if began is None else began.continued) == continued


def test_an_attempt_that_continued_is_enough_to_know_it(tmp_path: Path) -> None:
    """A program that finds its checkpoint by itself has to be forced once, and never again."""
    project = make(tmp_path)
    itself = LOOP.replace('"--init_from=resume" in sys.argv', "os.path.exists(path)")
    project.write("loop.py", itself.replace("sys.exit(0", "sys.exit(3"))
    project.shoal("submit", FILE, code=3)
    project.shoal("resume", RUN, "--yes", code=3)
    assert "continues from" in project.shoal("resume", RUN, code=3).err
    [folder] = outputs(project)
    assert os.path.exists(folder / "before-attempt-2") and not os.path.exists(folder / "before-attempt-3")


LIGHTNING = """\
import os, sys, torch, lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
class Model(BoringModel):
    def on_train_epoch_start(self):
        print("Epoch %d begins" % self.current_epoch, flush=True)
    def on_train_epoch_end(self):
        if os.environ["SHOAL_ATTEMPT"] != "3" and self.current_epoch == 2 * int(os.environ["SHOAL_ATTEMPT"]):
            os._exit(5)
given = dict(word.split("=", 1) for word in sys.argv[1:])
keep = ModelCheckpoint(os.environ["SHOAL_OUTPUT_DIR"] + "/checkpoints", save_last=True, every_n_epochs=1)
trainer = lightning.Trainer(max_epochs=6, limit_train_batches=3, limit_val_batches=0, callbacks=[keep], logger=False,
                            enable_progress_bar=False, accelerator="cpu")
trainer.fit(Model(), ckpt_path=given["ckpt_path"] if "ckpt_path" in given else None)
"""


def test_a_lightning_program_continues_from_the_newest_of_its_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    step = f"""
[steps.fit]
command = [{json.dumps(sys.executable)}, "fit.py"]
checkpoint = "checkpoints/*.ckpt"
resume_args = ["ckpt_path={{resume_from}}"]
"""
    project = Project(tmp_path, toml=step)
    project.write("fit.py", LIGHTNING)
    name, script = "001_a/000_fit_0", project.script("001_a/000_fit_0.sh", "fit")
    project.shoal("submit", script, code=5)
    project.shoal("submit", script, code=5)
    project.shoal("submit", script)
    [folder] = (project.root / "outputs/fit/001_a/000_fit_0").iterdir()
    begun = [
        [int(line.split()[1]) for line in (folder / f"attempt-{k}.out").read_text().splitlines() if "begins" in line]
        for k in (1, 2, 3)
    ]
    assert begun == [[0, 1, 2], [2, 3, 4], [4, 5]], sorted(path.name for path in (folder / "checkpoints").iterdir())
    starts = project.records(name, "attempt.*.start")
    assert [os.path.basename(start["resume_from"] or "") for start in starts] == ["", "last.ckpt", "last.ckpt"]
