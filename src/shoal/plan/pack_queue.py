"""The options of a pack, and the queue that travels with its submission (`pack.json`), in start order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.describe import common_early_stopping, parse_early_stop_flag
from shoal.errors import InputError
from shoal.job import GPU_PARTS, count_gpu_parts, needs_no_sampler
from shoal.model import Request, RunSpec
from shoal.plan.layouts import PackJob, expect_durations, fill_gpu_shares, longest_first, simulate
from shoal.units import parse_duration_s

ENGINES = ("auto", "slots", "ray")


class PackOptions(NamedTuple):
    """None means: derived from the allocation. `gpus` and `nodes` are the allocation's, the others a run's.

    `time` is how long the allocation is asked for, `memory` what it has on each node.
    `pilots` asks for that many small allocations instead of one; `max_follow_ups` bounds the jobs that continue what a
    time limit left over; `warn_s` before the end running runs are asked to stop, `grace_s` after that they are killed.
    `probe_s` starts runs of unknown length once for so long, to put the longest first.
    `shrink` gives nodes back that have nothing left to do; `dashboard` is Ray's.
    `early_stopping` stops losing runs early: as --early-stop spells it, "off", or None for what the sweep file says.
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
    max_follow_ups: int = 3
    bind: bool = False
    preload: tuple[str, ...] = ()
    probe_s: float | None = None
    shrink: bool = False
    mps: bool = True
    dashboard: bool = False
    early_stopping: str | None = None

    def validate(self) -> PackOptions:
        """The same options, or an InputError that names the flag."""
        for flag, value, minimum in (
            ("--slots", self.slots, 1),
            ("--gpus", self.gpus, 0),
            ("--nodes", self.nodes, 1),
            ("--pilots", self.pilots, 1),
            ("--cpus-per-run", self.cpus_per_run, 1),
            ("--retries", self.retries, 0),
            ("--follow-ups", self.max_follow_ups, 0),
        ):
            if value is not None and not minimum <= value <= 100_000:
                raise InputError(f"{value} is not a number for {flag}", hint=f"{flag} {max(minimum, 4)}", place=flag)
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
        if self.early_stopping is not None:
            parse_early_stop_flag(self.early_stopping)
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


#: A time limit is this much longer than the expected makespan: expectations are guesses, and leftovers continue.
_TIME_LIMIT_FACTOR = 1.2
_DAY_S = 86_400.0


class PackQueue(NamedTuple):
    """A queue, ready to travel. `jobs` are in starting order; `source` says what the order rests on."""

    options: PackOptions
    jobs: tuple[PackJob, ...]
    source: str
    early_stopping: Mapping[str, Any] = {}
    #: What starts the sampler, if a run is a trial that needs one.
    sampler_command: Sequence[str] = ()
    #: Whether the next run may depend on the results of those that have ended.
    waits_for_ends: bool = False

    @property
    def pilots(self) -> int:
        return self.options.pilots or 0

    def record(self, *, local: bool) -> dict[str, Any]:
        """What the engine reads; what is None is left to it. On this machine nothing but us ends an allocation."""
        options = self.options
        settings = {
            "slots": options.slots,
            "gpus": options.gpus,
            "retries": options.retries,
            "grace_s": options.grace_s,
            "warn_s": options.warn_s,
            "bind": options.bind,
            "time_limit_s": parse_duration_s(options.time) if options.time and local else None,
            "max_follow_ups": options.max_follow_ups,
            "preload": list(options.preload),
            "engine": options.engine,
            "probe_s": options.probe_s,
            "shrink": options.shrink,
            "mps": options.mps,
            "dashboard": options.dashboard,
            "early_stopping": dict(self.early_stopping) or None,
            "sampler_command": list(self.sampler_command),
            "waits_for_ends": self.waits_for_ends,
            "takes_fewer_gpus": local and options.gpus_per_run is None,
        }
        queue = []
        for job in self.jobs:
            row: dict[str, Any] = {"index": job.place, "gpu_parts": job.gpu_parts, "cpus": job.cpus}
            row.update(cost=job.cost, expect_s=job.expect_s, limit_s=options.run_limit_s or job.limit_s)
            row.update(warn_s=job.warn_s, needs=list(job.needs) or None)
            queue.append({name: value for name, value in row.items() if value is not None})
        return {"schema": 1, "settings": settings, "queue": queue, "order": self.source}

    def expected_s(self, slots: int, gpus: int) -> float | None:
        """How long the queue should take on one allocation, where durations are known."""
        if not self.jobs or any(job.expect_s is None for job in self.jobs):
            return None
        return simulate(fill_gpu_shares(self.jobs, slots, gpus), slots=slots, gpus=gpus).makespan

    def time_limit_s(self, slots: int, gpus: int) -> int | None:
        """A time limit that should do, with room for bad guesses and for the warning before the end."""
        expected_s = self.expected_s(slots, gpus)
        if expected_s is not None:
            return int(expected_s * _TIME_LIMIT_FACTOR + self.options.warn_s) + 60
        limits = [self.options.run_limit_s or job.limit_s for job in self.jobs]
        if any(limit is None for limit in limits):
            return None
        # Nothing is known but what no run may exceed; more than a day is better asked for in parts.
        worst = [job._replace(expect_s=limit) for job, limit in zip(self.jobs, limits, strict=True)]
        bound = simulate(fill_gpu_shares(worst, slots, gpus), slots=slots, gpus=gpus).makespan
        longest = max((limit for limit in limits if limit is not None), default=0.0)
        return int(max(longest, min(bound, _DAY_S)) + self.options.warn_s) + 60


def build_queue(
    runs: Sequence[tuple[RunSpec, Request]],
    options: PackOptions,
    earlier: Mapping[int, float],
    needs: Mapping[int, tuple[str, ...]] | None = None,
) -> PackQueue:
    """Put runs, each with what it asks for, into their order. `earlier`: measured durations of some, by place; `needs`:
    runs that some of them wait for.
    """
    jobs = []
    for place, (spec, request) in enumerate(runs):
        if (request.nodes or 1) > 1:
            raise InputError(
                f"{spec.name} asks for {request.nodes} nodes; a pack runs each of its runs on one",
                hint="shoal submit FILE --layout job",
            )
        own = options.gpu_parts
        if own is None:
            # -1 leaves it to the engine, which divides its GPUs among its slots.
            own = -1 if request.gpus is None else count_gpu_parts(request.gpu_share or request.gpus)
        if options.gpus is not None and own > options.gpus * GPU_PARTS:
            raise InputError(
                f"{spec.name} asks for {own // GPU_PARTS} GPUs, and the pack has {options.gpus} on a node",
                hint=f"--gpus {own // GPU_PARTS}",
            )
        cpus = options.cpus_per_run or request.cpus or 0
        waits_for = (needs or {}).get(place, ())
        jobs.append(
            PackJob(
                place, own, cpus, spec.cost, None, request.time_limit_s, spec.recovery.get("warn_before_s"), waits_for
            )
        )
    known, source = expect_durations(jobs, earlier)
    specs = [spec for spec, _ in runs]
    rule, sampler = _early_stopping(specs, options), _sampler_command(specs)
    return PackQueue(options, tuple(longest_first(known)), source, rule, sampler, any(map(_needs_results, specs)))


def _needs_results(spec: RunSpec) -> bool:
    search = spec.search
    return bool(search) and (not needs_no_sampler(search) or "until" in search or "patience" in search)


def _sampler_command(specs: Sequence[RunSpec]) -> Sequence[str]:
    asking = (spec.search["command"] for spec in specs if spec.search and not needs_no_sampler(spec.search))
    return next(asking, ())


def _early_stopping(specs: Sequence[RunSpec], options: PackOptions) -> dict[str, Any]:
    """How losers are stopped: as the command line says, or else as the sweep file of the runs does."""
    if options.early_stopping is not None:
        rule = parse_early_stop_flag(options.early_stopping)
        return rule._asdict() if rule else {}
    return common_early_stopping([spec.early_stopping for spec in specs])
