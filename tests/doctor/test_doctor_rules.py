"""Each rule finds what it is for, leaves alone what is right, and words it as all findings are worded."""

from __future__ import annotations

import ast
import re
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


def test_a_fix_for_torchrun_over_nodes_names_no_variable_that_the_script_lacks(tmp_path: Path) -> None:
    for words in ("", "--nnodes=2 "):
        case = Case("--nodes=2\n--gpus-per-node=4", f"srun torchrun {words}--nproc-per-node=4 train.py\n")
        fixes = [one.fix for one in findings_of(case, tmp_path) if one.code in ("G10", "G24")]
        assert fixes
        for fix in fixes:
            names = re.findall(r"\$\{?([A-Za-z_]\w*)", fix)
            assert names and all(name.startswith("SLURM_") for name in names), fix


def test_a_finding_has_a_severity_that_its_rule_declares(tmp_path: Path) -> None:
    for pair in PAIRS:
        for finding in findings_of(pair.bad, tmp_path):
            assert finding.severity in RULES[finding.code].severities.split(" or "), finding
        (tmp_path / "train.py").unlink(missing_ok=True)


def test_rules_declare_every_severity_in_their_source_and_only_lower_ones() -> None:
    order = ("error", "warning", "hint")
    written = {code: names for path in RULE_FILES for code, names in _written_severities(path).items()}
    assert set(written) == set(RULES)
    for code, names in written.items():
        assert set(RULES[code].lower) == names - {RULES[code].severity}, code
        assert all(order.index(name) > order.index(RULES[code].severity) for name in RULES[code].lower), code


RULE_FILES = [path for path in Path(rules.__file__).parent.glob("*.py") if path.name != "__init__.py"]


def _written_severities(path: Path) -> dict[str, set[str]]:
    """For each rule of a module, the severities that its function and the helpers it calls give to RuleHit."""
    functions = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}

    def constants(node: ast.AST) -> set[str]:
        found = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        return found & {"error", "warning", "hint"}

    def severities(name: str, seen: set[str]) -> set[str]:
        if name in seen or name not in functions:
            return set()
        seen.add(name)
        found: set[str] = set()
        for node in ast.walk(functions[name]):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id != "RuleHit":
                found |= severities(node.func.id, seen)
            given = node.args[4:5] + [word.value for word in node.keywords if word.arg == "severity"]
            for value in given if node.func.id == "RuleHit" else ():
                names = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
                assigned = [
                    one.value
                    for one in ast.walk(functions[name])
                    if isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None
                    for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
                    if isinstance(target, ast.Name) and target.id in names
                ]
                found |= constants(value).union(*(constants(one) for one in assigned))
        return found

    rules_of_module: dict[str, set[str]] = {}
    for name, node in functions.items():
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") in ("rule", "text_rule"):
                code = decorator.args[0]
                assert isinstance(code, ast.Constant)
                rules_of_module[str(code.value)] = severities(name, set())
    return rules_of_module


def test_folders_and_suffixes_choose_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("#!/bin/bash\n")
    (tmp_path / "b.py").write_text("print()\n")
    (tmp_path / "c").write_text("#!/bin/bash\n#SBATCH --time=1\n")
    (tmp_path / "a.fixed.sh").write_text("#!/bin/bash\n")
    assert [path.name for path in find_files([tmp_path])] == ["a.sh", "c"]
