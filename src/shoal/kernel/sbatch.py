"""Hand a script to sbatch, and tell apart the answers that exist: accepted, refused, never sent, and nobody knows.

A non-zero exit of sbatch does not mean "not submitted": a controller that was busy for ten seconds may create the job
after sbatch gave up (measured). Only answers that prove otherwise count as refused; everything else is unclear and is
settled later by looking for the job's name.
"""

import re
import subprocess
from typing import Dict, List, Mapping, NamedTuple, Optional

#: sbatch itself gives up after MessageTimeout (10 s by default, 100 s at busy sites).
SBATCH_TIMEOUT_S = 120.0
#: Options in disguise, and what says which cluster to talk to; as in backends/slurm/commands.py.
_OPTION_FAMILIES = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SPRIO_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_JWKS", "SLURM_SACK_KEY")
#: What a job has and the next one must not inherit.
_OF_THE_JOB = (
    "SHOAL_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "PMI_",
    "PMIX_",
    "TMPDIR",
)
_ACCEPTED = re.compile(r"^(\d+)(?:;\S+)?$", re.ASCII | re.MULTILINE)
#: The controller could not be reached at all: the request never left, so it may be sent again.
_UNREACHED = ("connect failure", "connection refused", "could not establish a configuration source")
#: The connection broke in the middle: the request may have arrived.
_UNCLEAR = (
    "timed out", "zero bytes", "receive failure", "send failure", "shutdown failure", "connection reset",
    "unexpected message",
)  # fmt: skip
#: sbatch, or the controller, read the request and said no.
_REFUSED = re.compile(
    r"batch job submission failed|unrecognized option|invalid|requires an argument|fatal:|--help|not available"
    r"|ambiguous|does not look like a batch script|unable to open",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^(?:sbatch: )?(?:error: )?")


class Answer(NamedTuple):
    """kind: "accepted" (job_id), "refused" (Slurm read it and said no), "unreached" (never sent), "unclear"."""

    kind: str
    job_id: Optional[str] = None
    message: str = ""


def send(options: List[str], script: bytes, environ: Mapping[str, str]) -> Answer:
    """Submit a script from inside a job, or from wherever waiting runs are let in."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *options],
            input=script,
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=SBATCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer("unclear", message="sbatch did not answer within %.0f s" % SBATCH_TIMEOUT_S)
    except OSError as error:
        return Answer("unreached", message="cannot run sbatch: %s" % error.strerror)
    return classify(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def clean(environ: Mapping[str, str]) -> Dict[str, str]:
    """This job's environment without what belongs to the job, for programs of Slurm and for jobs after it."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_OPTION_FAMILIES) or name.startswith(_OF_THE_JOB))
    }


def classify(returncode: int, stdout: str, stderr: str) -> Answer:
    """What sbatch's words prove. Warnings on stderr beside a job id are only warnings."""
    match = _ACCEPTED.search(stdout)
    if returncode == 0 and match is not None:
        return Answer("accepted", match.group(1), stderr.strip())
    said = " ".join(_PREFIX.sub("", line) for line in stderr.strip().splitlines())
    low = said.lower()
    if any(word in low for word in _UNCLEAR):
        return Answer("unclear", message=said)
    if any(word in low for word in _UNREACHED):
        return Answer("unreached", message=said)
    if returncode > 0 and _REFUSED.search(said):
        return Answer("refused", message=said)
    return Answer("unclear", message=said or "sbatch ended with code %d and said nothing" % returncode)
