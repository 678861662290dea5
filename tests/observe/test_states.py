"""One table says what each state of a run means; every set of states is made from it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import shoal
from shoal.describe import parse_causes, parse_states
from shoal.describe.steps import StepRetryCause
from shoal.errors import InputError
from shoal.kernel.slurm_text import SLURM_ACTIVE_STATES, SLURM_ENDED_STATES
from shoal.model import (
    ACTIVE_STATES,
    ATTENTION_STATES,
    CAUSES,
    ENDED_STATES,
    EXIT_CODE_STATES,
    FAILED_STATES,
    FINAL_STATES,
    QUEUED_STATES,
    RETRYABLE_STATES,
    RUN_STATES,
    STATE_TABLE,
    SUCCESSFUL_STATES,
)
from shoal.views.render import state_code, state_word

SRC = Path(shoal.__file__).parent
TABLE = SRC / "model.py"
STATIC = SRC / "views/web/static"


def test_a_state_is_new_or_active_or_ended() -> None:
    assert (
        {"new"} | ACTIVE_STATES | ENDED_STATES == set(RUN_STATES)
        and not ACTIVE_STATES & ENDED_STATES
        and "new" not in ACTIVE_STATES | ENDED_STATES
    )
    assert QUEUED_STATES | ATTENTION_STATES < ACTIVE_STATES
    assert FAILED_STATES | SUCCESSFUL_STATES | EXIT_CODE_STATES | FINAL_STATES | RETRYABLE_STATES == ENDED_STATES


def test_an_end_was_meant_by_somebody_or_it_is_a_failure() -> None:
    """A person cancels a run, an early stopping rule stops it; a preempted run did not end because anybody meant it."""
    assert {"completed", "stopped", "cancelled"} | FAILED_STATES == ENDED_STATES and not FAILED_STATES & (
        SUCCESSFUL_STATES | {"cancelled"}
    )
    assert "preempted" in FAILED_STATES
    assert FAILED_STATES | {"cancelled"} == ENDED_STATES - SUCCESSFUL_STATES


def test_only_what_cannot_return_by_itself_is_cleaned_up() -> None:
    assert {"preempted", "lost"} == ENDED_STATES - FINAL_STATES


def test_slurms_words_and_the_causes_of_a_failure_come_from_the_table() -> None:
    assert set(SLURM_ACTIVE_STATES.values()) <= ACTIVE_STATES and set(SLURM_ENDED_STATES.values()) <= ENDED_STATES
    assert set(CAUSES) == FAILED_STATES | {"cuda_oom", "bad_result"}
    assert set(get_args(StepRetryCause)) < set(CAUSES)


def test_failed_is_every_failed_state_and_old_words_are_refused() -> None:
    assert parse_states("failed") == FAILED_STATES and parse_states("active,ended") == ACTIVE_STATES | ENDED_STATES
    assert parse_causes("oom,cuda_oom") == frozenset(("oom", "cuda_oom"))
    for word in ("done", "queued", "stuck", "live", "bad"):
        with pytest.raises(InputError, match=f"unknown state '{word}'"):
            parse_states(word)
    with pytest.raises(InputError, match="unknown cause 'cancelled'"):
        parse_causes("cancelled")


@pytest.mark.parametrize("state", RUN_STATES)
def test_failed_runs_and_no_others_look_failed(state: str) -> None:
    is_marked = (state_code(state), state_word(state)[-2:]) == ("31", " x")
    assert is_marked == (state in FAILED_STATES)
    rule = re.search(r"([^{}]*)\{color:var\(--bad\)\}\.unknown", (STATIC / "style.css").read_text("utf-8"))
    assert rule is not None and (f".{state}" in rule[1].strip().split(",")) == (state in FAILED_STATES)


def test_no_module_has_a_set_of_states_of_its_own() -> None:
    """Four sets of "failed" disagreed about preempted and cancelled. A mapping from states may be anywhere."""
    found = []
    for path in sorted(set(SRC.rglob("*.py")) - {TABLE}):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Set | ast.Tuple | ast.List) and _is_set_of_states(node.elts):
                found.append(f"{path.relative_to(SRC)}:{node.lineno} {ast.unparse(node)}")
    assert found == [], "derive it from STATE_TABLE of shoal/model.py"


def _is_set_of_states(elements: list[ast.expr]) -> bool:
    words = [element.value for element in elements if isinstance(element, ast.Constant)]
    return len(words) > 1 and len(words) == len(elements) and all(word in STATE_TABLE for word in words)


def test_the_page_has_no_set_of_states_either() -> None:
    """Its order of all states is no set; which of them are failures is told by the server."""
    for path in STATIC.glob("*.js"):
        for match in re.finditer(r"\[([^\[\]]*)\]", path.read_text("utf-8")):
            words = re.findall(r'"(\w+)"', match[1])
            if len(words) > 1 and all(word in STATE_TABLE for word in words):
                assert sorted(words) == sorted(RUN_STATES), f"{path.name}: {match[0]}"
