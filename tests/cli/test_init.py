"""`shoal init`: a first shoal.toml that loads, with a real Slurm and without any."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.clusters import ClusterFacts, NodeKind, Partition, cluster_name
from shoal.clusters.facts import Association
from shoal.describe.project import Project, find_project
from shoal.describe.scaffold import Draft, draft_profile, toml_text
from shoal.plan.cluster_choice import choose_cluster
from shoal.sandbox import Sandbox


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


@pytest.fixture
def no_slurm(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no Slurm program is found."""
    monkeypatch.setenv("PATH", str(here))
    return here


def load(folder: Path, text: str) -> Project:
    (folder / "shoal.toml").write_text(text)
    return find_project(folder, {"HOME": str(folder)})


def test_without_slurm_the_project_loads_and_its_step_runs(no_slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert "next: shoal run experiments/001_example/000_hello_0.sh" in capsys.readouterr().out
    project = find_project(no_slurm, {"HOME": str(no_slurm)})
    assert project.clusters == {}
    environ = {"SHOAL_RUN": "001_example/000_hello_0", "PATH": "/usr/bin:/bin:/usr/local/bin"}
    command = ["/usr/bin/env", *project.step("train").command]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.stdout == "hello from 001_example/000_hello_0\n"
    example = no_slurm / "experiments/001_example/000_hello_0.sh"
    assert "\ntrain\n" in example.read_text()
    assert subprocess.run(["/bin/bash", "-n", str(example)], capture_output=True).stderr == b""
    assert not (no_slurm / ".gitignore").exists()


def test_an_existing_shoal_toml_is_never_touched(no_slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (no_slurm / "shoal.toml").write_text("# mine\n")
    assert main(["init"]) == 2
    assert "left as it is" in capsys.readouterr().err
    assert (no_slurm / "shoal.toml").read_text() == "# mine\n"
    assert sorted(path.name for path in no_slurm.iterdir()) == ["shoal.toml"]


def test_dry_run_prints_a_shoal_toml_and_writes_nothing(no_slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert list(no_slurm.iterdir()) == []
    load(no_slurm, printed)


def test_in_a_git_repository_state_and_outputs_are_ignored_once(no_slurm: Path) -> None:
    (no_slurm / ".git").mkdir()
    (no_slurm / ".gitignore").write_text("*.pyc\n.shoal/")
    (no_slurm / "experiments").mkdir()
    assert main(["init", "-q"]) == 0
    assert (no_slurm / ".gitignore").read_text() == "*.pyc\n.shoal/\noutputs/\n"
    assert list((no_slurm / "experiments").iterdir()) == []


def test_a_folder_that_is_not_there_or_not_writable_is_a_clean_error(
    no_slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "nowhere"]) == 2
    assert "mkdir -p" in capsys.readouterr().err
    (no_slurm / "file").write_text("")
    assert main(["init", "file"]) == 2


def node(partition: str, gpus: int = 0, gpu_types: tuple[str, ...] = (), cpus: int = 8) -> NodeKind:
    return NodeKind(partition, cpus, 4096, gpus, gpu_types)


def test_partitions_are_sorted_by_gpu_type_and_spelled_types_are_aliased(tmp_path: Path) -> None:
    facts = ClusterFacts(
        name="big",
        partitions=(Partition("cpu", True, 3600), Partition("a", False, 3600), Partition("v", False, 3600)),
        node_kinds=(node("cpu"), node("a", 4, ("A100",)), node("v", 4, ("v100",))),
        associations=(Association("lab", qos=("normal",)),),
        default_account="lab",
    )
    draft = draft_profile(facts, "login1")
    assert draft is not None
    assert draft.partition == {"a100": "a", "v100": "v", "default": "cpu"}
    project = load(tmp_path, toml_text(draft))
    big = project.clusters["big"]
    assert (big.account, big.gpu_types, big.gpus_per_node, big.cpus_per_node) == ("lab", {"a100": "A100"}, 4, 8)
    assert (big.memory_per_node, big.max_time, big.match.cluster) == ("4G", "01:00:00", "big")


def test_numbers_that_differ_between_partitions_are_left_to_the_user() -> None:
    facts = ClusterFacts(
        partitions=(Partition("a"), Partition("b", max_time_s=3600)),
        node_kinds=(node("a", 4), node("b", 8, cpus=16)),
    )
    draft = draft_profile(facts, "login1")
    assert draft is not None
    assert (draft.gpus_per_node, draft.cpus_per_node, draft.max_time) == (None, None, None)
    assert (draft.name, draft.match) == ("mycluster", {"host": "login1"})
    assert draft_profile(ClusterFacts(), "login1") is None


def test_odd_names_from_slurm_still_give_a_file_that_loads(tmp_path: Path) -> None:
    draft = Draft(name='a "b" .c', match={"cluster": 'x"y\\'}, partition={"a.b": "p q", "default": "é"}, account="#")
    cluster = load(tmp_path, toml_text(draft)).clusters['a "b" .c']
    assert (cluster.match.cluster, cluster.partition) == ('x"y\\', {"a.b": "p q", "default": "é"})


@pytest.mark.slurm
def test_init_on_a_real_cluster_writes_a_profile_that_is_then_chosen(
    accounting_cluster: Sandbox, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in accounting_cluster.env().items():
        monkeypatch.setenv(key, value)
    assert main(["init", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["silent"] == []
    environ = accounting_cluster.env()
    project = find_project(here, environ)
    cluster = choose_cluster(project, None, environ)
    assert cluster.name == cluster_name(environ)
    assert (cluster.account, cluster.partition["default"], cluster.gpus_per_node) == ("lab", "main", 4)
    assert main(["clusters", "test"]) == 0, capsys.readouterr().err


@pytest.mark.slurm
def test_init_without_accounting_says_who_did_not_answer(
    cluster: Sandbox, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in cluster.env().items():
        monkeypatch.setenv(key, value)
    assert main(["init"]) == 0
    assert "no answer from sacctmgr" in capsys.readouterr().out
    assert find_project(here, cluster.env()).clusters


@pytest.mark.slow
def test_a_controller_that_is_gone_leaves_a_project_without_clusters(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stand-ins that fail as Slurm's programs do."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("sinfo", "scontrol", "sacctmgr"):
        message = shlex.quote(f"{name}: error: Unable to contact slurm controller (connect failure)")
        (bin_ / name).write_text(f"#!/bin/sh\necho {message} >&2\nexit 1\n")
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "nowhere"))
    assert main(["init"]) == 0
    assert "no answer from sinfo: error: Unable to contact" in capsys.readouterr().out
    assert find_project(here, {"HOME": str(here)}).clusters == {}
