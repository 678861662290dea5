"""The launcher, one per job: `agent launch SPEC`. Its exit code is that of the rank that failed first.

torchrun itself exits with 1 whatever its ranks did, and srun with the highest code, which may be that of a task that
srun ended because of the first failure. So which rank failed first, and its code, are read from what the ranks record.
"""

import glob
import json
import os
import re
import signal
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from ...kernel import files, find_cause, processes
from .. import allocation, environment
from . import container, launcher_args, rank_group, srun_steps
from .geometry import RANK_MODES, TORCH_LAUNCHERS, GeometryError, LaunchGeometry
from .launch_spec import agent_argv
from .node import NodeLauncher
from .rank import EXIT_BAD_GEOMETRY
from .rank_group import RankGroup

_TAIL_BYTES = 256 * 1024
_RANK_TAIL_BYTES = 16 * 1024
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s*\[\d+\]:\s*time\s*:\s*(?P<time>\S+)\s*host\s*:\s*(?P<host>\S+)\s*"
    r"rank\s*:\s*(?P<rank>\d+)[^\n]*\s*exitcode\s*:\s*(?P<code>-?\d+)"
)
_SRUN_TASK_EXIT = re.compile(
    r"^srun: error: \S+: tasks? \[?(?P<task>\d+)[\d,\-\]]*: Exited with exit code (?P<code>\d+)$", re.MULTILINE
)
#: From here on srun ends tasks, or somebody cancelled the step.
_ENDED_BY_SLURM_LINE = re.compile(r"_step_signal: Terminating|\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED")
#: As steps.LocalRanks says it.
_LOCAL_RANK = re.compile(r"^shoal: rank (?P<task>\d+) ended with code", re.MULTILINE)
_RANK_LOG = re.compile(r"rank-(\d+)[^/]*\.out\Z")
_NOT_INSTALLED = re.compile(
    r"(\S+): Error while finding module specification for '\S+' \(ModuleNotFoundError: No module named '([\w.]+)'\)"
)


class RankFailure(NamedTuple):
    time: str
    host: str
    rank: int
    exit_code: int


def first_failure(text: str) -> Optional[RankFailure]:
    """The earliest root cause in what torchrun printed; ranks that were merely told to end come last."""
    found = [
        RankFailure(match["time"], match["host"], int(match["rank"]), processes.shell_exit_code(int(match["code"])))
        for match in _ROOT_CAUSE.finditer(text)
    ]
    return min(found, key=lambda failure: (failure.exit_code == 143, failure.time)) if found else None


def read_tail(path: str, begin: int = 0, max_bytes: int = _TAIL_BYTES) -> str:
    """The end of a log, at most its last 256 KiB, and nothing from before `begin`."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - max_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def first_exit_code(returncode: int, log: str, begin: int) -> int:
    """The exit code of the rank that failed first, where torchrun or srun said so; otherwise the launcher's own."""
    code = processes.shell_exit_code(returncode)
    if code == 0:
        return 0
    text = read_tail(log, begin)
    failure = first_failure(text)
    if failure is not None and failure.exit_code:
        return failure.exit_code
    task = _SRUN_TASK_EXIT.search(_ENDED_BY_SLURM_LINE.split(text, maxsplit=1)[0]) if code > 128 else None
    return int(task["code"]) if task is not None else code


def missing_launcher(log: str, begin: int) -> Optional[str]:
    """What is missing if the launcher could not even be found, in words."""
    match = _NOT_INSTALLED.search(read_tail(log, begin))
    if match is None:
        return None
    return "%s is not installed in the job's environment: %s -m pip install %s" % (match[2], match[1], match[2])


def first_failed_rank(text: str) -> Optional[int]:
    """The rank that torchrun, srun or we ourselves say failed first."""
    failure = first_failure(text)
    task = _SRUN_TASK_EXIT.search(_ENDED_BY_SLURM_LINE.split(text, maxsplit=1)[0]) or _LOCAL_RANK.search(text)
    return failure.rank if failure is not None else int(task["task"]) if task is not None else None


def log_tails(log: str, text: str, lines: int = 15, ranks: int = 2) -> List[str]:
    """The ends of logs that tell why ranks failed: first that of the rank which the launcher's `text` names, then those
    that were written to first, because other ranks fail a little later and because of that one."""
    named = first_failed_rank(text)
    found = []
    for path in glob.glob(glob.escape(log) + "rank-*.out"):
        match = _RANK_LOG.search(path)
        last = read_tail(path, max_bytes=_RANK_TAIL_BYTES).splitlines()[-lines:]
        rank = int(match.group(1)) if match is not None else None
        if last and (rank == named or find_cause(last) is not None):
            found.append((rank != named, _mtime(path), path, last))
    report: List[str] = []
    for _, _, path, last in sorted(found)[:ranks]:
        report.append("the end of %s:" % path)
        report += ["  " + line for line in last]
    if len(found) > ranks:
        report.append("%d more ranks failed; their logs are beside these" % (len(found) - ranks))
    return report


def _mtime(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


EXIT_NOT_FOUND = 127


def main(argv: List[str]) -> int:
    with open(argv[0]) as file:
        plan = json.load(file)
    processes.kill_tree_with_parent()
    processes.become_subreaper()
    processes.log_message(plan["what"])
    try:
        if plan["geometry"]["mode"] == "replicas":
            from .replicas import supervise

            return supervise(plan, os.environ)
        return run_group(plan)
    except (allocation.NoSuchInterface, GeometryError) as error:
        processes.log_message(str(error))
        return EXIT_BAD_GEOMETRY


def geometry_of(plan: Dict[str, Any]) -> LaunchGeometry:
    return LaunchGeometry(**{"cpus": None, **{key: plan["geometry"].get(key) for key in LaunchGeometry._fields}})


def run_group(plan: Dict[str, Any]) -> int:
    """A run of one group, to its end."""
    geometry = geometry_of(plan)
    needs_port = geometry.mode in ("srun", "deepspeed", "accelerate") or geometry.nodes > 1
    port, mark = allocation.reserve_port(int(plan["job"])) if needs_port else (0, None)
    argv = environment.run_argv(plan, plan["values"])
    one = make_rank_group(plan, geometry, argv, plan["nodes"], port, os.path.join(plan["folder"], ""))
    begin = files.size_of(plan["log"])
    one.save()
    look = rank_group.DdpCheck(one)
    if one.watched:
        rank_group.write_watch_module(one)
    if geometry.mode == "deepspeed":
        with open(launcher_args.hostfile_of(one), "w") as file:
            file.write(launcher_args.deepspeed_hosts(one))
    try:
        if geometry.mode in TORCH_LAUNCHERS and geometry.nodes == 1 and not one.step_flags:
            code = NodeLauncher(one._replace(slurm=False), 0).run(os.environ, look)
        elif plan["slurm"]:
            code = _run_as_step(plan, geometry, one, look)
            srun_steps.note_end_by_slurm(plan)
        else:
            code = _run_locally(one, look)
    except rank_group.RanksTrainAlone as problem:
        processes.kill_descendants()
        processes.log_message(str(problem))
        return EXIT_BAD_GEOMETRY
    if mark is not None:
        mark.close()
    missing = missing_launcher(plan["log"], begin) if code == 1 and geometry.mode in TORCH_LAUNCHERS else None
    if missing is not None:
        processes.log_message(missing)
        return EXIT_NOT_FOUND
    if code != 0:
        code = first_exit_code(code, plan["log"], begin) if geometry.mode != "process" else code
        for line in log_tails(one.log, read_tail(plan["log"], begin)):
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
    """The group of a run, or with `name` of one attempt of a replica."""
    settings = plan["settings"]
    replica = geometry.replicas > 0
    peers = plan["nodes"][1:]
    address = "127.0.0.1"
    if plan["slurm"] and peers and port > 0:
        address = allocation.reachable_address(peers, settings.get("interface"))
    wrapping = container.container_args(plan, os.environ, plan["places"], geometry.gpus > 0)
    contained = wrapping.around or wrapping.step_flags
    inner = [launcher_args.container_python(argv), *agent_argv()[1:]] if contained else []
    mode = "torchrun" if replica else geometry.mode
    return RankGroup(
        mode=mode,
        nodes=nodes,
        processes=geometry.replica_processes if replica else geometry.processes,
        gpus=geometry.replica_gpus if replica else geometry.gpus,
        argv=argv,
        cwd=plan["cwd"],
        log=log,
        out=log + "out" if name else plan["log"],
        host=os.uname().nodename,
        id="-".join(part for part in (plan["id"], name) if part),
        start=[] if mode in RANK_MODES else launcher_args.launcher_program(mode, argv),
        wrapper=inner if wrapping.step_flags else agent_argv(),
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
        **wrapping._asdict(),
    )


def _run_as_step(plan: Dict[str, Any], geometry: LaunchGeometry, one: RankGroup, look: rank_group.DdpCheck) -> int:
    tasks = geometry.tasks
    cpus = None if plan["cpus"] is None else plan["cpus"] // tasks
    nodes = 1 if geometry.mode == "process" else geometry.nodes
    argv = launcher_args.srun_argv(nodes, tasks, cpus, name="shoal", nodelist=one.nodes[:nodes], share=one.step_flags)
    role = "rank" if geometry.mode in RANK_MODES else "node"
    inbox = processes.SignalQueue()
    step = srun_steps.SlurmStep([*argv, *one.wrapper, role, one.path], one, dict(os.environ), plan["job"])
    return step.wait(inbox, look)


def _run_locally(one: RankGroup, look: rank_group.DdpCheck) -> int:
    """One process per rank on this machine, with the variables that srun's tasks would have."""
    inbox = processes.SignalQueue(1.0)
    ranks = srun_steps.LocalRanks(one, dict(os.environ))
    try:
        return ranks.wait(inbox, look)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, processes.FORWARDED_SIGNALS)
        processes.kill_descendants()
