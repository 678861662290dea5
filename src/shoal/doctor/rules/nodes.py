"""G: launchers over several nodes: their number, where they are started, and how they find each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.edits import RENDEZVOUS, launcher_edits, srun_edits, tasks_edits
from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    distributes_itself,
    has_unread_options,
    rule,
    step_nodes,
    uses_lightning,
)
from shoal.doctor.launchers import MPI_STARTERS, base_name
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.units import plural

_NODES_OF_JOB = re.compile(r"\$\{?SLURM_(?:NNODES|JOB_NUM_NODES)\}?")


@rule("G10", "error", "a launcher for another number of nodes", lower=("warning",))
def launcher_node_count(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        option = {"torchrun": "nnodes", "accelerate": "num-machines", "deepspeed": "num-nodes"}.get(launch.launcher, "")
        asked = as_number(launch.option(option), facts.job.values) if option else None
        if launch.launcher == "torchrun" and launch.srun is not None and not launch.has("nnodes"):
            yield from _single_node_agents(facts, launch)
        # A launch that names its own rank is one of several, each on its node.
        one_of_many = launch.has("node-rank", "machine-rank")
        nodes = facts.job.geometry.n if one_of_many else step_nodes(launch, facts.job)
        if asked is None or nodes is None or asked == nodes or "nodes range" in facts.job.geometry.uncertain:
            continue
        if launch.command.background or launch.command.within:
            continue
        given = facts.job.geometry.nodes_given or (launch.srun is not None and "nodes" in launch.srun)
        if not given and not facts.job.header:
            continue
        value = launch.option(option) or ""
        literal = value.isdigit()
        written = next(
            (
                f"{flag}{between}{value}"
                for flag in (f"--{option}", f"--{option.replace('-', '_')}")
                for between in ("=", " ")
                if f"{flag}{between}{value}" in "\n".join(_launch_lines_of(facts, launch))
            ),
            "",
        )
        edits: tuple[ScriptEdit, ...] = ()
        if literal and written and launch.launcher == "torchrun" and asked > nodes:
            at = next(number for number, line in _node_count_option(facts, launch) if written in line)
            edits = (ScriptEdit("replace", at, written, written.replace(value, "$SLURM_NNODES")),)
        yield RuleHit(
            launch.line,
            f"{launch.launcher} expects {plural(asked, 'node')}, and the job has {nodes}",
            "it waits for nodes that never come" if asked > nodes else "some nodes train alone, or not at all",
            f"--{option}=$SLURM_NNODES",
            # Without --nodes in the header it may come from the command line.
            None if given else "warning",
            edits,
        )


def _single_node_agents(facts: CheckFacts, launch: ScriptLaunch) -> Iterator[RuleHit]:
    """torchrun's --nnodes is 1 where it is not given, also with srun around it."""
    nodes = step_nodes(launch, facts.job)
    if nodes is None or nodes < 2 or launch.processes is not None or launch.command.background or launch.command.within:
        return
    if any(export.name == "PET_NNODES" for export in facts.job.exports):
        return
    yield RuleHit(
        launch.line,
        f"torchrun has no --nnodes, so each of the {nodes} nodes trains on its own",
        f"{nodes} copies of the training, which overwrite each other's checkpoints, instead of one on all nodes",
        f"torchrun {_node_options(launch)} ...",
        None,
        launcher_edits(facts, launch, _node_options(launch)),
    )


@rule("G24", "error", "nodes that cannot find each other")
def missing_rendezvous(facts: CheckFacts) -> Iterator[RuleHit]:
    """Without a rendezvous torchrun's node rank is 0 and its address 127.0.0.1. It does not read MASTER_ADDR."""
    for launch in facts.job.work:
        if launch.launcher != "torchrun" or launch.srun is None or launch.processes is not None:
            continue
        nodes, asked = step_nodes(launch, facts.job), as_number(launch.option("nnodes"), facts.job.values)
        if _NODES_OF_JOB.fullmatch(launch.option("nnodes") or ""):
            asked = nodes
        if nodes is None or nodes < 2 or asked is None or asked < 2 or launch.command.background:
            continue
        if launch.has("node-rank", "standalone") or launch.option("rdzv-backend") not in (None, "static"):
            continue
        if has_unread_options(facts, launch):
            continue
        yield RuleHit(
            launch.line,
            f"torchrun has neither --rdzv-backend nor --node-rank, so each of the {nodes} nodes is node rank 0",
            "every node waits for the others until the rendezvous times out; torchrun does not read MASTER_ADDR",
            f"torchrun {_rendezvous_options(launch)} ...",
            None,
            launcher_edits(facts, launch, _rendezvous_options(launch)),
        )


def _rendezvous_options(launch: ScriptLaunch) -> str:
    """What a launch with --nnodes lacks so that its nodes find each other."""
    if launch.has("rdzv-endpoint"):
        return "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID"
    return RENDEZVOUS.partition(" ")[2]


def _node_options(launch: ScriptLaunch) -> str:
    """--nnodes, and what else the agents of all nodes need to find each other."""
    if launch.has("node-rank") or launch.option("rdzv-backend") not in (None, "static"):
        return "--nnodes=$SLURM_NNODES"
    return f"--nnodes=$SLURM_NNODES {_rendezvous_options(launch)}"


def _node_count_option(facts: CheckFacts, launch: ScriptLaunch) -> list[tuple[int, str]]:
    first, last = launch.command.line, launch.command.last_line
    return [(number, facts.line(number)) for number in range(first, last + 1)]


def _launch_lines_of(facts: CheckFacts, launch: ScriptLaunch) -> list[str]:
    return [line for _, line in _node_count_option(facts, launch)]


@rule("G12", "error", "several nodes, and a launch on the first only", lower=("warning",))
def first_node_only(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if job.geometry.n < 2 or any(one.srun is not None or one.by_mpi for one in job.launches):
        return
    if any(not step.is_utility for step in job.steps) or any(
        one.name in ("ssh", "pdsh") or base_name(one.name) in MPI_STARTERS for one in job.commands
    ):
        return
    for launch in job.work:
        if launch.launcher == "deepspeed" and launch.has("hostfile", "launcher"):
            continue
        known = launch.is_distributed or uses_lightning(facts.job, launch) == (True, True)
        if launch.launcher == "python" and distributes_itself(facts.job, launch) and not known:
            continue
        yield RuleHit(
            launch.line,
            f"{launch.launcher} runs on the first of {job.geometry.n} nodes only: nothing starts it on the others",
            "it waits for the other nodes until its rendezvous times out, or trains on one node"
            if known
            else "the other nodes stand idle",
            f"srun --ntasks-per-node=1 {launch.launcher} ..." if known else "srun python ..., or #SBATCH --nodes=1",
            None if known else "warning",
            _all_nodes_edits(facts, launch) if known else (),
        )


def _all_nodes_edits(facts: CheckFacts, launch: ScriptLaunch) -> tuple[ScriptEdit, ...]:
    if launch.is_distributed:
        return srun_edits(facts, launch, "--ntasks-per-node=1")
    gpus = facts.job.geometry.gpus_per_node
    return (*tasks_edits(facts, gpus), *srun_edits(facts, launch)) if gpus else ()


@rule("G25", "error", "a step with more nodes than the job")
def step_above_job(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if (
        not job.header
        or not job.geometry.nodes_given
        or {"nodes", "nodes range"} & job.geometry.uncertain
        or job.is_het
    ):
        return
    for step in job.steps:
        asked = as_number((step.options.get("nodes") or "").partition("-")[0], job.values)
        if asked is None or asked <= job.geometry.n or {"jobid", "no-allocate"} & set(step.options):
            continue
        yield RuleHit(
            step.line,
            f"srun asks for {plural(asked, 'node')}, and the job has {job.geometry.n}",
            "srun ends at once: more nodes requested than the job has",
            f"srun without --nodes, or #SBATCH --nodes={asked}",
        )
        return
