"""Durations and memory: what people write, and the one spelling that every Slurm reads the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InputError
from shoal.units import (
    format_memory,
    format_slurm_time,
    natural_sort_key,
    parse_duration_s,
    parse_memory_mb,
    parse_slurm_time_s,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("2h30m", 9000),
        ("3d", 259200),
        ("1-12:00:00", 129600),
        ("1-6", 108000),
        ("00:20:00", 1200),
        ("45s", 45),
    ],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "0", "0s", "UNLIMITED", "25:61:00", "5:30", "-1h", "1h30", "1e3s", "٣h", "9999999d"]
)
def test_what_is_no_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_duration_s(text, place="here")
    assert caught.value.hint and caught.value.message.startswith("here: ")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24", 1440), ("1:30", 90), ("1-0", 86400), ("3-00:00:00", 259200), ("UNLIMITED", None), ("-1", None)],
)
def test_time_of_an_sbatch_flag_is_read_as_slurm_reads_it(text: str, seconds: int | None) -> None:
    assert parse_slurm_time_s(text) == seconds


@given(st.integers(1, 10 * 365 * 86400))
def test_a_printed_time_is_read_back(seconds: int) -> None:
    assert parse_duration_s(format_slurm_time(seconds)) == parse_slurm_time_s(format_slurm_time(seconds)) == seconds


@given(st.integers(1, 1 << 30))
def test_printed_memory_is_read_back(size_mb: int) -> None:
    assert parse_memory_mb(format_memory(size_mb)) == size_mb


@pytest.mark.parametrize(
    ("text", "size_mb"), [("64G", 65536), ("1.5T", 1572864), ("500M", 500), ("64GB", 65536), ("64 GiB", 65536)]
)
def test_memory_is_read(text: str, size_mb: int) -> None:
    assert parse_memory_mb(text) == size_mb


@pytest.mark.parametrize("text", ["", "12", "0G", "-1G", "G", "1e309G", "nanG", "1_000M", "12Q"])
def test_what_is_no_memory_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_memory_mb(text)
    assert caught.value.hint


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_an_input_error(text: str) -> None:
    for parse in (parse_duration_s, parse_slurm_time_s, parse_memory_mb):
        try:
            value = parse(text)
        except InputError:
            continue
        assert value is None or value > 0


@pytest.mark.parametrize(
    "ordered",
    [
        ["000_train_depth4_0", "000_train_depth12_0", "000_train_depth12_1", "000_train_depth80_0", "010_a", "1000_a"],
        ["x_lr1e-05", "x_lr0.001", "x_lr0.05", "x_lr0.1", "x_lr0.1_0", "x_lr1.5"],
        ["", "1", "a", "n2:gpu9", "n2:gpu10", "n10:gpu0"],
    ],
)
def test_numbers_in_names_are_ordered_as_numbers(ordered: list[str]) -> None:
    assert sorted(set(ordered), key=natural_sort_key) == ordered
