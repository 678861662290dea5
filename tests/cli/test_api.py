"""`shoal.api` does what the commands do, for a project that is named: it prints nothing and returns typed records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shoal
from project import Project
from shoal import api
from shoal.errors import InputError
from shoal.views.logs import logs_document
from shoal.views.plan import plan_document
from shoal.views.status import status_document
from waiting import wait_until

SWEEP = 'step = "train"\nargs = ["exit={code}", "print=code {code}"]\nmetric = "loss"\n[sweep]\ncode = [0, 7]\n'
GOOD, BAD = "001_a/000_train_code0", "001_a/000_train_code7"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in which we do not stand, with the environment of its commands."""
    made = Project(tmp_path, toml=f"\n[notify]\ncommand = \"sh -c 'cat >> {tmp_path}/told'\"\n")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    made.write("experiments/001_a/000_train.toml", SWEEP)
    return made


class Listener:
    """Keeps what it is told, and answers as a person would who agrees to everything."""

    def __init__(self) -> None:
        self.results: list[api.SubmitResult] = []
        self.notes: list[str] = []

    def __call__(self, result: api.SubmitResult) -> None:
        self.results.append(result)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def agrees(self, plan: object, cluster: object) -> bool:
        return True

    def chooses(self, found: object) -> bool | None:
        return None

    def is_sure(self, found: object) -> bool:
        return True


@pytest.mark.slow
def test_runs_are_planned_submitted_looked_at_and_started_again_without_a_word(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    files, root = [project.root / "experiments" / "001_a" / "000_train.toml"], project.root
    plan = api.plan(files, on="local", project=root)
    names = [one.run.spec.name for one in plan.asked]
    assert names == [GOOD, BAD] and plan.cluster.is_local and not (root / ".shoal" / "runs").exists()

    sent = api.submit(files, on="local", project=root)
    assert [(one.name, one.did, one.state, one.exit_code) for one in sent] == [
        (GOOD, "ran", "completed", 0),
        (BAD, "ran", "failed", 7),
    ]
    assert "all runs have ended" in (root.parent / "told").read_text()
    assert [one.did for one in api.submit(files[:1], on="local", project=root)] == ["left alone", "ran"]

    found = api.status(api.StatusFilter(states="failed"), project=root)
    assert [view.name for view in found.views] == [BAD] and found.left_out == 1 and found.has_failed
    assert "exit code 7" in api.why(BAD, project=root).headline
    [log] = api.logs([BAD], lines=50, project=root)
    assert log.attempt == 2 and "code 7" in log.logs[0].text
    assert [[error.run for error in group] for group in api.errors(project=root)] == [[BAD]]
    assert [one.view.name for one in api.report(["001_a"], project=root).histories] == names
    assert [group.params["code"] for group in api.results(["001_a"], project=root).groups] == [0, 7]

    heard = Listener()
    again = api.retry(causes="oom", on="local", tell=heard, project=root)
    assert (again, heard.notes) == ([], ["left out: 1 failed; --state failed starts them", "no run to retry"])
    dry = api.CommandOptions(dry_run=True)
    would = api.retry([BAD], on="local", command=dry, tell=heard, project=root)
    assert [result[:2] for result in would] == [(BAD, "would submit")]
    assert heard.results[-1][:2] == (BAD, "would submit")
    project.write("train.py", "")
    assert [one.state for one in api.retry(on="local", project=root)] == ["completed"]
    assert api.cancel(["001_a"], project=root) == ([], [])
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_documents_content_is_that_of_the_command(project: Project) -> None:
    """The same run through both: the MCP server and a script read what `--json` prints."""
    file, root = Path("experiments/001_a/000_train.toml"), project.root
    planned = project.shoal("plan", file, "--on", "local", "--json").json
    assert planned == {"schema": 1, **plan_document(api.plan([root / file], on="local", project=root))} | {
        "notes": planned["notes"]
    }
    project.shoal("submit", file, "--on", "local", code=4)
    shown = project.shoal("status", "--json").json["runs"]
    assert [(run["name"], run["state"]) for run in shown] == [
        (run["name"], run["state"]) for run in status_document(api.status(project=root))["runs"]
    ]
    assert project.shoal("logs", BAD, "--json").json == {"schema": 1, **logs_document(api.logs([BAD], project=root))}
    run = shoal.runs("001_a", state="failed", project=root)[0]
    with pytest.raises(InputError, match="--mem has no effect on this machine"):
        run.retry(memory="x2")
    assert run.why().splitlines()[0] == api.why(BAD, project=root).headline
    assert run.logs(tail=0) == api.logs([BAD], lines=0, project=root)[0].logs[0].text


@pytest.mark.slow
def test_a_question_comes_in_as_a_callback_and_a_run_cancels_through_the_same_flow(project: Project) -> None:
    """Runs on this machine that are active belong to a command in another process."""
    names = ["002_b/000_train_0", "002_b/001_train_0"]
    for name in names:
        project.script(f"{name}.sh", "train -- wait=never")
    both = [project.start("submit", f"experiments/{name}.sh", "--on", "local") for name in names]
    for name in names:
        project.wait_started(name)
    asked: list[list[str]] = []

    def agrees(views: object) -> bool:
        asked.append([view.name for view in views])  # type: ignore[attr-defined]
        return False

    left = api.cancel(["002_b"], agrees=agrees, project=project.root)
    assert asked == [names] and [(one.name, one.cancelled) for one in left.runs] == [(name, False) for name in names]
    looked = api.cancel(names[:1], agrees=agrees, dry_run=True, project=project.root)
    assert [one.cancelled for one in looked.runs] == [False] and len(asked) == 1
    assert [one.cancelled for one in api.cancel(names[:1], agrees=agrees, project=project.root).runs] == [True]
    assert shoal.runs(names[1], project=project.root)[0].cancel()
    for process in both:
        process.communicate(timeout=60)
    ended = wait_until(
        lambda: {view.state for view in api.status(project=project.root).views} == {"cancelled"},
        30,
        "both are cancelled",
    )
    assert ended and not shoal.runs(names[1], project=project.root)[0].cancel()


def test_mistakes_are_errors_with_a_hint(project: Project, tmp_path: Path) -> None:
    root = project.root
    with pytest.raises(InputError, match=r"no shoal\.toml"):
        api.status(project=tmp_path)
    with pytest.raises(InputError, match="missing FILE"):
        api.submit(project=root)
    with pytest.raises(InputError, match="cancel which runs"):
        api.cancel([], project=root)
    with pytest.raises(InputError, match="no run named 'nothing'"):
        api.why("nothing", project=root)
    with pytest.raises(InputError, match="which run"):
        api.logs([], project=root)
    with pytest.raises(InputError, match="which jobs"):
        api.adopt(project=root)
    with pytest.raises(InputError, match="a budget needs a Slurm cluster"):
        api.budget(on="local", project=root)
    with pytest.raises(InputError, match="no search in this project"):
        api.searches(project=root)
    with pytest.raises(InputError, match="unknown state 'broken'"):
        api.retry(states="broken", project=root)


def test_scripts_are_checked_and_what_can_go_is_found_and_comes_back(project: Project) -> None:
    script = project.write("job.sh", "#!/bin/bash\n#SBATCH --time=1:00:00\necho hello\n#SBATCH --nodes=2\n")
    report = api.doctor([script], api.DoctorOptions(asks_slurm=False), project=project.root)
    assert "D01" in {finding.code for one in report.checked for finding in one.findings}
    assert report.is_bad(strict=True) and api.write_baseline(project.root / "known.json", report) > 0
    known = api.DoctorOptions(asks_slurm=False, baseline=project.root / "known.json")
    assert [one.findings for one in api.doctor([script], known, project=project.root).checked] == [[]]
    assert api.explain_launch("torchrun", nodes=2, gpus=4).processes == 8

    old = project.write(".shoal/runs/x.tmp-1-2", "half")
    os.utime(old, (0, 0))
    found = api.clean(kinds=["temporary"], project=project.root)
    assert [item.path for item in found.items] == [str(old)] and found.moved is None and old.exists()
    with pytest.raises(InputError, match="no backup"):
        api.restore_backup(project=project.root)
    assert api.clean(kinds=["temporary"], apply=True, project=project.root).moved and not old.exists()
    assert len(api.backups(project=project.root)) == 1
    api.restore_backup(project=project.root)
    assert old.read_text() == "half"
