"""Placeholders: what is filled in, what stands for itself, and that a misspelt one never reaches a program."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project, assert_clear_error
from shoal.job.environment import escape_placeholders, fill_known_placeholders, fill_placeholders, placeholder_names

VALUES = {"lr": "0.1", "out": "{lr}"}
#: Words with braces that are no placeholders: JSON, the shell's, awk's, find's.
PLAIN = [
    '{"a": {"b": 1}}',
    '{"a":{}}',
    "${HOME}",
    "${lr}",
    'echo "${lr:-1}"',
    "{}",
    "{a,b}",
    "{1..3}",
    "{print $1}",
    "{",
    "}}",
    "{lr:.3f}",
]


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("--lr={lr}", "--lr=0.1"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{0.1}"),
        ('{"lr":{lr}}', '{"lr":0.1}'),
        ('{"a":{"lr":{lr}}}', '{"a":{"lr":0.1}}'),
        ("{{x}}", "{x}"),
        ("${{lr}}", "${lr}"),
        ("{out}", "{lr}"),
        *((word, word) for word in PLAIN),
    ],
)
def test_a_word_is_filled(word: str, filled: str) -> None:
    assert fill_placeholders(word, VALUES) == filled


_WORDS = st.lists(st.sampled_from(["{", "}", "{{", "}}", "$", "lr", "x", "out", '"', ":", " ", "a.b", "=", "$$"])).map(
    "".join
)


@given(st.one_of(_WORDS, st.text()))
def test_an_escaped_word_is_filled_to_itself_and_wants_nothing(text: str) -> None:
    [escaped] = escape_placeholders([text])
    assert fill_placeholders(escaped, VALUES) == text
    assert placeholder_names([escaped]) == []


@given(_WORDS)
def test_filling_in_two_steps_is_filling_once(word: str) -> None:
    assert fill_placeholders(fill_known_placeholders(word, {"out": VALUES["out"]}), VALUES) == fill_placeholders(
        word, VALUES
    )


TOML = """
[steps.save]
command = [PYTHON, "-S", TRAIN, "out={output_dir}", 'json={"a": {"b": 1}}', "${HOME}", "{{x}}"]
env = { TEST_OUT = "{output_dir}/tb", TEST_SEED = "s{seed}", TEST_JSON = '{"k": {}}' }
[steps.typo]
command = "python train.py --out {ouput_dir}"
[steps.route]
command = "python train.py --route {route}"
[steps.envtypo]
command = "python train.py"
env = { OUT = "{outputdir}" }
[steps.config]
command = "python train.py --config {config}"
[steps.formatted]
command = "python train.py --seed={seed:03d}"
[steps.dashed]
command = "python train.py --out {output-dir}"
[steps.unclosed]
command = "python train.py --out {output_dir"
[steps.variable]
command = "python train.py --out $SHOAL_OUTPUT_DIR"
[steps.envvariable]
command = ["bash", "-c", "python train.py"]
env = { OUT = "$SHOAL_OUTPUT_DIR/tb" }
[steps.fine]
command = ["bash", "-c", "echo got $SHOAL_OUTPUT_DIR '{lr: 1}' '{a,b}' '{lr:0.1}' '${oc.env:X}'"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    words = {"PYTHON": json.dumps(sys.executable), "TRAIN": json.dumps(f"{tmp_path}/project/train.py")}
    return Project(tmp_path, toml=TOML.replace("PYTHON", words["PYTHON"]).replace("TRAIN", words["TRAIN"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("typo", "the command has {ouput_dir}, but no parameter has this name; did you mean {output_dir}?"),
        ("route", "the command has {route}, but no parameter has this name"),
        ("train -- --out {ouput_dir}", "an argument has {ouput_dir}"),
        ("envtypo", "`env` of step 'envtypo' has {outputdir}"),
        ("formatted", "the command has '{seed:03d}', which would reach the program with its brace"),
        ("dashed", "the command has '{output-dir}'"),
        ("unclosed", "the command has '{output_dir'"),
        ("variable", "the command has $SHOAL_OUTPUT_DIR, which no shell reads"),
        ("envvariable", "`env` of step 'envvariable' has $SHOAL_OUTPUT_DIR, which no shell reads"),
        ("train -- --out '{seed!r}'", "an argument has '{seed!r}'"),
    ],
)
def test_a_placeholder_that_nothing_fills_is_refused_at_plan(project: Project, line: str, message: str) -> None:
    script = project.script("001_a/000_train_0.sh", line)
    for words in (("plan", script), ("submit", script, "--on", "local")):
        assert_clear_error(project.shoal(*words, code=None), 2, message)
    assert_clear_error(project.bash(script, code=None), 2, message)
    assert not project.home.exists() and not list((project.root / "marks").iterdir())


@pytest.mark.slow
def test_a_parameter_that_is_set_fills_it(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "train --on local -- route={route} out={output_dir}")
    project.shoal("submit", script, "--set", "route=town13,town15")
    mark = project.marks("001_a/000_train_route-town13_0")[0]
    assert mark["args"] == ["route=town13", f"out={mark['env']['SHOAL_OUTPUT_DIR']}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('args = ["--x", "{_x}"]\n[sweep]\nlr = [1]\n[derived]\n_x = "lr * 2"', "`args` has {_x}, but values whose"),
        ('env = { X = "{_x}" }\n[sweep]\nlr = [1]\n[derived]\n_x = "lr * 2"', "`env` has {_x}, but values whose"),
        ('args = ["--lr={lr}"]\n[[points]]\nlr = 1\n[[points]]\ndepth = 2', "has no value for it"),
        ('args = ["--d={dept}"]\n[sweep]\ndepth = [1]', "`args` has {dept}, but no parameter has this name; did you"),
    ],
)
def test_a_sweep_file_without_a_value_for_a_placeholder_is_refused(project: Project, lines: str, message: str) -> None:
    sweep_file = project.write("experiments/001_a/000_train.toml", f'step = "train"\n{lines}\n')
    assert_clear_error(project.shoal("plan", sweep_file, code=None), 2, message)


@pytest.mark.slow
def test_arguments_of_a_sweep_file_know_where_the_run_writes(project: Project) -> None:
    sweep_file = project.write(
        "experiments/001_a/000_train.toml",
        'step = "train"\nargs = ["out={output_dir}", "{{x}}", "lr={lr}"]\nenv = { TEST_O = "{output_dir}/x" }\n'
        '[sweep]\nlr = [0.1]\nnote = ["{question}"]\n',
    )
    project.shoal("submit", sweep_file, "--on", "local")
    mark = project.marks("001_a/000_train")[0]
    out = mark["env"]["SHOAL_OUTPUT_DIR"]
    assert mark["args"] == [f"out={out}", "{x}", "lr=0.1", "--note={question}"] and mark["env"]["TEST_O"] == f"{out}/x"


@pytest.mark.slow
@pytest.mark.parametrize("value", ["{seed}", "{lr}", "{seed:03d}", "{output-dir}/x", "a {output_dir"])
def test_a_value_with_a_placeholder_is_refused(project: Project, value: str) -> None:
    text = f'step = "train"\n[sweep]\nlr = [1]\nname = ["x", {json.dumps(value)}]\n'
    sweep_file = project.write("experiments/001_a/000_train.toml", text)
    assert_clear_error(project.shoal("plan", sweep_file, code=None), 2, repr(value), "nothing fills in a value")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "told"),
    [("{question}", True), ('{"a": 1}', False), ("${oc.env:X}", False), ("{lr: 0.1}", False), ("{{seed}}", False)],
)
def test_a_value_with_other_braces_arrives(project: Project, value: str, told: bool) -> None:
    text = f'step = "train"\n[sweep]\nlr = [1]\nname = ["x", {json.dumps(value)}]\n'
    done = project.shoal("plan", "--json", project.write("experiments/001_a/000_train.toml", text))
    assert value in [run["params"]["name"] for run in done.json["runs"]]
    text_out = done.out + done.err
    assert ("reaches the program with its braces" in text_out) == told


@pytest.mark.slow
def test_a_shell_may_read_variables_and_braces_of_its_own(project: Project) -> None:
    project.script("001_a/000_fine_0.sh", "fine --on local")
    project.shoal("submit", "experiments/001_a")
    log = project.shoal("logs", "001_a/000_fine_0").out
    assert "outputs/fine/001_a/000_fine_0" in log and "{lr: 1} {a,b} {lr:0.1} ${oc.env:X}" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('command = "python train.py --a 1 > log.txt"', "steps.x.command: no shell reads '>'"),
        ('command = "python train.py >log.txt"', "steps.x.command: no shell reads '>log.txt'"),
        ('command = "python train.py 2>&1"', "steps.x.command: no shell reads '2>&1'"),
        ('command = "python train.py | tee log"', "steps.x.command: no shell reads '|'"),
        ('command = "cd x && python train.py"', "steps.x.command: no shell reads '&&'"),
        ('command = "cd x; python train.py"', "steps.x.command: no shell reads 'x;'"),
        (
            'command = "python t.py"\ncheckpoint = "{output_dir}/model_*.pth"',
            "steps.x.checkpoint: 'output_dir' is not filled in",
        ),
        (
            'command = "python t.py"\ncheckpoint = "$SHOAL_OUTPUT_DIR/*.pth"',
            "checkpoint: '$SHOAL_OUTPUT_DIR' is not filled in",
        ),
    ],
)
def test_what_only_a_shell_understands_is_refused_in_a_command(tmp_path: Path, line: str, message: str) -> None:
    project = Project(tmp_path, toml=f"[steps.x]\n{line}\n")
    assert_clear_error(project.shoal("plan", project.script("001_a/000_x_0.sh", "x"), code=None), 2, message)


@pytest.mark.slow
def test_quoted_operators_and_special_tokens_are_words(tmp_path: Path) -> None:
    words = "'>' '|' <pad> a>b 'x;' \"a && b\" http://x/?a=1&b=2"
    project = Project(tmp_path, toml=f"[steps.x]\ncommand = {json.dumps(f'python t.py {words}')}\n")
    assert project.shoal("plan", project.script("001_a/000_x_0.sh", "x"))


@pytest.mark.slow
def test_the_environment_of_a_step_is_filled_and_plain_braces_arrive(project: Project) -> None:
    exported = "{question} ${x} {{y}}"
    project.script("001_a/000_save_3.sh", f"export TEST_PROMPT={shlex.quote(exported)}", "save --on local")
    project.shoal("submit", "experiments/001_a")
    mark = project.marks("001_a/000_save_3")[0]
    env = mark["env"]
    assert mark["args"] == [f"out={env['SHOAL_OUTPUT_DIR']}", 'json={"a": {"b": 1}}', "${HOME}", "{x}"]
    assert env["TEST_OUT"] == f"{env['SHOAL_OUTPUT_DIR']}/tb" and env["TEST_SEED"] == "s3"
    assert env["TEST_JSON"] == '{"k": {}}' and env["TEST_PROMPT"] == exported


@pytest.mark.slow
def test_commands_of_a_file_keep_their_braces(project: Project) -> None:
    train = f"{sys.executable} -S {project.root}/train.py"
    commands = project.write("jobs.txt", f"{train} '{{x}}' '{{\"a\": {{}}}}'\n{train} ${{TEST_NOT_SET}}b '{{{{y}}}}'\n")
    project.shoal("pack", "--slots", "1", commands)
    marks = [json.loads(path.read_text().splitlines()[0]) for path in (project.root / "marks").iterdir()]
    assert sorted(mark["args"] for mark in marks) == [["b", "{{y}}"], ["{x}", '{"a": {}}']]


@pytest.mark.slow
def test_a_plain_batch_script_has_no_placeholders(project: Project) -> None:
    refused = project.shoal("generate", "--step", "config", code=None)
    assert_clear_error(refused, 2, "the command has {config}, which nothing fills in a plain batch script")
    assert_clear_error(project.shoal("generate", "--step", "save", code=None), 2, "{output_dir}")
    script = project.shoal("generate", "--step", "config", "--command", "python t.py {{x}} '{\"a\":{}}'").out
    assert "python t.py '{x}' '{\"a\":{}}'" in script


@pytest.mark.slow
def test_a_script_cannot_pass_what_only_its_run_has(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "train -- --out $SHOAL_OUTPUT_DIR/x")
    for done in (
        project.shoal("plan", script, code=2),
        project.shoal("submit", script, code=2),
        project.bash(script, code=2),
    ):
        assert f"{script}:2 passes $SHOAL_OUTPUT_DIR to a step" in done.err and "write {output_dir}" in done.err
    assert not project.home.exists() and not list((project.root / "marks").iterdir())
