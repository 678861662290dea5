"""Each run has a working directory of its own: relative reads find the project, relative writes stay with the run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import cancel_all
from disks import empty, fill, small_disk
from project import Project, end_process
from shoal.actions.snapshot import take_snapshot
from shoal.job import workdir
from shoal.job.workdir import WorkDir
from shoal.kernel import checkpoints, layout, metric_files
from shoal.kernel.progress import RunOutput, read_metrics
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

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
    [_, place] = layout.written_dirs(project.status()[name]["output_dir"])
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


@pytest.mark.parametrize("layout", [(), ("--layout", "pack", "--slots", "2")])
def test_runs_on_this_machine_write_apart(tmp_path: Path, layout: tuple[str, ...]) -> None:
    project = make(tmp_path, None)
    project.shoal("submit", "experiments/001_a", "--on", "local", *layout)
    assert_apart(project)


@pytest.fixture
def on_slurm(tmp_path: Path, cluster: Sandbox) -> Iterator[Project]:
    yield make(tmp_path, cluster)
    cancel_all(cluster)


@pytest.mark.slurm
@pytest.mark.parametrize("layout", [("job",), ("array",), ("pack", "--slots", "2")])
def test_runs_on_slurm_write_apart(on_slurm: Project, layout: tuple[str, ...]) -> None:
    on_slurm.shoal("submit", "experiments/001_a", "--layout", *layout)
    for name in NAMES:
        on_slurm.wait(name, "completed")
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


WRITES = """\
import os, settings
print(settings.LR, *(os.path.getsize(name) for name in ("plot.png", "NOTES.md", "big.csv")))
open("settings.py", "w").write("LR = %s\\n" % (settings.LR * 10))
for name in ("plot.png", "NOTES.md", "big.csv"):
    open(name, "a").write("more")
"""


def test_a_run_that_writes_to_files_of_the_code_has_its_own(tmp_path: Path) -> None:
    project = make(tmp_path, None, program=WRITES)
    project.write("settings.py", "LR = 0.1\n")
    project.write("big.csv", "x,y\n" * 100_000)
    for name in ("plot.png", "NOTES.md"):
        project.write(name, "as it was\n")
    with small_disk(tmp_path / "disk") as disk:
        (project.root / "outputs").symlink_to(disk)
        project.shoal("submit", "experiments/001_a", "--on", "local")
        for name in NAMES:
            assert project.shoal("logs", name).out.splitlines()[-1] == "0.1 10 10 400000"
            left = {path.name: path.read_text()[-5:] for path in place_of(project, name).iterdir()}
            assert left == {"settings.py": " 1.0\n", "plot.png": "\nmore", "NOTES.md": "\nmore", "big.csv": "\nmore"}
    [kept] = [path for path in (project.home / "snapshots").iterdir() if path.is_dir()]
    assert (kept / "settings.py").read_text() == "LR = 0.1\n" and (kept / "big.csv").stat().st_size == 400_000


def make_place(project: Project, output: Path, words: tuple[str, ...] = ()) -> WorkDir:
    (project.root / ".shoal").mkdir(exist_ok=True)
    code = take_snapshot(project.root, project.root / ".shoal", os.environ)
    assert code is not None
    return WorkDir(str(output), code.root, str(project.root), words)


def test_code_that_was_copied_in_half_is_replaced_and_what_the_program_wrote_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make(tmp_path, None)
    project.write("big.csv", "x,y\n" * 100_000)
    place = make_place(project, tmp_path / "out")
    assert place.fill() is None
    cwd = Path(place.cwd)
    (cwd / "config/base.yaml").write_text("of the run")
    place.clear()

    class KilledError(BaseException):
        pass

    def copy_half(original: str, path: str, one: object) -> None:
        Path(path).write_bytes(Path(original).read_bytes()[:3])
        if path.endswith("train.py"):
            raise KilledError

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(workdir, "_copy_file", copy_half)
        place.fill()
    assert (cwd / "big.csv").read_text() == "x,y"
    assert os.path.lexists(tmp_path / "out/work/.filling")
    assert checkpoints.newest_checkpoint(str(tmp_path / "out"), "*.csv") is None, "half of the code is no checkpoint"
    assert place.fill() is None
    assert (cwd / "big.csv").stat().st_size == 400_000 and (cwd / "train.py").read_text() == PROGRAM
    assert (cwd / "config/base.yaml").read_text() == "of the run"
    assert not os.path.lexists(tmp_path / "out/work/.filling")


def test_a_copy_that_the_disk_has_no_room_for_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make(tmp_path, None)
    project.write("big.csv", "x,y\n" * 100_000)
    place = make_place(project, tmp_path / "out")

    def full(source: int, target: int, size: int) -> bool:
        os.write(target, b"half")
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr(workdir, "_copy_in_kernel", full)
        place.fill()
    assert not (Path(place.cwd) / "big.csv").exists()
    with monkeypatch.context() as patched:  # a file system on which the kernel does not copy
        patched.setattr(os, "copy_file_range", lambda *words: (_ for _ in ()).throw(OSError(errno.EXDEV, "no")))
        assert place.fill() is None
    assert (Path(place.cwd) / "big.csv").stat().st_size == 400_000


def test_files_of_the_code_are_not_the_checkpoints_and_numbers_of_a_run(tmp_path: Path) -> None:
    waits = "import sys, time\nprint('begun', flush=True)\nwhile sys.argv[1] == '0.1':\n    time.sleep(1)\n"
    project = make(tmp_path, None, program=waits)
    toml = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", toml.replace('"ckpt/*.pt"', '"**/*.bin"\nresume_args = ["--resume={resume_from}"]'))
    project.write("init.bin", "weights")
    project.write("second.bin", "weights")
    (project.root / "same.bin").symlink_to("init.bin")
    project.write("data/other.bin", "weights")
    project.write("metrics.jsonl", '{"step": 950, "total": 1000, "acc": 0.99}\n')
    project.write("old/metrics.csv", "step,acc\n950,0.99\n")
    process = project.start("submit", "experiments/001_a", "--on", "local")
    try:
        wait_until(lambda: "begun" in project.shoal("logs", NAMES[0], code=None).out, 60, "it runs")
        running = project.status()[NAMES[0]]
        output = Path(running["output_dir"])
        assert not running["progress"] and not read_metrics(RunOutput(str(output)))
        assert checkpoints.newest_checkpoint(str(output), "**/*.bin") is None
        for start in project.records(NAMES[0], "attempt.*.start"):
            os.kill(int(start["pid"]), signal.SIGKILL)
        wait_until(lambda: process.poll() is not None, 60, "the command has ended")
    finally:
        end_process(process)
    project.wait(NAMES[0])
    [_, place] = map(Path, layout.written_dirs(str(output)))
    assert (place / "init.bin").exists(), "the code of the killed attempt is still there"
    assert checkpoints.newest_checkpoint(str(output), "**/*.bin") is None
    assert not metric_files.find_metric_files(str(output)).metrics_csv and not read_metrics(RunOutput(str(output)))
    own = place / "ckpt/model_1.bin"
    own.parent.mkdir()
    own.write_text("of the run")
    (place / "last.bin").symlink_to("ckpt/model_1.bin")
    found = {Path(path).resolve() for path in checkpoints.list_newest_first(str(output), "**/*.bin")}
    assert found == {own.resolve()}
    (place / "init.bin").write_text("trained on")
    assert checkpoints.newest_checkpoint(str(output), "init*.bin") == str(place / "init.bin")
    shutil.rmtree(project.home / "snapshots")
    assert checkpoints.newest_checkpoint(str(output), "second.bin") is None, "nobody knows any more whose it is"


def test_folders_of_the_code_are_checkpoints_only_with_something_of_the_run(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    project.write("checkpoint-1/config.json", "{}")
    place = make_place(project, tmp_path / "out")
    assert place.fill() is None
    assert checkpoints.newest_checkpoint(str(tmp_path / "out"), "checkpoint-*") is None
    (Path(place.cwd) / "checkpoint-1/model.bin").write_text("weights")
    assert checkpoints.newest_checkpoint(str(tmp_path / "out"), "checkpoint-*") == f"{place.cwd}/checkpoint-1"
    (Path(place.cwd) / "checkpoint-2").mkdir()
    (Path(place.cwd) / "checkpoint-2/model.bin").write_text("weights")
    assert checkpoints.newest_checkpoint(str(tmp_path / "out"), "checkpoint-*") == f"{place.cwd}/checkpoint-2"


def test_nothing_is_written_or_removed_through_a_link_that_the_program_made(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    project.write("config/deep/more.yaml", "x: 1\n")
    place = make_place(project, tmp_path / "out")
    assert place.fill() is None
    keep, config = tmp_path / "keep", Path(place.cwd) / "config"
    config.rename(keep)
    config.symlink_to(keep)
    (keep / "deep/__pycache__").mkdir()
    place.clear()
    files = {str(path.relative_to(keep)) for path in keep.rglob("*")}
    assert files == {"base.yaml", "deep", "deep/more.yaml", "deep/__pycache__"}
    (keep / "base.yaml").unlink()
    assert place.fill() is None
    assert not (keep / "base.yaml").exists(), "the folder is the program's now"
    place.clear()
    assert config.is_symlink() and (keep / "deep/more.yaml").exists()


def test_the_commit_of_a_run_is_that_of_its_code(tmp_path: Path) -> None:
    program = "import os\nprint(os.environ['SHOAL_COMMIT'], os.environ['WANDB_GIT_COMMIT'])\n"
    project = make(tmp_path, None, program=program)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project.root, capture_output=True, text=True).stdout.strip()
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    assert project.shoal("logs", NAMES[0]).out == f"{head} {head}\n"


def test_a_link_to_the_folder_above_leads_above_the_project(tmp_path: Path) -> None:
    project = make(tmp_path, None, "up/corpus/y.txt", "config/up/corpus/y.txt")
    (project.root / "up").symlink_to("..")
    (project.root / "config/up").symlink_to("../..")
    project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    told = printed(project, NAMES[0])
    assert told["up/corpus/y.txt"] == told["config/up/corpus/y.txt"] == "above"


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
    [_, place] = map(Path, layout.written_dirs(str(output)))
    assert (place / "train.py").exists(), "its code is still there, because nobody could take it away"
    project.write("train.py", PROGRAM)
    project.write("helper.py", "VALUE = 2\n")
    found = checkpoints.newest_checkpoint(str(output), "ckpt/*.pt")
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


def test_changes_deep_in_what_runs_share_are_told_by_run_status_and_why(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "for path in ('store/deep/best.bin', '../corpus/deep/best.bin'):\n    open(path, 'w').write(sys.argv[1] * 9)\n"
    )
    project = make(tmp_path, None, program=program)
    project.write(".gitignore", "data/\nlogs/\nmarks/\noutputs/\n*.pt\nstore/\n")
    project.write("store/deep/best.bin", "")
    (tmp_path / "corpus/deep").mkdir()
    (tmp_path / "corpus/deep/best.bin").write_text("")
    done = project.shoal("submit", "experiments/001_a", "--on", "local", "--set", "lr=0.1,0.2")
    told = f"changed while it ran, and shared by all runs: {project.root}/store, {tmp_path}/corpus"
    assert told in done.out and project.status()[NAMES[0]]["reason"] == told
    assert project.shoal("why", NAMES[0]).out.replace("\n", " ").count("shared by all runs") == 1


def test_files_that_runs_do_not_see_are_told_at_plan_and_at_each_submission(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    project.write("pretrained.pt", "weights")
    words = (
        "do not see pretrained.pt, logs of the project, because each run has its own; if they read it, write link = ["
    )
    assert words in project.shoal("plan", "experiments/001_a", "--on", "local").out
    for _ in range(2):
        done = project.shoal("submit", "experiments/001_a", "--on", "local", "--rerun", "--set", "lr=0.1,0.2")
        assert f'{words}"pretrained.pt", "logs"] in shoal.toml' in done.err
    (project.root / "shoal.toml").write_text(
        'link = ["pretrained.pt", "logs"]\n' + (project.root / "shoal.toml").read_text()
    )
    assert "do not see" not in project.shoal("plan", "experiments/001_a", "--on", "local").out


def test_a_path_to_link_must_be_inside_the_project(tmp_path: Path) -> None:
    for path in ("/data", "../data", ".", ""):
        project = make(tmp_path / f"case{len(path)}", None, more=f"link = [{json.dumps(path)}]")
        done = project.shoal("plan", "experiments/001_a", "--on", "local", code=2)
        assert "expected a path inside the project" in done.err and "shoal.toml:1" in done.err and "hint:" in done.err


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
    assert f"all runs work in {bare}:" in done.err and (bare / "mine-2").read_text() == "2\n"


def test_code_of_others_in_a_working_directory_is_replaced_and_its_own_is_not(tmp_path: Path) -> None:
    project = make(tmp_path, None)
    place = make_place(project, tmp_path / "out")
    cwd = Path(place.cwd)
    (cwd / "config").mkdir(parents=True)
    (cwd / "config/base.yaml").write_text("depth: 7\n")
    if os.getuid() == 0:
        (cwd / "train.py").write_text("of somebody else")
        os.chown(cwd / "train.py", 12345, 12345)
    assert place.fill() is None
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
            _, err = process.communicate(timeout=300)
        finally:
            end_process(process)
        assert process.returncode == 0, err
        assert project.status()[NAMES[0]]["state"] == "completed"
