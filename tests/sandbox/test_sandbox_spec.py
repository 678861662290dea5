"""What of the sandbox is decided without starting anything: names, layouts, configuration, and what is refused."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest

from sandboxes import shoal_sandbox
from shoal.errors import InputError, ShoalError
from shoal.sandbox import PartitionSpec, Sandbox, SandboxSpec, machine, parse_partitions, sandbox_names
from shoal.sandbox.conf import slurm_conf
from shoal.sandbox.paths import HOME_VARIABLE, Ports, SandboxPaths, SandboxState, directory_lock


def state_of(**spec: object) -> SandboxState:
    ports = Ports(slurmctld=20001, slurmd=tuple(range(20003, 20067)), slurmdbd=20002)
    made = SandboxSpec(**spec)  # type: ignore[arg-type]
    return SandboxState(
        mark="0" * 32,
        spec=made,
        ports=Ports(ports.slurmctld, ports.slurmd[: made.nodes], ports.slurmdbd),
        cgroups=False,
        subnet=None,
    )


def rendered(**spec: object) -> list[str]:
    state = state_of(**spec)
    return slurm_conf(state, SandboxPaths(Path("/h"), state.spec.name), host="here", user="me").splitlines()


@pytest.mark.parametrize("name", ["", "Upper", "1st", "a b", "a/b", "..", "a_b", "-x", "x-", "x" * 25, "ä", "a\nb"])
def test_a_name_that_cannot_be_a_host_and_folder_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="not a name"):
        SandboxSpec(name=name)


@pytest.mark.parametrize(
    "spec",
    [
        {"nodes": 0},
        {"nodes": -1},
        {"nodes": 65},
        {"gpus": -1},
        {"cpus": 0},
        {"memory_mb": 1},
        {"gpu_type": "a 100"},
        {"partitions": ()},
        {"partitions": (PartitionSpec("a"), PartitionSpec("A"))},
        {"settings": (("NodeName", "x"),)},
        {"settings": (("slurmctldport", "6817"),)},
        {"settings": (("MinJobAge", "2\nInclude /etc/passwd"),)},
        {"settings": (("Min Job", "2"),)},
    ],
)
def test_a_layout_that_cannot_be_built_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SandboxSpec(**spec)  # type: ignore[arg-type]


def test_partitions_are_spelled_with_their_limits() -> None:
    assert parse_partitions("gpu:12h, cpu") == (PartitionSpec("gpu", 43200), PartitionSpec("cpu", 259200))
    for bad in ("", "a,,b", "a:", "a:7", "DEFAULT", "a b", "-a"):
        with pytest.raises(InputError):
            parse_partitions(bad)


def test_the_first_partition_is_the_default_and_preempts_the_others() -> None:
    lines = [line for line in rendered(partitions=parse_partitions("big:1d,small:1h")) if "PartitionName" in line]
    assert "PartitionName=big Nodes=ALL Default=YES State=UP MaxTime=1-00:00:00 PriorityTier=2" in lines
    assert "PartitionName=small Nodes=ALL Default=NO State=UP MaxTime=01:00:00 PriorityTier=1" in lines


def test_a_setting_replaces_the_key_in_any_spelling() -> None:
    lines = rendered(settings=(("minjobage", "2"), ("UnkillableStepTimeout", "7")))
    assert [line for line in lines if line.lower().startswith("minjobage")] == ["MinJobAge=2"]
    assert "UnkillableStepTimeout=7" in lines


def test_a_folder_too_long_for_unix_sockets_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too long") as refused:
        Sandbox(SandboxSpec(), home=tmp_path / ("x" * 80)).layout.check_length(SandboxSpec().node_names)
    assert HOME_VARIABLE in str(refused.value.hint)


def test_missing_packages_are_one_sentence_and_the_command_that_installs_them(tmp_path: Path) -> None:
    done = shoal_sandbox("up", "--accounting", PATH=str(tmp_path), **{HOME_VARIABLE: str(tmp_path / "h")})
    assert done.returncode == 1
    assert "slurmctld" in done.stderr and "Traceback" not in done.stderr
    assert "apt-get install -y --no-install-recommends munge slurm-wlm slurmdbd" in done.stderr
    assert not (tmp_path / "h").exists()


@pytest.mark.slow
def test_bad_flags_are_refused_with_exit_code_two() -> None:
    for words in (["--name", "No"], ["--nodes", "0"], ["--nodes", "x"], ["--partitions", "a:b"], ["--set", "x"]):
        done = shoal_sandbox("up", *words)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr and not done.stdout


def test_down_does_not_touch_a_folder_that_is_not_a_sandbox(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    precious = tmp_path / "thesis" / "chapter1.tex"
    precious.parent.mkdir()
    precious.write_text("years of work")
    with pytest.raises(ShoalError, match="not the folder of a sandbox"):
        Sandbox(SandboxSpec(name="thesis"), home=tmp_path).down()
    assert precious.read_text() == "years of work"
    assert sandbox_names(tmp_path) == []


def test_a_home_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ShoalError, match="not a private folder"):
        Sandbox(SandboxSpec(), home=tmp_path).down()


def test_the_environment_for_clients_forgets_other_clusters() -> None:
    sandbox = Sandbox(SandboxSpec(name="mine"))
    env = sandbox.env({"SLURM_JOB_ID": "7", "SBATCH_PARTITION": "x", "SLURM_CONF": "/other", "HOME": "/h"})
    assert env == {"HOME": "/h", "SLURM_CONF": str(sandbox.conf_path)}


def test_a_port_that_nobody_may_use_is_never_chosen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ports = machine.free_ports(SandboxSpec(nodes=64), {port})
    assert port not in ports.all() and len(set(ports.all())) == 66


def test_folders_that_another_sandbox_removes_at_that_moment_are_no_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    over = threading.Event()

    def remove() -> None:
        while not over.is_set():
            shutil.rmtree(home, ignore_errors=True)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(50):
            with directory_lock(home / "one"):
                pass
            SandboxPaths(home, "one").is_ours()
    finally:
        over.set()
        remover.join()
