"""Each run has a working directory of its own: relative reads find the project, relative writes stay with the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import cancel_all
from disks import empty, fill, small_disk
from project import Project, end_process
from shoal.agent.workdir import WorkDir
from shoal.kernel import checkpoints, layout
from shoal.sandbox import Sandbox
from shoal.submit.snapshot import take
from waiting import wait_until

#: Writes as training code does: below the directory it is started in, and below the one its own file is in.
PROGRAM = """\
import json, os, sys, pathlib
import helper
found = {"lr": sys.argv[1], "before": os.path.exists("ckpt/last.pt"), "helper": helper.VALUE}
for path in sys.argv[2:]:
    try:
        found[path] = open(path).read().strip()
    except OSError as error:
        found[path] = type(error).__name__
os.makedirs("ckpt", exist_ok=True)
open("ckpt/last.pt", "w").write(sys.argv[1])
beside = pathlib.Path(__file__).resolve().parent / "logs"
beside.mkdir(exist_ok=True)
(beside / "events.txt").write_text(sys.argv[1])
open("config/used.yaml", "w").write(sys.argv[1])
open("config/base.yaml", "a").write("lr: " + sys.argv[1])
print(json.dumps(found))
"""
NAMES = ["001_a/000_train_lr0.1", "001_a/000_train_lr0.2", "001_a/000_train_lr0.3"]


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def make(folder: Path, cluster: Sandbox | None, *reads: str, more: str = "", program: str = PROGRAM) -> Project:
    """A repository with data beside it, ignored data in it, and a sweep over three values."""
    project = Project(folder, cluster)
    project.write("train.py", program)
    project.write("helper.py", "VALUE = 1\n")
    project.write("config/base.yaml", "depth: 1\n")
    project.write(".gitignore", "data/\nlogs/\nmarks/\noutputs/\n*.pt\n")
    project.write("data/x.txt", "ignored data")
    project.write("logs/old.txt", "of an earlier life")
    (folder / "corpus").mkdir()
    (folder / "corpus/y.txt").write_text("above")
    words = ", ".join(json.dumps(word) for word in ("python3", "train.py", "{lr}", *reads))
    project.write(
        "shoal.toml",
        f'{more}\n[steps.train]\ncommand = [{words}]\noutput = "training"\ncheckpoint = "ckpt/*.pt"\n'
        '[steps.train.request]\ntime = "5m"\nmemory = "50M"\n',
    )
    project.write("experiments/001_a/000_train.toml", 'step = "train"\n[sweep]\nlr = [0.1, 0.2, 0.3]\n')
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "first")
    return project


def place_of(project: Project, name: str) -> Path:
    """Where a run's relative paths led."""
    [_, place] = layout.written_by(project.status()[name]["output_dir"])
    return Path(place)


def printed(project: Project, name: str) -> dict[str, object]:
    return json.loads(project.shoal("logs", name).out.splitlines()[-1])  # type: ignore[no-any-return]


def changes(project: Project) -> str:
    done = subprocess.run(
        ["git", "status", "--porcelain", "--", ".", ":!.shoal"], cwd=project.root, capture_output=True, text=True
    )
    return done.stdout


def assert_apart(project: Project) -> None:
    """Three runs, each with its own files; the project and the code that was kept are as they were."""
    for name, value in zip(NAMES, ("0.1", "0.2", "0.3"), strict=True):
        place = place_of(project, name)
        left = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}
        assert left == {"ckpt/last.pt", "logs/events.txt", "config/used.yaml", "config/base.yaml"}
        assert (place / "ckpt/last.pt").read_text() == (place / "logs/events.txt").read_text() == value
        assert (place / "config/base.yaml").read_text() == f"depth: 1\nlr: {value}"
        told = printed(project, name)
        assert told["before"] is False and told["helper"] == 1
        assert f"relative path is in {place}" in project.shoal("why", name).out
    assert changes(project) == ""
    assert sorted(path.name for path in (project.root / "logs").iterdir()) == ["old.txt"]
    [kept] = [path for path in (project.home / "snapshots").iterdir() if path.is_dir()]
    assert (kept / "config/base.yaml").read_text() == "depth: 1\n" and not (kept / "ckpt").exists()


@pytest.mark.parametrize("shape", [(), ("--shape", "pack", "--slots", "2")])
def test_runs_on_this_machine_write_apart(tmp_path: Path, shape: tuple[str, ...]) -> None:
    project = make(tmp_path, None)
    project.shoal("submit", "experiments/001_a", "--on", "local", *shape)
    assert_apart(project)


@pytest.fixture
def on_slurm(tmp_path: Path, cluster: Sandbox) -> Iterator[Project]:
    yield make(tmp_path, cluster)
    cancel_all(cluster)


@pytest.mark.slurm
@pytest.mark.parametrize("shape", [("job",), ("array",), ("pack", "--slots", "2")])
def test_runs_on_slurm_write_apart(on_slurm: Project, shape: tuple[str, ...]) -> None:
    on_slurm.shoal("submit", "experiments/001_a", "--shape", *shape)
    for name in NAMES:
        on_slurm.wait(name, "done")
    assert_apart(on_slurm)


def test_relative_paths_lead_to_code_data_and_what_is_above_the_repository(tmp_path: Path) -> None:
    reads = ("config/base.yaml", "data/x.txt", "../corpus/y.txt", "../home", "../nothing.txt", "logs/old.txt")
    project = make(tmp_path, None, *reads)
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    told = printed(project, NAMES[0])
    assert [told[path] for path in reads] == [
        "depth: 1",
        "ignored data",
        "above",
        "IsADirectoryError",
        "FileNotFoundError",
        "FileNotFoundError",
    ]


def test_a_project_inside_a_repository_sees_its_neighbours(tmp_path: Path) -> None:
    """As in pytorch/examples: the project is one folder of the repository, and its data is named by ../data."""
    top = tmp_path / "above/repo"
    (top / "mnist").mkdir(parents=True)
    (top / "common.txt").write_text("of the repository")
    for folder, text in (("above/data", "one above"), ("far", "two above")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.txt").write_text(text)
    (top / "mnist/main.py").write_text(
        "import sys\nfor path in ('../common.txt', '../../data/x.txt', '../../../far/x.txt'):\n"
        "    print(open(path).read())\nopen('model.pt', 'w').write(sys.argv[1])\n"
    )
    project = Project(tmp_path)
    git(top, "init", "-q")
    git(top, "add", ".")
    project.run(["shoal", "pack", "--set", "x=1,2", "--", "python3", "main.py", "{x}"], cwd=top / "mnist")
    for value in "12":
        out = project.run(["shoal", "logs", f"pack_main/main_x{value}"], cwd=top / "mnist").out
        assert out.split("\n")[-4:-1] == ["of the repository", "one above", "two above"]
    [first, second] = sorted((top / "mnist/outputs").rglob("model.pt"))
    assert (first.read_text(), second.read_text()) == ("1", "2") and first.parts[-3:-1] == ("repo", "mnist")


def test_links_of_the_code_lead_where_they_led(tmp_path: Path) -> None:
    project = make(tmp_path, None, "corpus/y.txt", "base.yaml", "data/x.txt")
    (project.root / "corpus").symlink_to("../corpus")
    (project.root / "base.yaml").symlink_to("config/base.yaml")
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    told = printed(project, NAMES[1])
    assert [told[path] for path in ("corpus/y.txt", "base.yaml", "data/x.txt")] == ["above", "depth: 1", "ignored data"]
    assert not list(place_of(project, NAMES[1]).glob("*.yaml")), "links of the code are taken out"


def test_large_files_are_not_copied_to_another_file_system(tmp_path: Path) -> None:
    project = make(tmp_path, None, program="import os\nprint(os.path.islink('big.bin'), os.path.islink('train.py'))\n")
    (project.root / "big.bin").write_bytes(b"x" * (1 << 20))
    with small_disk(tmp_path / "disk") as disk:
        (project.root / "outputs").symlink_to(disk)
        project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
        assert project.shoal("logs", NAMES[0]).out.endswith("True False\n")
        assert not list(disk.rglob("big.bin"))


def test_numbers_that_are_written_by_relative_path_are_found(tmp_path: Path) -> None:
    """As lightning-hydra-template does it: logs/train/runs/<time>/csv/version_0/metrics.csv."""
    program = (
        "import os, sys\nfolder = 'logs/train/runs/2026/csv/version_0'\nos.makedirs(folder)\n"
        "open(folder + '/metrics.csv', 'w').write(f'epoch,step,val/acc\\n0,10,{sys.argv[1]}\\n')\n"
    )
    project = make(tmp_path, None, program=program)
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    found = project.shoal("results", "001_a", "--format", "json").json
    assert [row["metrics"]["val/acc"]["mean"] for row in found["groups"]] == [0.1, 0.2]


def test_nothing_is_left_of_a_working_directory_that_was_not_written_to(tmp_path: Path) -> None:
    project = make(tmp_path, None, program="import helper\nprint(helper.VALUE)\n")
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    output = Path(project.status()[NAMES[0]]["output_dir"])
    assert sorted(path.name for path in output.iterdir()) == ["attempt-1.out"]


def test_the_next_attempt_finds_what_the_killed_one_wrote_and_the_code_of_now(tmp_path: Path) -> None:
    waits = "import time\nwhile True:\n    time.sleep(1)\n"
    project = make(tmp_path, None, program=PROGRAM + "if sys.argv[1] == '0.1':\n    " + waits.replace("\n", "\n    "))
    process = project.start("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    try:
        wait_until(lambda: "before" in project.shoal("logs", NAMES[0], code=None).out, 60, "it has saved")
        pids = [int(start["pid"]) for start in project.records(NAMES[0], "attempt.*.start")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: process.poll() is not None, 60, "the command has ended")
    finally:
        end_process(process)
    output = Path(project.wait(NAMES[0])["output_dir"])
    [_, place] = map(Path, layout.written_by(str(output)))
    assert (place / "train.py").exists(), "its code is still there, because nobody could take it away"
    project.write("train.py", PROGRAM)
    project.write("helper.py", "VALUE = 2\n")
    found = checkpoints.newest(str(output), "ckpt/*.pt")
    assert found == str(place / "ckpt/last.pt")
    project.shoal("resume", NAMES[0], "--on", "local", "--yes")
    assert printed(project, NAMES[0]) == {"lr": "0.1", "before": True, "helper": 2}
    assert not (place / "train.py").exists() and (place / "ckpt/last.pt").exists()


def test_what_runs_share_is_chosen_in_the_settings_and_changes_to_it_are_told(tmp_path: Path) -> None:
    project = make(tmp_path, None, "logs/old.txt", more='link = ["logs"]')
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    assert printed(project, NAMES[0])["logs/old.txt"] == "of an earlier life"
    assert (project.root / "logs/events.txt").read_text() == "0.2"
    why = project.shoal("why", NAMES[0]).out
    assert f"shared by all runs: {project.root}/logs" in why and f"{project.root}/data" not in why


def test_weights_that_runs_do_not_see_are_told_at_submission(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    project.write("pretrained.pt", "weights")
    done = project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    assert 'do not see pretrained.pt of the project; if they read it, write link = ["pretrained.pt"]' in done.err
    done = project.shoal("submit", "experiments/001_a", "--on", "local")
    assert "pretrained.pt" not in done.err, "told once for each state of the code"


def test_a_path_to_link_must_be_inside_the_project(tmp_path: Path) -> None:
    for path in ("/data", "../data", ".", ""):
        project = make(tmp_path / f"case{len(path)}", None, more=f"link = [{json.dumps(path)}]")
        done = project.shoal("plan", "experiments/001_a", "--on", "local", code=2)
        assert "link must name paths inside" in done.err and "shoal.toml:1" in done.err and "hint:" in done.err


def test_data_that_came_after_the_code_was_kept_is_seen(tmp_path: Path) -> None:
    project = make(tmp_path, None, "store/z.txt")
    project.write(".gitignore", "data/\nlogs/\nmarks/\noutputs/\n*.pt\nstore/\n")
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    project.write("store/z.txt", "new data")
    project.shoal("submit", "experiments/001_a", "--on", "local")
    assert [printed(project, name)["store/z.txt"] for name in NAMES[1:]] == ["FileNotFoundError", "new data"]


def test_a_folder_that_is_no_project_is_worked_in_itself_and_that_is_told(tmp_path: Path) -> None:
    project = Project(tmp_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    words = ["shoal", "pack", "--set", "x=1,2", "--", "bash", "-c", "echo {x} > mine-{x}"]
    done = project.run(words, cwd=bare)
    assert f"runs work in {bare} itself" in done.err and (bare / "mine-2").read_text() == "2\n"


def test_code_that_is_changed_in_place_is_told_and_code_of_others_is_replaced(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    (project.root / ".shoal").mkdir()
    code = take(project.root, project.root / ".shoal", os.environ)
    assert code is not None
    place = WorkDir(str(tmp_path / "out"), code.root, str(project.root), [])
    assert place.fill() is None
    cwd = Path(place.cwd)
    (cwd / "helper.py").write_text("VALUE = 3 # changed\n")
    assert place.clear() == ["it changed helper.py of the code, which other runs share"]
    assert not (tmp_path / "out/work").exists()
    (cwd / "config").mkdir(parents=True)
    (cwd / "config/base.yaml").write_text("depth: 7\n")
    if os.getuid() == 0:
        (cwd / "train.py").write_text("of somebody else")
        os.chown(cwd / "train.py", 12345, 12345)
    again = WorkDir(str(tmp_path / "out"), code.root, str(project.root), [])
    assert again.fill() is None
    assert (cwd / "config/base.yaml").read_text() == "depth: 7\n" and (cwd / "train.py").read_text() == PROGRAM


def test_a_full_disk_delays_a_run_and_does_not_lose_it(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    with small_disk(tmp_path / "disk") as disk:
        (project.root / "outputs").symlink_to(disk)
        fill(disk)
        process = project.start("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
        try:
            wait_until(lambda: project.records(NAMES[0], "attempt.*.start") or process.poll() is not None, 60, "begun")
            empty(disk)
            _, err = process.communicate(timeout=120)
        finally:
            end_process(process)
        assert process.returncode == 0, err
        assert project.status()[NAMES[0]]["state"] == "done"
