"""The table of docs/compatibility.md: counts from pytest's report, one row for each release and selection of tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurms import CORE, PAGE, ROOT, TABLE_HEAD, Counts, read_counts, replace_row, table_row

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one"/>
<testcase classname="tests.a" name="test_two"><failure message="x"/></testcase>
<testcase classname="tests.a" name="test_three"><error message="at teardown"/></testcase>
<testcase classname="tests.a" name="test_three"/>
<testcase classname="tests.a" name="test_four"><skipped/></testcase>
</testsuite></testsuites>"""


def test_counts_are_those_of_the_report_and_an_error_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert read_counts(tmp_path / "report.xml") == Counts(2, ("tests.a::test_two", "tests.a::test_three"), 1)


def test_a_row_replaces_the_one_of_the_same_release_and_tests_and_no_other() -> None:
    page = "\n".join(["# Title", *TABLE_HEAD, "", "Text."]) + "\n"
    rows = [
        table_row("24.11.5", "2026-01-01", "a", "core", Counts(1, ("x",), 0), 1),
        table_row("24.11.5", "2026-01-01", "a", "all", Counts(2, (), 0), 1),
        table_row("24.11.6", "2026-01-02", "b", "core", Counts(3, (), 1), 2),
    ]
    for row in rows:
        page = replace_row(page, row)
    assert page.splitlines()[3:5] == [rows[1], rows[2]]
    assert page.endswith("|\n\nText.\n")


@pytest.mark.parametrize("path", CORE)
def test_the_core_names_tests_that_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_page_has_the_table() -> None:
    assert all(line in PAGE.read_text().splitlines() for line in TABLE_HEAD)
