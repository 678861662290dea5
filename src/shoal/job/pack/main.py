"""Set up one engine: which runs, on which resources, for how long. Called by the batch script as its last command.

    agent pack SUBMISSION_DIR [--set-up-exit CODE] [--node yes]

In a job of several nodes the first call starts one engine on each node, each in an srun step of its own, waits for
them, and returns idle nodes to Slurm.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ...kernel import Allocation, AllocationLog, Grant, agent_path, fence, files, guard, processes, records, slurm
from .. import allocation, attempt, recovery
from ..child_processes import ColdStarter, StarterFailed
from ..launch import container, srun_steps
from . import follow_up, run_status, warm_starter
from .allocator import GPU_PARTS, Allocator, Demand, even_share
from .engine import Engine, log_message
from .node import EngineNode, GpuSharing, set_up_gpu_sharing
from .queue import PackSettings, QueuedRun, RunQueue, read_queue

_RELEASE_TRIES, _RELEASE_RETRY_S, _RELEASE_TIMEOUT_S = 3, 2.0, 60.0
#: Exit codes of an engine that has worked through the queue: all completed, or some failed.
_FINISHED_CODES = (0, 4)


def run_on_all_nodes(
    folder: str,
    me: Allocation,
    environ: Mapping[str, str],
    shrink: bool,
    log: AllocationLog,
    say: Callable[[str], None],
) -> int:
    """Start an engine on every node and wait for all of them; the exit code of the worst.

    With `shrink` a node whose engine has nothing left to do leaves the job. The first one cannot: the batch script runs
    there. Slurm signals the engines itself when it ends the job.
    """
    nodes = allocation.expand_nodelist(environ["SLURM_JOB_NODELIST"])
    steps = {_start_engine(node, folder, environ).pid: node for node in nodes}
    _pass_signals_on(str(me.job_id))
    codes: List[int] = []
    kept = list(nodes)
    while steps:
        pid, status = os.wait()
        node = steps.pop(pid, None)
        if node is None:
            continue
        codes.append(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
        # An engine that was stopped is no sign of an idle node: the whole job is about to end.
        if shrink and steps and node != nodes[0] and codes[-1] in _FINISHED_CODES:
            kept.remove(node)
            problem = release_nodes(str(me.job_id), kept)
            say("node %s has nothing left to do and %s" % (node, problem or "is given back"))
            if problem:
                kept.append(node)
            else:
                log.resize(len(nodes), len(kept))
    if max(codes) not in _FINISHED_CODES:
        srun_steps.wait_for_preemption(environ)
    return max(codes)


def _start_engine(node: str, folder: str, environ: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    argv = ["srun", "--nodes=1", "--ntasks=1", "--nodelist=%s" % node, "--job-name=pack", "--input=none"]
    cpus = allocation.min_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    argv += ["--cpu-bind=none", *(["--cpus-per-task=%d" % cpus] if cpus else [])]
    argv += [sys.executable, "-I", agent_path(), "pack", folder, "--node", "yes"]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)


def release_nodes(job_id: str, kept: Sequence[str]) -> str:
    """Let the job go on with these nodes alone; what went wrong, in words, or nothing.

    In a job's environment scontrol would leave scripts behind that tell a shell of the job's new size; ours is clean
    and needs none, and none of the variables that are out of date from now on is read again.
    """
    problem = ""
    for tries in range(_RELEASE_TRIES):
        time.sleep(_RELEASE_RETRY_S if tries else 0)
        done = slurm.update_job(job_id, {"NodeList": ",".join(kept)}, os.environ, _RELEASE_TIMEOUT_S)
        if done.ok:
            return ""
        problem = done.problem
        if done.failure:
            break
    return "cannot be given back: %s" % problem


def _pass_signals_on(job_id: str) -> None:
    def pass_on(number: int, frame: object) -> None:
        slurm.scancel([job_id], os.environ, signal_number=number, timeout_s=slurm.ENDING_TIMEOUT_S)

    for number in processes.FORWARDED_SIGNALS:
        signal.signal(number, pass_on)


_MAX_SLOTS = 4096


def main(argv: List[str]) -> int:
    """Exit code of the allocation; see Engine. 0 also if this job came too late and must not work."""
    folder = os.path.abspath(argv[0])
    options = dict(zip(argv[1::2], argv[2::2]))
    files.open_umask(folder)
    environ = dict(os.environ)
    in_step = "--node" in options
    log = AllocationLog(os.path.dirname(os.path.dirname(folder)), {} if in_step else environ)
    try:
        return _enter(folder, int(options.get("--set-up-exit") or 0), environ, in_step, log)
    finally:  # not after run_guarded, which does this itself and does not return
        log.end()


def _enter(folder: str, set_up_exit: int, environ: Dict[str, str], in_step: bool, log: AllocationLog) -> int:
    try:
        submission = files.read_json(os.path.join(folder, "submission.json"))
        record = files.read_json(os.path.join(folder, "pack.json"))
        if submission is None or record is None:
            raise fence.FencedError("there is no record of this pack in %s" % folder)
        me = _identify(submission, environ, in_step)
        fence.settle_outcome(os.path.dirname(os.path.dirname(folder)), submission["token"], me)
        outcome = follow_up.settle_send(folder, me, environ.get("SLURM_JOB_NAME", ""))
        if outcome is not None and outcome.kind == "void":
            raise fence.FencedError("the follow-up job was given up: %s" % outcome.reason)
        settings, items = read_queue(record, submission["runs"])
    except fence.FencedError as why:
        log_message("nothing to do here: %s" % why)
        return 0
    except (OSError, ValueError, KeyError) as error:
        log_message("the pack cannot be read: %s" % error)
        return 74 if getattr(error, "errno", None) in files.DISK_ERRNOS else 1
    gpus = len(allocation.visible_gpus_of_node(environ).ids) if settings.gpus is None else settings.gpus
    log.begin(me.job_id is not None, Grant(nodes=1, gpus=gpus, cpus=settings.cpus))
    if set_up_exit:
        log_message("the cluster's set-up lines ended with exit code %d; no run was started" % set_up_exit)
        return set_up_exit
    nodes = int(environ.get("SLURM_JOB_NUM_NODES") or 1) if me.job_id else 1
    if nodes > 1 and not in_step and settings.engine != "ray":
        code = run_on_all_nodes(folder, me, environ, settings.shrink, log, log_message)
        log.ask_slurm()
        return code

    def work(link: guard.GuardLink) -> int:
        code = _work(folder, submission, settings, items, me, environ, nodes, link)
        log.ask_slurm()
        return code

    return guard.run_guarded(work, log.end)


def _identify(submission: Mapping[str, Any], environ: Dict[str, str], in_step: bool) -> Allocation:
    """Who we are. A person who runs the script by hand means: go on with what is left of this queue.

    In a step SLURM_JOB_NAME is the step's, and whoever started it knew that the job is ours.
    """
    local = environ.get("SHOAL_TOKEN") == submission["token"]
    named = in_step or bool(re.search(r"\.%s(-\d+)?\Z" % submission["token"], environ.get("SLURM_JOB_NAME", "")))
    own_job = not local and (named or fence.is_batch_job(submission, environ))
    me = run_status.engine_allocation(environ, own_job)
    if own_job and not named:
        fence.rename_job(me, submission["job_name"])
    if local and environ.get("SHOAL_PARENT"):
        _stop_with_parent(int(environ["SHOAL_PARENT"]))
    return me


def _work(
    folder: str,
    submission: Mapping[str, Any],
    settings: PackSettings,
    items: List[QueuedRun],
    me: Allocation,
    environ: Dict[str, str],
    nodes: int,
    link: guard.GuardLink,
) -> int:
    gpus, cpus = allocation.visible_gpus_of_node(environ), allocation.usable_cpus(environ)
    if settings.gpus is not None:
        gpus = gpus._replace(ids=gpus.ids[: settings.gpus])
    if settings.cpus is not None:
        cpus = cpus[: settings.cpus]
    if settings.takes_fewer_gpus:
        items = [item._replace(need=_at_most(item.need, len(gpus.ids))) for item in items]
    slots, items = resolve_slots(settings, items, len(gpus.ids), len(cpus))
    ends_at = allocation.end_of_allocation(environ, bool(me.job_id))
    if settings.time_limit_s is not None:
        ends_at = min(ends_at or float("inf"), time.time() + settings.time_limit_s)
    home = os.path.dirname(os.path.dirname(folder))
    node = EngineNode(
        home, submission["token"], me, gpus, cpus, _run_environment(environ), ends_at, code=submission.get("code")
    )
    by_ray = settings.engine == "ray"
    whole = {item.need.gpus >= GPU_PARTS for item in items if item.need.gpus}
    allocator = Allocator(slots, len(gpus.ids), cpus, keep_whole=len(whole) > 1, nodes=nodes if by_ray else 1)
    queue, problems = _split_possible(items, allocator, gpus)
    try:
        if by_ray:
            starter = _ray_starter(settings, items, node, slots, nodes)
        else:
            starter = _starter(settings, items, node, slots)
            node = node._replace(sharing=_set_up_sharing(settings, items, node))
        engine = Engine(queue, allocator, settings, node, starter, _logger(environ), link)
        return _finish(folder, submission, engine, problems)
    except StarterFailed as why:
        log_message(str(why))
        return 1


def _finish(folder: str, submission: Mapping[str, Any], engine: Engine, problems: Dict[int, str]) -> int:
    """Let the engine work, and leave a frame for the timeline and a job for what is left over."""
    me, node, settings = engine.node.me, engine.node, engine.settings
    gpus = list(node.gpus.ids)
    note = dict(
        records.non_default_fields(me),
        t=time.time(),
        slots=engine.allocator.slots,
        gpus=gpus,
        cpus=len(node.cpus),
        ends_at=node.ends_at,
    )
    _write_record(folder, "engine.%s.json" % me.engine, note)
    engine.problems = problems
    code = engine.run()
    left_over = code == 124 or engine.stopping == "walltime"
    following = follow_up.pending_after(me, settings.max_follow_ups, os.environ) if left_over else None
    _write_record(
        folder,
        "engine.%s.end" % me.engine,
        dict(
            records.non_default_fields(me),
            t=time.time(),
            exit_code=code,
            counts=engine.summary.counts,
            failed_nodes=engine.others.failed_nodes,
            max_rss_mb=_max_rss_mb(),
            next=following,
        ),
    )
    if left_over:
        outcome = "no follow-up job was asked for"
        if following is not None and not recovery.slurm_answers_in_time():
            outcome = "Slurm does not answer; the next command that looks at them continues"
        elif following is not None:
            outcome = follow_up.submit_queue_follow_up(folder, following, dict(os.environ))
        log_message("%d runs are left over: %s" % (len(engine.queue), outcome))
    elif code in (0, 4) and not len(engine.queue):
        follow_up.cancel_pending_tasks(me, os.environ)
        for name in {name.split("/")[0]: name for name in submission["runs"]}.values():
            engine.telling.all_ended(name)
    return code


def resolve_slots(settings: PackSettings, items: List[QueuedRun], gpus: int, cpus: int) -> Tuple[int, List[QueuedRun]]:
    """How many runs at a time, and what each takes where nothing was said: the GPUs are divided among the slots."""
    slots = settings.slots
    needs = [item.need.gpus for item in items if item.need.gpus > 0]
    if slots is None:
        if needs:
            slots = gpus * GPU_PARTS // min(needs)
        elif gpus and any(item.need.gpus < 0 for item in items):
            slots = gpus
        else:
            slots = cpus // max(1, min((item.need.cpus for item in items), default=1))
    slots = max(1, min(slots, _MAX_SLOTS))
    share = even_share(slots, gpus)
    even = [item if item.need.gpus >= 0 else item._replace(need=item.need._replace(gpus=share)) for item in items]
    return slots, even


def _at_most(need: Demand, gpus: int) -> Demand:
    return need._replace(gpus=min(need.gpus, gpus * GPU_PARTS))


def _split_possible(
    items: List[QueuedRun], allocator: Allocator, gpus: allocation.VisibleGpus
) -> Tuple[RunQueue, Dict[int, str]]:
    """The queue, with runs that this node can never hold turned into ones that fail at once, with a reason."""
    problems: Dict[int, str] = {}
    kept = []
    for item in items:
        why = allocator.never(item.need)
        if why is None and gpus.mig and item.need.gpus > GPU_PARTS:
            why = "a process can use one MIG instance only, and it needs %d" % (item.need.gpus // GPU_PARTS)
        if why is not None:
            problems[item.place] = why
            item = item._replace(need=Demand())
        kept.append(item)
    return RunQueue(kept), problems


def _run_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environ.items() if name != "SHOAL_PARENT"}


def _starter(settings: PackSettings, items: List[QueuedRun], node: EngineNode, slots: int) -> Any:
    """What starts processes: as they are, or from a parent that has imported modules, if that was asked for."""
    cold = ColdStarter(node.environ)
    if not settings.preload or not items:
        return cold
    spec = _spec_of_first(items[0], node)
    if spec is not None and container.has_container(spec):
        log_message("--preload is not for containers; these start as usual")
        return cold
    if spec is None or not warm_starter.is_python(spec["command"][0]):
        log_message("--preload is for commands that begin with python; these start as usual")
        return cold
    env = warm_starter.server_environment(dict(node.environ, **(spec.get("env") or {})))
    env.update(allocation.thread_environment(max(1, len(node.cpus) // slots), env))
    try:
        return warm_starter.WarmStarter(
            cold, settings.preload, spec["command"][0], env, spec["cwd"], _logger(node.environ)
        )
    except OSError as error:
        log_message("runs start cold: %s" % error)
        return cold


def _spec_of_first(item: QueuedRun, node: EngineNode) -> Optional[Dict[str, Any]]:
    while True:
        all_claimed = node.all_claimed()
        claim = run_status.read_status(node.home, item.name, node.token).claim
        if claim is not None or all_claimed:
            return None if claim is None else attempt.read_run_spec(node.home, claim, node.code, node.environ)
        time.sleep(0.01)


def _ray_starter(settings: PackSettings, items: List[QueuedRun], node: EngineNode, slots: int, nodes: int) -> Any:
    """Ray on all nodes of the allocation, with the same number of slots on each."""
    from .ray_cluster import RayCluster
    from .ray_starter import RayStarter

    log_message("starting Ray on %d node%s" % (nodes, "" if nodes == 1 else "s"))
    cluster = RayCluster(node, nodes, settings.dashboard)
    if settings.dashboard:
        log_message(
            "Ray's dashboard: %s on %s; it asks for the word in %s"
            % (cluster.page, processes.node_name(), cluster.token)
        )
    mps_logs = _mps_logs(node) if settings.mps and _is_shared(items) else None
    try:
        return RayStarter(cluster, nodes, slots, len(node.gpus.ids), mps_logs, _logger(node.environ))
    except BaseException:
        cluster.close()
        raise


def _set_up_sharing(settings: PackSettings, items: List[QueuedRun], node: EngineNode) -> GpuSharing:
    """Set up what runs that share a GPU need; nothing where none does."""
    if not _is_shared(items) or not node.gpus.ids:
        return GpuSharing()
    prefix, logs = ColdStarter(node.environ).prefix, _mps_logs(node)
    return set_up_gpu_sharing(
        node.gpus, node.environ, mps=settings.mps, prefix=prefix, logs=logs, say=_logger(node.environ)
    )


def _is_shared(items: List[QueuedRun]) -> bool:
    return any(0 < item.need.gpus < GPU_PARTS for item in items)


def _mps_logs(node: EngineNode) -> str:
    return os.path.join(node.folder, "mps.%s" % node.me.engine)


def _logger(environ: Mapping[str, str]) -> Any:
    return log_message if environ.get("SHOAL_FOLLOW") != "0" else (lambda text: None)


def _write_record(folder: str, name: str, record: Dict[str, Any]) -> None:
    try:
        files.create_exclusive(os.path.join(folder, name), files.to_json(record), sync=False)
    except OSError:
        pass  # Only the timeline's frame; the runs themselves are recorded one by one.


def _max_rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0, 1)


def _stop_with_parent(parent: int) -> None:
    """Ask to be told when the command that started us is killed; if that has happened already, tell ourselves."""
    processes.signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != parent and processes.process_start_time(parent) is None:
        os.kill(os.getpid(), signal.SIGTERM)
