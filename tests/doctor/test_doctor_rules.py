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


def _codes(header: str, body: str, folder: Path, program: str | None = None) -> dict[str, str]:
    """The worst severity of each code."""
    found: dict[str, str] = {}
    for finding in findings_of(Case(header, body, program), folder):
        found.setdefault(finding.code, finding.severity)
    return found


NODES = "--nodes=2\n--gpus-per-node=4\n--cpus-per-task=8\n--ntasks-per-node=1"


ONE_OF_FOUR = "--nodes=1\n--ntasks=1\n--ntasks-per-node=4\n--gres=gpu:4\n--cpus-per-task=8"


@pytest.mark.parametrize(
    ("code", "header", "body", "severity"),
    [
        ("S17", "--gres=gpu:1", "python fit.py --fold $SLURM_ARRAY_TASK_ID\n", "warning"),
        ("S17", "--gres=gpu:1", "LR=${RATES[$SLURM_ARRAY_TASK_ID]}\npython fit.py --lr $LR\n", "warning"),
        ("N03", NODES, "srun bash -c 'torchrun --nnodes=2 --rdzv_endpoint=$HOSTNAME:29400 fit.py'\n", "error"),
        ("S07", "--gres=gpu:1", "conda init bash\nconda activate vision\npython fit.py\n", "error"),
        ("G14", "--partition=bigpu\n--mem=40G", "python train_unet.py\n", "warning"),
        ("X01", "--gres=gpu:2", "CUDA_VISIBLE_DEVICES=1 python fit.py\n", "warning"),
        ("G13", "--ntasks-per-node=4\n--nodes=1\n--gres=gpu:4", "python fit.py\n", "warning"),
        ("S01", "--gres=gpu:1", "srun python fit.py || true\n", "warning"),
        ("S02", "--gres=gpu:1", 'set -eo pipefail\nsrun bash -c "python fit.py 2>&1 | tee fit.log"\n', "warning"),
        ("G09", "--gres=gpu:2\n--nodes=1", "N=4\nN=${N:-2}\ntorchrun --nproc-per-node=$N fit.py\n", "error"),
        ("G03", "--nodes=1\n--ntasks=1\n--ntasks-per-node=4\n--gres=gpu:4", "srun python fit.py\n", "error"),
    ],
)
def test_a_mistake_that_public_scripts_have_is_found(
    code: str, header: str, body: str, severity: str, tmp_path: Path
) -> None:
    assert _codes(header, body, tmp_path).get(code) == severity


@pytest.mark.parametrize(
    ("code", "header", "body"),
    [
        ("S17", "--gres=gpu:1", "# sbatch --array=0-4 job.sh\npython fit.py --fold $SLURM_ARRAY_TASK_ID\n"),
        ("S17", "--gres=gpu:1", "python fit.py --fold ${SLURM_ARRAY_TASK_ID:-0}\n"),
        ("S17", "--gres=gpu:1", 'if [ -n "$SLURM_ARRAY_TASK_ID" ]; then F=$SLURM_ARRAY_TASK_ID; fi\npython fit.py\n'),
        ("S17", "--gres=gpu:1\n--array=0-4", "python fit.py --fold $SLURM_ARRAY_TASK_ID\n"),
        ("S17", "--gres=gpu:1", "echo task $SLURM_ARRAY_TASK_ID\npython fit.py\n"),
        ("N03", NODES, 'srun bash -c "torchrun --nnodes=2 --rdzv_endpoint=$HOSTNAME:29400 fit.py"\n'),
        ("N03", NODES, "srun bash -c 'torchrun --standalone --nnodes=1 --rdzv_endpoint=$HOSTNAME:0 fit.py'\n"),
        ("N11", NODES, "for h in $HOSTS; do ip=$(ssh $h cat /etc/hostname); done\nsrun python fit.py\n"),
        ("N01", "--gres=gpu:1\n--nodes=1", "accelerate launch --main_process_port 12345 fit.py\n"),
        ("S01", "--gres=gpu:1", "srun bash -c 'find /dev/shm -user me -delete' || true\nexec srun python fit.py\n"),
        ("S07", "--gres=gpu:1", "conda init bash\nsource ~/.bashrc\nconda activate vision\npython fit.py\n"),
        ("G14", "--partition=bigpu\n--mem=40G", "python collect_tables.py\n"),
        ("G13", "--ntasks-per-node=4\n--nodes=1\n--gres=gpu:1", "python fit.py\n"),
        ("S02", "--gres=gpu:1", 'srun bash -c "set -o pipefail; python fit.py 2>&1 | tee fit.log"\n'),
        ("G09", "--gres=gpu:2\n--nodes=1", "N=$(count)\nN=${N:-4}\ntorchrun --nproc-per-node=$N fit.py\n"),
        ("G03", ONE_OF_FOUR, "srun torchrun --nproc-per-node=4 fit.py\n"),
        ("G07", ONE_OF_FOUR, "srun torchrun --nproc-per-node=4 fit.py\n"),
        ("D26", "--output=a.log\n--output=logs/b.log", "python fit.py\n"),
        ("X01", "--gres=gpu:2", "CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=1 python b.py &\nwait\n"),
    ],
)
def test_what_public_scripts_do_rightly_is_neither_error_nor_warning(
    code: str, header: str, body: str, tmp_path: Path
) -> None:
    assert _codes(header, body, tmp_path).get(code) in (None, "hint")
