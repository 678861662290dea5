"""Cluster profiles: merging, provenance, choosing; and what `shoal clusters` shows."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from shoal.backends.slurm.facts import cluster_name, parse_associations, parse_gres, parse_sinfo
from shoal.batch.flags import parse_flags
from shoal.cli import main
from shoal.describe.cluster import CLUSTER_KEYS
from shoal.describe.networks import NETWORKS
from shoal.describe.project import Project, find_project
from shoal.errors import InputError
from shoal.plan.cluster_choice import choose_cluster, match_cluster, named_cluster
from shoal.sandbox import Sandbox

PROJECT = """
[clusters.galvani]
match = { cluster = "galvani" }
partition = { a100 = "a100-galvani" }
cpus_per_node = 128
network = "aws-efa"
env = { FI_PROVIDER = "tcp", MINE = "1" }
[clusters.galvani.qos]
default = "normal"
[clusters.galvani.qos.high]
cpus_per_node = 64
partition = "fast"
[clusters.tcml]
match = { host = "tcml-*" }
[clusters.plain]
account = "p"
"""
USER = """
[clusters.galvani]
account = "mylab"
partition = "2080-galvani"
cpus_per_node = 1
env = { MINE = "0", YOURS = "2" }
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "shoal.toml").write_text(PROJECT)
    (tmp_path / ".config/shoal").mkdir(parents=True)
    (tmp_path / ".config/shoal/config.toml").write_text(USER)
    return find_project(tmp_path, {"HOME": str(tmp_path)})


def test_the_project_wins_over_the_user_key_by_key(project: Project) -> None:
    galvani = project.clusters["galvani"]
    assert galvani.account == "mylab"
    assert galvani.partition == {"a100": "a100-galvani", "default": "2080-galvani"}
    assert galvani.cpus_per_node == 128
    assert galvani.env == {"MINE": "1", "YOURS": "2", "FI_PROVIDER": "tcp"}


def test_every_value_knows_its_file_and_line(project: Project) -> None:
    galvani = project.clusters["galvani"]
    assert galvani.origin("account") == "~/.config/shoal/config.toml:3"
    assert galvani.origin("partition.a100") == "shoal.toml:4"
    assert galvani.origin("partition.default") == "~/.config/shoal/config.toml:4"
    assert galvani.origin("gres") == "default"


def test_under_a_qos_what_its_table_says_wins(project: Project) -> None:
    high = project.clusters["galvani"].under("high")
    assert (high.cpus_per_node, high.partition) == (64, {"default": "fast"})
    assert high.origin("cpus_per_node") == "shoal.toml:11"
    assert project.clusters["galvani"].qos == "normal"
    assert project.clusters["galvani"].under("normal") is project.clusters["galvani"]


def test_a_network_preset_yields_to_the_profiles_own_variables(project: Project) -> None:
    galvani = project.clusters["galvani"]
    assert galvani.environment()["FI_PROVIDER"] == "tcp"
    assert galvani.environment()["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert galvani.prepends() == {"LD_LIBRARY_PATH": "/opt/amazon/efa/lib"}


def test_a_user_config_with_a_mistake_is_named_by_its_own_path(project: Project, tmp_path: Path) -> None:
    (tmp_path / ".config/shoal/config.toml").write_text("[steps.x]\n")
    with pytest.raises(InputError, match="unknown key 'steps'") as caught:
        find_project(tmp_path, {"HOME": str(tmp_path)})
    assert caught.value.place == "~/.config/shoal/config.toml:1"


def test_the_cluster_is_matched_by_name_then_by_host_and_else_unnamed(project: Project) -> None:
    assert match_cluster(project, "Galvani", "x").name == "galvani"
    assert match_cluster(project, "other", "tcml-login3").name == "tcml"
    assert match_cluster(project, "plain", "x").name == "plain"
    assert match_cluster(project, None, "x").name == "slurm"


def test_two_profiles_that_match_equally_are_an_error_that_names_both(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[clusters.a]\nmatch={host="*"}\n[clusters.b]\nmatch={host="l*"}\n')
    with pytest.raises(InputError, match="a and b match this cluster equally well"):
        match_cluster(find_project(tmp_path, {"HOME": str(tmp_path)}), None, "login")


def test_on_decides_alone_and_an_unknown_name_lists_the_known(project: Project) -> None:
    assert choose_cluster(project, "local", {}).is_local
    assert choose_cluster(project, None, {"SHOAL_ON": "tcml"}).name == "tcml"
    assert choose_cluster(project, "galvani", {"SHOAL_ON": "tcml", "SLURM_JOB_ID": "1"}).name == "galvani"
    with pytest.raises(InputError, match="did you mean 'galvani'") as caught:
        named_cluster(project, "galvanni")
    assert "local, plain, slurm, tcml" in caught.value.message
    with pytest.raises(InputError, match="SHOAL_ON: there is no cluster"):
        choose_cluster(project, None, {"SHOAL_ON": "nope"})


def test_without_sbatch_or_inside_a_job_this_machine_is_meant(project: Project, tmp_path: Path) -> None:
    assert choose_cluster(project, None, {"PATH": str(tmp_path)}).is_local
    assert choose_cluster(project, None, {**os.environ, "SLURM_JOB_ID": "7"}).is_local
    assert choose_cluster(project, None, {**os.environ, "SHOAL_ON": ""}, inside_job=True).is_local


def test_the_cluster_name_is_read_from_the_text_of_slurm_conf(project: Project, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("# ClusterName=no\n  clustername = galvani  # yes\nSlurmctldHost=x\n")
    environ = {"SLURM_CONF": str(conf), "PATH": os.environ["PATH"]}
    assert cluster_name(environ) == "galvani"
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert choose_cluster(project, None, {**environ, "PATH": str(tmp_path)}).name == "galvani"


def test_what_slurm_says_is_parsed_without_trust() -> None:
    text = "\n".join(
        [
            "main|main*|3-00:00:00|16|4000|gpu:fake:4(S:0-1)",
            "main|main*|3-00:00:00|8+|2000+|gpu:other:2,tmp:1",
            "cpu|cpu|infinite|64|256000|(null)",
            "too|few|fields",
            "$(rm -rf)|x|1:00|1|1|(null)",
            "odd|odd|whenever|4|100|gpu:3",
            "bad|bad|1:00|many|100|gpu:3",
        ]
    )
    main_, cpu, odd = parse_sinfo(text)
    assert (main_.cpus_per_node, main_.memory_per_node_mb, main_.gpus_per_node) == (8, 2000, 2)
    assert (main_.gpu_types, main_.is_default, main_.max_time_s) == (("fake", "other"), True, 259200)
    assert (cpu.max_time_s, cpu.gpus_per_node) == (None, 0)
    assert (odd.max_time_s, odd.gpus_per_node, odd.gpu_types) == (None, 3, ())
    assert parse_gres("gpu:1g.5gb:7,gpu:a100:2") == (("1g.5gb", "a100"), 9)
    assert parse_associations("lab|lab|normal,high\nsmall|lab|normal\nx;y|a|b\n\n") == (
        ("lab", "small"), "lab", ("normal", "high"),
    )  # fmt: skip


def show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["clusters", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_show_prints_each_value_with_its_origin(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("HOME", str(project.root))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    lines = show(capsys, "show", "galvani").splitlines()
    assert "account\tmylab\t~/.config/shoal/config.toml:3" in lines
    assert "partition.a100\ta100-galvani\tshoal.toml:4" in lines
    assert "gres\tgpu:{type}:{count}\tdefault" in lines
    assert "env.FI_EFA_USE_DEVICE_RDMA\t1\tnetwork aws-efa" in lines
    assert "qos.high.cpus_per_node\t64\tshoal.toml:11" in lines
    document = json.loads(show(capsys, "show", "galvani", "--json"))
    assert document["schema"] == 1
    assert document["values"]["account"] == {"value": "mylab", "origin": "~/.config/shoal/config.toml:3"}
    listed = json.loads(show(capsys, "list", "--json"))["clusters"]
    assert [one["name"] for one in listed] == ["galvani", "tcml", "plain", "local", "slurm"]
    assert main(["clusters", "show", "nope"]) == 2


@pytest.mark.slurm
def test_detect_and_test_ask_the_real_slurm(
    cluster: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = cluster_name(cluster.env())
    (tmp_path / "shoal.toml").write_text(
        f'[clusters.here]\nmatch = {{ cluster = "{name}" }}\npartition = {{ fake = "main", wrong = "nope" }}\n'
    )
    monkeypatch.chdir(tmp_path)
    for key, value in cluster.env().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    detected = json.loads(show(capsys, "detect", "--json"))
    assert detected["profile"] == "here"
    assert {one["name"] for one in detected["facts"]["partitions"]} == {"main", "low"}
    assert main(["clusters", "test", "here", "--json"]) == 1
    tests = json.loads(capsys.readouterr().out)["tests"]
    assert [one["ok"] for one in tests] == [True, True, False]
    assert "invalid partition" in tests[2]["answer"].lower()
    assert "cluster_name" in show(capsys, "show")
    assert show(capsys, "test", "slurm").splitlines()[1].split("\t")[1] == "ok"


PAGE = (Path(__file__).parents[1] / "docs/clusters.md").read_text()


def test_the_page_about_clusters_names_every_key_and_its_profiles_load(tmp_path: Path) -> None:
    for key in CLUSTER_KEYS:
        assert f"`{key}`" in PAGE, key
    for name in NETWORKS:
        assert f"| `{name}` |" in PAGE
    for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / "shoal.toml").write_text(block)
        assert find_project(tmp_path, {"HOME": str(tmp_path)}).clusters
    for flag in re.findall(r"`(--[a-z-]+)`", PAGE.partition("Some flags belong to shoal")[2].partition("##")[0]):
        with pytest.raises(InputError, match="belongs to shoal"):
            parse_flags([flag, "x"])
