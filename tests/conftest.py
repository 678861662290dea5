"""Fixtures for everybody: a real Slurm cluster, started when the first test asks for it and gone at the end.

`cluster` (4 nodes x 4 GPUs, no accounting) and `accounting_cluster` (2 x 4, slurmdbd) live for the whole session; a
test that breaks daemons or needs other settings starts its own with `make_sandbox`, in less than a second. Every test
cancels the jobs it leaves, or uses `quiet_cluster`, which does so for it. Names carry the pid of the session, so that
sessions run side by side, and what a killed session left is removed by the next one. SHOAL_SANDBOX_SLURM=24.11 runs
them all on that release instead of the installed one (`make slurms`).
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shoal.errors import ShoalError
from shoal.sandbox import Sandbox, SandboxSpec, default_slurm, ensure_slurm_root, sandbox_names
from time_limit import pytest_runtest_protocol
from waiting import wait_until

__all__ = ["pytest_runtest_protocol"]

# Tests start thousands of commands, and without its bytecode each would compile shoal anew: twice the work.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

MakeSandbox = Callable[..., Sandbox]

#: Ended jobs are known as long as Slurm knows them by default. A sandbox forgets them after ten seconds, and a busy
#: machine may be later than that to look.
REMEMBERS = ("MinJobAge", "300")

# How long examples take says how busy the machine is, and a single one over 200 ms would fail its test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-slurm", action="store_true", help="leave out the tests that need a real Slurm")


def pytest_configure() -> None:
    """In the background of a script (nohup, CI) a process ignores Ctrl-C, and so would all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if release := default_slurm():
        # Commands of tests have PATH and SLURM_CONF from their environment, as a user's shell has after `sandbox up`.
        programs = ensure_slurm_root(release).programs
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--no-slurm"):
        return
    left_out = [item for item in items if item.get_closest_marker("slurm")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Sandbox]:
    """4 nodes with 4 GPUs each, partitions main and low, no accounting."""
    yield from _session_sandbox("main", settings=(REMEMBERS,))


@pytest.fixture(scope="session")
def accounting_cluster() -> Iterator[Sandbox]:
    """2 nodes with 4 GPUs each, with slurmdbd: accounts lab and small, QOS normal and high.

    Agents that are told to stop have time to write down the end, also on a busy machine.
    """
    yield from _session_sandbox("acct", nodes=2, accounting=True, settings=(REMEMBERS, ("KillWait", "20")))


@pytest.fixture(scope="session")
def hosts() -> Iterator[Sandbox]:
    """Ranks that are told to stop have time to save, also on a busy machine."""
    yield from _session_sandbox("hosts", nodes=4, gpus=2, cpus=8, hosts=True, settings=(REMEMBERS, ("KillWait", "20")))


@pytest.fixture
def host_cluster(hosts: Sandbox) -> Iterator[Sandbox]:
    """4 nodes with 2 GPUs each that look like hosts: own address, host name and processes. For launches over nodes."""
    yield hosts
    cancel_all(hosts)


@pytest.fixture
def quiet_cluster(cluster: Sandbox) -> Iterator[Sandbox]:
    """The session's cluster, with every job cancelled and gone when the test ends."""
    yield cluster
    cancel_all(cluster)


@pytest.fixture
def make_sandbox(request: pytest.FixtureRequest) -> Iterator[MakeSandbox]:
    """Start sandboxes of one's own: make_sandbox("faults", settings=(("MinJobAge", "2"),)); all go down at the end."""
    made: list[Sandbox] = []

    def make(label: str, **spec: Any) -> Sandbox:
        made.append(Sandbox(SandboxSpec(name=sandbox_name(label), **spec)))
        _up(made[-1])
        return made[-1]

    yield make
    for sandbox in reversed(made):
        sandbox.down()


def sandbox_name(label: str) -> str:
    """A name that no other test session uses."""
    return f"t{os.getpid()}-{label}"


def cancel_all(sandbox: Sandbox) -> None:
    """Cancel every job and wait until all nodes are idle again."""
    sandbox.run("scancel", "--user", sandbox.run("id", "-un").stdout.strip())
    wait_until(lambda: not sandbox.run("squeue", "-h", "-t", "PD,R,CG,S").stdout, 30, "the queue is empty")


def _session_sandbox(label: str, **spec: Any) -> Iterator[Sandbox]:
    _remove_leftovers()
    sandbox = Sandbox(SandboxSpec(name=sandbox_name(label), **spec))
    _up(sandbox)
    try:
        yield sandbox
    finally:
        sandbox.down()


def _up(sandbox: Sandbox) -> None:
    """Missing packages fail the test with the command that installs them; a silent skip would look like success."""
    try:
        sandbox.up(deadline_s=180)
    except ShoalError as error:
        pytest.fail(f"{error.message}\nhint: {error.hint}\n(pytest --no-slurm leaves these tests out)", pytrace=False)


def _remove_leftovers() -> None:
    for name in sandbox_names():
        session = re.fullmatch(r"t(\d+)-\w+", name)
        if session and not os.path.exists(f"/proc/{session[1]}"):
            Sandbox(SandboxSpec(name=name)).down()
