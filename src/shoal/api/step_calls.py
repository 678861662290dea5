"""Step functions in bash scripts: their definitions, and a call of one, which bash makes (describe/shoal.sh)."""

from __future__ import annotations

import os
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shoal.actions import SubmitListener, SubmitResult
    from shoal.describe import StepCall


class ReadStepCall(NamedTuple):
    """A call with what the script exported; `secret` names variables that are not kept with the run."""

    call: StepCall
    secret: Sequence[str]


def step_functions(script: Path) -> str:
    """The bash functions that a script gets from the project around it."""
    from shoal.api.projects import read_project
    from shoal.describe import function_definitions

    return function_definitions(script, read_project(script.absolute().parent), os.environ)


def read_step_call(function: str, words: list[str], script: str, modifier: list[str]) -> ReadStepCall:
    """A call of a step function in a bash script, with the environment of this process."""
    from shoal.describe import step_call

    return ReadStepCall(*step_call(function, words, script, modifier, os.environ))


def note_step_call(found: ReadStepCall) -> bool:
    """Where a command only reads the script: note the call for it. False if the call is to be carried out."""
    from shoal.describe import COLLECT_VARIABLE, append_call

    if not os.environ.get(COLLECT_VARIABLE):
        return False
    append_call(os.environ[COLLECT_VARIABLE], found.call)
    return True


def submit_step_call(found: ReadStepCall, *, tell: SubmitListener) -> list[SubmitResult]:
    """Submit the runs of a call; what became of each."""
    from shoal.actions import submit_call
    from shoal.api.projects import read_project

    project = read_project(os.path.dirname(found.call.script))
    return submit_call([found.call], project, os.environ, secret=found.secret, tell=tell)
