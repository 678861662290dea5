"""The launcher, one per job: `agent launch PLAN`. Its exit code is that of the rank that failed first."""

import json
import os
import signal
import sys
from typing import Any, Dict, List

from ...kernel import tree
from .. import environment
from . import container, failures, family, network, steps, watch, words
from .geometry import TORCH_LAUNCHERS, LaunchGeometry
from .node import NodeLauncher
from .plan import agent_argv
from .rank import EXIT_BAD_GEOMETRY
from .unit import RankGroup

EXIT_NOT_FOUND = 127


def main(argv: List[str]) -> int:
    with open(argv[0]) as file:
        plan = json.load(file)
    family.kill_tree_with_parent()
    tree.become_subreaper()
    family.log_message(plan["what"])
    try:
        if plan["geometry"]["mode"] == "replicas":
            from .replicas import supervise

            return supervise(plan, os.environ)
        return run_group(plan)
    except network.NoSuchInterface as error:
        family.log_message(str(error))
        return EXIT_BAD_GEOMETRY


def geometry_of(plan: Dict[str, Any]) -> LaunchGeometry:
    return LaunchGeometry(**{"cpus": None, **{key: plan["geometry"].get(key) for key in LaunchGeometry._fields}})


def run_group(plan: Dict[str, Any]) -> int:
    """A run of one unit, to its end."""
    geometry = geometry_of(plan)
    needs_port = geometry.mode in ("srun", "deepspeed", "accelerate") or geometry.nodes > 1
    port, mark = network.reserve_port(int(plan["job"])) if needs_port else (0, None)
    argv = environment.run_argv(plan, plan["values"])
    one = make_rank_group(plan, geometry, argv, plan["nodes"], port, os.path.join(plan["folder"], ""))
    begin = _file_size(plan["log"])
    one.save()
    look = watch.DdpCheck(one)
    if one.watched:
        watch.write_watch_module(one)
    if geometry.mode == "deepspeed":
        with open(one.log + "hosts", "w") as file:
            file.write(words.deepspeed_hosts(one))
    try:
        if geometry.mode in TORCH_LAUNCHERS and geometry.nodes == 1 and not one.step_flags:
            code = NodeLauncher(one._replace(slurm=False), 0).run(os.environ, look)
        elif plan["slurm"]:
            code = _run_as_step(plan, geometry, one, look)
            steps.note_end_by_slurm(plan)
        else:
            code = _run_locally(one, look)
    except watch.RanksTrainAlone as problem:
        tree.kill_descendants()
        family.log_message(str(problem))
        return EXIT_BAD_GEOMETRY
    if mark is not None:
        mark.close()
    missing = failures.missing_launcher(plan["log"], begin) if code == 1 and geometry.mode in TORCH_LAUNCHERS else None
    if missing is not None:
        family.log_message(missing)
        return EXIT_NOT_FOUND
    if code != 0:
        code = failures.first_exit_code(code, plan["log"], begin) if geometry.mode != "process" else code
        for line in failures.log_tails(one.log, failures.read_tail(plan["log"], begin)):
            sys.stderr.write("shoal: %s\n" % line)
    return code


def make_rank_group(
    plan: Dict[str, Any],
    geometry: LaunchGeometry,
    argv: List[str],
    nodes: List[str],
    port: int,
    log: str,
    name: str = "",
) -> RankGroup:
    """The unit of a run, or with `name` of one try of a replica."""
    settings = plan["settings"]
    replica = geometry.replicas > 0
    peers = plan["nodes"][1:]
    address = "127.0.0.1"
    if plan["slurm"] and peers and port > 0:
        address = network.reachable_address(peers, settings.get("interface"))
    box = container.container_args(plan, os.environ, plan["places"], geometry.gpus > 0)
    contained = box.around or box.step_flags
    inner = [words.container_python(argv), *agent_argv()[1:]] if contained else []
    return RankGroup(
        mode="torchrun" if replica else geometry.mode,
        nodes=nodes,
        processes=geometry.replica_processes if replica else geometry.processes,
        gpus=geometry.replica_gpus if replica else geometry.gpus,
        argv=argv,
        cwd=plan["cwd"],
        log=log,
        out=log + "out" if name else plan["log"],
        host=os.uname().nodename,
        id="-".join(part for part in (plan["id"], name) if part),
        start=words.launcher_program(geometry.mode, argv),
        wrapper=inner if box.step_flags else agent_argv(),
        slurm=plan["slurm"],
        peers=plan["nodes"] if peers else [],
        cpus=plan["cpus"],
        address=address,
        port=port,
        max_restarts=settings["max_restarts"],
        interface=settings.get("interface"),
        options=settings.get("options", []),
        # Replicas meet through torchft, whatever the size of a process group is.
        watched=not replica and geometry.world > 1 and not settings.get("independent"),
        use=plan.get("use", ""),
        inner=inner,
        **box._asdict(),
    )


def _run_as_step(plan: Dict[str, Any], geometry: LaunchGeometry, one: RankGroup, look: watch.DdpCheck) -> int:
    tasks = geometry.tasks
    cpus = None if plan["cpus"] is None else plan["cpus"] // tasks
    nodes = 1 if geometry.mode == "process" else geometry.nodes
    argv = words.srun_argv(nodes, tasks, cpus, name="shoal", nodelist=one.nodes[:nodes], share=one.step_flags)
    role = "node" if geometry.mode in TORCH_LAUNCHERS else "rank"
    inbox = family.SignalQueue()
    step = steps.SlurmStep([*argv, *one.wrapper, role, one.path], one, dict(os.environ), plan["job"])
    return step.wait(inbox, look)


def _run_locally(one: RankGroup, look: watch.DdpCheck) -> int:
    """One process per rank on this machine, with the variables that srun's tasks would have."""
    inbox = family.SignalQueue(1.0)
    ranks = steps.LocalRanks(one, dict(os.environ))
    try:
        return ranks.wait(inbox, look)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, family.FORWARDED_SIGNALS)
        tree.kill_descendants()


def _file_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
