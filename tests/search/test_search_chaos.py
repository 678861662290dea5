"""The judge of `make search-chaos` sees two programs of one trial that ran at the same time."""

from __future__ import annotations

import pytest

from search_chaos import _overlap


@pytest.mark.parametrize(
    ("starts", "ends", "is_overlap"),
    [
        ([0, 5], [3, 8], False),
        ([0, 5], [8], False),
        ([0, 1], [3, 4], True),
        ([0, 1, 9], [2, 3, 10], True),
        ([], [], False),
    ],
)
def test_overlapping_programs_are_seen(starts: list[float], ends: list[float], is_overlap: bool) -> None:
    assert _overlap([{"t": t} for t in starts], [{"t": t} for t in ends]) is is_overlap
