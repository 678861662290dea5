"""A queued run executes the code that was there when it was submitted; the repository stays as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from conftest import cancel_all
from project import Project, git
from shoal.actions.git_index import SnapshotError
from shoal.actions.missing_files import find_missing_files
from shoal.actions.snapshot import take_snapshot
from shoal.job import environment
from shoal.sandbox import Sandbox
from waiting import wait_until


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "data").mkdir(parents=True)
    (root / "pkg").mkdir()
    (root / ".gitignore").write_text("data/\n*.so\n.shoal/\n")
    (root / "train.py").write_text("one\n")
    (root / "pkg" / "a.py").write_text("a\n")
    (root / "pkg" / "b.py").write_text("b\n")
    (root / "pkg" / "fast.so").write_text("binary\n")
    (root / "data" / "x").write_text("data\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def home_of(root: Path) -> Path:
    (root / ".shoal").mkdir(exist_ok=True)
    return root / ".shoal"


def test_changes_and_new_files_are_kept_and_ignored_ones_are_linked(repository: Path) -> None:
    (repository / "train.py").write_text("two\n")
    (repository / "new.py").write_text("new\n")
    (repository / "big.bin").write_bytes(b"x" * (6 << 20))
    (repository / "pkg" / "a.py").unlink()
    (home_of(repository) / "objects").mkdir()  # git ignores the state directory piece by piece
    for name in (".gitignore", "objects/x", "submission"):
        (home_of(repository) / name).write_text("*\n")
    before = git(repository, "status", "--porcelain")
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None and code.changed and code.commit == git(repository, "rev-parse", "HEAD")
    kept = Path(code.root)
    assert (kept / "train.py").read_text() == "two\n" and (kept / "new.py").read_text() == "new\n"
    assert not (kept / "pkg" / "a.py").exists()
    assert (kept / "data" / "x").read_text() == "data\n" and (kept / "data").is_symlink()
    assert (kept / "pkg" / "fast.so").is_symlink() and (kept / "big.bin").is_symlink()
    assert not (kept / ".shoal").exists()
    difference = kept.with_suffix(".diff").read_text()
    assert "+two" in difference and "+new" in difference
    assert git(repository, "status", "--porcelain") == before


def test_a_change_in_the_second_of_the_commit_is_seen(repository: Path) -> None:
    """Git knows files by size and time, to the second, unless they are as young as its index."""
    then = (10**9, 10**9)
    program = repository / "train.py"
    os.utime(program, then)
    git(repository, "-c", "core.trustctime=false", "add", "train.py")
    git(repository, "config", "core.trustctime", "false")
    program.write_text("two\n")  # as long as before
    os.utime(program, then)
    os.utime(repository / ".git" / "index", then)
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None and code.changed and (Path(code.root) / "train.py").read_text() == "two\n"


def test_the_same_code_is_kept_once_and_other_code_beside_it(repository: Path) -> None:
    home = home_of(repository)
    first = take_snapshot(repository, home, os.environ)
    assert first is not None and not first.changed
    assert take_snapshot(repository, home, os.environ) == first
    (repository / "train.py").write_text("two\n")
    second = take_snapshot(repository, home, os.environ)
    assert second is not None and second.root != first.root
    assert Path(first.root, "train.py").read_text() == "one\n"
    assert json.loads(Path(first.root).with_suffix(".json").read_text())["branch"] == "main"


def test_a_submission_of_code_that_is_kept_already_starts_git_eight_times(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    counting, log = tmp_path / "bin" / "git", tmp_path / "log"
    counting.write_text(f'#!/bin/sh\necho x >> {log}\nexec {shutil.which("git")} "$@"\n')
    counting.chmod(0o755)
    environ = {**os.environ, "PATH": f"{counting.parent}:{os.environ['PATH']}"}
    home = home_of(repository)
    first = take_snapshot(repository, home, os.environ)
    assert find_missing_files(repository, environ, (), ()) == [] and take_snapshot(repository, home, environ) == first
    assert len(log.read_text().split()) == 8
    before = (repository / "train.py").stat()
    (repository / "train.py").write_text("eno\n")  # as long, and as old, as before
    os.utime(repository / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    second = take_snapshot(repository, home, environ)
    assert second is not None and Path(second.root, "train.py").read_text() == "eno\n"


def test_a_project_inside_a_repository_starts_in_its_own_folder(repository: Path) -> None:
    code = take_snapshot(repository / "pkg", home_of(repository), os.environ)
    assert code is not None and (Path(code.root) / "a.py").is_file() and Path(code.root).name == "pkg"


def test_without_git_and_without_a_commit(tmp_path: Path, repository: Path) -> None:
    assert take_snapshot(repository, home_of(repository), {"PATH": "/nonexistent"}) is None
    bare = tmp_path / "fresh"
    bare.mkdir()
    (bare / "a.py").write_text("a\n")
    git(bare, "init", "-q")
    code = take_snapshot(bare, home_of(bare), os.environ)
    assert code is not None and code.commit is None and (Path(code.root) / "a.py").is_file()


def test_state_and_outputs_of_other_projects_in_the_repository_are_left_out(repository: Path) -> None:
    for name in ("a/shoal.toml", "a/train.py", "a/outputs/x/model.pt", "a/.shoal/snapshots/1/train.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("x\n")
    for name in ("b/.shoal/runs/1", "b/outputs/y", "c/outputs/code.py", ".shoal/runs/2", "outputs/z"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("x\n")
    (repository / ".gitignore").write_text("data/\n*.so\n")
    git(repository, "add", "-f", "b/.shoal", "b/outputs")  # somebody's mistake
    git(repository, "commit", "-qm", "state in git")
    code = take_snapshot(repository / "a", repository / "a/.shoal", os.environ)
    assert code is not None
    top = Path(code.root).parent
    assert (top / "a/train.py").is_file() and (top / "c/outputs/code.py").is_file()
    assert not any((top / name).exists() for name in (".shoal", "a/.shoal", "b/.shoal"))
    for name in ("a/outputs", "b/outputs"):
        assert not os.path.lexists(top / name), "each run has its own"
    difference = top.with_suffix(".diff").read_text()
    assert "a/train.py" in difference and "c/outputs/code.py" in difference
    assert not any(name in difference for name in ("b/outputs/y", "a/outputs", "runs/1", "snapshots/1"))
    again = take_snapshot(repository / "a", repository / "a/.shoal", os.environ)
    assert again is not None and again.tree == code.tree, "a snapshot does not change the next one"


@pytest.mark.slow
def test_state_is_kept_out_of_git(tmp_path: Path) -> None:
    project = Project(tmp_path)
    git(project.root, "init", "-q")
    project.shoal("submit", project.script("001_a/000_train_0.sh"))
    git(project.root, "add", ".")
    listed = git(project.root, "ls-files")
    assert "shoal.toml" in listed and ".shoal" not in listed


def test_the_difference_is_git_s_own_whatever_the_user_has_set_up(repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.py diff=loud\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "attributes")
    for key, value in (("diff.external", "echo external #"), ("diff.loud.textconv", "echo converted #"),
                       ("color.ui", "always"), ("diff.noprefix", "true")):  # fmt: skip
        git(repository, "config", key, value)
    (repository / "train.py").write_text("two\n")
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None and code.changed
    difference = Path(code.root).with_suffix(".diff").read_text()
    assert "-one\n+two\n" in difference and "diff --git a/train.py b/train.py" in difference
    git(repository, "checkout", "-q", "train.py")
    (repository.parent / "patch").write_text(difference)
    git(repository, "apply", "../patch")
    assert (repository / "train.py").read_text() == "two\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_repository_of_another_user_is_told_and_not_taken_for_none(repository: Path) -> None:
    environ = {**os.environ, "HOME": str(repository.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    for path in (repository, *repository.rglob("*")):
        os.lchown(path, 65534, 65534)
    with pytest.raises(SnapshotError, match="because another user owns it") as told:
        take_snapshot(repository, home_of(repository), environ)
    assert told.value.hint and f"safe.directory {repository}" in told.value.hint
    subprocess.run(told.value.hint.partition("#")[0], shell=True, env=environ, check=True)
    assert take_snapshot(repository, home_of(repository), environ) is not None


def test_untracked_files_with_secrets_are_linked_and_not_copied(repository: Path) -> None:
    for name in (".env", ".env.example", "id_rsa", "pkg/.env.local"):
        (repository / name).write_text("KEY=very-secret-value\n")
    (repository / "train.py").write_text("connect('postgres://me:hunter2hunter2@db/x')\napi_key = 'abcdefgh12345'\n")
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None and sorted(code.secrets) == [".env", "id_rsa", "pkg/.env.local"]
    kept = Path(code.root)
    for name in code.secrets:
        assert (kept / name).is_symlink() and (kept / name).read_text() == "KEY=very-secret-value\n"
    assert not (kept / ".env.example").is_symlink()
    difference = kept.with_suffix(".diff").read_text()
    assert "hunter2" not in difference and "abcdefgh12345" not in difference and "postgres://me:***@db/x" in difference


def test_local_changes_of_files_that_git_does_not_look_at_are_kept(repository: Path) -> None:
    for name in ("assumed.yaml", "skipped.yaml", "absent.yaml", "deleted.yaml"):
        (repository / name).write_text("lr=committed\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "settings")
    git(repository, "update-index", "--assume-unchanged", "assumed.yaml", "deleted.yaml")
    git(repository, "update-index", "--skip-worktree", "skipped.yaml", "absent.yaml")
    for name in ("assumed.yaml", "skipped.yaml"):
        (repository / name).write_text("lr=local\n")
    for name in ("absent.yaml", "deleted.yaml"):
        (repository / name).unlink()
    flags = git(repository, "ls-files", "-v")
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None and code.changed
    kept = Path(code.root)
    assert (kept / "assumed.yaml").read_text() == (kept / "skipped.yaml").read_text() == "lr=local\n"
    assert not (kept / "absent.yaml").exists() and not (kept / "deleted.yaml").exists()
    assert git(repository, "ls-files", "-v") == flags, "the user's index stays as it is"


def test_a_sparse_checkout_is_kept_as_it_is(repository: Path) -> None:
    git(repository, "sparse-checkout", "set", "--no-cone", "/train.py", "/.gitignore")
    (repository / "pkg").mkdir(exist_ok=True)
    (repository / "pkg" / "a.py").write_text("a, by hand\n")
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None
    assert (Path(code.root) / "pkg/a.py").read_text() == "a, by hand\n"
    assert not (Path(code.root) / "pkg/b.py").exists()


@pytest.fixture
def with_modules(repository: Path) -> Path:
    """A submodule, one in it that was never filled, and a clone that the repository does not know of."""
    other = repository.parent / "other"
    (other / "build").mkdir(parents=True)
    (other / ".gitignore").write_text("build/\nckpts/\n")
    (other / "model.py").write_text("one\n")
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "first")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "lib/other")
    git(repository, "commit", "-qm", "submodule")
    git(repository, "clone", "--quiet", str(other), "clone")
    return repository


def test_submodules_and_clones_inside_are_kept_with_their_changes(with_modules: Path) -> None:
    home, lib = home_of(with_modules), with_modules / "lib/other"
    first = take_snapshot(with_modules, home, os.environ)
    assert first is not None
    (lib / "build").mkdir()
    (lib / "build/fast.so").write_text("compiled\n")
    (lib / "ckpts").mkdir()
    (lib / "ckpts/last").write_text("written\n")
    (lib / "model.py").write_text("two\n")
    (with_modules / "clone/new.py").write_text("new\n")
    before = git(with_modules, "status", "--porcelain")
    second = take_snapshot(with_modules, home, os.environ)
    assert second is not None and second.tree != first.tree and second.changed
    (lib / "model.py").write_text("three\n")
    third = take_snapshot(with_modules, home, os.environ)
    assert third is not None and third.tree not in (first.tree, second.tree)
    texts = [(Path(code.root) / "lib/other/model.py").read_text() for code in (first, second, third)]
    assert texts == ["one\n", "two\n", "three\n"]
    kept = Path(second.root)
    assert not (kept / "lib/other").is_symlink() and (kept / "clone/new.py").read_text() == "new\n"
    assert (kept / "lib/other/build").is_symlink() and not os.path.lexists(kept / "lib/other/ckpts")
    difference = kept.with_suffix(".diff").read_text()
    assert "a/lib/other/model.py b/lib/other/model.py" in difference and "+two" in difference and "+new" in difference
    assert git(with_modules, "status", "--porcelain") == before


def test_a_submodule_that_is_not_there_is_an_empty_folder(with_modules: Path) -> None:
    git(with_modules, "submodule", "--quiet", "deinit", "-f", "lib/other")
    code = take_snapshot(with_modules, home_of(with_modules), os.environ)
    assert code is not None and not any((Path(code.root) / "lib/other").iterdir())


def test_ignored_outputs_are_not_linked_wherever_they_are(repository: Path) -> None:
    ignore = "checkpoints/*\n!checkpoints/.gitkeep\nwork_dirs/\nmodels/\n*.so\n.shoal/\ndata/\nout/\n"
    (repository / ".gitignore").write_text(ignore)
    for name in ("checkpoints/.gitkeep", "checkpoints/foo/last.bin", "work_dirs/best.bin", "models/x.bin", "log/c.so"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("x\n")
    (repository / "log/__init__.py").write_text("")
    code = take_snapshot(repository, home_of(repository), os.environ)
    assert code is not None
    kept = Path(code.root)
    assert (kept / "checkpoints/.gitkeep").is_file() and not os.path.lexists(kept / "checkpoints/foo")
    assert not os.path.lexists(kept / "work_dirs")
    assert (kept / "models").is_symlink() and (kept / "log/c.so").is_symlink()


def test_a_path_to_link_is_linked_also_if_git_tracks_files_in_it(repository: Path) -> None:
    (repository / "checkpoints").mkdir()
    (repository / "checkpoints/.gitkeep").write_text("")
    (repository / "checkpoints/last.bin").write_text("x\n")
    git(repository, "add", "checkpoints/.gitkeep")
    code = take_snapshot(repository, home_of(repository), os.environ, ["checkpoints", "pkg/a.py"])
    assert code is not None
    kept = Path(code.root)
    assert (kept / "checkpoints").is_symlink() and (kept / "checkpoints/last.bin").read_text() == "x\n"
    assert (kept / "pkg/a.py").is_symlink() and not (kept / "pkg/b.py").is_symlink()


def test_what_runs_will_not_see_is_found_by_name(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.pt\nresults/\nout/\nruns/\nlogs/\nsave/\noutputs/\n.shoal/\n*.log\n")
    ignored = ("w.pt", "results/teacher.json", "out/vocab.json", "runs/best.txt", "logs/old.txt", "outputs/x/m.bin")
    for name in (*ignored, "old.log", "names.log", "README.md"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("save/x logs/old.txt\n")
    (repository / "save").mkdir()
    (repository / "train.py").write_text(
        "open('results/teacher.json'); open(f'out/{name}'); os.path.join('save', x)\n"
        "open('results/new.json', 'w'); os.path.join('outputs', x); open('./names.log')\n"
    )
    found = find_missing_files(repository, os.environ, [], ["python", "train.py", "--best=runs/best.txt"])
    assert sorted(found) == ["names.log", "out", "results/teacher.json", "runs/best.txt", "w.pt"]
    assert find_missing_files(repository, os.environ, ["w.pt", "results", "out", "names.log"], []) == []
    assert find_missing_files(repository, os.environ, ["w.pt", "results", "names.log"], ["--dir=out"]) == ["out"]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A project outside of git, as people have them: code, data, an environment, results."""
    root = tmp_path / "plain"
    for path in ("train.py", "pkg/a.py", "pkg/data/load.py", "data/x", ".venv/lib/y.py", "results/1.json", "w.pth"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{path}\n")
    return root


def test_a_project_outside_of_git_is_copied_and_what_is_not_code_is_linked(plain: Path) -> None:
    home = home_of(plain)
    code = take_snapshot(plain, home, os.environ)
    assert code is not None and code.commit is None and not code.changed
    kept = Path(code.root)
    for name in ("train.py", "pkg", "pkg/a.py", "pkg/data/load.py"):
        assert (kept / name).exists() and not (kept / name).is_symlink()
    for name in ("data", ".venv"):
        assert (kept / name).is_symlink() and (kept / name).exists()
    for name in ("results", "w.pth"):  # each run has its own
        assert not os.path.lexists(kept / name)
    assert not (kept / ".shoal").exists() and not (plain / ".git").exists()
    assert take_snapshot(plain, home, os.environ) == code
    (plain / "train.py").write_text("two\n")
    assert take_snapshot(plain, home, os.environ) != code and (kept / "train.py").read_text() == "train.py\n"
    (plain / ".shoalignore").write_text("/pkg/a.py\n!/results/\n")
    other = take_snapshot(plain, home, os.environ)
    assert (
        other is not None and Path(other.root, "pkg/a.py").is_symlink() and not Path(other.root, "results").is_symlink()
    )


def test_more_files_than_anybody_writes_are_refused_by_name(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[take_snapshot.__module__], "_MAX_FILES", 10)
    for number in range(12):
        (plain / "routes").mkdir(exist_ok=True)
        (plain / "routes" / f"{number}.xml").touch()
    with pytest.raises(SnapshotError, match="most of them in routes") as told:
        take_snapshot(plain, home_of(plain), os.environ)
    assert told.value.hint and "echo '/routes' >> " in told.value.hint and ".shoalignore" in told.value.hint


@pytest.fixture
def project(tmp_path: Path, cluster: Sandbox) -> Iterator[Project]:
    project = Project(tmp_path, cluster)
    project.write(".gitignore", ".shoal/\noutputs/\nmarks/\n")
    project.write("hello.py", "print('the old code')\n")
    toml = (project.root / "shoal.toml").read_text().replace("snapshot = false\n", "")
    project.write("shoal.toml", toml + '\n[steps.hello]\ncommand = "python3 hello.py"\n')
    project.write("experiments/001_a/000_hello.toml", 'step = "hello"\n[request]\ntime = "5m"\nmemory = "50M"\n')
    git(project.root, "init", "-q")
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "first")
    yield project
    cancel_all(cluster)


@pytest.mark.slurm
@pytest.mark.parametrize(("flags", "printed"), [((), "the old code"), (("--no-snapshot",), "the new code")])
def test_a_queued_run_executes_the_code_of_its_submission(
    project: Project, flags: tuple[str, ...], printed: str
) -> None:
    project.slurm("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        project.shoal("submit", *flags, "experiments/001_a/000_hello.toml", WANDB_API_KEY="not-for-disk")
        project.write("hello.py", "print('the new code')\n")
    finally:
        project.slurm("scontrol", "update", "PartitionName=main", "State=UP")
    wait_until(lambda: project.status()["001_a/000_hello"]["state"] == "completed", 60, "the run completed")
    assert printed in project.shoal("logs", "001_a/000_hello").out
    record = json.loads((project.submissions()[0] / "submission.json").read_text())
    around = record["provenance"]
    assert around["python"] and json.loads(Path(around["packages"]).read_text())["packages"]
    order = json.loads((project.submissions()[0] / "send.0").read_text())
    kept = (project.home / "environments" / str(os.getuid()) / f"{order['environment']}.json").read_text()
    assert json.loads(kept)["HOME"] == project.env["HOME"] and "not-for-disk" not in kept
    [start] = project.records("001_a/000_hello", "attempt.*.start")
    assert start["python"]["python"] == shutil.which("python3", path=project.env["PATH"])
    listed = json.loads(Path(start["python"]["packages"]).read_text())["packages"]
    assert f"msgspec=={version('msgspec')}" in listed
    assert record.get("commit") == (None if flags else git(project.root, "rev-parse", "HEAD"))


def test_the_python_of_a_command_is_found_without_starting_it(tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    site = tmp_path / "env/lib/python3.9/site-packages"
    for name in ("torch-2.1.0+cu121.dist-info", "My_Pkg-0.3-py3.9.egg-info", "torch", "notes-x"):
        (site / name).mkdir(parents=True)
    for name, text in (("python", ""), ("torchrun", f"#!{tmp_path}/env/bin/python\n"), ("run.sh", "#!/bin/bash\n")):
        (tmp_path / "env/bin" / name).write_text(text)
        (tmp_path / "env/bin" / name).chmod(0o755)
    around = {"PATH": f"{tmp_path}/env/bin:{os.environ['PATH']}"}
    for command in (["python", "x.py"], ["torchrun", "x.py"], ["run.sh"], ["env/bin/python"], ["no-such-program"]):
        found = environment.record_packages(str(tmp_path / "home"), command, around, str(tmp_path))
        assert found is not None and found["python"] == f"{tmp_path}/env/bin/python" and found["version"] == "3.9"
        kept = json.loads(Path(found["packages"]).read_text())["packages"]
        assert kept == ["My_Pkg==0.3", "torch==2.1.0+cu121"]
    assert environment.interpreter_of([sys.executable], {"PATH": ""}, "/") == sys.executable
    assert environment.record_packages(str(tmp_path / "home"), ["true"], {"PATH": "/nowhere"}, "/") is None
