"""A failed run shows its error in every view: real programs on this machine, as a person would run them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from launching import Launching
from made_up import MadeUp, put_attempt
from project import Project
from shoal.clusters import QueueState
from shoal.observe.run_state import RunView
from shoal.observe.run_views import observe
from shoal.units import shorten_list
from shoal.views import explanation, status, why
from shoal.views.details import RunDetails
from shoal.views.explanation import explain_failure
from shoal.views.status import StatusFilter
from shoal.views.terminal import Screen
from shoal.views.tui.panes import tab_text
from shoal.views.web.api import DashboardData, run_id

pytestmark = pytest.mark.slow

RUN = "001_a/000_fit_0"
#: The program -> what every view has to show.
ERRORS = {
    "argparse": (
        "import argparse\nprint('loading', flush=True)\nargparse.ArgumentParser('fit.py').parse_args(['--learning=3'])",
        "fit.py: error: unrecognized arguments: --learning=3",
    ),
    "its own words": (
        "import os, sys\nprint('loading', flush=True)\nsys.stderr.write('the licence server said no\\n')\nos._exit(7)",
        "the licence server said no",
    ),
    "what it says last": (
        "import sys\nprint('loading', flush=True)\n"
        "print('WARNING: could not reach the hub: Max retries exceeded; using the local copy', file=sys.stderr)\n"
        "for number in range(20): print(f'step {number}/20', flush=True)\n"
        "print('accuracy 0.12 is below 0.5: stopping', file=sys.stderr)\nsys.exit(3)",
        "accuracy 0.12 is below 0.5: stopping",
    ),
    "after a handled exception": (
        "import sys, traceback\nprint('loading', flush=True)\n"
        "try: int('x')\nexcept ValueError: traceback.print_exc()\n"
        "print('giving up: GPU 3 is on fire', file=sys.stderr)\nsys.exit(7)",
        "giving up: GPU 3 is on fire",
    ),
    "an exception": ("config = {}\nprint('loading', flush=True)\nconfig['lr']", "KeyError: 'lr'"),
}


def project_of(folder: Path, program: str, more: str = "") -> Project:
    toml = f'[steps.fit]\ncommand = [{json.dumps(sys.executable)}, "fit.py"]\ncheckpoint = "model_*.pt"\n{more}'
    project = Project(folder, toml=toml)
    project.write("fit.py", program)
    project.script(f"{RUN}.sh", "fit")
    return project


@pytest.mark.parametrize("kind", ERRORS)
def test_every_view_shows_the_error(kind: str, tmp_path: Path) -> None:
    program, error = ERRORS[kind]
    project = project_of(tmp_path, program)
    ran = project.shoal("run", f"experiments/{RUN}.sh", "--on", "local", code=None)
    assert ran.code not in (0, None) and f"hint: shoal why {RUN}" in ran.err
    assert sum(error in line for line in ran.err.splitlines()) >= 2, "as it is printed, and again at the end"
    (line,) = (line for line in project.shoal("status").out.splitlines() if line.startswith(RUN))
    assert error in line, "status has one line for it"
    assert project.status()[RUN]["error_line"] == error
    told = project.shoal("why", RUN).out
    assert told.count(error) >= 2, "in the headline, and among the last lines"
    log = project.shoal("logs", RUN).out
    assert log.index("loading") < log.index(error), "in order"
    assert error in project.shoal("logs", RUN, "-f", code=4).err
    watched = project.shoal("watch", "--simple", code=None)
    assert error in watched.out and error in watched.err
    assert error in project.shoal("logs", "--errors").out
    home, view = str(project.home), observe(str(project.home), [RUN]).views[RUN]
    for tab in ("log", "errors"):
        assert any(error in line for line in tab_text(tab, home, view, RunDetails())), f"the terminal view, {tab}"
    feed = DashboardData(home, lambda environ, newer: QueueState({}))
    assert error in feed.runs()["runs"][0]["reason"], "the page's table"
    assert any(error in line for line in feed.why(run_id(RUN))["log_lines"]), "the page's errors"
    assert error in feed.log(run_id(RUN), "out", None, -65536)["text"], "the page's log"


def test_the_last_lines_are_shown_although_the_cause_is_further_up(tmp_path: Path) -> None:
    program = "import atexit\natexit.register(lambda: [print('cleanup', k) for k in range(LINES)])\n{}['lr']"
    for lines in (30, 100000):
        project = project_of(tmp_path / str(lines), program.replace("LINES", str(lines)))
        project.shoal("submit", f"experiments/{RUN}.sh", "--on", "local", code=1)
        for shown in (project.shoal("why", RUN).out, project.shoal("logs", "--errors").out):
            assert "KeyError: 'lr'" in shown and "    [...]\n" in shown and f"    cleanup {lines - 1}\n" in shown, shown


def test_a_pack_tells_why_its_runs_failed(tmp_path: Path) -> None:
    project = project_of(tmp_path, ERRORS["argparse"][0])
    told = project.shoal("pack", "--slots", 2, "--set", "k=1,2", "--", sys.executable, "fit.py", "{k}", code=4).out
    assert told.count("exit code 2: fit.py: error: unrecognized arguments: --learning=3") == 2


ALTERNATE = """\
import os, sys
for number in range(200):
    print("out", number)
    print("err", number, file=sys.stderr)
    os.write(1 + number % 2, b"raw %d\\n" % number)
"""


@pytest.mark.parametrize("how", ["run", "pack", "warm", "srun", "torchrun"])
def test_output_and_errors_come_in_the_order_in_which_they_were_written(how: str, tmp_path: Path) -> None:
    expected = [f"{word} {number}" for number in range(200) for word in ("out", "err", "raw")]
    if how in ("srun", "torchrun"):
        launching = Launching(tmp_path, fit=f'launch = {{ mode = "{how}", processes = 2 }}')
        launching.write("fit.py", ALTERNATE)
        project: Project = launching
        name = launching.submit("000_fit_0", "fit")
        ranks = ["0", "1"]
    else:
        project = project_of(tmp_path, ALTERNATE)
        name = RUN
        ranks = ["0"]
        if how == "run":
            project.shoal("submit", "experiments", "--on", "local")
        else:
            words = ["--preload", "json"] if how == "warm" else []
            done = project.shoal("pack", *words, "--json", "--", sys.executable, "fit.py")
            name = done.json["runs"][0]["name"]
    for rank in ranks:
        lines = project.shoal("logs", name, "-n", 0, *(["--rank", rank] if len(ranks) > 1 else [])).out.splitlines()
        assert [line for line in lines if line.split()[0] in ("out", "err", "raw")] == expected


def test_the_rank_that_failed_is_quoted_where_people_look_first(tmp_path: Path) -> None:
    """torchrun's own summary says only that a child failed."""
    project = Launching(tmp_path, fit='launch = { mode = "torchrun", processes = 2 }')
    project.write(
        "fit.py",
        "import os, time\nprint('step 1', flush=True)\nif os.environ['RANK'] == '1':\n"
        "    raise ValueError('the sample is empty')\ntime.sleep(600)\n",
    )
    project.script(f"{RUN}.sh", "fit")
    project.shoal("submit", "experiments", code=None)
    assert project.status()[RUN]["error_line"] == "ValueError: the sample is empty"
    assert "shoal:   ValueError: the sample is empty" in project.log(RUN)
    assert project.shoal("why", RUN, "-q").out == "Python error: ValueError: the sample is empty\n"


def test_the_launcher_s_own_exit_code_is_told_in_words(tmp_path: Path) -> None:
    project = Launching(tmp_path, fit='launch = { mode = "torchrun", processes = 2 }')
    project.script(f"{RUN}.sh", "fit")
    # An interface that is not there: the launcher refuses before any rank starts.
    project.shoal("submit", "experiments", code=78, NCCL_SOCKET_IFNAME="nowhere7")
    reason = project.status()[RUN]["reason"]
    assert reason.startswith("exit code 78 (wrong configuration): ") and "nowhere7" in reason


@pytest.mark.parametrize(
    ("code", "words"), [(78, "wrong configuration"), (127, "command not found"), (137, "SIGKILL"), (139, "SIGSEGV")]
)
def test_exit_codes_are_told_in_words(code: int, words: str, tmp_path: Path) -> None:
    project = project_of(tmp_path, f"import os; os._exit({code})")
    project.shoal("submit", "experiments", "--on", "local", code=code)
    assert project.status()[RUN]["reason"] == f"exit code {code} ({words})"


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    program = (
        "import os, torch\nout = os.environ['SHOAL_OUTPUT_DIR']\nbegin = os.environ['SHOAL_RESUME_FROM']\n"
        "step = torch.load(begin)['step'] if begin else 0\nprint('begins at', step, flush=True)\n"
        "for number in (step + 1, step + 2):\n    torch.save({'step': number}, f'{out}/model_{number}.pt')\n"
        "if step < 2 and not begin: raise SystemExit(1)\n"
    )
    project = project_of(tmp_path, program)
    project.shoal("submit", "experiments", "--on", "local", code=1)
    newest = next((project.root / "outputs").rglob("model_2.pt"))
    data = newest.read_bytes()  # a zip: its head and its directory are whole, what is between is not
    newest.write_bytes(data[:64] + bytes(len(data) // 2 - 64) + data[len(data) // 2 :])
    project.shoal("resume", RUN, code=1)
    told = project.shoal("why", RUN, "--json").json
    assert told["kind"] == "checkpoint" and f"it was reading {newest}" in told["evidence"]
    (command,) = told["next"]
    assert command.endswith(f"# continues from {newest.with_name('model_1.pt')}")
    done = project.bash("-c", command)
    assert done.code == 0 and "begins at 1" in done.err, "it works when it is pasted"
    assert torch.load(newest)["step"] == 2


def test_a_full_cache_in_the_home_directory_is_told_with_the_variable_that_moves_it(tmp_path: Path) -> None:
    program = "raise OSError(122, os.strerror(122), os.path.expanduser('~/.cache/huggingface/hub/x'))"
    project = project_of(tmp_path, f"import os\n{program}")
    project.shoal("submit", "experiments", "--on", "local", code=1)
    first, second = project.shoal("why", RUN, "--json").json["next"]
    folder = tmp_path / "home" / ".cache"
    assert first.startswith(f"du -xh --max-depth=1 {folder} | sort -h") and "with HF_HOME in the env" in second
    folder.mkdir(exist_ok=True)
    assert project.bash("-c", first).code == 0


def watchdog(rank: int, number: int = 158, operation: str = "ALLREDUCE") -> bytes:
    return (
        f"[rank{rank}]:[E1116 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for "
        "600060 milliseconds before timing out.\n"
    ).encode()


STALLS = {
    "a missing rank": (
        {0: watchdog(0), 1: watchdog(1), 2: b"step 3\n", 3: watchdog(3)},
        ["ranks 0, 1, 3 waited 600 s in ALLREDUCE number 158", "rank 2 did not join"],
        "--rank 2",
    ),
    "the network": (
        {rank: watchdog(rank) for rank in range(4)},
        ["all 4 ranks waited 600 s in ALLREDUCE number 158", "the network or a GPU"],
        "--exclude-nodes",
    ),
    "ranks out of step": (
        {0: watchdog(0, 96120), 1: watchdog(1, 64088), 2: watchdog(2, 96120), 3: watchdog(3, 96120)},
        [
            "out of step: rank 1 waited in ALLREDUCE number 64088, rank 0 in ALLREDUCE number 96120",
            "rank 1 has done less",
        ],
        "--rank 1",
    ),
}


@pytest.mark.parametrize("case", STALLS)
def test_an_nccl_time_out_says_which_rank_and_whether_it_is_the_network(case: str, tmp_path: Path) -> None:
    logs, sentences, command = STALLS[case]
    _, home, view = with_ranks(tmp_path, logs)
    told = explain_failure(home, view, None, None)
    assert told.kind == "nccl_timeout" and told.headline.startswith("NCCL time-out")
    for sentence in sentences:
        assert any(sentence in line for line in told.evidence), told.evidence
    assert command in told.next[0]


def test_a_rank_that_died_is_the_cause_and_not_the_others_that_waited_for_it(tmp_path: Path) -> None:
    error = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nIndexError: too far\n'
    _, home, view = with_ranks(tmp_path, {0: watchdog(0), 1: watchdog(1), 2: error})
    told = explain_failure(home, view, None, None)
    assert (told.kind, told.headline) == ("python", "Python error: IndexError: too far")
    assert told.log_path is not None and told.log_path.endswith("rank-2.out")


def with_ranks(folder: Path, logs: dict[int, bytes]) -> tuple[MadeUp, str, RunView]:
    made = MadeUp(folder / "project")
    output = made.run(RUN, "failed", out=logs[0])
    ranks = output / "attempt-1.launch"
    ranks.mkdir()
    for rank, data in logs.items():
        (ranks / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, "world_size": len(logs)}))
        if rank:
            (ranks / f"rank-{rank}.out").write_bytes(data)
    return made, made.home, observe(made.home, [RUN]).views[RUN]


def test_ranks_in_one_log_are_told_apart_too(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    made.run(RUN, "failed", err=b"".join(map(watchdog, (0, 1, 3))))
    stall = explanation.read_stall(observe(made.home, [RUN]).views[RUN])
    assert stall is not None and stall.absent == [2]


def test_attempts_before_the_last_one_are_explained(tmp_path: Path) -> None:
    """Attempt 1 was stopped and its job came again, attempt 2 lost its node, attempt 3 failed, attempt 4 completed."""
    made = MadeUp(tmp_path / "project")
    output = made.run(RUN, "completed", attempt=4, job_id="12")
    folder = Path(made.home) / "runs" / RUN
    start = json.loads((folder / "attempt.4.start").read_text().split("\n")[0])
    end = json.loads((folder / "attempt.4.start").read_text().split("\n")[1])
    bad = {**end, "success": False, "exit_code": 1, "job_id": "12"}
    put_attempt(folder, 1, {**start, "job_id": "12"}, {**bad, "attempt": 1, "stopped_by": "SIGTERM"})
    put_attempt(folder, 2, {**start, "job_id": "12"}, {**bad, "attempt": 2, "stopped_by": "lost"})
    put_attempt(folder, 3, {**start, "job_id": "13", "failed_nodes": ["n7"]}, {**bad, "attempt": 3, "job_id": "13"})
    (output / "attempt-3.out").write_bytes(b"step 1\nValueError: the sample is empty\n")
    told = why.explain_run(made.home, RUN, os.environ).evidence
    found = [line for line in told if line.startswith("attempt ")]
    assert "Slurm stopped it (SIGTERM) and put its job into the queue again: preempted or requeued" in found[-3], told
    assert "lost with node n7, which failed" in found[-2]
    assert found[-1].endswith("exit code 1: ValueError: the sample is empty")


def test_lists_that_are_cut_say_how_many_are_left(tmp_path: Path) -> None:
    assert shorten_list(["a", "b", "c", "d"], 2) == "a, b and 2 more" and shorten_list(["a", "b"], 2) == "a, b"
    made = MadeUp(tmp_path / "project")
    for number in range(30):
        words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"][number % 6]
        made.run(f"001_many/000_train_{number}", "failed", err=f"ValueError: {words}\n".encode())
    lines = status.status_lines(
        report := status.gather_status(made.home, StatusFilter()),
        report.views,
        Screen(tty=True, width=100, colour=False),
    )
    assert any("and 2 more reasons of 10 runs; --tasks shows them" in line for line in lines), lines
    shutil.rmtree(made.root)


def test_failures_beyond_the_first_few_are_counted(tmp_path: Path) -> None:
    project = project_of(tmp_path, ERRORS["an exception"][0])
    for number in range(1, 5):
        project.script(f"001_a/000_fit_{number}.sh", "fit")
    told = project.shoal("submit", "experiments/001_a", "--on", "local", code=4).err
    assert told.count("failed: exit code 1: KeyError: 'lr'") == 3
    assert "2 more runs failed; shoal logs --errors shows why" in told
