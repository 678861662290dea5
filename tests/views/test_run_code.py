"""Runs that different code made are told apart; metrics that a step names later are found in logs of finished runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from made_up import MadeUp
from project import Project
from shoal.kernel import layout
from shoal.observe import RunCode, RunReader, observe, other_code_notes, read_code

PROGRAM = """\
import json, os, sys
lr = float(sys.argv[1].partition("=")[2])
print(f"my score {lr * FACTOR}")
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:
    json.dump({"loss": lr * FACTOR}, file)
"""
TOML = """\
[steps.train]
command = [{python}, "program.py"]
output = "training"
"""


def test_only_runs_of_one_step_and_experiment_are_compared() -> None:
    runs = [RunCode("a/1", "train", "x", 1.0), RunCode("a/2", "train", "y", 2.0), RunCode("a/3", "train", "y", 3.0)]
    (note,) = other_code_notes([*runs, RunCode("a/4", "eval", "z", 4.0), RunCode("b/1", "train", "x", 5.0)])
    assert note.startswith("1 of 4 runs of a was made with other code") and "shoal status a --all" in note
    assert other_code_notes([*runs[1:], RunCode("a/9", "train", "", 9.0)]) == [], "unknown code is no other code"


def test_snapshots_of_other_users_and_under_another_name_of_the_directory_are_told_apart(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    (tmp_path / "link").symlink_to(made.root)
    codes = []
    for number, owner in enumerate(("", "1001/", "1002/")):
        name, tree = f"001_a/000_train_{number}", f"{number}" * 16
        made.run(name)
        record = Path(made.home, "snapshots", f"{owner}{tree}.json")
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(f'{{"code": "c0de{number}"}}')
        run_dir = Path(layout.run_dir(made.home, name))
        token = json.loads((run_dir / "submit.1.claim").read_text())["token"]
        sent = Path(layout.submission_dir(made.home, token), "submission.json")
        code = f"{made.home}/snapshots/{owner}{tree}/project"
        sent.write_text(json.dumps({**json.loads(sent.read_text()), "code": code}))
        for home in (made.home, str(tmp_path / "link" / ".shoal")):
            reader = RunReader(home)
            codes.append(read_code(reader, observe(home, [name]).views[name], reader.spec(name)))
    assert codes == ["c0de0", "c0de0", "c0de1", "c0de1", "c0de2", "c0de2"]


@pytest.mark.slow
def test_views_tell_that_other_code_made_some_runs_and_read_metrics_of_now(tmp_path: Path) -> None:
    project = Project(tmp_path)
    toml = TOML.format(python=repr(sys.executable))
    project.write("shoal.toml", toml)
    project.write("program.py", "FACTOR = 1\n" + PROGRAM)
    project.write("README.md", "first")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.email=a@b", "-c", "user.name=a", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=project.root, check=True, capture_output=True)

    def submit(rates: str) -> None:
        project.write("experiments/001_a/000_train.toml", f'step = "train"\n[sweep]\nlr = {rates}\n')
        project.shoal("submit", project.root / "experiments/001_a/000_train.toml")

    def told() -> list[str]:
        texts = [project.shoal("status", "001_a").out, project.shoal("results", "001_a").err]
        texts.append(project.shoal("report", "001_a").out)
        assert len({"other code than the newest" in text for text in texts}) == 1, texts
        return [line for text in texts for line in text.splitlines() if "other code than the newest" in line]

    submit("[1, 2]")
    project.write("README.md", "second")
    submit("[1, 2, 3]")
    assert told() == [], "a README is no code"
    project.write("program.py", "FACTOR = 10\n" + PROGRAM)
    submit("[1, 2, 3, 4]")
    assert len(told()) == 3 and all("3 of 4 runs of 001_a were made with other code" in line for line in told())
    runs = project.shoal("status", "001_a", "--all", "--json").json["runs"]
    codes = {one["name"].partition("lr")[2]: one["code"] for one in runs}
    assert codes["1"] == codes["2"] == codes["3"] != codes["4"]
    assert {one["code"] for one in project.shoal("results", "001_a", "--json").json["runs"]} == set(codes.values())
    shown = project.shoal("status", "001_a", "--all", "--columns", "run,state,code").out
    assert shown.count(codes["1"]) == 3 and shown.count(codes["4"]) == 1
    # The name of a metric that was not declared when the runs were made.
    assert all("my score" not in one["metrics"] for one in runs)
    project.write("shoal.toml", toml + 'metrics = ["my score"]\n')
    runs = project.shoal("status", "001_a", "--all", "--json").json["runs"]
    assert sorted(one["metrics"]["my score"] for one in runs) == [1, 2, 3, 40]
    assert "my score" in project.shoal("results", "001_a", "--json").json["metrics"]
    assert "my score" in project.shoal("report", "001_a").out
