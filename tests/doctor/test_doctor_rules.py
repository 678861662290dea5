"""Each rule finds what it is for, leaves alone what is right, and words it as all findings are worded."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor_pairs import PAIRS, Case, Pair
from shoal.batch.directives import decode_text
from shoal.doctor import rules
from shoal.doctor.check import find_files
from shoal.doctor.finding import RULES, CheckFacts, Finding, apply_rules
from shoal.doctor.script import read_batch_script

rules.load_rules()


class FakeFiles:
    def __init__(self, case: Case) -> None:
        self.case = case

    def folder_exists(self, path: str) -> bool | None:
        return path in self.case.folders

    def text(self, path: str) -> str | None:
        return self.case.files.get(path)


def findings_of(case: Case, folder: Path) -> list[Finding]:
    if case.program is not None:
        (folder / "train.py").write_text(case.program)
    script = read_batch_script(decode_text(case.data), str(folder / "job.sh"))
    return apply_rules(CheckFacts(script, FakeFiles(case), case.cluster, case.refusal, case.nearest, *case.inputs))


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.code for pair in PAIRS])
def test_a_rule_finds_the_bad_script_and_leaves_the_good_one_alone(pair: Pair, tmp_path: Path) -> None:
    bad = [finding for finding in findings_of(pair.bad, _folder(tmp_path / "bad")) if finding.code == pair.code]
    good = [finding for finding in findings_of(pair.good, _folder(tmp_path / "good")) if finding.code == pair.code]
    assert bad, f"{pair.code} finds nothing in its bad script"
    assert not good, f"{pair.code} objects to its good script: {good}"


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_every_rule_has_a_pair() -> None:
    assert {pair.code for pair in PAIRS} == set(RULES)
    assert len(RULES) >= 40


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.code for pair in PAIRS])
def test_a_finding_is_one_sentence_with_a_place_an_effect_and_a_fix(pair: Pair, tmp_path: Path) -> None:
    for finding in findings_of(pair.bad, tmp_path):
        lines = max(1, len(decode_text(pair.bad.data).lines))
        assert 1 <= finding.line <= lines
        for text in (finding.message, finding.effect, finding.fix):
            assert text and "\n" not in text and (text.endswith("...") or not text.endswith("."))
        assert finding.severity in ("error", "warning", "hint")
        assert finding.title


def test_a_rule_may_lower_its_severity_but_never_raise_a_hint_to_an_error(tmp_path: Path) -> None:
    order = ("error", "warning", "hint")
    for pair in PAIRS:
        for finding in findings_of(pair.bad, tmp_path):
            registered = RULES[finding.code].severity
            assert order.index(finding.severity) >= order.index(registered) or finding.code == "D31", finding
        (tmp_path / "train.py").unlink(missing_ok=True)


def test_folders_and_suffixes_choose_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n")
    (tmp_path / "b.py").write_text("print()\n")
    (tmp_path / "c").write_text("#!/bin/bash\n#SBATCH --time=1\n")
    (tmp_path / "a.fixed.sh").write_text("#!/bin/bash\n")
    assert [path.name for path in find_files([tmp_path])] == ["a.sh", "c"]
