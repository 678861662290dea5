"""The sandbox on the real thing: what `up` starts, what `down` leaves (nothing), and what both say when they cannot."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import MakeSandbox, cancel_all, sandbox_name
from sandboxes import CLI, shoal_sandbox
from shoal.errors import ShoalError
from shoal.sandbox import Sandbox, SandboxSpec, default_slurm, machine, parse_partitions, process, sandbox_names
from shoal.sandbox.daemons import Daemons
from shoal.sandbox.paths import Ports
from shoal.sandbox.process import MARK_VARIABLE, SandboxProcess
from waiting import wait_until

pytestmark = pytest.mark.slurm


def traces_of(folder: Path, mark: str) -> list[str]:
    """Everything on this machine that still speaks of the sandbox; found by other means than the sandbox uses."""
    traces = [str(folder)] if folder.exists() else []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            files = {os.readlink(file) for file in (entry / "fd").iterdir()}
        except OSError:
            continue
        if f"{folder}/".encode() in words or mark.encode() in environment or any(str(folder) in f for f in files):
            traces.append(f"process {entry.name}: {words!r}")
    traces += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
    traces += [line for line in Path("/proc/net/unix").read_text().splitlines() if str(folder) in line]
    traces += [name for _, name in socket.if_nameindex() if mark[:8] in name]
    traces += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{folder.name}-n*")]
    return traces


def mark_of(sandbox: Sandbox) -> str:
    state = sandbox.layout.load()
    assert state is not None
    return state.mark


def job_state(sandbox: Sandbox, job: str) -> str:
    return sandbox.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()


def test_srun_and_sbatch_run_on_the_nodes_and_see_their_gpus(cluster: Sandbox, tmp_path: Path) -> None:
    seen = cluster.run("srun", "-N2", "--gres=gpu:2", "sh", "-c", 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"')
    assert sorted(seen.stdout.split("\n")[:2]) == [f"{node} 0,1" for node in cluster.nodes[:2]]
    log = tmp_path / "log"
    cluster.run("sbatch", "--wait", "--gres=gpu:fake:3", "-o", str(log), "--wrap", "echo $CUDA_VISIBLE_DEVICES")
    assert log.read_text() == "0,1,2\n"
    refused = cluster.run("srun", "--gres=gpu:5", "true", check=False)
    assert "Requested node configuration is not available" in refused.stderr


def test_up_status_and_down_from_the_command_line_leave_nothing() -> None:
    name = sandbox_name("cli")
    try:
        up = shoal_sandbox("up", "-q", "--name", name, "--nodes", "2")
        assert up.returncode == 0, up.stderr
        assert up.stderr == "" and up.stdout.count("\n") == (2 if default_slurm() else 1)
        word, _, conf = up.stdout.splitlines()[0].partition("=")
        folder = Path(shlex.split(conf)[0]).parent
        assert word == "export SLURM_CONF"
        again = shoal_sandbox("up", "--name", name, "--nodes", "2")
        assert (again.returncode, again.stdout) == (0, up.stdout) and "already" in again.stderr
        other = shoal_sandbox("up", "--name", name, "--nodes", "3")
        assert other.returncode == 1 and f"shoal sandbox down --name {name}" in other.stderr
        shown = json.loads(shoal_sandbox("status", "--name", name, "--json").stdout)["sandboxes"][0]
        assert shown["state"] == "up" and {node["state"] for node in shown["nodes"]} == {"idle"}
        assert f"{name}: up" in shoal_sandbox("status").stdout
        mark = json.loads((folder / "sandbox.json").read_text())["mark"]
        assert traces_of(folder, mark)
    finally:
        down = shoal_sandbox("down", "--name", name)
    assert down.returncode == 0
    assert traces_of(folder, mark) == []
    again = shoal_sandbox("down", "--name", name)
    assert (again.returncode, again.stderr) == (0, "nothing to stop\n")
    assert shoal_sandbox("status", "--name", name).returncode == 1


def test_down_ends_running_jobs_and_what_they_left_in_the_background(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    sandbox = make_sandbox("jobs", nodes=1)
    pids = tmp_path / "pids"
    script = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & echo $$ >> {pids}; exec sleep 1000"
    sandbox.run("sbatch", "-o", "/dev/null", "--wrap", script)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 20, "the job and its child run")
    started = pids.read_text().split()
    bystander = subprocess.Popen(["sleep", "1000"], env=sandbox.env())
    try:
        mark = mark_of(sandbox)
        sandbox.down()
        assert traces_of(sandbox.folder, mark) == []
        assert not [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists() and b"sleep" in _cmdline(pid)]
        assert bystander.poll() is None, "a process that only has SLURM_CONF set is not the sandbox's to kill"
    finally:
        bystander.kill()
        bystander.wait()


def _cmdline(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_two_clusters_with_other_partitions_run_side_by_side(cluster: Sandbox, make_sandbox: MakeSandbox) -> None:
    other = make_sandbox("other", nodes=2, gpus=2, gpu_type="a100", partitions=parse_partitions("a100:2h,cpu:30m"))
    sinfo = ("sinfo", "-h", "-o", "%P %l")
    assert other.run(*sinfo).stdout.split("\n")[:2] == ["a100* 2:00:00", "cpu 30:00"]
    assert cluster.run(*sinfo).stdout.split("\n")[:2] == ["main* 3-00:00:00", "low 12:00:00"]
    assert other.run("srun", "-p", "cpu", "--gres=gpu:a100:1", "printenv", "SLURM_CLUSTER_NAME").stdout.strip() == (
        other.spec.name
    )
    assert cluster.run("srun", "-p", "cpu", "true", check=False).returncode != 0
    refused = other.run("sbatch", "-p", "cpu", "-t", "31", "--wrap", "true", check=False)
    assert "time limit" in refused.stderr
    other.down()
    assert cluster.run("srun", "true").returncode == 0


def test_a_job_that_takes_too_much_memory_is_killed(cluster: Sandbox) -> None:
    if not machine.cgroups_usable():
        pytest.skip("needs root and the memory controller of cgroup v1")
    eat = shlex.join([sys.executable, "-c", "bytearray(400 << 20)"])
    job = cluster.run("sbatch", "--parsable", "--mem=60", "-o", "/dev/null", "--wrap", eat).stdout.strip()
    wait_until(lambda: job_state(cluster, job) == "OUT_OF_MEMORY", 30, "the job is out of memory")


def test_a_job_in_the_first_partition_preempts_one_in_the_second(quiet_cluster: Sandbox) -> None:
    sbatch = ("sbatch", "--parsable", "--exclusive", "-N4", "-o", "/dev/null")
    low = quiet_cluster.run(*sbatch, "-p", "low", "--requeue", "--wrap", "sleep 300").stdout.strip()
    wait_until(lambda: job_state(quiet_cluster, low) == "RUNNING", 30, "the low job runs")
    main = quiet_cluster.run(*sbatch, "--wrap", "sleep 300").stdout.strip()
    wait_until(lambda: job_state(quiet_cluster, main) == "RUNNING", 30, "the main job runs")
    assert job_state(quiet_cluster, low) == "PENDING"


def test_accounting_knows_finished_jobs_two_qos_and_limits(accounting_cluster: Sandbox) -> None:
    cluster = accounting_cluster
    job = cluster.run("sbatch", "--parsable", "--wait", "-o", "/dev/null", "--wrap", "true").stdout.strip()
    sacct = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,Account,QOS")
    wait_until(lambda: cluster.run(*sacct).stdout == "COMPLETED|lab|normal\n", 30, "sacct knows the finished job")
    assert set(cluster.run("sacctmgr", "-n", "-P", "show", "qos", "format=name").stdout.split()) == {"normal", "high"}
    submit = ("sbatch", "-A", "small", "-o", "/dev/null", "--hold", "--wrap", "true")
    codes = [cluster.run(*submit, check=False) for _ in range(6)]
    assert [done.returncode for done in codes] == [0] * 5 + [1]
    assert "AssocMaxSubmitJobLimit" in codes[-1].stderr
    cancel_all(cluster)


def test_a_database_that_ends_while_slurmdbd_starts_is_started_again(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[SandboxProcess] = []

    def start_and_kill_once(daemons: Daemons, daemon: str, deadline_s: float) -> None:
        start(daemons, daemon, deadline_s)
        if daemon == "mariadbd" and not killed:
            killed.append(daemons.running(daemon))
            process.send_signal(killed[0], signal.SIGKILL)
            process.wait_gone(killed, 20)

    start = Daemons.start
    monkeypatch.setattr(Daemons, "start", start_and_kill_once)
    sandbox = make_sandbox("database", nodes=1, accounting=True)
    assert killed and sandbox.run("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster").stdout.split()


def test_qos_high_preempts_normal_and_the_requeued_job_runs_again_soon(accounting_cluster: Sandbox) -> None:
    cluster = accounting_cluster
    sbatch = ("sbatch", "--parsable", "--exclusive", "-N2", "-o", "/dev/null")
    normal = cluster.run(*sbatch, "--requeue", "--wrap", "sleep 300").stdout.strip()
    wait_until(lambda: job_state(cluster, normal) == "RUNNING", 30, "the normal job runs")
    high = cluster.run(*sbatch, "-q", "high", "--wrap", "sleep 1").stdout.strip()
    wait_until(lambda: job_state(cluster, normal) == "PENDING", 30, "the normal job is preempted")
    wait_until(lambda: job_state(cluster, high) == "COMPLETED", 30, "the high job is done")
    # Slurm's own pause after a requeue is two minutes; the sandbox shortens it.
    wait_until(lambda: job_state(cluster, normal) == "RUNNING", 40, "the normal job runs again")
    cancel_all(cluster)


def test_nodes_that_are_hosts_have_names_and_addresses_and_reach_each_other(make_sandbox: MakeSandbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may make namespaces")
    first, second = make_sandbox("hosts", nodes=2, hosts=True), make_sandbox("hosts2", nodes=2, hosts=True)
    for sandbox in (first, second):
        assert sorted(sandbox.run("srun", "-N2", "hostname").stdout.split()) == list(sandbox.nodes)
    ask = "import socket; print(*(socket.gethostbyname(n) for n in {names!r}))"
    addresses = [
        sandbox.run("srun", "-n1", sys.executable, "-c", ask.format(names=sandbox.nodes)).stdout.split()
        for sandbox in (first, second)
    ]
    assert len({*addresses[0], *addresses[1]}) == 4
    _talk(first)
    marks = [mark_of(first), mark_of(second)]
    first.down()
    assert second.run("srun", "-N2", "true").returncode == 0
    second.down()
    assert traces_of(first.folder, marks[0]) == traces_of(second.folder, marks[1]) == []


def _talk(sandbox: Sandbox) -> None:
    """Node 1 listens on its own name, node 2 connects to it by that name."""
    program = """
import os, socket, time
here, there = os.environ["SLURMD_NODENAME"], os.environ["SERVER"]
if here == there:
    with socket.create_server((here, 5000)) as server:
        server.settimeout(20)
        peer, _ = server.accept()
        peer.sendall(socket.gethostname().encode())
else:
    end = time.monotonic() + 20
    while True:
        try:
            print(here, "met", socket.create_connection((there, 5000), timeout=20).recv(99).decode())
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
"""
    argv = ["env", f"SERVER={sandbox.nodes[0]}", sys.executable, "-c", program]
    assert sandbox.run("srun", "-N2", *argv).stdout.strip() == f"{sandbox.nodes[1]} met {sandbox.nodes[0]}"


def test_a_frozen_controller_is_shown_and_thaws(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("faults", nodes=1, settings=(("MessageTimeout", "4"),))
    sandbox.freeze("slurmctld")
    shown = sandbox.status()
    assert shown.state == "degraded"
    assert [daemon.state for daemon in shown.daemons if daemon.name == "slurmctld"] == ["frozen"]
    assert "timed out" in sandbox.run("sbatch", "-o", "/dev/null", "--wrap", "true", check=False).stderr
    sandbox.thaw("slurmctld")
    sandbox.run("srun", "true")
    assert sandbox.status().state == "up"


def test_daemons_can_be_stopped_killed_and_started_again(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("faults", nodes=2)
    job = sandbox.run("sbatch", "--parsable", "-w", sandbox.nodes[0], "-o", "/dev/null", "--wrap", "sleep 300").stdout
    job = job.strip()
    wait_until(lambda: job_state(sandbox, job) == "RUNNING", 20, "the job runs")
    before = sandbox.pid("slurmctld")
    sandbox.stop_daemon("slurmctld")
    with pytest.raises(ShoalError, match="does not run"):
        sandbox.pid("slurmctld")
    with pytest.raises(ShoalError, match="without slurmctld"):
        sandbox.up()
    sandbox.start_daemon("slurmctld")
    assert sandbox.pid("slurmctld") != before
    sandbox.kill(sandbox.nodes[0])
    sandbox.start_daemon(sandbox.nodes[0])
    assert job_state(sandbox, job) == "RUNNING", "a job survives its slurmd"
    sandbox.kill(sandbox.nodes[1], with_steps=True)
    assert [daemon.name for daemon in sandbox.status().daemons if daemon.state == "dead"] == [sandbox.nodes[1]]
    with pytest.raises(ShoalError, match="there is no daemon"):
        sandbox.freeze("slurmdbd")


@pytest.mark.parametrize(
    "moment", ["sandbox.json", "run/munged.json", "db/ibdata1", "run/slurmdbd.json", "run/slurmctld.json"]
)
def test_what_a_killed_up_left_is_cleaned_by_down(moment: str) -> None:
    name = sandbox_name("killed")
    sandbox = Sandbox(SandboxSpec(name=name))
    hosts = ["--hosts"] if os.geteuid() == 0 else []
    up = subprocess.Popen(
        [*CLI, "up", "--name", name, "--nodes", "2", "--accounting", *hosts], stdout=subprocess.DEVNULL
    )
    try:
        wait_until((sandbox.folder / moment).exists, 30, f"{moment} is there", poll_s=0.001)
        up.send_signal(signal.SIGKILL)
        up.wait()
        mark = mark_of(sandbox)
        assert shoal_sandbox("down", "--name", name).returncode == 0
        assert traces_of(sandbox.folder, mark) == []
    finally:
        up.kill()
        up.wait()
        sandbox.down()


def test_a_terminated_up_cleans_after_itself() -> None:
    sandbox = Sandbox(SandboxSpec(name=sandbox_name("ended")))
    words = ["up", "-q", "--name", sandbox.spec.name, "--accounting", "--nodes", "1"]
    up = subprocess.Popen([*CLI, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_until(sandbox.layout.record("munged").exists, 30, "munged runs", poll_s=0.001)
        mark = mark_of(sandbox)
        up.terminate()
        assert up.communicate()[1] == b"" and up.returncode == 143
        assert traces_of(sandbox.folder, mark) == []
    finally:
        up.kill()
        up.wait()
        sandbox.down()


def test_the_same_name_in_another_home_is_refused_rather_than_shared(make_sandbox: MakeSandbox) -> None:
    if not machine.cgroups_usable():
        pytest.skip("only cgroups are named after the sandbox alone")
    first = make_sandbox("twin", nodes=1)
    home = Path(tempfile.mkdtemp())  # pytest's own folders are too long for unix sockets
    with pytest.raises(ShoalError, match="another sandbox"):
        Sandbox(first.spec, home=home).up()
    assert first.run("srun", "true").returncode == 0
    assert not home.exists()


def test_up_starts_over_after_a_killed_up(make_sandbox: MakeSandbox) -> None:
    name = sandbox_name("again")
    folder = Sandbox(SandboxSpec(name=name)).folder
    up = subprocess.Popen([*CLI, "up", "-q", "--name", name, "--nodes", "1"], stdout=subprocess.DEVNULL)
    wait_until((folder / "run/munged.json").exists, 30, "munged runs", poll_s=0.001)
    up.kill()
    up.wait()
    mark = json.loads((folder / "sandbox.json").read_text())["mark"]
    sandbox = make_sandbox("again", nodes=1)
    assert mark_of(sandbox) != mark
    assert sandbox.run("srun", "true").returncode == 0
    assert not [line for line in traces_of(folder, mark) if mark in line]


def test_a_failing_up_shows_the_daemon_s_last_words_and_leaves_nothing() -> None:
    name = sandbox_name("fails")
    done = shoal_sandbox("up", "--name", name, "--set", "SelectType=select/nonsense")
    assert done.returncode == 1 and not done.stdout
    assert "slurmctld" in done.stderr and "select/nonsense" in done.stderr and "Traceback" not in done.stderr
    assert name not in sandbox_names()


def test_a_daemon_that_ends_before_it_is_looked_at_is_heard_too(monkeypatch: pytest.MonkeyPatch) -> None:
    find = process.find_process

    def look_late(pid: int) -> SandboxProcess | None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended already
            if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmctld":
                wait_until(lambda: find(pid) is None, 30, "slurmctld has ended")
        return find(pid)

    sandbox = Sandbox(SandboxSpec(name=sandbox_name("late"), nodes=1, settings=(("SelectType", "select/nonsense"),)))
    monkeypatch.setattr(process, "find_process", look_late)
    with pytest.raises(ShoalError, match="select/nonsense"):
        sandbox.up()
    assert not sandbox.folder.exists()


def test_a_port_that_another_program_took_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    choose, tries = machine.free_ports, []
    sandbox = Sandbox(SandboxSpec(name=sandbox_name("ports"), nodes=1))
    with socket.create_server(("127.0.0.1", 0)) as thief:

        def stolen_once(spec: SandboxSpec, taken: set[int]) -> Ports:
            ports = choose(spec, taken)
            tries.append(ports)
            first = len(tries) == 1
            return Ports(thief.getsockname()[1], ports.slurmd, ports.slurmdbd) if first else ports

        monkeypatch.setattr(machine, "free_ports", stolen_once)
        try:
            sandbox.up()
            assert len(tries) == 2
        finally:
            sandbox.down()


def test_clients_do_not_carry_the_mark_of_the_daemons(cluster: Sandbox) -> None:
    assert MARK_VARIABLE not in cluster.run("srun", "env").stdout


def test_the_python_example_in_the_page_works() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0].replace("mine", sandbox_name("docs"))
    exec(compile(example, "docs/sandbox.md", "exec"), {})
    assert sandbox_name("docs") not in sandbox_names()
