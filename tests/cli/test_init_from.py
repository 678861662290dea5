"""`shoal init --from`: a batch script or a command as a step, a sweep file and values of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import main
from shoal.describe.project import find_project

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=fit-model
#SBATCH --gres=gpu:a100:2
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=1-00:00:00
#SBATCH --partition=gpu --account=lab
#SBATCH --array=0-2
#SBATCH --exclude=node7
python train.py --index $SLURM_ARRAY_TASK_ID --lr ${LR:-1}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)  # a machine without Slurm
    (folder / "job.sbatch").write_text(SCRIPT)
    return folder


def test_a_script_becomes_a_step_and_a_sweep_file_that_load(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--from", "job.sbatch"]) == 0
    step = find_project(here, {"HOME": str(here)}).step("fit_model")
    assert step.command == ("bash", "job.sbatch")
    request = step.request
    assert (request.gpus, request.gpu_type, request.cpus, request.memory) == (2, "a100", 8, "32G")
    sweep = (here / "experiments/001_fit_model/000_fit_model.toml").read_text()
    assert "task = [0, 1, 2]" in sweep and 'SLURM_ARRAY_TASK_ID = "{task}"' in sweep
    text = (here / "shoal.toml").read_text()
    assert '# partition = "gpu"' in text and '# account = "lab"' in text and "--exclude=node7" in text
    assert "next: shoal submit experiments/001_fit_model/000_fit_model.toml" in capsys.readouterr().out
    assert main(["plan", "experiments/001_fit_model/000_fit_model.toml", "--on", "local"]) == 0
    assert "001_fit_model/000_fit_model_task2" in capsys.readouterr().out


def test_a_command_becomes_a_step_in_a_project_that_exists(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shoal.toml").write_text('[steps.other]\ncommand = "true"\n')
    words = ["init", "--gpus", "1", "--time", "2h", "--set", "lr=0.1,0.01", "--seeds", "0-1"]
    assert main([*words, "--", "python", "train.py", "--lr", "{lr}", "--seed", "{seed}"]) == 0
    project = find_project(here, {"HOME": str(here)})
    assert set(project.steps) == {"other", "train"} and project.step("train").request.gpus == 1
    assert "added [steps.train] to shoal.toml" in capsys.readouterr().out
    assert main(["plan", "experiments/001_train", "--on", "local", "-q"]) == 0
    assert capsys.readouterr().out.split() == [
        f"001_train/000_train_lr{lr}_{seed}" for lr in ("0.1", "0.01") for seed in (0, 1)
    ]
    assert main([*words, "--", "python", "train.py"]) == 2  # the step is there


def test_init_names_the_batch_scripts_that_it_finds_and_a_dry_run_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--from", "job.sbatch", "--dry-run"]) == 0
    assert "[steps.fit_model]" in capsys.readouterr().out and not (here / "shoal.toml").exists()
    assert main(["init"]) == 0
    assert "shoal init --from job.sbatch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "nope.sbatch"], "no such file"),
        (["--gpus", "2"], "no effect without --from"),
        (["--from", "job.sbatch", "--set", "wd=1"], "does not read $wd"),
    ],
)
def test_what_cannot_be_described_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["init", *words]) == 2
    assert told in capsys.readouterr().err and not (here / "shoal.toml").exists()
