"""(the run asked for, the run that is there) -> start, leave alone, or refuse."""

from __future__ import annotations

import msgspec
import pytest

from shoal.actions.decide import decide_start, spec_differences
from shoal.errors import InputError
from shoal.model import ACTIVE_STATES, ENDED_STATES, SUCCESSFUL_STATES, RunSpec
from shoal.observe.run_state import RunView

SPEC = RunSpec(
    experiment="001_a", stem="000_train_0", number=0, step="train", step_kind="train", seed=0,
    command=["python", "train.py"], cwd="/p", output="training", args=["--lr", "0.1"], env={"A": "1"},
)  # fmt: skip
OTHER = msgspec.structs.replace(SPEC, args=["--lr", "0.2"], env={})


def _view(state: str) -> RunView:
    return RunView(name=SPEC.name, state=state, attempt=1)


def test_a_run_that_nobody_knows_starts() -> None:
    assert decide_start(SPEC, None, _view("new"), rerun=False)[:2] == (True, 1)


@pytest.mark.parametrize("state", sorted(ACTIVE_STATES))
def test_a_live_run_is_left_alone_and_never_doubled(state: str) -> None:
    assert not decide_start(SPEC, SPEC, _view(state), rerun=False).start
    for asked, rerun in ((OTHER, False), (SPEC, True)):
        with pytest.raises(InputError):
            decide_start(asked, SPEC, _view(state), rerun=rerun)


def test_a_run_that_is_done_is_left_alone_unless_asked_for_again() -> None:
    assert not decide_start(SPEC, SPEC, _view("completed"), rerun=False).start
    assert decide_start(SPEC, SPEC, _view("completed"), rerun=True)[:2] == (True, 2)
    with pytest.raises(InputError, match=r"--lr 0\.1, now --lr 0\.2"):
        decide_start(OTHER, SPEC, _view("completed"), rerun=False)


@pytest.mark.parametrize("state", sorted(ENDED_STATES - SUCCESSFUL_STATES))
def test_a_run_that_ended_badly_starts_again_under_its_revision_or_with_new_settings_under_the_next(state: str) -> None:
    assert decide_start(SPEC, SPEC, _view(state), rerun=False)[:2] == (True, 1)
    assert decide_start(OTHER, SPEC, _view(state), rerun=False)[:2] == (True, 2)


def test_a_run_that_was_stopped_early_starts_only_when_it_is_named_or_became_another() -> None:
    assert not decide_start(SPEC, SPEC, _view("stopped"), rerun=False).start
    assert decide_start(SPEC, SPEC, _view("stopped"), rerun=False, by_name=True)[:2] == (True, 1)
    assert decide_start(SPEC, SPEC, _view("stopped"), rerun=True)[:2] == (True, 2)
    assert decide_start(OTHER, SPEC, _view("stopped"), rerun=False)[:2] == (True, 2)


def test_two_scripts_whose_names_became_one_are_told_apart() -> None:
    with pytest.raises(InputError, match="would both be called"):
        decide_start(msgspec.structs.replace(SPEC, title="001_a/000_tr ain_0"), SPEC, _view("failed"), rerun=False)


def test_resources_are_no_part_of_what_a_run_is() -> None:
    moved = msgspec.structs.replace(SPEC, flags=["--partition=low"], cwd="/elsewhere")
    assert moved.digest == SPEC.digest and spec_differences(SPEC, moved) == []
    assert spec_differences(SPEC, OTHER) == ["args was --lr 0.1, now --lr 0.2", "A was 1, now not set"]
