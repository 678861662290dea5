"""Hand a script to sbatch. What its answers mean is told in shoal.kernel.sbatch, which jobs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.backends.slurm.commands import ProgramMissingError, TimedOutError, run
from shoal.kernel.sbatch import SBATCH_TIMEOUT_S, Answer, classify

__all__ = ["SBATCH_TIMEOUT_S", "Answer", "classify", "sbatch"]


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
