"""What a sweep varies reaches the program: arguments that end at a shell are refused, unread values are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from project import Project, assert_clear_error

pytestmark = pytest.mark.slow

SWEEP = 'step = "{step}"\n[sweep]\nlr = [0.001, 0.01]\n'


def sweep_file(project: Project, step: str, more: str = "") -> Path:
    return project.write("experiments/001_a/000_x.toml", SWEEP.format(step=step) + more)


def with_command(tmp_path: Path, command: list[str], more: str = "") -> Project:
    return Project(tmp_path, toml=f"[steps.x]\ncommand = {json.dumps(command)}\n{more}")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["bash", "-c", "python train.py --lr 1e-3"], "does not use its arguments"),
        (["bash", "-lc", "python train.py", "bash"], "does not use its arguments"),
        (["/bin/sh", "-e", "-c", "python train.py"], "does not use its arguments"),
        (["bash", "-o", "pipefail", "-c", "python train.py | tee log"], "does not use its arguments"),
        (["env", "A=1", "bash", "-c", "source env.sh && python train.py"], "does not use its arguments"),
        (["bash", "-c", 'python train.py "$@"'], "it is $0 of the script of its `bash -c`"),
        (["bash", "-c", "python train.py --lr 1e-3", "{lr}"], "does not use its arguments"),
        (["bash", "job.sh"], "its script job.sh does not use its arguments"),
        (["./job.sh"], "its script ./job.sh does not use its arguments"),
    ],
)
def test_swept_values_that_end_at_a_shell_are_refused(tmp_path: Path, command: list[str], message: str) -> None:
    project = with_command(tmp_path, command)
    project.write("job.sh", "#!/bin/bash\npython train.py --lr 1e-3\n").chmod(0o755)
    for words in (("plan",), ("submit", "--on", "local")):
        refused = project.shoal(*words, sweep_file(project, "x"), code=None)
        assert_clear_error(refused, 2, "does not reach the program of 001_a/000_x_lr0.001", message)
    assert project.status() == {}


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", 'echo got "$@"', "bash"],
        ["bash", "-c", "echo got $1", "bash"],
        ["bash", "-c", 'set -- "$0" "$@"; echo got "$@"'],
        ["bash", "-c", "echo got --lr={lr}"],
        ["bash", "-c", "echo got $SHOAL_PARAMS"],
        ["bash", "job.sh"],
        ["./job.sh"],
        ["env", "A=1", "sh", "job.sh"],
    ],
)
def test_swept_values_that_a_shell_passes_on_reach_the_program(tmp_path: Path, command: list[str]) -> None:
    project = with_command(tmp_path, command)
    project.write("job.sh", '#!/bin/bash\nexec echo got "$@"\n').chmod(0o755)
    done = project.shoal("submit", "--on", "local", sweep_file(project, "x"))
    assert "does not use" not in done.err
    for lr in ("0.001", "0.01"):
        line = next(line for line in project.shoal("logs", f"000_x_lr{lr}").out.splitlines() if "got" in line)
        assert line.rstrip("}").endswith(f"{lr}")


@pytest.mark.parametrize(
    "text",
    [
        'log() { echo "[job] $@"; }\nlog start\npython train.py\n',
        "awk '{print $1}' list\npython train.py\n",
        '# passes "$@" on\npython train.py\n',
        "cat <<'EOF'\n$@\nEOF\npython train.py\n",
        'echo "arguments: $@"\npython train.py\n',
        "last=\"$(awk '{print $1}' list)\"\npython train.py\n",
        'each() {\n  for one in "$@"; do\n    echo $one\n  done\n}\npython train.py\n',
    ],
)
def test_arguments_that_a_shell_only_mentions_are_told(tmp_path: Path, text: str) -> None:
    project = with_command(tmp_path, ["bash", "job.sh"])
    project.write("job.sh", text)
    done = project.shoal("plan", sweep_file(project, "x"))
    assert "job.sh uses its arguments only in comments, quotes, functions and what it prints" in done.out + done.err


@pytest.mark.parametrize(
    "text",
    [
        'main() { python train.py "$@"; }\nmain "$@"\n',
        'for one in "$@"; do python train.py $one; done\n',
        'for one; do python train.py "$one"; done\n',
        "case $1 in a) python train.py ;; esac\n",
        "lr=$1\npython train.py $lr\n",
        "python train.py <<EOF\n$1\nEOF\n",
        "eval 'python train.py \"$@\"'\n",
        'echo "$@" | xargs python train.py\n',
    ],
)
def test_arguments_that_a_shell_uses_are_not_told(tmp_path: Path, text: str) -> None:
    project = with_command(tmp_path, ["bash", "job.sh"])
    project.write("job.sh", text)
    done = project.shoal("plan", sweep_file(project, "x"))
    assert "does not reach the program" not in done.out + done.err


def test_a_script_that_sources_another_may_use_them_there_and_is_told(tmp_path: Path) -> None:
    project = with_command(tmp_path, ["bash", "job.sh"])
    project.write("job.sh", "source options.sh\npython train.py\n")
    done = project.shoal("plan", sweep_file(project, "x"))
    assert "does not use its arguments (unless a file that it sources does)" in done.out + done.err


def test_arguments_of_a_script_are_refused_as_well(tmp_path: Path) -> None:
    project = with_command(tmp_path, ["bash", "-c", "python train.py"])
    script = project.script("001_a/000_x_0.sh", "x -- --lr 0.1")
    assert_clear_error(
        project.shoal("plan", script, code=None), 2, "'--lr' does not reach the program of 001_a/000_x_0"
    )
    assert project.shoal("plan", project.script("001_a/000_x_0.sh", "x"))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["python", "-c", "pass"], True),
        (["python", "-c", "import os; os.environ['SHOAL_PARAMS']"], False),
        (["python", "-c", "pass", "{lr}"], False),
    ],
)
def test_values_that_no_argument_has_are_told(tmp_path: Path, command: list[str], told: bool) -> None:
    project = with_command(tmp_path, command, 'params = "none"\n')
    done = project.shoal("plan", sweep_file(project, "x"))
    assert ("no argument of 000_x has lr: put {lr} into its command" in done.out + done.err) == told


@pytest.mark.parametrize(("more", "told"), [("", True), ('args = ["{lr}"]\n', False)])
def test_a_word_that_happens_to_be_a_value_is_not_the_parameter(tmp_path: Path, more: str, told: bool) -> None:
    project = with_command(tmp_path, ["python", "-c", "pass", "--workers", "1", "--epochs", "2"], 'params = "none"\n')
    sweep = project.write("experiments/001_a/000_x.toml", f'step = "x"\n{more}[sweep]\nlr = [1, 2]\n')
    done = project.shoal("plan", sweep)
    assert ("no argument of 000_x has lr: put {lr} into its command" in done.out + done.err) == told


@pytest.mark.parametrize(("kind", "told"), [("bool", True), ("str", False)])
def test_a_swept_false_that_argparse_takes_as_true_is_told(tmp_path: Path, kind: str, told: bool) -> None:
    project = with_command(tmp_path, ["python", "own.py"])
    project.write("own.py", f"parser.add_argument('--ema', type={kind})\n")
    done = project.shoal(
        "plan", project.write("experiments/001_a/000_x.toml", 'step = "x"\n[sweep]\nema = [true, false]\n')
    )
    assert ("000_x passes --ema=false, and own.py has type=bool" in done.out + done.err) == told


@pytest.mark.parametrize(
    ("command", "told"), [(["python", "-c", "pass"], True), (["python", "-c", "pass", "--load={start_from}"], False)]
)
def test_a_checkpoint_that_no_argument_has_is_told(tmp_path: Path, command: list[str], told: bool) -> None:
    project = with_command(tmp_path, command)
    project.bash(project.script("001_a/000_train_0.sh", "train -- save=1"))
    done = project.shoal("plan", project.script("001_a/001_x_0.sh", "x 000_train_0"))
    assert ("may not load the checkpoint that it starts from" in done.out + done.err) == told


def test_directives_of_a_script_that_a_step_starts_are_told(tmp_path: Path) -> None:
    project = with_command(tmp_path, ["bash", "job.sh"])
    project.write("job.sh", "#!/bin/bash\n#SBATCH --gres=gpu:4\npython train.py\n")
    done = project.shoal("plan", project.script("001_a/000_x_0.sh", "x"))
    assert "#SBATCH lines of job.sh are not read: the request is that of step 'x'" in done.out + done.err
