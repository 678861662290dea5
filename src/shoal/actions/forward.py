"""A port of a run's node, reachable on this machine, through one step of its job."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from shoal.actions.attach import RunningAttempt, agent_command, step_command
from shoal.errors import InputError, SchedulerError
from shoal.job import Multiplexer
from shoal.kernel import slurm


def forward_port(
    home: str,
    attempt: RunningAttempt,
    port: int,
    local_port: int | None,
    *,
    opened: Callable[[int], None],
    failed: Callable[[str], None],
) -> None:
    """Carry connections to a port of this machine to `port` of the run's node, until the job ends.

    `opened` hears the port here: `local_port`, else the same number, or a free one where that is taken. `failed` hears
    why a connection could not be made there. SchedulerError if Slurm does not start the step.
    """
    command = [*step_command(attempt, terminal=False), *agent_command(home), "forward", str(port)]
    asyncio.run(_forward(command, port, local_port, opened, failed))


async def _forward(
    command: list[str],
    port: int,
    local_port: int | None,
    opened: Callable[[int], None],
    failed: Callable[[str], None],
) -> None:
    pipe, environ = asyncio.subprocess.PIPE, slurm.clean_environ(os.environ)
    step = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ)
    if step.stdout is None or step.stdin is None:
        raise SchedulerError("the step has no pipes", hint="shoal status")
    channel = Multiplexer((step.stdout, step.stdin), failed=failed)
    try:
        async with await _listen(channel, port, local_port) as server:
            carrying = asyncio.ensure_future(channel.run())
            begun = asyncio.ensure_future(channel.ready.wait())
            await asyncio.wait([carrying, begun], return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            if channel.ready.is_set():
                opened(server.sockets[0].getsockname()[1])
            await carrying
    finally:
        with contextlib.suppress(ProcessLookupError):
            step.terminate()
        _, problem = await step.communicate()
    if not channel.ready.is_set():
        reason = " ".join(problem.decode("utf-8", "replace").split())
        raise SchedulerError(f"the step did not start: {reason}", hint="shoal status")


async def _listen(channel: Multiplexer, port: int, local_port: int | None) -> asyncio.Server:
    if local_port is None:
        with contextlib.suppress(OSError):
            return await asyncio.start_server(channel.carry, "127.0.0.1", port)
        local_port = 0
    try:
        return await asyncio.start_server(channel.carry, "127.0.0.1", local_port)
    except OSError as error:
        raise InputError(
            f"port {local_port} of this machine cannot be used: {error.strerror}",
            hint="leave --local out for a free port",
            place="--local",
        ) from None
