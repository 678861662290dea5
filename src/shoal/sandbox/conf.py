"""The text of every configuration file, and the accounting database, as functions of the spec and the state.

Choices that matter to tests: scheduling passes every second, three seconds between SIGTERM and SIGKILL, finished jobs
forgotten after ten, a dead node noticed after twenty, and requeued jobs eligible again after about ten seconds.

Accounting is a private MariaDB behind slurmdbd, with accounts, QOS and limits to test against:

account lab        the default, no limits
account small      at most 5 jobs of a user queued or running (MaxSubmitJobs)
qos normal         the default
qos high           preempts normal (requeue), one day at most, 8 GPUs of a user at a time
"""

from __future__ import annotations

from shoal.sandbox.paths import SandboxPaths, SandboxState
from shoal.sandbox.spec import SandboxSpec
from shoal.units import format_slurm_time

# How long a launch credential holds, which is also how long a requeued job waits (AuthInfo in slurm.conf(5); Slurm's
# own value is 120). Below 6 Slurm ignores it; too short, and a busy machine starts jobs too late to be believed.
_CREDENTIAL_LIFETIME_S = 10

BRIDGE_HOST = 254
"""The last number of the controller's address when nodes are hosts of their own."""


def node_address(subnet: str, number: int) -> str:
    """An address in "10.77.3": node i has number i, the controller BRIDGE_HOST."""
    return f"{subnet}.{number}"


def slurm_conf(state: SandboxState, layout: SandboxPaths, *, host: str, user: str) -> str:
    """slurm.conf for this sandbox; `host` is this machine's name, `user` the one who runs all daemons."""
    spec = state.spec
    controller = node_address(state.subnet, BRIDGE_HOST) if state.subnet else "127.0.0.1"
    values = {
        "ClusterName": spec.name,
        "SlurmctldHost": f"{host}({controller})",
        "SlurmctldPort": str(state.ports.slurmctld),
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket},cred_expire={_CREDENTIAL_LIFETIME_S}",
        **_directory_settings(layout),
        **_behaviour_settings(),
        **_process_settings(state.cgroups),
        **(_accounting_settings(state, layout) if spec.accounting else _partition_preemption()),
        "DefMemPerCPU": str(max(1, spec.memory_mb // spec.cpus)),
    }
    if not spec.hosts:
        # A sandbox on a laptop is nobody else's business: listen on the loopback address alone.
        values["CommunicationParameters"] = "NoCtldInAddrAny,NoInAddrAny"
    if state.slurm_root is not None:
        values["PluginDir"] = state.slurm_root.plugins
    if spec.gpus:
        values["GresTypes"] = "gpu"
    lines = [f"{key}={value}" for key, value in _apply_overrides(values, spec.settings).items()]
    return "\n".join([*lines, *_node_lines(state, host), *_partition_lines(spec)]) + "\n"


def gres_conf(spec: SandboxSpec, layout: SandboxPaths) -> str:
    if not spec.gpus:
        return ""
    devices = f"{layout.devices}/gpu[0-{spec.gpus - 1}]" if spec.gpus > 1 else f"{layout.devices}/gpu0"
    return f"NodeName={','.join(spec.node_names)} Name=gpu Type={spec.gpu_type} File={devices}\n"


def cgroup_conf(mountpoint: str = "/sys/fs/cgroup") -> str:
    """cgroup v1 with memory limits that kill; CgroupAutomount=no, because mounts are the machine's, not ours."""
    return (
        f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={mountpoint}\nCgroupAutomount=no\n"
        "ConstrainRAMSpace=yes\nConstrainSwapSpace=no\nAllowedRAMSpace=100\n"
    )


def slurmdbd_conf(state: SandboxState, layout: SandboxPaths, *, user: str) -> str:
    """slurmdbd.conf; the database itself has no port, slurmdbd finds its socket through MYSQL_UNIX_PORT."""
    values = {
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(state.ports.slurmdbd),
        "SlurmUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
        "LogFile": str(layout.log("slurmdbd")),
        "PidFile": str(layout.run / "slurmdbd.pid"),
    }
    if state.slurm_root is not None:
        values["PluginDir"] = state.slurm_root.plugins
    return "".join(f"{key}={value}\n" for key, value in values.items())


def hosts_file(state: SandboxState, *, host: str) -> str:
    """What the nodes see as /etc/hosts when they are hosts of their own."""
    assert state.subnet is not None  # noqa: S101 - only called for such nodes
    lines = ["127.0.0.1 localhost", f"{node_address(state.subnet, BRIDGE_HOST)} {host}"]
    lines += [f"{node_address(state.subnet, i)} {node}" for i, node in enumerate(state.spec.node_names, start=1)]
    return "\n".join(lines) + "\n"


def _directory_settings(layout: SandboxPaths) -> dict[str, str]:
    return {
        "StateSaveLocation": str(layout.save),
        "SlurmdSpoolDir": f"{layout.spool}/%n",
        "SlurmctldPidFile": str(layout.run / "slurmctld.pid"),
        "SlurmdPidFile": f"{layout.run}/%n.pid",
        "SlurmctldLogFile": str(layout.log("slurmctld")),
        "SlurmdLogFile": str(layout.log("%n")),
    }


def _behaviour_settings() -> dict[str, str]:
    return {
        # Without it nodes that claim more CPUs than the machine has are INVAL.
        "SlurmdParameters": "config_overrides",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        # Not `defer`: an srun would wait for the next pass, 0.9 s instead of 0.05 s.
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
        "EnforcePartLimits": "ALL",
        "ReturnToService": "2",
        "MaxArraySize": "2001",
        "KillWait": "3",
        "MinJobAge": "10",
        "SlurmdTimeout": "20",
        "MessageTimeout": "5",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=2",
    }


def _process_settings(cgroups: bool) -> dict[str, str]:
    if cgroups:
        return {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup"}
    return {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none"}


def _accounting_settings(state: SandboxState, layout: SandboxPaths) -> dict[str, str]:
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(state.ports.slurmdbd),
        # slurmdbd refuses clients whose munge socket it was not told of here as well.
        "AccountingStoragePass": str(layout.munge_socket),
        "AccountingStorageEnforce": "associations,limits,qos",
        "AccountingStorageTRES": "gres/gpu",
        "PriorityType": "priority/multifactor",
        "PriorityWeightQOS": "10000",
        "PreemptType": "preempt/qos",
        "PreemptMode": "REQUEUE",
    }


def _partition_preemption() -> dict[str, str]:
    return {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}


def _apply_overrides(values: dict[str, str], settings: tuple[tuple[str, str], ...]) -> dict[str, str]:
    spelling = {key.lower(): key for key in values}
    return {**values, **{spelling.get(key.lower(), key): value for key, value in settings}}


def _node_lines(state: SandboxState, host: str) -> list[str]:
    spec = state.spec
    size = f"CPUs={spec.cpus} RealMemory={spec.memory_mb}"
    if spec.gpus:
        size += f" Gres=gpu:{spec.gpu_type}:{spec.gpus}"
    lines = []
    for i, (node, port) in enumerate(zip(spec.node_names, state.ports.slurmd, strict=True), start=1):
        place = (
            f"NodeHostname={node} NodeAddr={node_address(state.subnet, i)}"
            if state.subnet
            else f"NodeHostname={host} NodeAddr=127.0.0.1"
        )
        lines.append(f"NodeName={node} {place} Port={port} {size}")
    return lines


def _partition_lines(spec: SandboxSpec) -> list[str]:
    lines = []
    for i, partition in enumerate(spec.partitions):
        tier = 1 if spec.accounting else len(spec.partitions) - i
        lines.append(
            f"PartitionName={partition.name} Nodes=ALL Default={'NO' if i else 'YES'} State=UP "
            f"MaxTime={format_slurm_time(partition.max_time_s)} PriorityTier={tier}"
        )
    return lines


SMALL_QOS_MAX_JOBS = 5
HIGH_QOS_MAX_GPUS = 8


def install_database_argv(install_db: str, state: SandboxState, layout: SandboxPaths, user: str) -> list[str]:
    """Fill the database folder; root needs no password, as the socket lies in a folder that only its user can enter."""
    return [
        install_db,
        "--no-defaults",
        *_database_base(state),
        f"--user={user}",
        f"--datadir={layout.database}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
    ]


def mariadbd_argv(mariadbd: str, state: SandboxState, layout: SandboxPaths, user: str) -> list[str]:
    """A small database without a port, which does not wait for the disk: it is thrown away at the end."""
    return [
        mariadbd,
        "--no-defaults",
        *_database_base(state),
        f"--user={user}",
        f"--datadir={layout.database}",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.run / 'mariadbd.pid'}",
        "--skip-networking",
        "--skip-log-bin",
        "--performance-schema=OFF",
        "--innodb-buffer-pool-size=32M",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-lock-wait-timeout=900",
        "--max-allowed-packet=16M",
    ]


def _database_base(state: SandboxState) -> list[str]:
    return [f"--basedir={state.slurm_root.base}"] if state.slurm_root is not None else []


def sacctmgr_commands(cluster: str, user: str) -> list[list[str]]:
    """What fills a fresh slurmdbd, in order, before the controller asks it who may run."""
    account = [f"Cluster={cluster}", "Organization=sandbox", "QOS=normal,high", "DefaultQOS=normal"]
    return [
        ["add", "cluster", cluster],
        ["add", "qos", "high", "Priority=1000", "Preempt=normal", "PreemptMode=requeue", "MaxWall=1-00:00:00"],
        ["add", "account", "lab", *account],
        ["add", "account", "small", *account, f"MaxSubmitJobs={SMALL_QOS_MAX_JOBS}"],
        ["add", "user", user, f"Cluster={cluster}", "Account=lab,small", "DefaultAccount=lab"],
    ]


def sacctmgr_commands_after_controller() -> list[list[str]]:
    """Limits on GPUs: slurmdbd does not know that there are any before the controller has told it."""
    return [["modify", "qos", "high", "set", f"MaxTRESPerUser=gres/gpu={HIGH_QOS_MAX_GPUS}"]]
