"""The accounting half: a private MariaDB behind slurmdbd, with accounts, QOS and limits worth testing against.

account lab        the default, no limits
account small      at most 5 jobs of a user queued or running (MaxSubmitJobs)
qos normal         the default
qos high           preempts normal (requeue), one day at most, 8 GPUs of a user at a time
"""

from __future__ import annotations

from shoal.sandbox.layout import SandboxPaths

SMALL_QOS_MAX_JOBS = 5
HIGH_QOS_MAX_GPUS = 8


def install_database_argv(install_db: str, layout: SandboxPaths, user: str) -> list[str]:
    """Fill the database folder; root needs no password, as the socket lies in a folder that only its user can enter."""
    return [
        install_db,
        "--no-defaults",
        f"--user={user}",
        f"--datadir={layout.database}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
    ]


def mariadbd_argv(mariadbd: str, layout: SandboxPaths, user: str) -> list[str]:
    """A small database without a port, which does not wait for the disk: it is thrown away at the end."""
    return [
        mariadbd,
        "--no-defaults",
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
