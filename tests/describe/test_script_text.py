"""What the text of a script proves: that a seed is only passed on, and that no step follows a modifier."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.batch.shell_commands import parse_shell
from shoal.describe.script_text import ScriptFile, only_passes_seed, run_variables, unused_modifiers


def passes(body: str) -> bool:
    text = f'source "$(shoal shell)"\n{body}\n'
    return only_passes_seed([ScriptFile(Path("x.sh"), text, parse_shell(text), True)], {"train", "posttrain"})


@pytest.mark.parametrize(
    "body",
    [
        "train",
        "train -- --seed $SHOAL_SEED",
        'export SEED=$SHOAL_SEED\ntrain -- "a/${SEED}"',
        "X=a_$SHOAL_SEED\nY=$X\ntrain -- $Y",
        "posttrain 000_a_$SHOAL_SEED\ntrain --time=3",
        "if [ -d data ]; then train -- --seed $SHOAL_SEED; fi",
    ],
)
def test_the_text_proves_that_a_seed_is_passed_on(body: str) -> None:
    assert passes(body)


@pytest.mark.parametrize(
    "body",
    [
        "train -- $((SHOAL_SEED % 3))",
        "case $SHOAL_SEED in 0) D=1;; esac; train -- $D",
        "if ((SHOAL_SEED)); then train; fi",
        "X=$SHOAL_SEED\n[ $X = 1 ] && train",
        "X+=$SHOAL_SEED; [ $X = 1 ] && train",
        "X[0]=$SHOAL_SEED; train",
        "declare -i Y=$SHOAL_SEED; train -- $Y",
        "D=$(python x); train -- $D",
        "for d in `python x`; do train -- $d; done",
        "python x.py; train",
        "source y.sh; train",
        "eval x; train",
        "train -- part_$SHOAL_SEED*",
        "train -- {1..$SHOAL_SEED}",
        "train -- ${A[$SHOAL_SEED]}",
        "train -- ${SHOAL_SEED:-1}",
        "train > log_$SHOAL_SEED",
        "train <<EOF\n$SHOAL_SEED\nEOF",
        "for i in $SHOAL_SEED; do train -- $i; done",
        "f() { train -- $1; }; f $SHOAL_SEED",
        "X=SHOAL_SEED; train -- ${!X}",
        "train -- $RANDOM",
    ],
)
def test_in_doubt_a_script_is_read_for_each_seed(body: str) -> None:
    assert not passes(body)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("resume a", [1]),
        ("resume a\ntrain", []),
        ("train\nresume a", [2]),
        ("resume a\ntrap 'echo bye' EXIT", [1]),
        ("resume a\nexec true", [1]),
        ("resume a\nresume b", [1, 2]),
        ("for r in a b; do\n  resume $r\ndone", [2]),
        ("for r in a b; do\n  train\n  resume $r\ndone", []),
        ("go() { train; }\nresume a\ngo", []),
        ("go() { train; }\nrun() { go; }\nresume a\nrun", []),
        ("go() { echo; }\nresume a\ngo", [2]),
        ("resume a\nsource rest.sh", []),
        ("resume a\ncat <<EOF\ntrain\nEOF", [1]),
    ],
)
def test_a_modifier_with_no_step_behind_it_is_found(body: str, lines: list[int]) -> None:
    assert unused_modifiers(body, {"resume", "posttrain"}, {"train"}) == lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("train -- --out $SHOAL_OUTPUT_DIR", {"SHOAL_OUTPUT_DIR": 1}),
        ('train -- --out "${SHOAL_OUTPUT_DIR}/x"', {"SHOAL_OUTPUT_DIR": 1}),
        ("train -- --out ${SHOAL_OUTPUT_DIR:-out}", {}),
        ("train -- --out '$SHOAL_OUTPUT_DIR'", {}),
        ("train -- --seed $SHOAL_SEED", {}),
        ("echo $SHOAL_OUTPUT_DIR", {}),
    ],
)
def test_variables_that_only_a_run_has_are_found_in_calls_of_steps(line: str, found: dict[str, int]) -> None:
    assert run_variables(line, {"train"}) == found
