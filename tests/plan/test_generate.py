"""`shoal generate`: MuLoCo's flags in, a script that real sbatch takes and bash understands out."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli import main
from shoal.describe.cluster import Cluster
from shoal.describe.project import Project, bare_project, find_project
from shoal.errors import InputError
from shoal.plan.generate import GenerateOptions, generate_script
from shoal.sandbox import Sandbox
from waiting import wait_until

TOML = """
[steps.train]
command = ".venv/bin/python -m my.train"
launch = "torchrun"
request = { gpus = 2, time = "1h" }
env = { MODE = "a b" }
[clusters.mine]
account = "my-account"
partition = "gpu"
cpus_per_node = 64
memory_per_node = "500G"
logs = "/logs/%x-%j"
mail_user = "me@example.org"
[clusters.mine.qos.high]
cpus_per_node = 128
memory_per_node = "1000G"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder without a project, a user config or a Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "SHOAL_ON", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def bare() -> Project:
    return bare_project(Path("/nowhere"), {"HOME": "/nowhere"})


def script(project: Project | None = None, cluster: Cluster | None = None, **options: object) -> str:
    return generate_script(GenerateOptions(**options), project or bare(), cluster or Cluster(name="slurm")).script  # type: ignore[arg-type]


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def muloco(here: Path, *more: str) -> list[str]:
    """The command line of the reference document, with its flags spelled as there."""
    return [
        "generate", "--config-file", "config/ddp/muon.py", "--job-name", "muon_lr0.03125", "--qos", "high", "--nodes",
        "4", "--gpus-per-node", "8", "--time", "24:00:00", "--use-ddp", "--extra-args",
        "optimizer.lr=0.03125 training.steps=8160 suffix='' note='x y'", "--output-file", str(here / "job_0.sh"),
        "--mail-user", "you@example.com", "--output", "logs/%j.out", "--error", "logs/%j.err", *more,
    ]  # fmt: skip


def test_the_reference_command_line_gives_a_script_with_every_value(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "shoal.toml").write_text(TOML)
    assert main(muloco(here, "--partition", "p1", "--account", "a1", "--mem", "300G")) == 0
    captured = capsys.readouterr()
    assert "mkdir -p logs" in captured.err
    text = (here / "job_0.sh").read_text()
    assert directives(text) == [
        "--job-name=muon_lr0.03125", "--partition=p1", "--account=a1", "--qos=high", "--nodes=4",
        "--ntasks-per-node=1", "--cpus-per-task=128", "--mem=300G", "--gres=gpu:8", "--time=1-00:00:00",
        "--mail-user=you@example.com", "--mail-type=BEGIN,END,FAIL", "--output=logs/%j.out", "--error=logs/%j.err",
        "--open-mode=append", "--requeue",
    ]  # fmt: skip
    assert "torchrun --nnodes=4 " in text
    assert "--nproc-per-node=8 " in text
    assert text.endswith(
        "./torchtitan/train.py --job.config_file config/ddp/muon.py --cfg_options optimizer.lr=0.03125 "
        "training.steps=8160 suffix= 'note=x y'\n"
    )
    assert "exit 0" not in text
    assert subprocess.run(["bash", "-n", str(here / "job_0.sh")], capture_output=True).stderr == b""


def test_a_generated_file_is_overwritten_until_it_is_edited(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = here / "job_0.sh"
    assert main(muloco(here)) == 0
    assert main(muloco(here)) == 0
    assert "unchanged" in capsys.readouterr().out
    assert main(muloco(here, "--mem", "2G")) == 0
    assert "--mem=2G" in script.read_text()
    edited = script.read_text().replace("--mem=2G", "--mem=3G")
    script.write_text(edited)
    assert main(muloco(here, "--mem", "1G")) == 2
    assert "was edited, or was not written by shoal generate" in capsys.readouterr().err
    assert script.read_text() == edited
    assert main(muloco(here, "--mem", "1G", "--force")) == 0
    assert "--mem=1G" in script.read_text()
    assert sorted(path.name for path in here.iterdir()) == ["job_0.sh"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join(line for line in text.split("\n") if not line.startswith("# checksum")),
        lambda text: "echo mine\n",
    ],
)
def test_any_other_content_is_kept(
    here: Path, capsys: pytest.CaptureFixture[str], change: Callable[[str], str]
) -> None:
    assert main(muloco(here)) == 0
    kept = change((here / "job_0.sh").read_text()).encode()
    (here / "job_0.sh").write_bytes(kept)
    assert main(muloco(here, "--mem", "2G")) == 2
    assert "add --force to overwrite it" in capsys.readouterr().err
    assert (here / "job_0.sh").read_bytes() == kept


def test_without_use_ddp_each_node_has_eight_fault_tolerant_replicas(here: Path) -> None:
    text = script(config_file="c.py", cpus_per_node="128")
    for word in ("--nodes=2", "--ntasks-per-node=8", "--cpus-per-task=16", "--gres=gpu:8", "--time=1-12:00:00"):
        assert word in directives(text)
    assert "NUM_REPLICA_GROUPS=16" in text
    assert "--job.config_file c.py --cfg_options fault_tolerance.enable=True" in text
    over_nodes = script(config_file="c.py", nodes="4", nodes_per_replica=2)
    assert "NUM_REPLICA_GROUPS=2" in over_nodes
    with pytest.raises(InputError, match="4 GPUs per node cannot be divided among 8 replicas"):
        script(config_file="c.py", gpus_per_node="4")


def test_tasks_per_node_are_accepted_and_their_number_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--config-file", "c", "--ntasks-per-node", "9"]) == 0
    captured = capsys.readouterr()
    assert "--ntasks-per-node 9 has no effect: this launch mode has 8 tasks per node" in captured.err
    assert "--ntasks-per-node=8" in directives(captured.out)
    assert main(["generate", "--config-file", "c", "--ntasks-per-node", "8"]) == 0
    assert "has no effect" not in capsys.readouterr().err
    assert main(["generate", "--config-file", "c", "--ntasks-per-node", "0"]) == 2


def test_a_config_file_that_does_not_exist_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--config-file", "config/muon.py"]) == 0
    assert "config file config/muon.py not found" in capsys.readouterr().err
    (here / "config").mkdir()
    (here / "config/muon.py").touch()
    assert main(["generate", "--config-file", "config/muon.py"]) == 0
    assert "not found" not in capsys.readouterr().err


def test_a_missing_folder_for_the_script_is_an_error_with_the_remedy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--config-file", "c", "--output-file", "no/such/job.sh"]) == 2
    assert "mkdir -p no/such" in capsys.readouterr().err


def test_the_profile_fills_in_what_no_flag_says(here: Path) -> None:
    (here / "shoal.toml").write_text(TOML)
    project = find_project(here, {"HOME": str(here)})
    text = script(project, project.clusters["mine"], config_file="c.py", launch="process", nodes="1")
    words = directives(text)
    for word in ("--account=my-account", "--partition=gpu", "--cpus-per-task=64", "--mem=500G", "--gres=gpu:8",
                 "--time=1-12:00:00", "--mail-user=me@example.org", "--output=/logs/%x-%j.out",
                 "--job-name=c"):  # fmt: skip
        assert word in words
    assert text.endswith("\npython ./torchtitan/train.py --job.config_file c.py\n")


def test_a_step_brings_its_command_request_launch_and_environment(here: Path) -> None:
    (here / "shoal.toml").write_text(TOML)
    project = find_project(here, {"HOME": str(here)})
    text = script(project, step="train", extra_args="--lr 3")
    assert "    export MODE='a b'\n" in text
    start = ".venv/bin/python -m torch.distributed.run --standalone --nproc-per-node=2"
    assert text.endswith(f"\n{start} \\\n    -m my.train --lr 3\n")
    assert "--time=01:00:00" in directives(text)
    with pytest.raises(InputError, match="no step 'nope'"):
        script(project, step="nope")


def test_the_only_profile_is_meant_when_nothing_here_tells(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shoal.toml").write_text(TOML)
    assert main(["generate", "--config-file", "c", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["cluster"], document["launch"]) == (1, "mine", "replicas")
    assert document["request"] == {"nodes": 2, "gpus": 8, "cpus": 64, "memory": "500G", "time": "1-12:00:00"}
    assert document["script"].startswith("#!/bin/bash\n")
    assert main(["generate", "--config-file", "c", "--json", "--on", "slurm"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == "slurm"
    assert main(["generate", "--config-file", "c", "--on", "nope"]) == 2


def test_flags_of_replicas_have_no_effect_beside_use_ddp(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--config-file", "c", "--nodes-per-replica", "1", "--use-ddp"]) == 0
    assert "--nodes-per-replica has no effect with --use-ddp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "say what to train"),
        ({"config_file": "c", "nodes": "0"}, "--nodes"),
        ({"config_file": "c", "nodes": "two"}, "--nodes"),
        ({"config_file": "c", "gpus_per_node": "-1"}, "--gpus-per-node"),
        ({"config_file": "c", "time": "soon"}, "--time"),
        ({"config_file": "c", "mem": "lots"}, "--mem"),
        ({"config_file": "c", "extra_args": "a='"}, "--extra-args: cannot be split"),
        ({"config_file": "c", "command": ""}, "--command: the command is empty"),
        ({"config_file": "c", "output": "~/x.out"}, "--output"),
        ({"config_file": "c", "error": "$HOME/x"}, "--error"),
        ({"config_file": "c", "output": "logs/"}, "is not a file"),
        ({"config_file": "c", "output": "a\n#SBATCH --x"}, "line breaks"),
        ({"config_file": "c", "account": "a\nb"}, "line breaks"),
        ({"config_file": "c", "job_name": "-x"}, "begins with a dash"),
        ({"config_file": "c\0", "job_name": "x"}, "NUL"),
    ],
)
def test_a_bad_flag_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        script(**options)
    assert sentence in caught.value.message


def test_a_name_that_slurm_would_mangle_is_slugged_and_the_real_one_kept() -> None:
    text = script(config_file="c", job_name='lr "3" | x')
    name = directives(text)[0]
    assert name.startswith("--job-name=lr-3-x-")
    assert '# The job\'s full name: lr "3" | x\n' in text


def test_broken_setup_lines_are_found_before_slurm_finds_them(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shoal.toml").write_text("[clusters.x]\nsetup = 'if true'\n")
    assert main(["generate", "--config-file", "c", "--output-file", "j.sh"]) == 2
    assert "shoal.toml:2: the setup lines are not valid bash" in capsys.readouterr().err
    assert not (here / "j.sh").exists()


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=15), max_size=6))
def test_any_extra_words_arrive_in_the_program_as_they_were(words: list[str]) -> None:
    import shlex

    text = script(config_file="c", command="printf '%s\\0'", launch="process", nodes="1", extra_args=shlex.join(words))
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True)
    expected = ["--job.config_file", "c", *(["--cfg_options", *words] if words else [])]
    assert done.stdout.decode().split("\0")[:-1] == expected


def submit(cluster: Sandbox, folder: Path, name: str) -> str:
    done = cluster.run("sbatch", "--parsable", name, cwd=folder)
    return done.stdout.strip()


@pytest.mark.slurm
def test_the_script_is_taken_by_real_sbatch_and_its_exit_code_is_the_programs(
    quiet_cluster: Sandbox, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in quiet_cluster.env().items():
        monkeypatch.setenv(key, value)
    (here / "logs").mkdir()
    common = ["generate", "--config-file", "a b", "--gpus-per-node", "2", "--cpus-per-node", "2", "--time", "2"]
    show = """bash -c 'printf "%s|" "$CUDA_VISIBLE_DEVICES" "$@"; exit 7' x"""
    common += ["--launch", "process", "--nodes", "1"]
    assert main([*common, "--command", show, "--extra-args", "c='$HOME #'", "--output-file", "one.sh"]) == 0
    job = submit(quiet_cluster, here, "one.sh")
    shown = wait_for_end(quiet_cluster, job)
    assert (here / f"logs/{job}.out").read_text() == "0,1|--job.config_file|a b|--cfg_options|c=$HOME #|"
    assert "ExitCode=7:0" in shown


@pytest.mark.slurm
def test_torchrun_over_two_nodes_gets_one_rendezvous_and_its_share(
    quiet_cluster: Sandbox, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for torchrun shows what each node would start; the real one belongs to the launches' own tests."""
    for key, value in quiet_cluster.env().items():
        monkeypatch.setenv(key, value)
    (here / "bin").mkdir()
    (here / "bin/torchrun").write_text('#!/bin/sh\necho "$SLURM_PROCID $SLURM_CPUS_PER_TASK $*"\n')
    (here / "bin/torchrun").chmod(0o755)
    (here / "logs").mkdir()
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    words = ["--nodes", "2", "--gpus-per-node", "4", "--cpus-per-node", "3", "--time", "2", "--use-ddp"]
    assert main(["generate", "--config-file", "c.py", *words, "--output-file", "ddp.sh"]) == 0
    done = subprocess.run(["sbatch", "--parsable", "ddp.sh"], capture_output=True, text=True, cwd=here, check=True)
    job = done.stdout.strip()
    shown = wait_for_end(quiet_cluster, job)
    assert "ExitCode=0:0" in shown, (here / f"logs/{job}.err").read_text()
    port = 20000 + int(job) % 10000
    rest = (
        f"3 --nnodes=2 --rdzv-id={job} --rdzv-backend=c10d --rdzv-endpoint="
        f"{quiet_cluster.nodes[0]}:{port} --nproc-per-node=4 ./torchtitan/train.py --job.config_file c.py"
    )
    assert sorted((here / f"logs/{job}.out").read_text().splitlines()) == [f"0 {rest}", f"1 {rest}"]


def wait_for_end(cluster: Sandbox, job: str) -> str:
    def ended() -> str:
        shown = cluster.run("scontrol", "-o", "show", "job", job).stdout
        return shown if any(f"JobState={state}" in shown for state in ("COMPLETED", "FAILED")) else ""

    return wait_until(ended, 60, f"job {job} ended")


def test_the_page_about_generate_names_every_flag_and_its_example_works(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse
    import re
    import shlex

    from shoal.cli import generate as command

    page = (Path(__file__).parents[2] / "docs/generate.md").read_text()
    parser = argparse.ArgumentParser()
    command.configure(parser)
    for action in parser._actions:
        flag = action.option_strings[-1] if action.option_strings else str(action.metavar)
        assert flag in ("--help", "--quiet", "--force") or f"`{flag}" in page, flag
    example = re.findall(r"shoal (generate (?:.*\\\n)*.*)", page)[0].replace("\\\n", "")
    assert main(shlex.split(example)) == 0
    assert "--nnodes=4" in (here / "muon.sh").read_text()
