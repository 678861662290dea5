"""Cluster profiles: merging, provenance, choosing; and what `shoal clusters` shows."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from shoal.batch.sbatch_flags import parse_flags
from shoal.cli import main
from shoal.clusters import ClusterFacts, NodeKind, Partition, cluster_name
from shoal.clusters.parse import parse_gres, parse_partitions, parse_sinfo, parse_user
from shoal.describe.cluster import CLUSTER_KEYS, NETWORKS, Cluster
from shoal.describe.project import Project, find_project
from shoal.doctor.submit_checks import refuse_impossible
from shoal.errors import InputError, RefusedError
from shoal.model import Request
from shoal.plan.cluster_choice import choose_cluster, match_cluster, named_cluster
from shoal.plan.sbatch_options import resolve_request
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
            "main|main*|3-00:00:00|16|4000|gpu:fake:4(S:0-1)|3|ib,a|b",
            "main|main*|3-00:00:00|8+|2000+|gpu:other:2,tmp:1|1|(null)",
            "cpu|cpu|infinite|64|256000|(null)|9|",
            "too|few|fields",
            "$(rm -rf)|x|1:00|1|1|(null)|1|(null)",
            "odd|odd|whenever|4|100|gpu:3|some|(null)",
            "bad|bad|1:00|many|100|gpu:3|1|(null)",
        ]
    )
    partitions, kinds = parse_sinfo(text)
    facts = ClusterFacts(partitions=partitions, node_kinds=kinds)
    main_, cpu, odd = partitions
    assert (main_.is_default, main_.max_time_s, cpu.max_time_s, odd.max_time_s) == (True, 259200, None, None)
    assert [(kind.partition, kind.nodes) for kind in kinds] == [("main", 3), ("main", 1), ("cpu", 9), ("odd", 1)]
    assert [kind.features for kind in kinds] == [("ib", "a|b"), (), (), ()]
    assert [(kind.gpus, kind.gpu_types) for kind in kinds[2:]] == [(0, ()), (3, ())]
    assert facts.smallest_node("main") == ("main", 8, 2000, 2, ("fake", "other"), ("ib", "a|b"), 4)
    assert facts.smallest_node("none") is None
    assert facts.chosen(None) == [main_] and facts.chosen("odd,cpu,none") == [cpu, odd]
    assert parse_gres("gpu:1g.5gb:7,gpu:a100:2") == (("1g.5gb", "a100"), 9)
    mine, default = parse_user("lab|lab|normal|normal,high||\nsmall|lab||normal|5|\nx;y|a||b||\n\n", "me")
    facts = ClusterFacts(associations=mine, default_account=default)
    assert (facts.accounts, facts.default_account, facts.qos) == (("lab", "small"), "lab", ("normal", "high"))


def test_a_partition_gets_the_clusters_defaults_where_it_has_none_of_its_own() -> None:
    settings = {"DefMemPerCPU": "250", "PreemptMode": "REQUEUE", "PreemptType": "preempt/partition_prio"}
    text = "\n".join(
        [
            "PartitionName=a AllowAccounts=ALL DenyAccounts=x,y QoS=N/A Default=YES MaxTime=1-00:00:00 MaxNodes=UNL",
            "PartitionName=b AllowAccounts=lab QoS=tight DefMemPerNode=4000 PriorityTier=10 State=DOWN TotalNodes=3",
            "nonsense",
        ]
    )
    a, b = parse_partitions(text, settings)
    assert (a.is_default, a.max_time_s, a.max_nodes, a.deny_accounts) == (True, 86400, None, ("x", "y"))
    assert (a.def_mem_per_cpu_mb, a.preempts, a.qos, a.is_up) == (250, True, None, True)
    assert (b.def_mem_per_cpu_mb, b.preempts, b.qos, b.is_up) == (None, False, "tight", False)
    assert (b.allow_accounts, b.total_nodes, b.default_time_s) == (("lab",), 3, None)


NODES = ClusterFacts(
    partitions=(Partition("main", True, 3600), Partition("big", max_time_s=86400)),
    node_kinds=(
        NodeKind("main", 16, 4096, 4, ("fake",)),
        NodeKind("main", 64, 2048),
        NodeKind("big", 128, 65536, 8, ("A100", "h100")),
    ),
)


@pytest.mark.parametrize(
    ("request_", "flags", "message", "hint"),
    [
        (Request(gpus=4, cpus=16, memory="4G", time="1h"), [], None, None),
        (Request(cpus=64), [], None, None),
        (Request(gpus=1, cpus=64), [], "no node of partition main can serve", "--cpus-per-task=16"),
        (Request(time="2h"), [], "02:00:00 of time (at most 01:00:00)", "--time=01:00:00"),
        (Request(gpus=8, gpu_type="a100", time="1d"), ["--partition=big"], None, None),
        (Request(gpus=1, gpu_type="v100"), ["--partition=big"], "GPU type v100 (at most gpu:A100:1)", "--gres="),
        (Request(gpus=9, memory="1T"), ["--partition=main,big"], "9 GPUs (at most", "--gpus-per-node="),
        (Request(), ["--partition=none"], "unknown partition 'none' (available: main, big)", "--partition=main"),
    ],
)
def test_a_request_that_no_kind_of_node_can_serve_is_refused_with_the_nearest_one(
    request_: Request, flags: list[str], message: str | None, hint: str | None
) -> None:
    profile = Cluster(name="here", gpu_types={"a100": "A100"})
    resolved = resolve_request(request_, parse_flags(flags), profile, {})
    refuse_impossible([resolved], ClusterFacts())  # a silent Slurm refuses nothing
    if message is None or hint is None:
        refuse_impossible([resolved], NODES)
        return
    with pytest.raises(RefusedError) as caught:
        refuse_impossible([resolved], NODES)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


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


PAGE = (Path(__file__).parents[2] / "docs/clusters.md").read_text()


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
