"""Commands beside a running run: in its allocation, on its node, with its environment and working directory."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from shoal.errors import InputError
from shoal.job import write_agent_zip
from shoal.kernel import layout, processes, slurm
from shoal.model import ACTIVE_STATES
from shoal.observe import RunView, observe, read_start


class RunningAttempt(NamedTuple):
    """Where a running run is. `job_id` is None for one on this machine; `mark` is None for a job that shoal did not
    start, whose program cannot be told from other processes."""

    run: str
    job_id: str | None
    job_label: str | None
    nodes: tuple[str, ...]
    mark: str | None
    directory: str

    @property
    def place(self) -> str:
        where = self.nodes[0] if self.nodes else "this machine"
        return where if self.job_label is None else f"{where}, job {self.job_label}"


def find_attempt(home: str, run: str) -> RunningAttempt:
    """Where a run is running now. InputError if it is not, or if it runs on another machine without Slurm."""
    view = observe(home, [run]).views[run]
    start = read_start(layout.run_dir(home, run), view.attempt) if view.state == "running" else None
    if start is None:
        raise _not_running(view)
    if start.job_id is None and start.host != processes.host_name():
        raise InputError(f"{run} runs on {start.host}, without Slurm", hint=f"ssh {start.host}")
    if start.held is not None and start.job_id is not None:
        nodes: tuple[str, ...] = (start.place,)
    else:
        first = [start.node] if start.node else []
        others = (slurm.expand_hostlist(start.nodes, os.environ) if start.nodes else None) or []
        nodes = tuple(dict.fromkeys([*first, *others]))
    mark = None if start.adopted else start.mark
    directory = view.output_dir or start.output_dir
    return RunningAttempt(run, start.job_id, start.job_label, nodes, mark, directory)


def _not_running(view: RunView) -> InputError:
    if view.state in ACTIVE_STATES:
        return InputError(f"{view.name} is {view.state}: it has no allocation yet", hint=f"shoal why {view.name}")
    return InputError(f"{view.name} is {view.state}, not running", hint=f"shoal logs {view.name}")


def choose_node(attempt: RunningAttempt, node: str | None) -> RunningAttempt:
    """The same with this node first."""
    if node is None:
        return attempt
    if node not in attempt.nodes:
        known = ", ".join(attempt.nodes) or "this machine"
        hint = f"--node {attempt.nodes[0]}" if attempt.nodes else "leave --node out"
        raise InputError(f"{attempt.run} does not run on {node}, but on {known}", hint=hint, place="--node")
    return attempt._replace(nodes=(node, *(other for other in attempt.nodes if other != node)))


def attach_command(home: str, attempt: RunningAttempt, command: Sequence[str], *, terminal: bool) -> list[str]:
    """What to execute here for `command` to run beside the run; without a command, a shell."""
    words = list(command) or [os.environ.get("SHELL") or "/bin/bash"]
    if attempt.mark is not None:
        words = [*agent_command(home), "attach", attempt.mark, attempt.directory, *words]
    return [*step_command(attempt, terminal=terminal), *words]


def agent_command(home: str) -> list[str]:
    """Our code on a node: this Python where it exists there too, else python3."""
    agent = write_agent_zip(home)
    start = f'python={shlex.quote(sys.executable)}; [ -x "$python" ] || python=python3; exec "$python" -I "$0" "$@"'
    return ["/bin/sh", "-c", start, agent]


def step_command(attempt: RunningAttempt, *, terminal: bool) -> list[str]:
    """The srun that makes a command a step of the run's job, beside its own; nothing for a run on this machine."""
    if attempt.job_id is None:
        return []
    words = ["srun", f"--jobid={attempt.job_id}", "--overlap", "--nodes=1", "--ntasks=1", "--quiet"]
    words += [f"--nodelist={attempt.nodes[0]}"] if attempt.nodes else []
    return [*words, *(["--pty"] if terminal else ["--unbuffered"])]
