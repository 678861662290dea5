"""What the doctor reads in a script: text, words, commands, directives, launches, geometry, programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batch.directives import decode_text, parse_option_words, read_directives, split_directive
from shoal.batch.shell_commands import parse_shell
from shoal.doctor.check import check_text
from shoal.doctor.geometry import read_geometry
from shoal.doctor.launches import ScriptLaunch, find_launches
from shoal.doctor.python_file import read_program
from shoal.doctor.script import BatchScript, read_batch_script


def script(text: str, path: str = "job.sh") -> BatchScript:
    return read_batch_script(decode_text(text.encode()), path)


def launches(body: str) -> list[ScriptLaunch]:
    return find_launches(parse_shell(body).commands)[0]


# --- text


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"#!/bin/bash\n", "utf-8"),
        (b"\xef\xbb\xbf#!/bin/bash\n", "utf-8-sig"),
        ("#!/bin/bash\necho grün\n".encode("utf-16"), "utf-16"),
        ("#!/bin/bash\necho\n".encode("utf-16-le"), "utf-16-le"),
        ("# Größe\n".encode("latin-1"), "latin-1"),
        (b"\x7fELF\x00\x00\x00\x00\x01\x02", "binary"),
        (b"", "utf-8"),
    ],
)
def test_the_encoding_of_a_script_is_told_apart(data: bytes, encoding: str) -> None:
    assert decode_text(data).encoding == encoding


def test_lines_end_where_bash_ends_them() -> None:
    text = decode_text("a\x0cb\u2028c\r\nd\n".encode())
    assert text.lines == ("a\x0cb\u2028c", "d")
    assert (text.crlf, text.first_crlf) == (1, 1)


# --- words and commands


def test_commands_know_their_lines_and_what_they_stand_in() -> None:
    parsed = parse_shell(
        "set -e\nif [[ -n $A && $B ]]; then\n  python a.py\nfi\n"
        "for i in 1 2; do\n  srun x $i &\ndone\nf() { b | tee c; }\n"
    )
    found = [(one.name, one.line, one.within, one.background, one.piped) for one in parsed.commands]
    assert found == [
        ("set", 1, (), False, False),
        ("[[", 2, ("if",), False, False),
        ("python", 3, ("if",), False, False),
        ("srun", 6, ("loop",), True, False),
        ("b", 8, ("function",), False, True),
        ("tee", 8, ("function",), False, False),
    ]
    assert parsed.functions == {"f"}


def test_continued_lines_quotes_and_comments_are_read_as_bash_reads_them() -> None:
    (command,) = parse_shell("python train.py \\\n  --name 'a b' \\\n  \"c $D\" # a comment 'open\n").commands
    assert command.texts == ["python", "train.py", "--name", "a b", "c $D"]
    assert (command.line, command.last_line) == (1, 3)


def test_a_group_in_the_background_puts_its_commands_there() -> None:
    parsed = parse_shell("(\n cd x\n python a.py\n) &\nwait\n")
    assert [(one.name, one.background) for one in parsed.commands] == [("cd", True), ("python", True), ("wait", False)]


def test_commands_inside_substitutions_are_listed_as_nested() -> None:
    parsed = parse_shell('A=$(scontrol show hostnames "$X" | head -n 1)\nnodes=( $(list) )\necho `date`\n')
    assert [one.name for one in parsed.commands if one.nested] == ["scontrol", "head", "list", "date"]


def test_a_heredoc_is_data_and_not_commands() -> None:
    parsed = parse_shell("cat > x.sh <<'EOF'\n#SBATCH --nodes=9\npython inside.py\nEOF\npython outside.py\n")
    assert [one.name for one in parsed.commands] == ["cat", "python"]
    assert parsed.commands[1].line == 5
    assert (
        read_directives(
            ["#!/bin/bash", "cat <<E", "#SBATCH -N 9", "E"], parse_shell("#\ncat <<E\n#SBATCH -N 9\nE\n").heredocs
        ).ignored
        == ()
    )


def test_case_patterns_are_not_commands() -> None:
    parsed = parse_shell("case $1 in\n a|b) one;;\n (c) two ;;\n *) three\nesac\nfour\n")
    assert [one.name for one in parsed.commands] == ["one", "two", "three", "four"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("echo 'a\nb\n", 1, "single quote"),
        ('\necho "a\n', 2, "double quote"),
        ("cat <<EOF\nx\n", 1, "here-document EOF"),
        ("x=$(a\nb\n", 1, "substitution"),
        ("x=`a\n", 1, "backquote"),
    ],
)
def test_what_does_not_end_is_said_with_its_line(text: str, line: int, words: str) -> None:
    (problem,) = parse_shell(text).problems
    assert problem.line == line
    assert words in problem.sentence


@given(st.text(alphabet="ab $(){}[]'\"`\\\n;&|<>#=-EOFif do done case esac in then\t", max_size=80))
@settings(max_examples=400)
def test_no_text_breaks_the_reader(text: str) -> None:
    parsed = parse_shell(text)
    lines = text.count("\n") + 1
    assert all(1 <= one.line <= lines for one in parsed.commands)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_no_bytes_break_the_doctor(data: bytes) -> None:
    read_batch_script(decode_text(data), "job.sh")


_LINES = """\
#SBATCH --gres=gpu:4
#SBATCH -n 8
#SBATCH --nodes=2
#SBATCH -
#SBATCH --mem=0
#SBATCH --signal=B:USR1@5
#SBATCH --array=0-9
srun python a.py &
torchrun --nproc_per_node 4 b.py
trap x USR1
cat <<EOF
'
exit 0
wait
export MASTER_PORT=29500
if true; then""".splitlines()


@given(st.lists(st.sampled_from(_LINES), max_size=12))
@settings(max_examples=200)
def test_no_mixture_of_lines_breaks_a_rule(lines: list[str]) -> None:
    text = "#!/bin/bash\n" + "\n".join(lines)
    for finding in check_text(text, "job.sh"):
        assert 1 <= finding.line <= text.count("\n") + 1


# --- directives


def test_a_directive_is_split_as_sbatch_splits_it() -> None:
    assert split_directive(' --comment="a b" -N2 --x=1# y') == ["--comment=a b", "-N2", "--x=1"]
    assert split_directive(" --comment='a \"b'") == ['--comment=a "b']


def test_every_spelling_of_an_option_has_its_long_name() -> None:
    found, stray = parse_option_words(
        ["-N2", "-n", "8", "--cpus-per-t=4", "--mem", "8G", "--exclusive", "-Hs", "--tasks-per-node=2"]
    )
    assert [(one.name, one.value) for one in found] == [
        ("nodes", "2"), ("ntasks", "8"), ("cpus-per-task", "4"), ("mem", "8G"), ("exclusive", None), ("hold", None),
        ("oversubscribe", None), ("ntasks-per-node", "2"),
    ]  # fmt: skip
    assert stray == []


def test_directives_count_up_to_the_first_command() -> None:
    read = read_directives(["#!/bin/bash", "", "# c", "#SBATCH -N 2", "#SBATCH--mem=1G", "x=1", "#SBATCH -n 3"], ())
    assert [(one.name, one.line) for one in read.options] == [("nodes", 4), ("mem", 5)]
    assert [(one.line, one.why) for one in read.ignored] == [(7, "late")]


def test_a_heterogeneous_job_has_no_geometry() -> None:
    found = script("#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 4 -n 8\nsrun python a.py\n")
    assert found.directives.is_het
    assert found.geometry.nodes is None


# --- geometry


@pytest.mark.parametrize(
    ("words", "per_node", "total", "tasks"),
    [
        ("--gres=gpu:4", 4, 4, 1),
        ("--gres=gpu:a100:4,tmpfs:1 -N 2", 4, 8, 2),
        ("--gpus=8", 8, 8, 1),
        ("--gpus=8 -N 2", None, 8, 2),
        ("--gpus-per-node=h100:8 -N 4 --ntasks-per-node=8", 8, 32, 32),
        ("--gpus-per-task=2 -n 4", 8, 8, 4),
        ("-N 2 -n 6", None, None, 6),
        ("-w a1,a2 --gpus-per-node=4", 4, 8, 2),
    ],
)
def test_gpus_and_tasks_are_counted_as_slurm_counts_them(
    words: str, per_node: int | None, total: int | None, tasks: int
) -> None:
    options = {one.name: one for one in parse_option_words(words.split())[0]}
    geometry = read_geometry(options)
    assert (geometry.gpus_per_node, geometry.gpus_total, geometry.tasks) == (per_node, total, tasks)


def test_what_is_not_a_number_is_uncertain_and_never_guessed() -> None:
    options = {one.name: one for one in parse_option_words(["--nodes=$N", "--ntasks={{n}}", "--gres=gpu:$G"])[0]}
    geometry = read_geometry(options)
    assert geometry.uncertain == {"nodes", "ntasks", "gpus"}
    assert geometry.gpus_per_node is None


# --- launches


@pytest.mark.parametrize(
    ("body", "launcher", "program", "has_srun"),
    [
        ("python train.py", "python", "train.py", False),
        ("srun -N2 -n 8 --gres=gpu:4 python -u train.py", "python", "train.py", True),
        ("srun --container-image=/a.sqsh --mpi pmix python a.py", "python", "a.py", True),
        ("srun -l -u --exact -c4 torchrun --nproc_per_node 4 a.py", "torchrun", "a.py", True),
        ("nohup conda run -n env python a.py", "python", "a.py", False),
        ("CUDA=1 env X=1 timeout 10 uv run --frozen python a.py", "python", "a.py", False),
        ("singularity exec --nv -B /a:/b img.sif python a.py", "python", "a.py", False),
        ("ch-run -b /a:/b --write images/torch -- python a.py", "python", "a.py", False),
        ("python -m torch.distributed.run --nproc_per_node=2 a.py", "torchrun", "a.py", False),
        ("python -m accelerate.commands.launch --num_processes 4 a.py", "accelerate", "a.py", False),
        ("srun bash -c 'torchrun --node_rank $SLURM_NODEID a.py'", "torchrun", "a.py", True),
        ('ARGS="--nproc_per_node 4"\nsrun torchrun $ARGS a.py', "torchrun", "a.py", True),
        ('CMD="accelerate launch --num_machines 2 a.py"\nsrun bash -c "$CMD"', "accelerate", "a.py", True),
        ("A=(--nnodes 2\n --nproc_per_node 8)\ntorchrun ${A[@]} a.py", "torchrun", "a.py", False),
        ("srun bash <<'EOF'\npython a.py\nEOF", "python", "a.py", True),
        ("mpirun -np 4 python a.py", "python", "a.py", False),
        ("python -m pkg.train --x", "python", "pkg.train", False),
    ],
)
def test_a_launch_is_found_behind_wrappers_variables_and_quotes(
    body: str, launcher: str, program: str, has_srun: bool
) -> None:
    (found,) = launches(body)
    assert (found.launcher, found.program, found.srun is not None) == (launcher, program, has_srun)


def test_options_of_a_launcher_are_read_with_dashes_or_underscores() -> None:
    (found,) = launches("A=8\nsrun -n 2 torchrun --nnodes=2 --nproc_per_node $A --standalone train.py --lr 1")
    assert dict(found.options) == {"nnodes": "2", "nproc-per-node": "8", "standalone": None}
    assert found.args == ("--lr", "1")
    assert found.srun == {"ntasks": "2"}


@pytest.mark.parametrize(
    "body", ["python --version", "python -c 'import torch'", "python -m pip install x", "srun hostname"]
)
def test_small_helpers_are_not_launches(body: str) -> None:
    assert launches(body) == []


def test_an_experiment_of_ours_is_read_through_its_step_call() -> None:
    found = script('source "$(shoal shell)"\ntrain --mem=64 --time=24 --gres=gpu:4 -- --lr 1\n')
    assert found.kind == "experiment"
    assert (found.options["mem"].value, found.options["time"].line) == ("64", 2)
    assert {finding.code for finding in check_text('source "$(shoal shell)"\ntrain --mem=64 --time=24\n', "x.sh")} == {
        "D10",
        "D14",
    }


# --- programs


def test_a_program_gives_its_framework_and_numbers_away(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import os, signal\nimport pytorch_lightning as pl\nsignal.signal(signal.SIGUSR1, print)\n"
        "DataLoader(x, num_workers=12)\ntrainer = pl.Trainer(devices=8, num_nodes=2, strategy='ddp_spawn')\n"
    )
    hints = read_program(path)
    assert (hints.devices, hints.num_nodes, hints.max_workers, hints.signals) == (8, 2, 12, ("SIGUSR1",))
    assert hints.is_lightning
    assert hints.spawns


@pytest.mark.parametrize("data", [b"def f(:\n", b"\x00\x01", b"print 'two'\n", b"(" * 5000])
def test_a_program_that_is_not_python_is_said_to_be_unread(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(data)
    assert read_program(path).unread
