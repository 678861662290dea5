"""Hand a script to sbatch, and tell apart the three answers that exist: accepted, refused, and nobody knows.

A non-zero exit of sbatch does not mean "not submitted": a controller that was busy for ten seconds may create the job
after sbatch gave up (measured). Only answers that prove otherwise count as refused; everything else is unclear and is
settled later by looking for the job's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.backends.slurm.commands import ProgramMissingError, TimedOutError, run

#: sbatch itself gives up after MessageTimeout (10 s by default, 100 s at busy sites).
SBATCH_TIMEOUT_S = 120.0
_ACCEPTED = re.compile(r"^(\d+)(?:;\S+)?$", re.ASCII | re.MULTILINE)
#: The controller could not be reached at all: the request never left, so it may be sent again.
_UNREACHED = ("connect failure", "connection refused", "could not establish a configuration source")
#: The connection broke in the middle: the request may have arrived.
_UNCLEAR = ("timed out", "zero bytes", "receive failure", "send failure", "shutdown failure", "connection reset",
            "unexpected message")
#: sbatch, or the controller, read the request and said no.
_REFUSED = re.compile(
    r"batch job submission failed|unrecognized option|invalid|requires an argument|fatal:|--help|not available"
    r"|ambiguous|does not look like a batch script|unable to open",
    re.IGNORECASE,
)


class Answer(NamedTuple):
    """kind: "accepted" (job_id), "refused" (Slurm read it and said no), "unreached" (never sent), "unclear"."""

    kind: str
    job_id: str | None = None
    message: str = ""


def sbatch(options: Sequence[str], script: str, environ: Mapping[str, str]) -> Answer:
    """Submit a script, given on standard input so that no file needs to be visible to anybody else yet."""
    argv = ["sbatch", "--parsable", *options]
    try:
        done = run(argv, SBATCH_TIMEOUT_S, stdin=script, environ=environ, keep_locale=True)
    except TimedOutError as error:
        return Answer("unclear", message=error.message)
    except ProgramMissingError as error:
        return Answer("unreached", message=error.message)
    return classify(done.returncode, done.stdout, done.stderr)


def classify(returncode: int, stdout: str, stderr: str) -> Answer:
    """What sbatch's words prove. Warnings on stderr beside a job id are only warnings."""
    match = _ACCEPTED.search(stdout)
    if returncode == 0 and match is not None:
        return Answer("accepted", match[1], stderr.strip())
    said = " ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in stderr.strip().splitlines())
    low = said.lower()
    if any(word in low for word in _UNCLEAR):
        return Answer("unclear", message=said)
    if any(word in low for word in _UNREACHED):
        return Answer("unreached", message=said)
    if returncode > 0 and _REFUSED.search(said):
        return Answer("refused", message=said)
    return Answer("unclear", message=said or f"sbatch ended with code {returncode} and said nothing")
