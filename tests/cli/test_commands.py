"""Commands that people type: what happens to a program of Slurm is an error of shoal, with a hint."""

from __future__ import annotations

import pytest

from shoal.clusters.queries import ProgramMissingError, TimedOutError, run
from shoal.errors import InputError, SchedulerError


def test_a_program_that_fails_is_an_answer_not_an_error() -> None:
    done = run(["sh", "-c", "cat; echo bad >&2; exit 3"], 10, stdin="text é")
    assert (done.returncode, done.stdout, done.stderr) == (3, "text é", "bad\n")


def test_silence_is_told_apart_from_absence() -> None:
    with pytest.raises(TimedOutError, match=r"did not answer within 0\.2 s"):
        run(["sleep", "20"], 0.2)
    with pytest.raises(ProgramMissingError, match="cannot run no-such-program") as caught:
        run(["no-such-program"], 1)
    assert isinstance(caught.value, SchedulerError) and caught.value.exit_code == 5
    assert "--on local" in str(caught.value.hint)


def test_arguments_that_no_program_can_receive_are_an_input_error() -> None:
    with pytest.raises(InputError):
        run(["echo", "a\0b"], 1)
    with pytest.raises(InputError):
        run(["echo", "x" * 10_000_000], 1)
