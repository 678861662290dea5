"""Surviving what clusters do: a warning before the time limit, follow-ups, retries by cause, result checks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import cancel_all
from made_up import put_attempt
from project import Project, assert_clear_error
from shoal.describe.document import Document
from shoal.describe.steps import RecoveryTable
from shoal.errors import InputError
from shoal.job import job_constraints
from shoal.job.recovery import backoff_s, change_options, grow_memory
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

PROGRAM = """\
import json, os, signal, sys, time
out = os.environ["SHOAL_OUTPUT_DIR"]
how = sys.argv[1]
first = os.environ["SHOAL_ATTEMPT"] == "1"
def save_and_leave(*_):
    open(os.path.join(out, "model_1.pth"), "w").write("weights")
    sys.exit(0)
if how == "signal":
    signal.signal(signal.SIGUSR1, save_and_leave)
    open("listens", "w").close()
    while not os.environ["SHOAL_RESUME_FROM"]:
        time.sleep(0.05)
elif how == "file":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    while not os.environ["SHOAL_RESUME_FROM"]:
        if os.path.exists(os.environ["SHOAL_STOP_FILE"]):
            save_and_leave()
        time.sleep(0.05)
elif how == "code":
    if first:
        open(os.path.join(out, "model_1.pth"), "w").write("weights")
        sys.exit(85)
    assert os.environ["SHOAL_RESUME_FROM"].endswith("model_1.pth")
elif how == "always":
    sys.exit(85)
elif how == "memory":
    blocks = [b"x" * (1 << 20) for _ in range(80)]
elif how == "cuda":
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", file=sys.stderr)
    sys.exit(1)
elif how == "result":
    open(os.path.join(out, "result.json"), "w").write(json.dumps({"score": 0 if first else 1}))
    sys.exit(3)
"""
STEP = """
[steps.work]
command = [{python}, "program.py"]
checkpoint = "model_*.pth"
request = {{ time = "2m", memory = "50M" }}
[steps.work.recovery]
warn_before = "80s"
warn_with = "{tell}"
max_follow_ups = 2
continue_exit_code = 85
memory_factor = "x3"
max_retries = {{ oom = 1, bad_result = 2 }}
{more}
"""


def make(folder: Path, cluster: Sandbox, how: str, tell: str = "signal", more: str = "") -> Project:
    toml = STEP.format(python=json.dumps(sys.executable), tell=tell, more=more)
    project = Project(folder, cluster, toml=toml)
    project.write("program.py", PROGRAM)
    project.write("experiments/001_a/000_work.toml", f'step = "work"\nargs = ["{how}"]\n')
    return project


@pytest.fixture
def slurm(cluster: Sandbox) -> Iterator[Sandbox]:
    yield cluster
    cancel_all(cluster)


RUN = "001_a/000_work"


def finish(project: Project) -> dict[str, object]:
    project.shoal("submit", "experiments/001_a/000_work.toml")
    return wait_end(project)


def wait_end(project: Project) -> dict[str, object]:
    """The run has ended, and none of its jobs is left to go on with it."""

    def ended() -> dict[str, object] | None:
        if project.queue("%i", "-t", "PD,R,CG"):
            return None
        run = project.status(RUN)[RUN]  # after the queue: with nothing in it this is the last word
        return run if run["state"] in ("completed", "failed", "oom", "timeout", "lost") else None

    return wait_until(ended, 150, "the run has come to its end", poll_s=0.5)


@pytest.mark.slurm
@pytest.mark.parametrize("tell", ["signal", "file"])
def test_a_run_is_warned_before_its_limit_and_goes_on_from_its_checkpoint(
    tmp_path: Path, slurm: Sandbox, tell: str
) -> None:
    project = make(tmp_path, slurm, tell, tell)
    project.shoal("submit", "experiments/001_a/000_work.toml")
    if tell == "signal":  # sent as Slurm sends it; the other one waits for Slurm, half a minute and more
        wait_until((project.root / "listens").exists, 60, "the program can be warned")
        project.slurm("scancel", "--batch", "--signal=USR1", str(project.status()[RUN]["job_id"]))
    assert wait_end(project)["state"] == "completed"
    first, second = project.records(RUN, "attempt.*.end")
    assert (first["cause"], first["warned"], first["success"]) == ("limit", True, False)
    assert second["success"] and second["output_dir"] == first["output_dir"]
    assert project.records(RUN, "attempt.2.start")[0]["resume_from"].endswith("model_1.pth")
    assert len(project.submissions()) == 2


@pytest.mark.slurm
def test_a_run_that_ignores_its_checkpoint_is_not_continued_without_end_and_loses_nothing(
    tmp_path: Path, slurm: Sandbox
) -> None:
    project = make(tmp_path, slurm, "deaf")
    project.write(
        "program.py",
        "import os, sys\n"
        "for step in range(4):\n"
        "    print('step', step, flush=True)\n"
        "open(os.environ['SHOAL_OUTPUT_DIR'] + '/model_3.pth', 'w').write(os.environ['SHOAL_ATTEMPT'])\n"
        "sys.exit(85)\n",
    )
    assert finish(project)["state"] == "failed" and len(project.submissions()) == 2, "two follow-ups are allowed"
    folder = Path(str(project.status()[RUN]["output_dir"]))
    assert (folder / "model_3.pth").read_text() == "2" and (folder / "before-attempt-2/model_3.pth").read_text() == "1"
    told = "attempt 2 did not continue from model_3.pth: its progress begins at step 0, and step 3 was reached before"
    log = project.shoal("logs", RUN, "--slurm").out
    assert f"shoal: warning: {told}" in log and f"not continued: {told}" in log


@pytest.mark.slurm
def test_an_exit_code_asks_to_be_continued(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, "code")
    assert finish(project)["state"] == "completed"
    assert [end["cause"] for end in project.records(RUN, "attempt.*.end")] == ["continue", None]


@pytest.mark.slurm
def test_follow_ups_have_a_bound_and_an_exit_code_is_not_told_as_a_time_limit(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, "always")
    run = finish(project)
    assert run["state"] == "failed" and run["reason"] == "exit code 85 asks for another job"
    assert [end["cause"] for end in project.records(RUN, "attempt.*.end")] == ["continue"] * 3


@pytest.mark.slurm
def test_lack_of_memory_is_answered_by_more_of_it(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, "memory")
    assert finish(project)["state"] == "completed"
    assert [end["cause"] for end in project.records(RUN, "attempt.*.end")] == ["oom", None]
    asked = [json.loads((folder / "send.0").read_text())["argv"] for folder in project.submissions()]
    assert sorted(word for argv in asked for word in argv if word.startswith("--mem=")) == ["--mem=150M", "--mem=50M"]


@pytest.mark.slurm
def test_gpu_memory_is_another_cause_and_is_not_retried_unless_told(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, "cuda")
    run = finish(project)
    assert (run["state"], run["cause"]) == ("failed", "cuda_oom") and "CUDA out of memory" in str(run["reason"])
    assert [end["cause"] for end in project.records(RUN, "attempt.*.end")] == ["cuda_oom"]
    assert f"would submit: {RUN}" in project.shoal("retry", "--cause", "cuda_oom", "--dry-run").out
    for other in ("oom", "failed", "node_fail"):
        assert "no run to retry" in project.shoal("retry", "--cause", other).err
    assert [one["name"] for one in project.shoal("status", "--cause", "cuda_oom", "--json").json["runs"]] == [RUN]
    assert project.shoal("status", "--cause", "oom", "--json").json["runs"] == []


@pytest.mark.slurm
def test_the_result_check_decides_and_a_bad_result_is_tried_again(tmp_path: Path, slurm: Sandbox) -> None:
    check = f'result_check = [{json.dumps(sys.executable)}, "check.py", "{{output_dir}}"]'
    project = make(tmp_path, slurm, "result", more=check)
    project.write(
        "check.py", "import json, sys\nsys.exit(json.load(open(sys.argv[1] + '/result.json'))['score'] < 1)\n"
    )
    assert finish(project)["state"] == "completed"
    ends = project.records(RUN, "attempt.*.end")
    assert [(end["exit_code"], end["cause"], end["success"]) for end in ends] == [
        (3, "bad_result", False),
        (3, None, True),
    ]


@pytest.mark.slurm
def test_the_number_of_attempts_may_be_changed_while_a_run_is_under_way(tmp_path: Path, slurm: Sandbox) -> None:
    words = f'command = [{json.dumps(sys.executable)}, "-S", "train.py", "wait=go"]'
    policy = 'recovery = { result_check = ["false"], max_retries = { bad_result = 9 }, backoff = "1s" }'
    toml = f'\n[steps.bad]\n{words}\nrequest = {{ time = "5m", memory = "50M" }}\n{policy}\n'
    project = Project(tmp_path, slurm, toml=toml)
    sweep_file = project.write("experiments/001_a/000_work.toml", 'step = "bad"\n')
    project.shoal("submit", sweep_file)
    project.wait_started(RUN)
    project.shoal("submit", sweep_file, "--budget", "attempts=3")
    (project.root / "go").touch()
    assert wait_end(project)["state"] == "failed"  # another `submit` would start it again
    assert [end["cause"] for end in project.records(RUN, "attempt.*.end")] == ["bad_result"] * 3


def test_a_retry_waits_longer_each_time_and_the_follow_up_of_a_time_limit_does_not() -> None:
    policy = {"backoff_s": 60, "max_retries": {"failed": 9}}
    assert [backoff_s(policy, "failed", before) for before in (0, 3, 30)] == [60, 480, 3600]
    assert backoff_s(policy, "limit", 3) == backoff_s(policy, "continue", 3) == 0
    assert change_options(["--mem=1G"], "failed", policy) == ([], "")
    assert change_options(["--time=5", "--mem=1G"], "oom", {"memory_factor": 2.0}) == (["--mem=2048M"], "")
    assert change_options(["--mem=1G"], "oom", {})[0] is None


@pytest.mark.slurm
def test_retry_starts_what_failed_with_more_memory_and_leaves_the_rest(tmp_path: Path, slurm: Sandbox) -> None:
    project = Project(tmp_path, slurm)
    text = 'step = "train"\nargs = ["exit={code}"]\n[sweep]\ncode = [0, 7]\n[request]\ntime = "5m"\nmemory = "50M"\n'
    project.shoal("submit", project.write("experiments/001_a/000_t.toml", text))
    project.wait("001_a/000_t_code7", "failed")
    project.wait("001_a/000_t_code0", "completed")
    assert len(project.submissions()) == 1  # a failing program is not tried again unless its step says so
    assert "no run to retry" in project.shoal("retry", "--cause", "oom", "--mem", "x2").err
    told = project.shoal("retry", "--state", "failed", "--mem", "x2", "--time", "x2", "--json").json["runs"]
    assert [(run["name"], run["did"]) for run in told] == [("001_a/000_t_code7", "submitted")]
    newest = max(project.submissions(), key=lambda folder: (folder / "submission.json").stat().st_mtime)
    argv = json.loads((newest / "send.0").read_text())["argv"]
    assert "--mem=100M" in argv and "--time=00:10:00" in argv
    project.wait("001_a/000_t_code7", "failed")
    again = project.shoal("retry", "001_a", "--mem", "x2", "--json").json["runs"]
    assert len(again) == 1


def test_memory_grows_by_a_factor() -> None:
    assert [grow_memory(word, 1.5) for word in ("--mem=50M", "--mem=2G", "--mem=100", "--time=5")] == [
        "--mem=75M", "--mem=3072M", "--mem=150M", "--time=5",
    ]  # fmt: skip
    assert grow_memory("--mem=50M", 0) == "--mem=50M"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('warn_before = "10s"', "at least a minute"),
        ('warn_with = "shout"', "expected one of signal, file"),
        ('memory_factor = "2"', "how memory grows"),
        ("max_retries = { oom = 1 }", "needs memory_factor"),
        ("max_retries = { boredom = 1 }", "unknown key"),
        ('warn_befor = "5m"', "did you mean"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Document("shoal.toml", f"[recovery]\n{text}\n").top.table("recovery").read(RecoveryTable)


def test_a_warning_that_would_come_at_the_start_is_refused(tmp_path: Path) -> None:
    toml = STEP.format(python='"python"', tell="signal", more="").replace("80s", "90s")
    project = Project(tmp_path, toml=toml + '[clusters.far]\nmatch = { host = "*" }\n')
    sweep_file = project.write("experiments/001_a/000_work.toml", 'step = "work"\n')
    refused = project.shoal("plan", "--on", "far", sweep_file, code=2)
    assert_clear_error(
        refused, 2, "is to be warned 1m30s before a limit of 2m00s: as soon as it starts", "warn_before = "
    )
    project.shoal("plan", "--on", "local", sweep_file)


def test_failed_nodes_join_those_that_the_user_excludes_unless_no_place_is_left() -> None:
    asked: list[list[str]] = []

    def ask(argv: list[str]) -> tuple[bool, str]:
        asked.append(argv)
        return not any("n5" in word for word in argv), "no such nodes"

    options = ["--mem=50M", "--exclude=n[1-3]", "--array=0-9", "--dependency=afterok:3"]
    changed, words = job_constraints.exclude_nodes(options, ["n4"], ask)
    assert changed == ["--mem=50M", "--array=0-9", "--dependency=afterok:3", "--exclude=n[1-3],n4"]
    assert words == "avoids n4, which failed"
    assert asked == [["sbatch", "--test-only", "--mem=50M", "--exclude=n[1-3],n4", "--wrap=true"]]
    assert job_constraints.exclude_nodes(changed, ["n4"], ask) == (changed, "")
    assert job_constraints.exclude_nodes(options, ["n5", "n4"], ask)[0] == changed
    same, words = job_constraints.exclude_nodes(options, ["n4", "n5"], ask)
    assert same == options and "cannot avoid n4, n5" in words and "no such nodes" in words


@pytest.mark.parametrize(
    ("allocated", "last_words", "ended", "sinfo", "failed"),
    [
        ("n1", {}, False, "", ["n1"]),
        ("n1", {"stopping": "SIGTERM"}, False, "", []),  # preempted, and killed before it could say so
        ("n1", {}, True, "n1|idle", []),
        ("n[1-2]", {}, False, "n1|idle n2|down*", ["n2"]),
        ("n[1-2]", {"stopping": "SIGTERM"}, True, "n1|allocated n2|down", ["n2"]),  # the batch host lived to tell
        ("n[1-2]", {}, False, "", []),
    ],
)
def test_a_node_failed_if_slurm_says_so_or_an_attempt_ended_without_a_word(
    tmp_path: Path, allocated: str, last_words: dict[str, str], ended: bool, sinfo: str, failed: list[str]
) -> None:
    def write(name: str, **record: object) -> None:
        (tmp_path / name).write_text(json.dumps(record))

    def ask(argv: list[str]) -> tuple[bool, str]:
        return argv[0] == "sinfo", sinfo

    start: dict[str, object] = {"generation": 1, "nodes": allocated}
    if ended:
        put_attempt(tmp_path, 1, start, {"success": False})
    else:
        put_attempt(tmp_path, 1, start, {**last_words, "note": True} if last_words else None, "lost.000003")
    assert job_constraints.failed_before_requeue(str(tmp_path), 1, ask) == failed
    assert job_constraints.failed_before_requeue(str(tmp_path), 2, ask) == []
    put_attempt(tmp_path, 2, {"generation": 1, "failed_nodes": failed})
    write("submit.1.verdict2", word="NODE_FAIL", node="n9")
    write("submit.2.verdict3", word="FAILED", node="n8")
    assert job_constraints.failed_nodes(str(tmp_path), ask) == [*failed, "n9"]
