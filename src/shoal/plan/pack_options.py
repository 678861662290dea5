"""How a pack is asked for: how many runs at a time, what each takes, how long, and what happens at the edges."""

from __future__ import annotations

import math
from typing import NamedTuple

from shoal.describe import parse_early_stop_flag
from shoal.errors import InputError
from shoal.job import count_gpu_parts
from shoal.units import parse_duration_s

ENGINES = ("auto", "slots", "ray")


class PackOptions(NamedTuple):
    """None means: derived from the allocation. `gpus` and `nodes` are the allocation's, the others a run's.

    `time` is how long the allocation is asked for, `memory` what it has on each node.
    `pilots` asks for that many small allocations instead of one; `follow` bounds the jobs that continue what a time
    limit left over; `warn_s` before the end running runs are asked to stop, `grace_s` after that they are killed.
    `probe_s` starts runs of unknown length once for so long, to put the longest first.
    `shrink` gives nodes back that have nothing left to do; `dashboard` is Ray's.
    `search` stops losing runs early: as --search spells it, "off", or None for what the sweep's page says.
    """

    slots: int | None = None
    engine: str = "auto"
    gpus: int | None = None
    nodes: int | None = None
    pilots: int | None = None
    gpus_per_run: float | None = None
    cpus_per_run: int | None = None
    run_limit_s: float | None = None
    time: str | None = None
    memory: str | None = None
    retries: int = 0
    grace_s: float = 30.0
    warn_s: float = 60.0
    follow: int = 3
    bind: bool = False
    preload: tuple[str, ...] = ()
    probe_s: float | None = None
    shrink: bool = False
    mps: bool = True
    dashboard: bool = False
    search: str | None = None

    def validate(self) -> PackOptions:
        """The same options, or an InputError that names the flag."""
        for flag, value, least in (
            ("--slots", self.slots, 1),
            ("--gpus", self.gpus, 0),
            ("--nodes", self.nodes, 1),
            ("--pilots", self.pilots, 1),
            ("--cpus-per-run", self.cpus_per_run, 1),
            ("--retries", self.retries, 0),
            ("--follow-ups", self.follow, 0),
        ):
            if value is not None and not least <= value <= 100_000:
                raise InputError(f"{value} is not a number for {flag}", hint=f"{flag} {max(least, 4)}", place=flag)
        if self.time is not None and parse_duration_s(self.time, place="--time") <= self.warn_s:
            raise InputError(
                f"runs are told to stop {self.warn_s:g} s before the end of {self.time}: none would start",
                hint=f"--time {self.time} --warn 1s",
                place="--time",
            )
        if self.engine not in ENGINES:
            raise InputError(
                f"there is no engine {self.engine!r}", hint=f"one of {', '.join(ENGINES)}", place="--engine"
            )
        if self.shrink and ((self.nodes or 1) < 2 or self.engine == "ray"):
            held = "Ray holds its nodes to the end" if self.engine == "ray" else "this pack has one node"
            raise InputError(f"--shrink gives idle nodes back, and {held}", hint="--nodes 2 --shrink", place="--shrink")
        if self.probe_s is not None and (self.pilots or ((self.nodes or 1) > 1 and self.engine != "ray")):
            raise InputError(
                "--probe is for one allocation with one engine: several would each learn a part only",
                hint='--cost EXPR, or cost = "..." in the sweep',
                place="--probe",
            )
        for flag, asked in (("--preload", self.preload), ("--bind", self.bind)):
            if asked and self.engine == "ray":
                raise InputError(
                    f"{flag} is not for --engine ray, whose workers start runs in their own way",
                    hint=f"leave {flag} out, or --engine slots {flag}",
                    place=flag,
                )
        if self.dashboard and self.engine != "ray":
            raise InputError(
                "--dashboard is Ray's, and the engine is another", hint="--engine ray --dashboard", place="--dashboard"
            )
        if self.search is not None:
            parse_early_stop_flag(self.search)
        if self.gpus_per_run is not None:
            try:
                wanted = count_gpu_parts(self.gpus_per_run)
            except ValueError as error:
                raise InputError(str(error), hint="--gpus-per-run 0.25, or 2", place="--gpus-per-run") from None
            if self.gpus is not None and wanted > count_gpu_parts(self.gpus):
                raise InputError(
                    f"a run with {self.gpus_per_run:g} GPUs never fits into an allocation with {self.gpus}",
                    hint=f"--gpus {math.ceil(self.gpus_per_run)}",
                    place="--gpus-per-run",
                )
        return self

    @property
    def gpu_parts(self) -> int | None:
        return None if self.gpus_per_run is None else count_gpu_parts(self.gpus_per_run)
