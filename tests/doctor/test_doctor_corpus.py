"""Realistic scripts, good and bad, each with exactly the findings that stand in tests/corpus/expected.toml.

A deliberate change of the rules is accepted with: SHOAL_ACCEPT=1 pytest tests/doctor/test_doctor_corpus.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tomli

from shoal.batch.directives import read_text
from shoal.doctor.check import DiskFiles, check_script, find_files
from shoal.doctor.finding import Finding

CORPUS = Path(__file__).parents[1] / "corpus"
EXPECTED = CORPUS / "expected.toml"


class CorpusFiles(DiskFiles):
    """As if the folder logs/ were there: an empty folder cannot be kept in a repository."""

    def folder_exists(self, path: str) -> bool | None:
        return path == "logs" or super().folder_exists(path)


def scripts() -> list[Path]:
    return find_files([CORPUS / "good", CORPUS / "bad"])


def findings_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.chdir(CORPUS)
    return check_script(read_text(path), path, None, {}, files=CorpusFiles(path, CORPUS)).findings


def words(findings: list[Finding]) -> list[str]:
    return [f"{finding.severity} {finding.code} line {finding.line}" for finding in findings]


def test_the_corpus_is_large_enough_and_every_script_is_described() -> None:
    names = {str(path.relative_to(CORPUS)) for path in scripts()}
    assert len(names) >= 60
    if "SHOAL_ACCEPT" not in os.environ:
        assert names == set(tomli.loads(EXPECTED.read_text()))


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_a_script_has_the_findings_that_are_expected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = words(findings_of(path, monkeypatch))
    name = str(path.relative_to(CORPUS))
    if "SHOAL_ACCEPT" in os.environ:
        known = tomli.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
        known[name] = found
        lines = [f"{json.dumps(key)} = {json.dumps(known[key], indent=2)}" for key in sorted(known)]
        EXPECTED.write_text("\n".join(lines) + "\n")
    assert found == tomli.loads(EXPECTED.read_text())[name], "accept with SHOAL_ACCEPT=1"


@pytest.mark.parametrize("path", find_files([CORPUS / "good"]), ids=lambda path: path.stem)
def test_a_good_script_has_neither_errors_nor_warnings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one for one in findings_of(path, monkeypatch) if one.severity != "hint"] == []


@pytest.mark.parametrize("path", find_files([CORPUS / "bad"]), ids=lambda path: path.stem)
def test_a_bad_script_does_not_pass_unseen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings_of(path, monkeypatch)
