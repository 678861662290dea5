"""Request, flags and profile become sbatch's options; partitions are translated; limits are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.batch.sbatch_flags import parse_flags
from shoal.describe.cluster import Cluster
from shoal.describe.project import find_project
from shoal.errors import InputError
from shoal.model import Request
from shoal.plan.sbatch_options import ResolvedRequest, resolve_request

TOML = """
[clusters.galvani]
account = "mylab"
partition = { a100 = "a100-galvani", default = "2080-galvani" }
gpus_per_node = 8
cpus_per_node = 128
memory_per_node = "500G"
max_time = "3d"
time = "1d"
constraint = "ib"
mail_user = "me@example.org"
mail_type = "END"
[clusters.galvani.qos.high]
account = "rich"
cpus_per_node = 64
[clusters.tcml]
partition = { a100 = "gpu-big" }
gpu_types = { a100 = "A100" }
gres = "gpus-per-node"
flags = ["--exclusive=user", "--comment=hello there"]
[clusters.one]
partition = "gpu"
gpu_types = { a100 = "NVIDIA_A100" }
[clusters.poor]
partition = { v100 = "volta" }
[clusters.empty]
[clusters.wrong]
flags = ["--job-name=x"]
"""


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, Cluster]:
    (tmp_path / "shoal.toml").write_text(TOML)
    return find_project(tmp_path, {"HOME": str(tmp_path)}).clusters


def answer(
    profiles: dict[str, Cluster], name: str, flags: str = "", request: Request | None = None, whole: bool = False
) -> ResolvedRequest:
    cluster = profiles[name] if name in profiles else Cluster(name=name)
    return resolve_request(request or Request(), parse_flags(flags.split()), cluster, profiles, whole_nodes=whole)


def options(resolved: ResolvedRequest) -> dict[str, str | None]:
    return dict(resolved.options)


def test_the_example_of_lead_is_completed_from_the_profile_in_a_fixed_order(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "galvani", "--cpus-per-task=32 --partition=a100-galvani --time=3-00:00:00 --gres=gpu:4")
    assert found.argv() == [
        "--partition=a100-galvani", "--account=mylab", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=32",
        "--mem=250G", "--gres=gpu:4", "--time=3-00:00:00", "--constraint=ib", "--mail-user=me@example.org",
        "--mail-type=END",
    ]  # fmt: skip
    assert found.request == Request(nodes=1, gpus=4, cpus=32, memory="250G", time="3d")
    assert found.notes == ("250G of memory per node, for 4 of the node's 8 GPUs",)


def test_without_a_profile_nothing_is_made_up(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "slurm", "--gres=gpu:a100:2 -p a100-galvani")
    assert found.argv() == ["--partition=a100-galvani", "--nodes=1", "--ntasks-per-node=1", "--gres=gpu:a100:2"]
    assert answer(profiles, "empty").argv() == ["--nodes=1", "--ntasks-per-node=1"]


def test_cpus_and_memory_follow_the_share_of_gpus(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "galvani", request=Request(gpus=2))
    assert (found.request.cpus, found.request.memory) == (32, "125G")
    none = answer(profiles, "galvani", request=Request())
    assert (none.request.cpus, none.request.memory, none.request.time) == (None, None, "1-00:00:00")


def test_under_a_qos_its_account_and_cpus_hold(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "galvani", "--qos=high --gres=gpu:8")
    assert (options(found)["account"], options(found)["qos"], found.request.cpus) == ("rich", "high", 64)
    with pytest.raises(InputError, match="100 CPUs per node is more than cluster galvani has under QOS high: 64"):
        answer(profiles, "galvani", "--qos=high -c 100")


def test_flags_win_over_the_step_and_the_step_over_the_profile(profiles: dict[str, Cluster]) -> None:
    step = Request(gpus=4, gpu_type="a100", cpus=8, time="2d")
    found = answer(profiles, "galvani", "-c 16 -A other -C rdma --mail-type=NONE", request=step)
    words = options(found)
    assert words["cpus-per-task"] == "16"
    assert words["time"] == "2-00:00:00"
    assert (words["account"], words["constraint"], words["mail-type"]) == ("other", "rdma", "NONE")
    assert words["partition"] == "a100-galvani"


def test_a_partition_of_another_cluster_is_translated_by_gpu_type(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "tcml", "--partition=a100-galvani --gres=gpu:4")
    assert options(found)["partition"] == "gpu-big"
    assert "partition a100-galvani of galvani is gpu-big here (a100)" in found.notes
    back = answer(profiles, "galvani", "--partition=gpu-big")
    assert options(back)["partition"] == "a100-galvani"


def test_where_a_cluster_has_one_partition_the_type_goes_into_the_gres(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "one", "--partition=a100-galvani --gres=gpu:2")
    assert (options(found)["partition"], options(found)["gres"]) == ("gpu", "gpu:NVIDIA_A100:2")


def test_a_default_partition_becomes_the_default_partition(profiles: dict[str, Cluster]) -> None:
    assert options(answer(profiles, "one", "-p 2080-galvani"))["partition"] == "gpu"
    assert "partition" not in options(answer(profiles, "poor", "-p 2080-galvani"))


def test_a_partition_that_cannot_be_translated_says_what_is_missing(profiles: dict[str, Cluster]) -> None:
    with pytest.raises(InputError, match="cluster poor names no partition for a100") as caught:
        answer(profiles, "poor", "--partition=a100-galvani")
    assert "[clusters.poor]" in str(caught.value.hint)
    with pytest.raises(InputError, match="names no partition for GPU type h100; it has v100"):
        answer(profiles, "poor", request=Request(gpus=1, gpu_type="h100"))


def test_a_partition_that_no_profile_knows_is_passed_on(profiles: dict[str, Cluster]) -> None:
    assert options(answer(profiles, "galvani", "-p debug,a100-galvani"))["partition"] == "debug,a100-galvani"


def test_gpu_types_are_spelled_as_the_cluster_does(profiles: dict[str, Cluster]) -> None:
    found = answer(profiles, "tcml", "--gres=gpu:a100:4")
    assert options(found)["gpus-per-node"] == "A100:4"
    assert found.request.gpu_type == "a100"
    assert options(answer(profiles, "galvani", "--gres=gpu:A100:4"))["gres"] == "gpu:a100:4"
    assert options(answer(profiles, "galvani", "--gres=gpu:A100:4"))["partition"] == "a100-galvani"


def test_flags_of_the_profile_come_along_and_yield_to_ones_own(profiles: dict[str, Cluster]) -> None:
    assert "--comment=hello there" in answer(profiles, "tcml").argv()
    assert answer(profiles, "tcml", "--comment=x").argv()[-2:] == ["--exclusive=user", "--comment=x"]
    with pytest.raises(InputError, match=r"shoal.toml:\d+: .*belongs to shoal"):
        answer(profiles, "wrong")


@pytest.mark.parametrize(
    ("flags", "absent"),
    [
        ("--mem-per-cpu=4G --gres=gpu:4", "mem"),
        ("--mem-per-gpu=4G --gres=gpu:4", "mem"),
        ("--cpus-per-gpu=4 --gres=gpu:4", "cpus-per-task"),
        ("--ntasks=4", "ntasks-per-node"),
        ("--exclusive --gres=gpu:4", "mem"),
        ("-N2 --gpus=8", "gres"),
        ("--gpus-per-task=1", "gres"),
    ],
)
def test_a_verbatim_flag_silences_what_would_contradict_it(
    profiles: dict[str, Cluster], flags: str, absent: str
) -> None:
    assert absent not in options(answer(profiles, "galvani", flags))


def test_memory_that_is_asked_for_last_is_what_sbatch_gets(profiles: dict[str, Cluster]) -> None:
    told = options(answer(profiles, "galvani", "--mem-per-cpu=4G --gres=gpu:1 --mem=64G"))
    assert told["mem"] == "64G" and "mem-per-cpu" not in told


@pytest.mark.parametrize("flag", ["--nodes=2-4", "--time=UNLIMITED", "--mem=0", "--ntasks-per-node=4"])
def test_a_verbatim_flag_stands_alone(profiles: dict[str, Cluster], flag: str) -> None:
    argv = answer(profiles, "galvani", f"{flag} --gres=gpu:1").argv()
    assert [word for word in argv if word.startswith(flag.split("=")[0] + "=")] == [flag]


def test_other_gres_are_joined_with_the_gpus(profiles: dict[str, Cluster]) -> None:
    assert options(answer(profiles, "galvani", "--gres=gpu:1,tmpfs:5G"))["gres"] == "gpu:1,tmpfs:5G"
    assert options(answer(profiles, "galvani", "--gres=tmpfs:5G"))["gres"] == "tmpfs:5G"
    two_kinds = answer(profiles, "galvani", "--gres=gpu:a:1,gpu:b:1", request=Request(gpus=4))
    assert options(two_kinds)["gres"] == "gpu:a:1,gpu:b:1"


@pytest.mark.parametrize(
    ("flags", "sentence", "nearest"),
    [
        ("--gres=gpu:9", "9 GPUs per node is more than cluster galvani has: 8", "--gpus-per-node=8"),
        ("-c 129", "129 CPUs per node is more", "--cpus-per-task=128"),
        ("--mem=501G", "501G of memory per node is more than cluster galvani has: 500G", "--mem=500G"),
        ("-t 3-00:00:01", "of time is more than cluster galvani has: 3d00h", "--time=3-00:00:00"),
    ],
)
def test_what_the_cluster_cannot_serve_is_refused_with_the_nearest(
    profiles: dict[str, Cluster], flags: str, sentence: str, nearest: str
) -> None:
    with pytest.raises(InputError) as caught:
        answer(profiles, "galvani", flags)
    assert sentence in caught.value.message
    assert "shoal.toml:" in caught.value.message
    assert str(caught.value.hint).startswith(nearest)


def test_whole_nodes_are_taken_where_nobody_says_how_many_gpus_share_them(profiles: dict[str, Cluster]) -> None:
    (cluster,) = [Cluster(name="x", cpus_per_node=96, memory_per_node="500G")]
    found = resolve_request(Request(gpus=8), parse_flags([]), cluster, profiles, whole_nodes=True)
    assert (found.request.cpus, found.request.memory) == (96, "500G")
    assert resolve_request(Request(gpus=8), parse_flags([]), cluster, profiles).request.cpus is None
