"""What an attempt executes: the step's command completed, the environment around it, or why it cannot be started."""

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..kernel import fence, layout
from . import environment
from .launch import allocation, container, container_needs, plan


def use_code_snapshot(spec: Dict[str, Any], code: Optional[str]) -> Dict[str, Any]:
    """The spec, to be executed with the code as it was when the job was submitted, where that was kept."""
    if code and not os.path.isdir(code):
        return dict(spec, cannot_start="the snapshot of its code is gone: %s" % code)
    if code and not layout.is_own_snapshot(code):
        return dict(spec, cannot_start="the snapshot of its code is another user's, and is not executed: %s" % code)
    return dict(spec, cwd=code, root=spec["cwd"], code=code) if code else spec


def prepare_command(
    spec: Mapping[str, Any],
    claim: fence.Claim,
    number: int,
    resume_from: Optional[str],
    base: Mapping[str, str],
    log: str,
    here_only: bool,
) -> Tuple[List[str], Dict[str, str], Optional[str]]:
    """(arguments, environment, None), or a problem in words as the third. `here_only`: launch on this machine alone."""
    env = environment.run_environment(spec, claim, number, resume_from, base)
    values = environment.placeholder_values(spec, env)
    argv = environment.run_argv(spec, values)
    if spec.get("cannot_start"):
        return argv, env, str(spec["cannot_start"])
    if claim.resume and not resume_from:
        return argv, env, "no checkpoint %s in %s to resume from" % (spec.get("checkpoint"), claim.output_dir)
    problem = container_needs.container_problem(spec, env, bind_dirs(spec, claim), here_only)
    if problem is not None:
        return argv, env, problem
    one = container.resolve_container(spec, env)
    env.update(container.runtime_environment(env) if one else {})
    if spec.get("launch", "process") == "process" and not (one and one.by_srun):
        return argv, plan.process_environment(env), None
    use = os.path.join(claim.run_dir, layout.attempt_file(number, "use"))
    folders = bind_dirs(spec, claim)
    argv, problem = plan.prepare_launch(spec, number, values, env, log, claim.output_dir, here_only, folders, use)
    return argv, env, problem


def bind_dirs(spec: Mapping[str, Any], claim: fence.Claim) -> List[str]:
    """Folders of this run that its program must see, wherever it runs."""
    return [spec.get("root", spec["cwd"]), layout.state_dir_of(claim.run_dir), claim.output_dir, claim.log_dir]


def wrap_in_container(
    spec: Mapping[str, Any], claim: fence.Claim, argv: List[str], env: Mapping[str, str]
) -> List[str]:
    """The command in its container, once its data is there; a launcher is outside and contains its processes itself."""
    if spec.get("launch", "process") != "process":
        return argv
    gpus = int(env.get("SHOAL_GPUS_PER_NODE") or 0) > 0
    seen = gpus and bool(env.get("SLURM_JOB_ID") or allocation.local_gpu_ids(env))
    return [*container.container_args(spec, env, bind_dirs(spec, claim), seen).around, *argv]
