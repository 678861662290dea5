"""An attempt is one file whose name is its state: created, renewed, ended and closed by exactly one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disks import fill, small_disk
from made_up import END, START
from shoal.kernel import layout, lease
from shoal.kernel.records import encode_record
from shoal.observe import run_files

TIMES = lease.timing({})


def begin(folder: Path, number: int = 1) -> lease.Lease:
    held = lease.create_lease(str(folder), number, START._replace(attempt=number), TIMES)
    assert held is not None
    return held


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def read(folder: Path, number: int = 1) -> lease.AttemptRecord:
    found = lease.read_attempt(str(folder), layout.parse_names(os.listdir(folder)), number)
    assert found is not None
    return found


def test_a_lease_is_renewed_and_ended_by_changing_its_name(tmp_path: Path) -> None:
    held = begin(tmp_path)
    assert names(tmp_path) == ["attempt.1.live.000000", "attempt.1.start"]
    assert (held.renew(), held.renew()) == ("held", "held")
    assert names(tmp_path) == ["attempt.1.live.000002", "attempt.1.start"]
    assert (read(tmp_path).state, read(tmp_path).end) == ("live", None)
    assert held.end(END) and held.is_over
    assert names(tmp_path) == ["attempt.1.end", "attempt.1.start"]
    assert (read(tmp_path).state, read(tmp_path).end) == ("end", END)
    assert (tmp_path / "attempt.1.end").stat().st_size < 1000, "the room that was not needed is given back"
    assert held.renew() == "over" and held.end(END)


def test_of_many_who_begin_an_attempt_one_does(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda number: lease.create_lease(str(tmp_path), 1, START, TIMES), range(16)))
    assert sum(one is not None for one in held) == 1
    assert names(tmp_path) == ["attempt.1.live.000000", "attempt.1.start"]


def test_a_number_that_was_used_is_not_used_again_though_a_listing_missed_it(tmp_path: Path) -> None:
    held = begin(tmp_path)
    held.renew()
    assert lease.create_lease(str(tmp_path), 1, START, TIMES) is None
    assert names(tmp_path) == ["attempt.1.live.000001", "attempt.1.start"], "nothing of the second is left"


def test_a_closed_lease_is_neither_renewed_nor_ended(tmp_path: Path) -> None:
    held = begin(tmp_path)
    held.renew()
    assert not lease.close_lease(str(tmp_path), 1, 0), "whoever saw an old name closes nothing"
    assert lease.close_lease(str(tmp_path), 1, 1) and not lease.close_lease(str(tmp_path), 1, 1)
    assert held.renew() == "lost" and not held.end(END)
    found = read(tmp_path)
    assert (found.state, found.end and found.end.stopped_by) == ("lost", "lost")
    assert found.end and (found.end.ended, found.end.success) == (120.0, False), "it lived until its last renewal"
    end = run_files.read_end(str(tmp_path), layout.parse_names(os.listdir(tmp_path)), 1)
    assert end is not None and (end.stopped_by, end.output_dir) == ("lost", "/o")


def test_a_renewal_whose_answer_was_lost_counts(tmp_path: Path) -> None:
    held = begin(tmp_path)
    os.rename(tmp_path / "attempt.1.live.000000", tmp_path / "attempt.1.live.000001")
    assert held.renew() == "held" and names(tmp_path) == ["attempt.1.live.000002", "attempt.1.start"]


def test_a_folder_that_was_removed_ends_the_lease(tmp_path: Path) -> None:
    held = begin(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    assert held.renew() == "lost"


def test_last_words_are_kept_for_whoever_closes_the_lease(tmp_path: Path) -> None:
    held = begin(tmp_path)
    held.note({"stopping": "SIGTERM"})
    lease.close_lease(str(tmp_path), 1, 0)
    assert (read(tmp_path).last_words or {}).get("stopping") == "SIGTERM"


def test_an_end_is_written_over_longer_last_words(tmp_path: Path) -> None:
    held = begin(tmp_path)
    held.note({"stopping": "x" * 4000})
    assert held.end(END) and read(tmp_path).end == END


def test_a_full_disk_stops_neither_renewals_nor_the_end(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = disk / "run"
        folder.mkdir()
        held = begin(folder)
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (disk / "more").write_bytes(b"x" * 8192)
        assert {held.renew() for _ in range(50)} == {"held"}
        held.note({"stopping": "limit"})
        assert held.end(END._replace(problem="x" * 2000))
        assert read(folder).end == END._replace(problem="x" * 2000)
        with pytest.raises(OSError, match="No space left"):
            lease.create_lease(str(folder), 2, START._replace(resume_from="x" * 9000), TIMES)
        assert names(folder) == ["attempt.1.end", "attempt.1.start"], "an attempt that found no room has not begun"


def test_a_damaged_attempt_is_told_by_its_name(tmp_path: Path) -> None:
    begin(tmp_path).end(END)
    (tmp_path / "attempt.1.start").write_text("{")
    with pytest.raises(ValueError, match=r"attempt\.1\.start is damaged"):
        read(tmp_path)
    (tmp_path / "attempt.1.start").write_bytes(encode_record(START))
    with pytest.raises(ValueError, match="the record of its end is not there"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("listing", "state"),
    [
        (["attempt.1.start"], "live"),
        (["attempt.1.start", "attempt.1.live.000003", "attempt.1.live.000004"], "live"),
        (["attempt.1.start", "attempt.1.live.000003", "attempt.1.end"], "end"),
        (["attempt.1.live.000003", "attempt.1.lost.000003"], "lost"),
    ],
)
def test_a_listing_made_during_a_rename_says_live_or_over(listing: list[str], state: str) -> None:
    found = layout.parse_names(listing)
    assert (found.attempt, found.state(1)) == (1, state)
