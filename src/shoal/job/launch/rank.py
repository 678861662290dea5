"""One rank: check what it was given, open its log, become the user's program.

Started by torchrun, by srun (one task per GPU) or by the launcher on this machine. It ends by exec, so that signals and
the exit code are the program's own. There is one for each rank and all start at once, so it imports little.
"""

import os
import signal
import sys
from typing import Dict, List, Optional

from ...kernel import processes
from . import rank_group
from .rank_group import RankGroup, load_group, write_json

EXIT_BAD_GEOMETRY = 78
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def main(argv: List[str]) -> int:
    group = load_group(argv[0])
    if not (group.slurm and group.mode == "srun"):
        processes.die_with_parent()  # a Slurm task is Slurm's to end
    env = dict(os.environ)
    if group.mode == "process":
        return _run_single_process(group, env)
    env.update(rank_variables(group, env))
    if "RANK" not in env:
        processes.log_message(
            "this rank was started without a number: the launcher started one process and not %d" % group.world
        )
        return EXIT_BAD_GEOMETRY
    rank = int(env["RANK"])
    env.update(rank_group.watch_variables(group, rank, env))
    restart = int(env.get("TORCHELASTIC_RESTART_COUNT") or 0)
    if rank > 0:
        _redirect(group.rank_log(rank, restart))
    elif os.uname().nodename == group.host:
        # Not through srun, which reads output and errors from two pipes and so loses their order. Not from another
        # node: NFS lets two of them that append to one file write over each other.
        _redirect(group.out)
    cpus = _cpu_count()
    # Under torchrun we are in the container already; as a task of srun we put it around the program.
    around = list(group.around) if group.mode == "srun" else []
    problem = check_rank(group, env) or (group.absent() if around else None)
    _write_rank_record(group, env, rank, cpus)
    if problem is not None:
        processes.log_message(problem)
        return EXIT_BAD_GEOMETRY
    if cpus < int(env["LOCAL_WORLD_SIZE"]) and group.mode != "srun" and env["LOCAL_RANK"] == "0":
        processes.log_message(
            "%s ranks share %d CPU%s here" % (env["LOCAL_WORLD_SIZE"], cpus, "" if cpus == 1 else "s")
        )
    use = group.use_file(env.get("SLURMD_NODENAME", "")) if group.mode == "srun" and env["LOCAL_RANK"] == "0" else None
    if use is not None:
        from .. import usage  # only here, because most ranks do without

        usage.sample_node(use, env)
    return exec_program([*around, *group.argv], env)


def _run_single_process(group: RankGroup, env: Dict[str, str]) -> int:
    """A single program as a task of srun, as pyxis puts it in a container: no rank, and a step number to signal."""
    from .launch_spec import process_environment

    record = {"host": os.uname().nodename, "pid": os.getpid(), "step": env.get("SLURM_STEP_ID")}
    write_json(group.rank_record(0), record)
    if record["host"] == group.host:
        _redirect(group.out)
    return exec_program(group.argv, process_environment(env))


def rank_variables(group: RankGroup, env: Dict[str, str]) -> Dict[str, str]:
    """What a rank adds to its environment: under srun its place by Slurm's numbers; its share of threads."""
    found = dict(group.env)
    if group.mode == "srun" and group.slurm:
        found.update(
            RANK=env["SLURM_PROCID"],
            LOCAL_RANK=env["SLURM_LOCALID"],
            NODE_RANK=env["SLURM_NODEID"],
            GROUP_RANK=env["SLURM_NODEID"],
            WORLD_SIZE=env["SLURM_NTASKS"],
            LOCAL_WORLD_SIZE=str(group.processes),
            MASTER_ADDR=group.address,
            MASTER_PORT=str(group.port),
        )
        if not env.get("OMP_NUM_THREADS"):
            found["OMP_NUM_THREADS"] = str(_cpu_count())
    if group.mode == "deepspeed":
        found["LOCAL_WORLD_SIZE"] = env.get("LOCAL_SIZE") or str(group.processes)
        if env.get("SHOAL_DEVICES"):
            found["CUDA_VISIBLE_DEVICES"] = env["SHOAL_DEVICES"]  # it numbers GPUs from 0, whichever the job was given
    found["PYTHONUNBUFFERED"] = "1"
    return found


def check_rank(group: RankGroup, env: Dict[str, str]) -> Optional[str]:
    """Why this rank must not begin, or None. With fewer ranks or GPUs it would train on a part of them."""
    world, local, here = (int(env[name]) for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if world != group.world or here != group.processes:
        return "%d ranks were started, %d on this node, and the run asked for %d, %d on each node" % (
            world,
            here,
            group.world,
            group.processes,
        )
    seen = visible_gpus(env)
    if group.gpus and seen is not None and len(seen) < group.gpus:
        from ...kernel import node_name  # here: every rank starts with this module

        return "rank %s on %s sees %d GPU%s (%s), and the run asked for %d on each node" % (
            env["RANK"],
            node_name(env),
            len(seen),
            "" if len(seen) == 1 else "s",
            ",".join(seen) or "none",
            group.gpus,
        )
    if local >= here:
        return "local rank %d is not below %d" % (local, here)
    return None


def visible_gpus(env: Dict[str, str]) -> Optional[List[str]]:
    """The GPUs that the environment lets a process see; None if it says nothing about them."""
    for name in _VISIBLE_DEVICES:
        if name in env:
            return [device for device in env[name].split(",") if device not in ("", "-1", "NoDevFiles")]
    return None


def exec_program(argv: List[str], env: Dict[str, str]) -> int:
    """Exec; returns an exit code only if that fails."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.FORWARDED_SIGNALS)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and exec would hand that on
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except OSError as error:
        processes.log_message("cannot start %s: %s" % (argv[0], error.strerror))
        return 127 if isinstance(error, FileNotFoundError) else 126
    return 126


def _redirect(log: str) -> None:
    """Output and errors go to one file, so that they keep their order."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write_rank_record(group: RankGroup, env: Dict[str, str], rank: int, cpus: int) -> None:
    """Where this rank runs and what it sees, for people and for whoever has to signal it."""
    seen = visible_gpus(env)
    local = int(env["LOCAL_RANK"])
    record = {
        "rank": rank,
        "local_rank": local,
        "world_size": int(env["WORLD_SIZE"]),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "gpu": seen[local] if seen and local < len(seen) else None,
        "gpus": seen,
        "cpus": cpus,
        "step": env.get("SLURM_STEP_ID") if group.slurm else None,
        "restart": int(env.get("TORCHELASTIC_RESTART_COUNT") or 0),
        "log_bytes": _file_size(group.out),
    }
    try:
        write_json(group.rank_record(rank), record)
    except OSError as error:
        sys.stderr.write("shoal: cannot note rank %d: %s\n" % (rank, error))
