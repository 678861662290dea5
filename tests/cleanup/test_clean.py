"""shoal clean: what can go is found, moved and moved back; what a live run uses stays where it is."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from project import Project
from shoal.cleanup import backup, list_near_duplicates
from shoal.cleanup.leftovers import CleanupItem, RunDirectories, find_leftovers
from shoal.cleanup.near_duplicates import ScriptCandidate, find_near_duplicates
from shoal.errors import InputError
from shoal.job import cache
from shoal.observe.run_state import RunView
from shoal.sandbox import Sandbox

HEADER = "#!/bin/bash\n#SBATCH --gres=gpu:8\n#SBATCH --ntasks-per-node=8\n#SBATCH --time=12:00:00\n#SBATCH --mem=500G\n"
BODY = "source env.sh\ncd project\nexport DATA=/data\nsrun python train.py --batch 22\n"


# --- near-copies


def test_of_near_copies_the_newest_is_kept() -> None:
    one = ScriptCandidate("a.sh", HEADER + BODY, 1.0)
    two = ScriptCandidate("b.sh", HEADER + BODY.replace("22", "18"), 2.0)
    other = ScriptCandidate("c.sh", "#!/bin/bash\necho something else\npython cache.py\n", 0.0)
    (twin,) = find_near_duplicates([one, two, other])
    assert (twin.path, twin.kept) == ("a.sh", "b.sh")
    assert 0.8 < twin.alike < 1


def test_comments_and_blank_lines_do_not_make_a_difference() -> None:
    commented = HEADER + "\n# try again\n\n" + BODY
    assert [
        twin.path
        for twin in find_near_duplicates([ScriptCandidate("a", HEADER + BODY, 1), ScriptCandidate("b", commented, 2)])
    ] == ["a"]


def test_an_older_script_without_errors_stays_beside_a_newer_one_with_errors() -> None:
    good, bad = (
        ScriptCandidate("good.sh", HEADER + BODY, 1.0, 0),
        ScriptCandidate("bad.sh", HEADER + BODY + "exit 0\n", 2.0, 1),
    )
    assert find_near_duplicates([good, bad]) == []
    assert [twin.path for twin in find_near_duplicates([good._replace(errors=2), bad])] == ["good.sh"]


def test_scripts_that_start_other_programs_are_no_copies() -> None:
    train = ScriptCandidate("train.sh", HEADER + BODY, 1.0, 0, frozenset({"train.py"}))
    evaluate = ScriptCandidate(
        "evaluate.sh", HEADER + BODY.replace("train.py", "evaluate.py"), 2.0, 0, frozenset({"b"})
    )
    assert find_near_duplicates([train, evaluate]) == []
    assert len(find_near_duplicates([train, evaluate._replace(programs=train.programs)])) == 1


def test_which_script_is_newer_comes_from_git_and_programs_are_compared_first(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()

    def git(*words: str, day: int = 1) -> None:
        when = f"2026-01-0{day}T12:00:00"
        env = {**os.environ, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, env=env, check=True)

    git("init", "-q")
    for day, (name, batch) in enumerate({"new.sh": 18, "old.sh": 22, "new.sh ": 24, "edited.sh": 20}.items(), 1):
        path = folder / name.strip()
        path.write_text(HEADER + BODY.replace("22", str(batch)))
        git("add", ".")
        git("commit", "-qm", name, day=day)
    (folder / "evaluate.sh").write_text(HEADER + BODY.replace("train.py", "evaluate.py"))
    now = time.time()
    for number, name in enumerate(("new.sh", "edited.sh", "evaluate.sh", "old.sh")):
        os.utime(folder / name, (now + number, now + number))  # as a checkout leaves them: the oldest looks newest

    def found() -> dict[str, str]:
        items = list_near_duplicates([folder], tmp_path, os.environ)
        return {Path(item.path).name: item.reason.split("the same as ")[1] for item in items}

    assert found() == {"old.sh": "edited.sh, which is newer", "new.sh": "edited.sh, which is newer"}
    (folder / "new.sh").write_text(HEADER + BODY.replace("22", "16"))  # not committed: its own time counts
    assert found() == {"old.sh": "new.sh, which is newer", "edited.sh": "new.sh, which is newer"}


# --- leftovers


def left(folder: Path, name: str, state: str, *outputs: str, **view: object) -> RunDirectories:
    from shoal.model import RunSpec

    spec = RunSpec(experiment="001_a", stem=name, number=0, step="train", step_kind="train", seed=0, command=["x"],
                   cwd=".", output="training", checkpoint="model_*.pth")  # fmt: skip
    folders = tuple(str(folder / one) for one in outputs)
    for one in folders:
        os.makedirs(one, exist_ok=True)
    shown = RunView(name=f"001_a/{name}", state=state, output_dir=folders[0], **view)  # type: ignore[arg-type]
    return RunDirectories(shown, spec, folders, folders)


def write(path: Path, text: str = "weights") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def found(runs: list[RunDirectories], keep: int = 2) -> list[str]:
    return [item.path for item in find_leftovers(runs, keep=keep, older_than_s=86400, now_s=time.time())]


def test_checkpoints_beyond_the_newest_go_and_the_newest_never(tmp_path: Path) -> None:
    run = left(tmp_path, "r", "failed", "new", "old")
    paths = [write(tmp_path / "old" / f"model_{n}.pth") for n in (8, 9, 10)]
    assert found([run], keep=2) == [paths[0]]
    assert found([run], keep=0) == [paths[1], paths[0]]  # one always stays
    new = write(tmp_path / "new" / "model_11.pth")
    assert new not in found([run], keep=1)


def test_earlier_tries_of_a_run_that_is_done_go(tmp_path: Path) -> None:
    run = left(tmp_path, "r", "completed", "third", "second", "first")
    write(tmp_path / "second" / "model_1.pth")
    assert found([run]) == [str(tmp_path / "second"), str(tmp_path / "first")]


def test_earlier_tries_of_a_failed_run_go_only_without_a_checkpoint(tmp_path: Path) -> None:
    run = left(tmp_path, "r", "failed", "third", "second", "first")
    write(tmp_path / "second" / "model_1.pth")
    assert found([run]) == [str(tmp_path / "first")]


@pytest.mark.parametrize("state", ["running", "pending", "waiting", "unknown", "blocked", "preempted", "lost", "new"])
def test_nothing_of_a_run_goes_that_has_not_surely_ended(tmp_path: Path, state: str) -> None:
    run = left(tmp_path, "r", state, "second", "first")
    for number in range(9):
        write(tmp_path / "second" / f"model_{number}.pth")
    assert found([run], keep=1) == []


def test_what_another_run_was_started_from_stays(tmp_path: Path) -> None:
    import msgspec

    parent = left(tmp_path, "parent", "completed", "p2", "p1")
    start = write(tmp_path / "p1" / "model_3.pth")
    child = left(tmp_path, "child", "running", "c")
    assert child.spec is not None
    child = child._replace(spec=msgspec.structs.replace(child.spec, start_from=start))
    assert found([parent]) == [str(tmp_path / "p1")]
    assert found([parent, child]) == []


def test_old_logs_of_earlier_attempts_go_and_the_last_stays(tmp_path: Path) -> None:
    run = left(tmp_path, "r", "failed", "o", attempt=3)
    logs = [Path(write(tmp_path / "o" / f"attempt-{n}.out")) for n in (1, 2, 3)]
    for log in (logs[0], logs[2]):
        os.utime(log, (1, 1))
    assert found([run]) == [str(logs[0])]


def test_links_are_never_moved(tmp_path: Path) -> None:
    run = left(tmp_path, "r", "completed", "o")
    for number in range(3):
        (tmp_path / "o" / f"model_{number}.pth").symlink_to("/etc/hostname")
    assert found([run], keep=1) == []


# --- the backup


def item(path: Path) -> CleanupItem:
    return CleanupItem(str(path), "checkpoint", "why", 1)


def test_what_moves_away_comes_back_as_it_was(tmp_path: Path) -> None:
    paths = [Path(write(tmp_path / "a" / "b" / name, name)) for name in ("1", "two words", "\u00fc")]
    moved = backup.move_to_backup(tmp_path, [item(path) for path in paths], "20250101_000000")
    assert not any(path.exists() for path in paths)
    assert backup.list_backups(tmp_path) == [tmp_path / "backup_20250101_000000"]
    back = backup.restore_backup(tmp_path, moved.folder)
    assert back.left == []
    assert [path.read_text() for path in paths] == [path.name for path in paths]
    assert not moved.folder.exists()


def test_undo_overwrites_nothing_and_keeps_what_it_could_not_move(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "x", "old"))
    moved = backup.move_to_backup(tmp_path, [item(path)], "s")
    path.write_text("new")
    back = backup.restore_backup(tmp_path, moved.folder)
    assert back.left == [(str(path), "something else is there now")]
    assert path.read_text() == "new"
    path.unlink()
    assert backup.restore_backup(tmp_path, moved.folder).moved == [str(path)]
    assert path.read_text() == "old"


def test_a_crash_between_moves_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path(write(tmp_path / name)) for name in "abc"]
    rename, calls = os.rename, []

    def dying(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        backup.move_to_backup(tmp_path, [item(path) for path in paths], "s")
    monkeypatch.setattr(os, "rename", rename)
    backup.restore_backup(tmp_path, tmp_path / "backup_s")
    assert all(path.exists() for path in paths)
    assert not (tmp_path / "backup_s").exists()


def test_what_lies_outside_of_the_project_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    outside = Path(write(tmp_path / "elsewhere" / "x"))
    (root / "link").symlink_to(outside.parent)
    moved = backup.move_to_backup(root, [item(outside), item(root / "link" / "x")], "s")
    assert len(moved.left) == 2
    assert outside.exists()


def test_only_a_backup_of_ours_is_dropped_and_only_inside_the_project(tmp_path: Path) -> None:
    write(tmp_path / "precious" / "data")
    with pytest.raises(InputError):
        backup.delete_backup(tmp_path / "precious")
    write(tmp_path / "evil" / "manifest.json", '{"entries": [{"path": "../../etc/passwd"}]}')
    with pytest.raises(InputError):
        backup.restore_backup(tmp_path, tmp_path / "evil")
    moved = backup.move_to_backup(tmp_path, [item(Path(write(tmp_path / "x")))], "s")
    assert backup.delete_backup(moved.folder) == 1
    assert not moved.folder.exists()


# --- the command


@pytest.mark.slow
def test_the_story_of_many_attempts_is_tidied_up_and_back_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.script("001_a/000_train_0.sh", "train -- save=1 save=2 save=3 save=4 save=5")
    project.shoal("submit", "experiments/001_a", "--on", "local", "-q")
    for number, batch in enumerate((32, 22, 18)):
        path = project.write(f"scripts/try{number}.slurm", HEADER + BODY.replace("22", str(batch)))
        os.utime(path, (1000 + number, 1000 + number))
    shown = project.shoal("clean", "scripts", "--keep", "2", "--json").json
    kinds = sorted((one["kind"], Path(one["path"]).name) for one in shown["items"])
    assert kinds == [("checkpoint", f"model_{n}.pth") for n in (1, 2, 3)] + [
        ("script", "try0.slurm"),
        ("script", "try1.slurm"),
    ]
    before = sorted(str(path) for path in project.root.rglob("*"))
    done = project.shoal("clean", "scripts", "--keep", "2", "--apply")
    assert "undo: shoal clean --undo backup_" in done.out
    assert [path.name for path in (project.root / "scripts").iterdir()] == ["try2.slurm"]
    assert project.shoal("clean", "scripts", "--keep", "2").out == "there is nothing to tidy up\n"
    project.shoal("clean", "--undo")
    assert sorted(str(path) for path in project.root.rglob("*")) == before
    assert "nothing" not in project.shoal("clean", "scripts", "--keep", "2", "-q").out


def test_clean_without_a_backup_to_undo_says_so(tmp_path: Path) -> None:
    project = Project(tmp_path)
    assert "there is no backup" in project.shoal("clean", "--undo", code=2).err
    assert "not a backup" in project.shoal("clean", "--drop", "experiments", code=2).err
    assert (project.root / "experiments").is_dir()


@pytest.mark.slurm
def test_a_running_job_keeps_everything_it_has(tmp_path: Path, quiet_cluster: object) -> None:
    project = Project(tmp_path, quiet_cluster)  # type: ignore[arg-type]
    project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- save=1 save=2 save=3 wait=go")
    project.shoal("submit", "experiments/001_a")
    project.wait_started("001_a/000_train_0")
    project.wait("001_a/000_train_0", "running")
    assert project.shoal("clean", "--keep", "1", "--json").json["items"] == []
    (project.root / "go").touch()
    project.wait("001_a/000_train_0", "completed")
    assert len(project.shoal("clean", "--keep", "1", "--json").json["items"]) == 2


# --- snapshots, scratch and temporary files


@pytest.mark.slow
def test_records_that_nobody_finished_go_after_a_day(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.shoal("submit", project.script("001_a/000_train_0.sh"))
    folder = project.home / "runs/001_a/000_train_0"
    old, new = folder / "attempt.1.beat.tmp-77-0a0b0c0d", folder / "attempt.1.beat.tmp-78-0a0b0c0d"
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (1.0, 1.0))
    items = project.shoal("clean", "--only", "temporary", "--apply", "--json").json["items"]
    assert [item["path"].rpartition("/")[2] for item in items] == [old.name]
    assert not old.exists() and new.exists()


@pytest.mark.slurm
def test_code_that_a_live_run_executes_stays_and_goes_when_all_have_ended(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    project = Project(tmp_path, quiet_cluster)
    project.write("shoal.toml", (project.root / "shoal.toml").read_text().replace("snapshot = false", ""))
    for name in ("000_train_0", "001_train_0"):
        project.script(f"001_a/{name}.sh", "train --time=5 --mem=50 -- wait=go")
    project.shoal("submit", "experiments/001_a/000_train_0.sh")
    (first,) = (path for path in (project.home / "snapshots").iterdir() if path.is_dir())
    project.write("train.py", (project.root / "train.py").read_text() + "# another state of the code\n")
    project.shoal("submit", "experiments/001_a/001_train_0.sh")
    for snapshot in (project.home / "snapshots").iterdir():
        os.utime(snapshot, (1.0, 1.0))
    only = ("clean", "--only", "snapshot", "--json")
    assert project.shoal(*only).json["items"] == []
    project.shoal("cancel", "001_a/000_train_0")
    project.wait("001_a/000_train_0", "cancelled")
    (item,) = project.shoal(*only, "--apply").json["items"]
    assert item["path"].endswith(first.name) and item["kind"] == "snapshot"
    assert not first.exists() and first.with_suffix(".json").exists()
    (project.root / "go").touch()
    project.wait("001_a/001_train_0", "completed")
    project.shoal("clean", "--undo")
    assert (first / "train.py").is_file()
    for snapshot in (project.home / "snapshots").iterdir():
        os.utime(snapshot)
    assert project.shoal(*only).json["items"] == []


@pytest.mark.slow
def test_staged_data_that_nobody_uses_is_set_aside_and_comes_back(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    root, _ = cache.find_root({"SHOAL_SCRATCH": str(scratch)})
    assert root is not None
    for name in ("old", "held", "fresh"):
        write(Path(root.folder("objects", name)) / "data" / "shard-0.tar", "x" * 5000)
        Path(root.folder("use", name)).touch()
    for name in ("old", "held"):
        os.utime(root.folder("use", name), (1.0, 1.0))
    project = Project(tmp_path)
    reader = cache.FileLock(root.folder("use", "held"))
    assert reader.take(False)
    try:
        done = project.shoal("clean", "--only", "scratch", "--json", "--apply", SHOAL_SCRATCH=str(scratch)).json
        assert [Path(item["path"]).name for item in done["items"]] == ["old"]
        assert sorted(os.listdir(root.folder("objects"))) == ["fresh", "held"]
        project.shoal("clean", "--undo")
        assert sorted(os.listdir(root.folder("objects"))) == ["fresh", "held", "old"]
        assert (Path(root.folder("objects", "old")) / "data" / "shard-0.tar").stat().st_size == 5000
        project.shoal("clean", "--only", "scratch", "--apply", SHOAL_SCRATCH=str(scratch))
        (kept,) = project.root.glob("backup_*")
        assert os.listdir(root.folder("trash")) != []
        project.shoal("clean", "--drop", kept.name)
        assert os.listdir(root.folder("trash")) == []
    finally:
        reader.close()


def test_a_manifest_that_names_something_else_as_staged_data_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "backup_1"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"schema": 1, "entries": [], "scratch": {"/etc/objects/x": "/etc/trash/x"}}')
    for command in (backup.delete_backup, lambda path: backup.restore_backup(tmp_path, path)):
        with pytest.raises(InputError, match="no staged data set"):
            command(folder)


def test_a_log_that_goes_on_under_a_second_number_stays(tmp_path: Path) -> None:
    run = left(tmp_path, "000_train_0", "completed", "out", attempt=3)
    for attempt in (1, 2):
        os.utime(write(tmp_path / "out" / f"attempt-{attempt}.out"), (1.0, 1.0))
    (tmp_path / "out" / "attempt-3.out").symlink_to("attempt-2.out")
    found = find_leftovers([run], keep=3, older_than_s=10, now_s=time.time(), kinds=["log"])
    assert [Path(item.path).name for item in found] == ["attempt-1.out"]
