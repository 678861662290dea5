"""`shoal adopt` on a real Slurm: jobs of plain sbatch become runs, and nothing about them changes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import REMEMBERS, MakeSandbox, _session_sandbox, cancel_all
from people import group
from project import Project, assert_clear_error
from published import complaints
from shoal.sandbox import Sandbox, default_slurm
from shoal.views.log_files import rank_logs
from waiting import wait_until

pytestmark = pytest.mark.slurm
#: Prints a step of 4000 each tenth of a second, until it may end: no test waits for the last one.
TRAIN = """\
#!/bin/bash
#SBATCH --job-name=train --time=10 --mem=50
for i in $(seq 1 4000); do
  echo "step $i/4000 loss 0.5"
  [ -e end ] && break
  sleep 0.1
done
exit ${1:-0}
"""


class Folder:
    """A directory without shoal.toml, from which a person submits with sbatch."""

    def __init__(self, folder: Path, cluster: Sandbox) -> None:
        self.project = Project(folder, cluster, name="work")
        for path in ("shoal.toml", "experiments", "marks", "train.py"):
            place = self.project.root / path
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        self.root = self.project.root
        self.shoal, self.status, self.wait = self.project.shoal, self.project.status, self.project.wait

    def sbatch(self, *words: str, script: str | None = TRAIN, args: tuple[str, ...] = ()) -> str:
        """Submit and return the job's id."""
        if script is None:
            return self.project.slurm("sbatch", "--parsable", "--mem=50", *words).strip()
        self.project.write("job.sbatch", script)
        return self.project.slurm("sbatch", "--parsable", *words, "job.sbatch", *args).strip()

    def wait_state(self, job: str, *states: str) -> str:
        """Wait until Slurm shows a job in one of these states."""

        def look() -> str | None:
            word = self.project.slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).strip()
            return word if word in states else None

        return wait_until(look, 60, f"job {job} is {' or '.join(states)}")

    def wait_forgotten(self, job: str) -> None:
        """Wait until Slurm has no such job any more."""

        def look() -> bool:
            return "invalid" in self.project.run(["scontrol", "show", "job", job], code=None).err.lower()

        wait_until(look, 90, f"job {job} is forgotten")

    def wait_accounted(self, job: str) -> None:
        """Wait until slurmdbd has the end of a job, which the controller tells it in its own time."""
        words = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,End")
        wait_until(
            lambda: re.match(r"(COMPLETED|FAILED)\|\d", self.project.slurm(*words, check=False)), 60, "it is accounted"
        )

    def wait_end(self, name: str) -> dict[str, Any]:
        return self.wait(name, deadline_s=90)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Sandbox]:
    """A cluster that remembers ended jobs as long as Slurm does by default: a busy machine is slow to look."""
    yield from _session_sandbox("adopt", nodes=2, settings=(REMEMBERS,))


@pytest.fixture
def folder(tmp_path: Path, slurm: Sandbox) -> Iterator[Folder]:
    yield Folder(tmp_path, slurm)
    cancel_all(slurm)


def described(folder: Folder, job: str) -> str:
    """What scontrol says about a job, without what time changes."""
    text = folder.project.slurm("scontrol", "show", "job", job)
    return "\n".join(line for line in text.splitlines() if "RunTime" not in line and "LastSchedEval" not in line)


def test_a_pending_job_is_followed_from_the_queue_to_its_end_and_nothing_about_it_changes(folder: Folder) -> None:
    job = folder.sbatch("--hold", "--output=%x-%j.txt")
    before = described(folder, job)
    done = folder.shoal("adopt", job, "--json")
    assert complaints("adopt", done.json) == []
    name = f"adopted/train-{job}"
    assert done.json["runs"] == [
        {
            "name": name,
            "job_id": job,
            "state": folder.status()[name]["state"],
            "did": "adopted",
            "adopted": True,
            "notes": [f"the script of job {job} uses arguments, and Slurm names none: shoal retry runs it without"],
        }
    ]
    assert "JobHeldUser" in folder.shoal("why", name, "--json").out
    folder.shoal("logs", name)
    assert described(folder, job) == before
    folder.project.slurm("scontrol", "release", job)
    folder.wait_state(job, "RUNNING")
    run = wait_until(lambda: (one := folder.status()[name])["progress"] and one, 30, "its log tells progress")
    assert (
        run["state"] == "running" and run["adopted"] is True and run["attempt"] == 1 and run["progress_source"] == "log"
    )
    assert run["progress"].startswith("step ") and "/4000" in run["progress"]
    assert run["gpu_percent"] is None and run["memory_mb"] is None, "what nobody measures is not made up"
    why = folder.shoal("why", name)
    assert f"adopted: shoal did not submit job {job}" in why.out and "progress step" in why.out
    assert complaints("why", folder.shoal("why", name, "--json").json) == []
    assert "step 1/4000" in folder.shoal("logs", name, "-n", "0").out
    (folder.root / "end").touch()
    run = folder.wait_end(name)
    assert (run["state"], run["exit_code"], run["adopted"], run["slurm_state"]) == ("completed", 0, True, "COMPLETED")
    assert run["started"] < run["ended"] and complaints("status", folder.shoal("status", "--json").json) == []
    report = folder.shoal("report", "--json").json
    assert complaints("report", report) == []
    (attempt,) = report["runs"][0]["attempts"]
    assert attempt["mean_cpus"] is None and attempt["peak_memory_mb"] is None and attempt["ended"] == run["ended"]


def test_a_failed_job_is_explained_from_its_own_error_file(folder: Folder) -> None:
    script = '#!/bin/bash\n#SBATCH --mem=50 -t 5\necho "step 3/9"; python3 -c \'raise ValueError("bad seed 7")\'\n'
    job = folder.sbatch("-J", "my train", "-o", "%x.out", "-e", "%x-%5j.err", script=script)
    folder.shoal("adopt", job)
    (name,) = folder.status()
    assert name.startswith("adopted/my-train-") and name.endswith(f"-{job}")
    run = folder.wait_end(name)
    assert (run["state"], run["exit_code"]) == ("failed", 1)
    why = folder.shoal("why", name).out
    assert "ValueError: bad seed 7" in why and f"from {folder.root}/my train-{int(job):05}.err:" in why
    shown = folder.shoal("logs", name).out
    assert "==> my train.out <==" in shown and "step 3/9" in shown and "ValueError: bad seed 7" in shown
    assert "ValueError: bad seed 7" in folder.shoal("logs", "--errors").out
    assert [part.label for part in rank_logs(run["log_dir"], 1)] == ["rank 0", "errors"], "what the page lets choose"


def test_timeout_and_cancellations_are_told_by_slurms_word(folder: Folder) -> None:
    late, cancelled = folder.sbatch("-t", "1"), folder.sbatch()
    never = folder.sbatch("--hold")
    folder.shoal("adopt", late, cancelled, never)
    folder.wait_state(late, "RUNNING")
    folder.wait_state(cancelled, "RUNNING")
    folder.project.slurm("scontrol", "update", f"JobId={late}", "EndTime=now+1")
    folder.project.slurm("scancel", cancelled, never)
    run = folder.wait_end(f"adopted/train-{cancelled}")
    assert (run["state"], run["attempt"]) == ("cancelled", 1)
    run = folder.wait_end(f"adopted/train-{never}")
    assert (run["state"], run["attempt"], run["started"]) == ("cancelled", 0, None)
    run = folder.wait(f"adopted/train-{late}", deadline_s=150)
    assert (run["state"], run["reason"]) == ("timeout", "stopped at its time limit")


def test_a_requeued_job_is_another_attempt_of_the_same_run(folder: Folder) -> None:
    job = folder.sbatch("--requeue", "--output=log-%j", "--open-mode=append")
    name = f"adopted/train-{job}"
    folder.shoal("adopt", job)
    folder.wait_state(job, "RUNNING")
    folder.wait(name, "running")
    # Held, so that it waits however late we look.
    folder.project.slurm("scontrol", "requeuehold", job)
    waiting = folder.wait(name, "pending", "blocked")
    assert "requeued after attempt 1" in waiting["reason"]
    folder.project.slurm("scontrol", "release", job)
    run = wait_until(lambda: (one := folder.status()[name])["attempt"] == 2 and one, 60, "it runs again")
    assert run["state"] == "running"
    (folder.root / "end").touch()
    assert folder.wait_end(name)["state"] == "completed"
    assert "attempt 1" in folder.shoal("why", name).out
    assert len(folder.shoal("report", "--json").json["runs"][0]["attempts"]) == 2


def test_tasks_of_an_array_are_runs_of_their_own(folder: Folder) -> None:
    script = "#!/bin/bash\n#SBATCH -J arr --mem=50 -t 5\necho task $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID\n"
    job = folder.sbatch("--array=0-2%1", "--hold", script=script)
    assert folder.shoal("adopt", f"{job}_1", "-q").out.split() == [f"adopted/arr-{job}_1"]
    assert sorted(folder.shoal("adopt", job, "-q").out.split()) == [f"adopted/arr-{job}_{task}" for task in range(3)]
    folder.project.slurm("scontrol", "release", job)
    for task in range(3):
        run = folder.wait_end(f"adopted/arr-{job}_{task}")
        assert (run["exit_code"], run["job_id"]) == (task, f"{job}_{task}")
        assert folder.shoal("logs", f"arr-{job}_{task}").out == f"task {task}\n"
    assert_clear_error(folder.shoal("why", job, code=2), 2, "is an array", f"shoal why {job}_0")


def test_adopting_twice_by_name_by_id_and_at_once_is_one_run(folder: Folder) -> None:
    job = folder.sbatch()
    racers = [folder.project.start("adopt", job, "-q") for _ in range(4)]
    assert {racer.communicate(timeout=120)[0].strip() for racer in racers} == {f"adopted/train-{job}"}
    again = folder.shoal("adopt", "train", "--name", "other/name", "--json").json["runs"]
    assert [(run["name"], run["did"]) for run in again] == [(f"adopted/train-{job}", "known")]
    assert list(folder.status()) == [f"adopted/train-{job}"]
    submission = next((folder.project.home / "submissions").iterdir())
    (submission / "send.0.outcome").unlink()
    (folder.project.home / f"runs/adopted/train-{job}/submit.1.claim").unlink()
    assert folder.shoal("adopt", job, "--json").json["runs"][0]["did"] == "adopted", "a killed command is completed"
    assert list(folder.status()) == [f"adopted/train-{job}"]


def test_mine_is_everything_in_the_queue_that_shoal_did_not_submit(folder: Folder, tmp_path: Path) -> None:
    own = Project(tmp_path / "own", folder.project.cluster)
    own.shoal("submit", own.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- wait=go"))
    own.wait("001_a/000_train_0", "running")
    one, two = folder.sbatch(), folder.sbatch("--hold", "-J", "second")
    assert folder.shoal("adopt", "--mine", "--dry-run", "-q").out.split() == [
        f"adopted/train-{one}",
        f"adopted/second-{two}",
    ]
    assert not folder.project.home.exists(), "a dry run writes nothing"
    done = folder.shoal("adopt", "--mine", "-q")
    assert set(done.out.split()) == {f"adopted/train-{one}", f"adopted/second-{two}"}
    assert set(folder.status()) == set(done.out.split())
    job = own.status()["001_a/000_train_0"]["job_id"]
    assert own.shoal("adopt", job).out == f"own run: 001_a/000_train_0 (running, job {job})\n"
    assert own.shoal("adopt", job, "--json").json["runs"][0]["name"] == "001_a/000_train_0"
    assert_clear_error(
        folder.shoal("adopt", job, code=2), 2, "was submitted by shoal in another directory", str(own.root)
    )
    assert own.shoal("why", job, "--json").json["run"] == "001_a/000_train_0"
    (own.root / "go").touch()
    own.wait("001_a/000_train_0")


def test_a_project_gives_the_run_the_name_that_it_is_asked_for(folder: Folder, tmp_path: Path) -> None:
    one, two = folder.sbatch(), folder.sbatch()
    done = folder.shoal("adopt", one, "--name", "baselines/resnet", "-q")
    assert done.out == "baselines/resnet\n"
    assert folder.wait("baselines/resnet", "running")["job_id"] == one
    assert_clear_error(folder.shoal("adopt", two, "--name", "baselines/resnet", code=2), 2, "is another run already")
    assert_clear_error(folder.shoal("adopt", two, "--name", "resnet", code=2), 2, "is not EXPERIMENT/RUN")
    assert list(folder.status()) == ["baselines/resnet"]
    assert "ADOPTED" in folder.shoal("status", "--columns", "run,adopted").out


# ---- looking at a job that is no run


def test_why_and_logs_look_at_any_job_and_leave_nothing_behind(folder: Folder) -> None:
    job = folder.sbatch("--output=%x.%j", args=("3",))
    folder.wait_state(job, "RUNNING")
    wait_until(lambda: "progress step" in folder.shoal("why", job).out, 30, "its progress is seen")
    why = folder.shoal("why", job)
    assert why.out.startswith(f"job {job} is running") and f"hint: shoal logs {job} -f" in why.out
    assert complaints("why", folder.shoal("why", job, "--json").json) == []
    temporary = folder.root / "temporary"
    temporary.mkdir()
    terminated = folder.project.start("logs", job, "-f", TMPDIR=str(temporary))
    assert terminated.stdout is not None and terminated.stdout.readline().startswith("step ")
    assert os.listdir(temporary), "the job is looked at as a run in a directory of its own"
    terminated.terminate()
    terminated.communicate(timeout=60)
    assert terminated.returncode == 143 and not os.listdir(temporary)
    temporary.rmdir()
    follower = folder.project.start("logs", job, "-f")
    (folder.root / "end").touch()
    out, err = follower.communicate(timeout=120)
    assert out.startswith("step ") and follower.returncode == 4, err
    assert folder.shoal("logs", job, "-n", "1").out.startswith("step ")
    why = folder.shoal("why", job)
    assert why.out.startswith(f"job {job} failed: exit code 3") and f"hint: shoal adopt {job}" in why.out
    assert not folder.project.home.exists()
    assert sorted(path.name for path in folder.root.iterdir()) == ["end", "job.sbatch", f"train.{job}"]


def test_a_log_that_goes_nowhere_or_has_not_come_yet_is_told(folder: Folder) -> None:
    silent = folder.sbatch("--output=/dev/null")
    waiting = folder.sbatch("--hold")
    folder.wait_state(silent, "RUNNING")
    assert "Slurm names no file for its output" in folder.shoal("logs", silent).err
    assert "has not started yet" in folder.shoal("logs", waiting).err


# ---- ends that Slurm has forgotten


def test_of_a_forgotten_job_without_accounting_no_end_is_made_up(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    folder = Folder(tmp_path, make_sandbox("forget", nodes=1, gpus=0, settings=(("MinJobAge", "2"),)))
    job = folder.sbatch()
    name = f"adopted/train-{job}"
    folder.shoal("adopt", job)
    folder.wait_state(job, "RUNNING")
    folder.wait(name, "running")
    never = folder.sbatch("--hold")
    folder.shoal("adopt", never)
    folder.project.slurm("scancel", never)
    (folder.root / "end").touch()
    folder.wait_forgotten(never)
    folder.wait_forgotten(job)
    run = folder.status()[f"adopted/train-{never}"]
    assert (run["state"], run["attempt"]) == ("lost", 0) and "no record tells how" in run["reason"]
    run = folder.status()[name]
    assert (run["state"], run["exit_code"]) == ("lost", None)
    assert "no record tells how" in run["reason"]
    assert run["ended"] is not None and run["ended"] >= run["started"]
    assert "no record tells how" in folder.shoal("why", name).out and "step " in folder.shoal("logs", job).out
    assert folder.shoal("why", job, "--json").json["run"] == name, (
        "the run is known although Slurm has forgotten the job"
    )
    assert_clear_error(folder.shoal("adopt", "98765", code=2), 2, "does not know job 98765", "ended too long ago")


def test_accounting_tells_what_slurm_has_forgotten(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    """Nobody looks before Slurm has forgotten the jobs: one was adopted while it waited, two are adopted afterwards."""
    sandbox = make_sandbox("old", nodes=1, gpus=0, accounting=True, settings=(("MinJobAge", "2"),))
    folder = Folder(tmp_path, sandbox)
    (folder.root / "end").touch()
    waited = folder.sbatch("--hold", "-o", "o-%j", args=("5",))
    folder.shoal("adopt", waited)
    folder.project.slurm("scontrol", "release", waited)
    job, named = folder.sbatch(args=("7",)), folder.sbatch("-o", "elsewhere")
    for one in (waited, job, named):
        folder.wait_forgotten(one)
        folder.wait_accounted(one)
    run = folder.status()[f"adopted/train-{waited}"]
    assert (run["state"], run["exit_code"], run["attempt"]) == ("failed", 5, 1)
    assert folder.shoal("logs", waited).out == "step 1/4000 loss 0.5\n", "as Slurm said when it was adopted"
    assert f"job {job} failed: exit code 7" in folder.shoal("why", job).out
    folder.shoal("adopt", job, named)
    run = folder.status()[f"adopted/train-{job}"]
    assert (run["state"], run["exit_code"], run["adopted"]) == ("failed", 7, True)
    assert folder.status()[f"adopted/train-{named}"]["state"] == "completed"
    assert folder.shoal("logs", job).out == "step 1/4000 loss 0.5\n", "where sbatch writes by default"
    assert "Slurm names no file" in folder.shoal("logs", named).err
    assert_clear_error(folder.shoal("retry", f"train-{job}", code=2), 2, "the script of", "shoal submit SCRIPT")
    assert_clear_error(folder.shoal("adopt", "98765", code=2), 2, "does not know job 98765")


# ---- what cannot be adopted


def test_what_cannot_be_adopted_is_told_in_one_sentence_and_nothing_is_written(folder: Folder) -> None:
    job = folder.sbatch("--hold")
    cases = {
        ("98765",): "does not know job 98765 on cluster",
        (f"{job};other",): "belongs to cluster other",
        (job, "98765"): "does not know job 98765",
        ("nothing",): "none of your jobs in the queue is called 'nothing'",
        (f"{job}_7",): "does not know job",
        (): "which jobs",
        ("--mine", job): "which jobs",
    }
    for words, sentence in cases.items():
        assert_clear_error(folder.shoal("adopt", *words, code=2), 2, sentence)
    assert_clear_error(folder.shoal("why", "98765", code=2), 2, "does not know job 98765")
    assert_clear_error(folder.shoal("logs", "98765", code=2), 2, "does not know job 98765")
    error = folder.shoal("adopt", "98765", "--json", code=2).json
    assert complaints("error", error) == []
    # A heterogeneous job is looked at and not adopted.
    job = folder.sbatch("--hold", "--wrap=sleep 60", ":", "--mem=50", "--wrap=sleep 60", script=None)
    assert_clear_error(folder.shoal("adopt", job, code=2), 2, "heterogeneous", f"shoal logs {job}")
    assert f"job {job}" in folder.shoal("why", job).out
    assert not folder.project.home.exists()


def test_a_slurm_that_does_not_answer_is_code_5(folder: Folder, tmp_path: Path) -> None:
    conf = Path(folder.project.env["SLURM_CONF"]).read_text()
    silent = "\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort") else line for line in conf.splitlines())
    (tmp_path / "slurm.conf").write_text(silent)
    done = folder.shoal("adopt", "1", code=5, SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert_clear_error(done, 5, "Slurm does not answer")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make two users")
def test_a_job_of_another_user_is_looked_at_and_never_adopted() -> None:
    with group("adopt", slurm=True) as made:
        ann, bob = made.project("one")
        script = ann.root / "job.sbatch"
        script.write_text("#!/bin/bash\n#SBATCH --mem=50 -t 5\necho step 3/9\nsleep 300\n")
        script.chmod(0o664)
        job = ann.run("sbatch", "--parsable", "-o", "ann.log", "-J", "hers", script).out.strip()
        wait_until(lambda: "step 3/9" in ann.shoal("logs", job, code=None).out, 60, "it has printed something")
        ann.run("chmod", "600", "ann.log")
        refused = bob.shoal("adopt", job, code=2)
        assert_clear_error(refused, 2, f"job {job} is a job of {ann.name}, not yours", f"shoal why {job}")
        assert "is running" in bob.shoal("why", job).out
        assert_clear_error(bob.shoal("logs", job, code=2), 2, "cannot read the log", "ann.log", "permission denied")
        assert not (ann.root / ".shoal").exists()
        ann.shoal("adopt", job)
        ann.run("chmod", "000", "ann.log")
        assert_clear_error(ann.shoal("logs", f"hers-{job}", code=2), 2, "cannot read the log", "permission denied")
        assert ann.states() == {f"hers-{job}": "running"}
        ann.run("scancel", job)


# ---- doing something with an adopted run


def test_cancel_asks_because_shoal_did_not_submit_the_job(folder: Folder) -> None:
    job = folder.sbatch()
    name = f"adopted/train-{job}"
    folder.shoal("adopt", job)
    folder.wait_state(job, "RUNNING")
    assert_clear_error(folder.shoal("cancel", name, code=2), 2, f"job {job}, which shoal did not submit", "--yes")
    assert folder.wait_state(job, "RUNNING")
    folder.shoal("cancel", name, "--dry-run")
    folder.shoal("cancel", name, "--yes")
    assert folder.wait_end(name)["state"] == "cancelled"
    folder.wait_state(job, "CANCELLED")


def test_retry_runs_the_saved_script_as_the_next_attempt_and_only_if_it_is_named(folder: Folder) -> None:
    script = '#!/bin/bash\n#SBATCH -J arr --mem=50 -t 5\necho "task $SLURM_ARRAY_TASK_ID: $*"; [ -e good ]\n'
    job = folder.sbatch("--array=4", script=script, args=("a=1", "b"))
    name = f"adopted/arr-{job}_4"
    told = folder.shoal("adopt", f"{job}_4")
    # Slurm 22.05 has them in Command and 26.05 in SubmitLine; 24.11 has them nowhere.
    is_untold = "Slurm names none" in told.out + told.err
    assert is_untold == default_slurm().startswith("24.11")
    assert folder.wait_end(name)["state"] == "failed"
    (folder.root / "job.sbatch").write_text("#!/bin/bash\necho another program\n")
    (folder.root / "good").touch()
    assert "only when they are named" in folder.shoal("retry").err
    assert_clear_error(folder.shoal("resume", name, code=2), 2, "adopted job", f"shoal retry {name}")
    folder.shoal("retry", name)
    run = folder.wait_end(name)
    assert (run["state"], run["attempt"], run["adopted"]) == ("completed", 2, False)
    assert folder.shoal("logs", name).out == ("task 4: \n" if is_untold else "task 4: a=1 b\n")
    assert "a=1 b" in folder.shoal("logs", name, "--attempt", "1").out


SCALING = """\
#!/bin/bash
#SBATCH --job-name=scale --time=30 --mem=50 --gres=gpu:1
echo $SLURM_JOB_ID >> started
commas=${CUDA_VISIBLE_DEVICES//[^,]/}
for i in $(seq 1 5000); do
  echo "step $i/5000 loss 0.5"
  [ -e end ] && [ -n "$commas" ] && break
  [ -n "$commas" ] && sleep 0.05 || sleep 0.1
done
"""


def test_switch_hands_an_adopted_job_over_after_a_question(folder: Folder) -> None:
    job = folder.sbatch(script=SCALING)
    name = f"adopted/scale-{job}"
    folder.shoal("adopt", job)
    folder.wait_state(job, "RUNNING")
    wait_until(lambda: folder.status()[name]["progress"], 30, "it has come some of its way")
    assert complaints("switch", folder.shoal("switch", name, "--gpus", "4", "--json").json) == []
    refused = folder.shoal("switch", name, "--gpus", "4", "--apply", code=2)
    assert_clear_error(refused, 2, f"shoal did not submit job {job}", "--yes")
    assert folder.wait_state(job, "RUNNING")
    folder.shoal("switch", name, "--gpus", "4", "--apply", "--yes")
    run = wait_until(lambda: (one := folder.status()[name])["attempt"] == 2 and one, 120, "it was handed over")
    assert (run["state"], run["gpus"], run["adopted"]) == ("running", 4, False) and run["job_id"] != job
    assert folder.wait_state(job, "CANCELLED")
    (folder.root / "end").touch()
    assert folder.wait_end(name)["state"] == "completed"
    assert (folder.root / "started").read_text().split() == [job, run["job_id"]]
    why = folder.shoal("why", name).out
    assert "cancelled when its replacement took over" in why
    attempts = folder.shoal("report", "--json").json["runs"]
    (first, _) = next(one for one in attempts if one["name"] == name)["attempts"]
    assert first["ended"] - first["started"] > 1, "the time before the switch is counted"


def test_a_replacement_of_a_job_that_ends_well_by_itself_takes_nothing_over(folder: Folder) -> None:
    """Nobody looks at the adopted job when it ends; its replacement asks Slurm before it takes over."""
    script = SCALING.replace('[ -e end ] && [ -n "$commas" ] && break', '[ -e end ] && [ -z "$commas" ] && break')
    script = script.replace("for i in", 'while [ -n "$commas" ] && [ ! -e go ]; do sleep 0.1; done\nfor i in')
    job = folder.sbatch(script=script)
    name = f"adopted/scale-{job}"
    folder.shoal("adopt", job)
    wait_until(lambda: folder.status()[name]["progress"], 60, "it has come some of its way")
    folder.shoal("switch", name, "--gpus", "4", "--apply", "--yes")
    wait_until(lambda: len((folder.root / "started").read_text().split()) == 2, 60, "the replacement runs")
    (folder.root / "end").touch()
    folder.wait_state(job, "COMPLETED")
    (folder.root / "go").touch()
    other = f"{name}_4gpus"
    wait_until(lambda: folder.status(other)[other]["state"] == "cancelled", 120, "the replacement withdraws")
    run = folder.status()[name]
    assert (run["state"], run["attempt"], run["job_id"]) == ("completed", 1, job)
