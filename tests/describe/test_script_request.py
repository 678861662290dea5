"""#SBATCH lines of an experiment script are its request, below the flags of its call; none is dropped silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.sandbox import Sandbox


def script(project: Project, header: str, *lines: str) -> Path:
    body = "\n".join(lines)
    text = f'#!/bin/bash\n{header}\nsource "$(shoal shell)"\n{body}\n'
    return project.write("experiments/001_a/000_train_0.sh", text)


def planned(project: Project, path: Path) -> dict[str, object]:
    (run,) = project.shoal("plan", "--json", path).json["runs"]
    return run["request"]  # type: ignore[no-any-return]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


HEADER = "#SBATCH --gres=gpu:4 --time=3:00:00\n#SBATCH -c 16  # cores\n#SBATCH --mem=40G"


def test_the_lines_are_the_request(project: Project) -> None:
    request = planned(project, script(project, HEADER, "train"))
    assert {name: request[name] for name in ("gpus", "cpus", "memory", "time")} == {
        "gpus": 4,
        "cpus": 16,
        "memory": "40G",
        "time": "03:00:00",
    }


def test_flags_of_the_call_win_over_the_lines(project: Project) -> None:
    request = planned(project, script(project, HEADER, "train --gres=gpu:1 --time=20"))
    assert (request["gpus"], request["time"], request["cpus"]) == (1, "00:20:00", 16)


def test_lines_in_a_here_document_belong_to_another_script(project: Project) -> None:
    path = script(project, "", "cat > /dev/null <<EOF\n#SBATCH --gres=gpu:4\nEOF", "train --time=20")
    assert planned(project, path).get("gpus") is None


def test_lines_of_a_quoted_text_belong_to_the_text(project: Project) -> None:
    path = script(project, "", "X='a\n#SBATCH --gres=gpu:8\n'", "train --time=20 -- 'a\n#SBATCH --gres=gpu:4\n' b")
    assert planned(project, path).get("gpus") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "late", "message"),
    [
        ("", "#SBATCH --gres=gpu:4", "stands after the first command"),
        ("#SBATCH --array=0-9", "", "#SBATCH --array=0-9: --array belongs to shoal"),
        ("#SBATCH --chdir=/tmp", "", "--chdir belongs to shoal"),
        ("#SBATCH --time=soon", "", "#SBATCH --time=soon:"),
        ("#SBATCH --time 20 minutes", "", "'minutes' belongs to no option"),
        ("#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2", "", "heterogeneous"),
    ],
)
def test_a_line_that_cannot_be_taken_over_is_refused(project: Project, header: str, late: str, message: str) -> None:
    path = script(project, header, late, "train")
    for words in (("plan", path), ("submit", path, "--on", "local")):
        assert_clear_error(project.shoal(*words, code=None), 2, message, "000_train_0.sh")
    assert project.bash(path, code=None).code == 2 and not project.home.exists()


@pytest.mark.slow
def test_lines_that_shoal_answers_in_its_own_way_are_told(project: Project) -> None:
    header = (
        "#SBATCH --job-name=x\n#SBATCH -o out.txt\n##SBATCH --gres=gpu:8\n #SBATCH --gres=gpu:2\n#SBATCH --export=ALL"
    )
    done = project.shoal("plan", script(project, header, "train --time=5 --seeds=0-2"))
    told = [line for line in (done.out + done.err).splitlines() if "000_train_0.sh:" in line]
    assert len(told) == 4 and all("is not used" in line or "is not read" in line for line in told)
    assert any("#SBATCH --job-name=x is not used: the job is named after the run" in line for line in told)
    assert any("000_train_0.sh:5" in line and "is not read as an #SBATCH line" in line for line in told)


@pytest.mark.slurm
def test_the_job_has_what_the_lines_ask_for(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("submit", script(project, "#SBATCH --time=17 --mem=60\n#SBATCH --comment=told", "train --mem=50"))
    (run,) = project.shoal("status", "--json", "--all").json["runs"]
    shown = cluster.run("scontrol", "show", "job", run["job_id"]).stdout
    assert "TimeLimit=00:17:00" in shown and "Comment=told" in shown and "mem=50M" in shown
    project.wait("001_a/000_train_0", "completed")
