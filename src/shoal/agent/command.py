"""What an attempt executes: the step's command completed, the environment around it, or why it cannot be started."""

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import environment, fence, layout
from .launch import plan


def prepare(
    spec: Mapping[str, Any],
    claim: fence.Claim,
    number: int,
    resume_from: Optional[str],
    base: Mapping[str, str],
    streams: Tuple[str, str],
    here_only: bool,
) -> Tuple[List[str], Dict[str, str], Optional[str]]:
    """(arguments, environment, None), or a problem in words as the third. `here_only`: launch on this machine alone."""
    env = environment.for_run(spec, claim, number, resume_from, base)
    values = {name: environment.text_of(value) for name, value in (spec.get("params") or {}).items()}
    values.update(
        run=env["SHOAL_RUN"],
        experiment=spec["experiment"],
        step=spec["step"],
        seed=env["SHOAL_SEED"],
        attempt=str(number),
        output_dir=claim.output_dir,
        resume_from=resume_from or "",
        start_from=env["SHOAL_START_FROM"],
        parent_dir=env["SHOAL_PARENT_DIR"],
    )
    argv = environment.complete(spec["command"], values) + spec.get("args", [])
    if spec.get("cannot_start"):
        return argv, env, str(spec["cannot_start"])
    if claim.resume and not resume_from:
        return argv, env, "no checkpoint %s in %s to resume from" % (spec.get("checkpoint"), claim.output_dir)
    if spec.get("launch", "process") == "process":
        return argv, plan.for_process(env), None
    out, err = streams
    use = os.path.join(claim.run_dir, layout.attempt_file(number, "use"))
    argv, problem = plan.prepare(spec, number, values, env, out, err, claim.output_dir, here_only, use)
    return argv, env, problem
