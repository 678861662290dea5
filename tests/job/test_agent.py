"""The agent on its own: fence, attempts, checkpoints, processes; under this Python and under 3.8 where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import END, ME, START
from project import Project, env_of
from shoal.job import environment, zipapp
from shoal.kernel import fence, layout, lease, processes, submission
from shoal.observe import run_writer
from shoal.observe.run_files import ClaimRecord, Outcome
from shoal.sandbox import Sandbox

RUN = "001_a/000_train_0"
TOKEN = "abcdefghijkm"


@pytest.fixture
def claim(tmp_path: Path) -> fence.Claim:
    """A run with one claimed generation, whose submission nobody has answered yet."""
    run_dir = tmp_path / "runs" / RUN
    run_dir.mkdir(parents=True)
    (tmp_path / "submissions" / TOKEN).mkdir(parents=True)
    submission.claim_generation(
        str(tmp_path), RUN, 1, ClaimRecord(token=TOKEN, revision=1, output_dir="/o", log_dir="/l")
    )
    return fence.find_claim(str(run_dir), TOKEN)


def _submission(claim: fence.Claim) -> str:
    return layout.submission_dir(_home(claim), claim.token)


def _home(claim: fence.Claim) -> str:
    return str(Path(claim.run_dir).parents[2])


def _begin(claim: fence.Claim, number: int, **start: Any) -> lease.Lease:
    record = START._replace(attempt=number, generation=claim.generation, host="elsewhere", **start)
    held = lease.create_lease(claim.run_dir, number, record, lease.timing({}))
    assert held is not None
    return held


def _admit(claim: fence.Claim, **me: Any) -> None:
    fence.settle_outcome(_home(claim), claim.token, ME._replace(**me))
    fence.check_admission(claim, layout.parse_names(os.listdir(claim.run_dir)), ME._replace(**me))


SINGLE = """
import os, signal, sys, time
from shoal.job import attempt, run_data, single_run
from shoal.kernel import fence, guard, layout, processes
from shoal.kernel.records import Allocation
claim = fence.find_claim(sys.argv[1], sys.argv[2])._replace(output_dir=sys.argv[1], log_dir=sys.argv[1])
policy = {"warn_before_s": 100, "warn_with": "file"}
spec = dict(experiment="a", stem="b", step="s", tracker_id="t", cwd="/", recovery=policy)
def run(link, **more):
    me, one = Allocation(**processes.own_identity()), dict(spec, **more)
    mine = attempt.Attempt(claim, attempt.begin_attempt(claim, 1, me, one, False, os.environ), one)
    job = single_run.SingleRunExecutor(layout.state_dir_of(claim.run_dir), mine, me, link, lambda text: None)
    job.loop()
    print(job.ours, job.end.success, job.end.exit_code, job.end.stopped_by, job.end.warned, job.end.signal)
    return 0
def work(link):
"""


def _single(claim: fence.Claim, work: str) -> str:
    """What a job of one run says about the end of its attempt."""
    code = SINGLE + textwrap.indent(work, "    ") + "\nsys.exit(guard.run_guarded(work))\n"
    argv = [sys.executable, "-c", code, claim.run_dir, claim.token]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_warning_that_comes_before_the_program_reaches_it(claim: fence.Claim) -> None:
    """And the program itself does not have the signal blocked, as the agent had: it can be killed by it."""
    words = ["sh", "-c", "while [ ! -e $SHOAL_STOP_FILE ]; do sleep 0.05; done; kill -USR1 $$; exit 3"]
    told = _single(claim, f"os.kill(link.guard_pid, signal.SIGUSR1)\nreturn run(link, command={words!r})")
    assert told == "True False 138 limit True SIGUSR1"


def test_a_job_that_is_stopped_while_its_data_is_on_the_way_ends_with_that_signal(claim: fence.Claim) -> None:
    work = """
def bring(self):
    os.kill(link.guard_pid, signal.SIGTERM)
    while self._stopped is None:
        time.sleep(0.01)
    return "the data cannot be used"
run_data.AttemptData.bring = bring
return run(link, command=["true"], data={"images": {"path": "/"}})
"""
    assert _single(claim, work) == "True False 143 SIGTERM False SIGTERM"


def test_a_result_check_that_cannot_be_started_makes_no_run_good(claim: fence.Claim) -> None:
    told = _single(claim, 'policy["result_check"] = ["/no/such/check"]\nreturn run(link, command=["true"])')
    assert told == "True False 0 None False None"


def test_a_warning_does_not_reach_the_result_check(claim: fence.Claim) -> None:
    check = ["sh", "-c", "touch {output_dir}/checks; while [ ! -e {output_dir}/warned ]; do sleep 0.2; done; exit 0"]
    work = f"""
import threading
policy["result_check"] = {check!r}
def warn():
    while not os.path.exists(claim.output_dir + "/checks"):
        time.sleep(0.01)
    os.kill(link.guard_pid, signal.SIGUSR1)
    open(claim.output_dir + "/warned", "w").close()
threading.Thread(target=warn, daemon=True).start()
return run(link, command=["true"])
"""
    assert _single(claim, work) == "True True 0 None False None"


def test_a_submission_whose_job_has_begun_cannot_be_given_up(claim: fence.Claim) -> None:
    _admit(claim, job_id="12", array_job_id="10")
    held = submission.write_outcome(_home(claim), claim.token, Outcome(kind="void", reason="too late"))
    assert (held.kind, held.job_id) == ("accepted", "10")


def test_a_job_whose_submission_was_given_up_does_not_begin(claim: fence.Claim) -> None:
    submission.write_outcome(_home(claim), claim.token, Outcome(kind="void", reason="never received"))
    with pytest.raises(fence.FencedError, match="given up: never received"):
        _admit(claim, job_id="7")


def test_a_job_of_a_cancelled_or_finished_run_or_an_old_generation_does_not_begin(claim: fence.Claim) -> None:
    _begin(claim, 1, job_id="7").end(END._replace(success=False, stopped_by="SIGTERM"))
    _admit(claim, job_id="8")
    held = _begin(claim, 2, job_id="7", life=0)
    held.end(END._replace(success=False))
    with pytest.raises(fence.FencedError, match="ended already"):
        _admit(claim, job_id="8")
    _admit(claim, job_id="7", life=1)  # Slurm has started that very job again
    _begin(claim, 3, job_id="7", life=1).end(END)
    with pytest.raises(fence.FencedError, match="completed already"):
        _admit(claim, job_id="7", life=2)
    run_writer.request_cancel(_home(claim), RUN, 1, {})
    with pytest.raises(fence.FencedError, match="cancelled"):
        _admit(claim, job_id="7")
    submission.claim_generation(
        _home(claim), RUN, 2, ClaimRecord(token="b" * 12, revision=1, output_dir="/o", log_dir="/l")
    )
    with pytest.raises(fence.FencedError, match="submitted again"):
        _admit(claim, job_id="7")
    with pytest.raises(fence.FencedError, match="another submission"):
        fence.find_claim(claim.run_dir, "c" * 12)


def test_a_running_attempt_hears_that_it_is_not_wanted(claim: fence.Claim) -> None:
    _begin(claim, 1)
    assert fence.why_unwanted(claim, 1) is None
    lease.ask_for_handover(claim.run_dir, 1, ME)
    assert fence.why_unwanted(claim, 1) == "handover" and fence.why_unwanted(claim, 2) is None
    run_writer.request_cancel(_home(claim), RUN, 1, {})
    assert fence.why_unwanted(claim, 1) == "cancelled"


@given(st.lists(st.text(), max_size=4))
def test_words_without_placeholders_are_left_alone(words: list[str]) -> None:
    plain = [word.replace("{", "").replace("}", "") for word in words]
    assert environment.fill_all(plain, {"seed": "1"}) == plain
    escaped = environment.escape_placeholders(words)
    assert environment.fill_all(escaped, {"seed": "1"}) == words


def test_a_process_is_known_by_more_than_its_number() -> None:
    me = processes.own_identity()
    boot = me["started"].partition(":")[0]
    assert processes.is_process_alive(me) and processes.is_process_alive({**me, "started": f"{boot}:1"}) is False
    assert processes.is_process_alive({**me, "started": "another boot:1"}) is None
    assert processes.is_process_alive({**me, "host": "elsewhere"}) is None


def test_the_agent_is_shipped_once_and_has_all_its_modules(tmp_path: Path) -> None:
    path = zipapp.write_agent_zip(str(tmp_path))
    assert path == zipapp.write_agent_zip(str(tmp_path)) and len(os.listdir(tmp_path / "agent")) == 1
    for python in filter(None, (sys.executable, _python38())):  # compiled for the first, source for the other
        done = subprocess.run([python, "-I", path, str(tmp_path / "submissions/x")], capture_output=True, text=True)
        assert done.returncode == 0 and "no record of this submission" in done.stdout, done.stderr


def _python38() -> str | None:
    candidates = [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))]
    candidates += ["/usr/bin/python3.8", "/opt/python3.8/bin/python3.8"]
    for path in candidates:
        if path and os.access(path, os.X_OK):
            told = subprocess.run(
                [path, "-c", "import sys; print(sys.version_info[:2] == (3, 8))"], capture_output=True
            )
            if told.stdout.strip() == b"True":
                return path
    return None


@pytest.mark.slurm
def test_the_agent_runs_a_job_under_python_3_8(tmp_path: Path, cluster: Sandbox) -> None:
    python = _python38()
    if python is None:
        pytest.skip("there is no Python 3.8 on this machine")
    project = Project(tmp_path, cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- exit=3"))
    project.wait(RUN, "failed")
    saved = project.submissions()[0] / "script.sh"
    text = saved.read_text()
    assert f"python={sys.executable}" in text
    old = tmp_path / "old.sh"
    old.write_text(text.replace(f"python={sys.executable}", f"python={python}"))
    project.slurm("sbatch", "--wait", "-o", str(tmp_path / "out"), str(old), check=False)
    end = project.records(RUN, "attempt.2.end")
    assert end and end[0]["exit_code"] == 3, (tmp_path / "out").read_text()
    project.run(["bash", old], code=3)
    assert env_of(project.marks(RUN)[2], "SHOAL_ATTEMPT") == "3"


def test_a_process_of_another_user_is_not_called_dead_where_proc_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {**processes.own_identity(), "pid": 4194399}
    theirs = {**gone, "uid": os.getuid() + 1}
    assert processes.is_process_alive(gone) is False and processes.is_process_alive(theirs) is False
    monkeypatch.setattr(os, "access", lambda path, how: path != "/proc/1/stat")
    assert processes.is_process_alive(gone) is False and processes.is_process_alive(theirs) is None
    assert processes.is_process_alive({**processes.own_identity(), "uid": os.getuid() + 1}) is True
