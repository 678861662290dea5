"""A command is a run: no experiment file and no shoal.toml, named after its program and its parameters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from project import SHOAL, Done, Project, assert_clear_error
from shoal.describe.command_file import argument_label, command_step, program_length
from shoal.sandbox import Sandbox
from waiting import wait_until

TRAIN = "import os, sys\nprint('args', sys.argv[1:], 'in', os.getcwd())\nopen(sys.argv[-1], 'a').write('x')\n"


class Directory(Project):
    """A directory with a program and nothing of shoal's."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None) -> None:
        super().__init__(folder, cluster)
        (self.root / "shoal.toml").unlink()
        self.write("train.py", TRAIN)
        if cluster is None:
            self.env["SHOAL_ON"] = "local"

    def names(self, *words: object) -> list[str]:
        return [run["name"] for run in self.shoal("plan", "--json", *words).json["runs"]]


@pytest.fixture
def here(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


@pytest.mark.slow
def test_a_command_runs_without_any_file_and_once(here: Directory) -> None:
    words = ("run", "--set", "lr=0.1,0.01", "--seeds", "0-1", "--", "python3", "train.py", "--lr", "{lr}", "{seed}.txt")
    here.shoal(*words)
    names = [f"train/lr{lr}_{seed}" for lr in ("0.1", "0.01") for seed in (0, 1)]
    assert sorted(here.status("--all")) == sorted(names)
    again = here.shoal(*words)
    assert again.out.count("completed already") == 4 or "left alone" in again.out
    assert (here.root / "0.txt").read_text() == "xx" and (here.root / "1.txt").read_text() == "xx"
    assert "args ['--lr', '0.1', '0.txt']" in here.shoal("logs", "train/lr0.1_0").out
    assert not (here.root / "shoal.toml").exists()


@pytest.mark.slow
def test_a_local_run_ends_at_its_time_limit_and_missing_gpus_are_told(here: Directory) -> None:
    here.env["CUDA_VISIBLE_DEVICES"] = ""
    done = here.shoal("run", "--gpus", "2", "--time", "2s", "--", "sleep", "600", code=143)
    assert "this machine has 0 GPUs (requested: 2); starting sleep/sleep_600 without the missing ones" in done.err
    status = here.shoal("status", "--json", "--all").json
    assert [(one["state"], one["cause"]) for one in status["runs"]] == [("timeout", "timeout")]
    packed = ("run", "--layout", "pack", "--slots", "1", "--gpus", "1", "--", "true")
    assert "this machine has 0 GPUs (requested: 1)" in here.shoal(*packed).err


@pytest.mark.slow
def test_a_local_run_that_is_interrupted_before_its_time_limit_was_cancelled(here: Directory) -> None:
    words = [str(SHOAL), "run", "--time", "2m", "--", "bash", "-c", "touch begun; exec sleep 600"]
    with subprocess.Popen(words, cwd=here.root, env=here.env, start_new_session=True) as command:
        wait_until((here.root / "begun").exists, 60, "the program runs")
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait(300) == 130
    assert [(one["state"], one["cause"]) for one in here.status("--all").values()] == [("cancelled", None)]


@pytest.mark.slow
def test_other_arguments_are_another_run_and_a_name_is_an_experiment(here: Directory) -> None:
    assert here.names("--", "python3", "train.py", "--lr", "0.1", "--amp") == ["train/lr0.1_amp"]
    assert here.names("--", "python3", "train.py", "--lr", "0.2", "--amp") == ["train/lr0.2_amp"]
    assert here.names("--", "python3", "train.py") == ["train/train"]
    assert here.names("--name", "first", "--", "python3", "train.py", "a.txt") == ["first/a.txt"]
    assert here.names("--set", "lr=0.1", "--", "python3", "train.py", "--lr={lr}") == ["train/lr0.1"]


@pytest.mark.parametrize(
    ("command", "step", "label"),
    [
        ("python train.py", "train", ""),
        ("torchrun --nproc-per-node 4 src/train.py --lr=1e-3 -v", "train", "lr1e-3_v"),
        ("python -m pkg.train model=vit +x=1", "train", "model-vit_x-1"),
        ("./run_all.sh configs/a.yaml --n -1", "run_all", "configs-a.yaml_n1"),
        ("echo hello", "run_echo", "hello"),
    ],
)
def test_names_come_from_the_program_and_its_arguments(command: str, step: str, label: str) -> None:
    words = command.split()
    assert (command_step(words), argument_label(words[program_length(words) :])) == (step, label)


def test_long_arguments_are_cut_and_stay_apart() -> None:
    one, two = (argument_label(["--name", "x" * 80, "--lr", lr]) for lr in ("1", "2"))
    assert one != two and len(one) < 60


@pytest.mark.slow
def test_a_parameter_and_its_value_written_out_are_one_run(here: Directory) -> None:
    here.shoal("run", "--", "python3", "train.py", "--lr", "0.1")
    again = here.shoal("run", "--set", "lr=0.1", "--", "python3", "train.py", "--lr", "{lr}").out
    assert "left alone" in again and "completed already" in again
    other = here.shoal("run", "--set", "lr=0.1", "--", "python3", "train.py", "-x", "--lr", "{lr}", code=None)
    assert other.code == 0 and set(here.status("--all")) == {"train/lr0.1", "train/x_lr0.1"}


@pytest.mark.slow
def test_a_batch_script_is_not_packed_and_says_so(here: Directory) -> None:
    here.write("a.sbatch", "#!/bin/bash\n#SBATCH --time=5\necho ${LR:-1}\n")
    for words in (("--layout", "pack", "--slots", "2"), ("--layout", "pilots"), ("--layouts",)):
        told = here.shoal("plan", "a.sbatch", "--set", "LR=1,2", "--on", "slurm", *words, code=None)
        assert_clear_error(told, 2, "packed" if words == ("--layouts",) else "a.sbatch is a batch script")
    assert not here.home.exists()


@pytest.mark.slow
def test_flags_are_the_request_of_each_run(here: Directory) -> None:
    words = ("--gpus", "2", "--cpus", "8", "--mem", "16G", "--time", "2h", "--gpu-type", "a100", "--nodes", "1")
    document = here.shoal("plan", "--json", "--on", "slurm", *words, "--", "python3", "train.py").json
    options = document["submissions"][0]["options"]
    assert {"--gres=gpu:a100:2", "--cpus-per-task=8", "--mem=16G", "--time=02:00:00", "--nodes=1"} <= set(options)


@pytest.mark.slow
def test_a_command_in_a_directory_below_the_project_starts_there(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("sub/where.py", "import os; print('in', os.getcwd())")
    words = ("run", "--on", "local", "--", "python3", "where.py")
    project.run([SHOAL, *words], cwd=project.root / "sub")
    assert f"in {project.root / 'sub'}" in project.shoal("logs", "where/where").out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "--", "python3", "train.py", "--seed", "{seed}"), "--seeds is not set"),
        (("run", "--", "python3", "train.py", "--lr", "{lr}"), "{lr}"),
        (("run",), "missing FILE or -- COMMAND"),
        (("run", "train.py"), "does not use shoal"),
        (("run", "--gpus", "-1", "--", "python3", "train.py"), "gpus"),
        (("run", "--time", "soon", "--", "python3", "train.py"), "soon"),
        (("run", "--layout", "pack", "--slots", "1", "--cpus", "2", "--", "true"), "--cpus has no effect"),
    ],
    ids=str,
)
def test_a_wrong_command_is_one_sentence_and_changes_nothing(
    here: Directory, words: tuple[str, ...], told: str
) -> None:
    assert_clear_error(here.shoal(*words, code=None), 2, told)
    assert not here.home.exists()


@pytest.mark.slow
def test_flags_of_a_command_are_refused_for_experiment_files(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.script("001_a/000_train_0.sh")
    file = "experiments/001_a/000_train_0.sh"
    for words in (("--name", "x"), ("--cpus", "2"), ("--checkpoint", "*.pt")):
        assert_clear_error(project.shoal("plan", file, *words, code=None), 2, "no effect")
    assert_clear_error(project.shoal("plan", file, "--", "x", code=None), 2, "takes no arguments after --")


@pytest.mark.slurm
def test_a_command_on_slurm_has_what_a_run_has(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write("fail.py", "import os, sys\nprint('GPUs', os.environ.get('SLURM_GPUS_ON_NODE'))\nsys.exit(3)\n")
    words = ("submit", "--gpus", "1", "--mem", "50M", "--time", "5m", "--", "python3", "fail.py", "--lr", "0.1")
    here.shoal(*words)
    assert here.wait("fail/lr0.1")["exit_code"] == 3
    assert "GPUs 1" in here.shoal("logs", "fail/lr0.1").out
    assert "exit code 3" in here.shoal("why", "fail/lr0.1").out
    here.shoal("retry", "fail/lr0.1", "--mem", "x2")
    assert here.wait("fail/lr0.1", "failed")["attempt"] >= 1
    asked: list[str] = json.loads(sorted(here.home.glob("submissions/*/send.0"))[-1].read_text())["argv"]
    sent = [json.loads(path.read_text())["argv"] for path in here.home.glob("submissions/*/send.0")]
    assert sorted("--mem=100M" in argv for argv in sent) == [False, True], asked
    assert isinstance(here.shoal("report", "--json"), Done)


@pytest.mark.slurm
def test_the_script_that_plan_prints_for_a_command_starts_the_same_runs(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write("sub/gpu.py", "import os, sys\nprint('GPUs', os.environ.get('CUDA_VISIBLE_DEVICES'), *sys.argv[1:])\n")
    command = ("--", "python3", "gpu.py", "--lr", "{lr}", "--seed", "{seed}", "--text", "a b's {{x}}")
    words = ("--gpus", "1", "--mem", "100M", "--time", "5m", "--set", "lr=0.1,0.2", "--seeds", "3", *command)
    here.root = here.root / "sub"
    here.home = here.root / ".shoal"
    planned = here.shoal("plan", "--json", *words).json["submissions"][0]
    here.write("printed.sh", planned["script"])
    here.slurm("sbatch", "printed.sh")
    wait_until(lambda: here.home.exists() and set(here.status("--all")) == set(planned["runs"]), 90, "both are known")
    for name in planned["runs"]:
        here.wait(name, "completed", deadline_s=90)
        said = here.shoal("logs", name).out
        assert "--seed 3 --text a b's {x}" in said and ("GPUs 0" in said or "GPUs 1" in said), said
    again = here.shoal("submit", *words).out
    assert again.count("left alone") == 2, again
