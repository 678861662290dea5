"""`shoal pack` on this machine, as a person uses it, and every way in which it can be killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_agent import _python38 as find_python38

from project import SHOAL, Done, Project, assert_clear_error, end_process, processes_with, project_here, read_record
from shoal.kernel import processes
from waiting import wait_until

pytestmark = pytest.mark.slow

QUICK = [sys.executable, "-S", "train.py"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = project_here(tmp_path)
    yield made
    for pid in processes_of(made):
        os.kill(pid, signal.SIGKILL)


def pack(project: Project, *words: object, code: int | None = 0, **env: str) -> Done:
    return project.shoal("pack", *words, code=code, environ=env)


def processes_of(project: Project) -> list[int]:
    """Every process that was started for a run of this project, whatever became of its parents."""
    return processes_with("SHOAL_RUN=", str(project.root))


def wait_for_no_process(project: Project) -> None:
    wait_until(lambda: not processes_of(project), 60, "no process of a run is left")


def engine_pid(project: Project) -> int:
    """The engine's process, as the start record of a run tells."""

    def look() -> int:
        for path in (project.home / "runs").glob("*/*/attempt.*.start"):
            return int(read_record(path)["pid"])
        return 0

    return wait_until(look, 60, "an engine has begun a run")


def started(project: Project) -> set[str]:
    return {path.name for path in (project.root / "marks").iterdir()}


def states(done: Done) -> dict[str, str]:
    return {run["name"]: run["state"] for run in done.json["runs"]}


def good_ends(project: Project) -> dict[str, int]:
    """How often each run completed, by its own mark and by the records."""
    found: dict[str, int] = {}
    for path in (project.home / "runs").glob("*/*/attempt.*.end"):
        if read_record(path)["success"]:
            name = f"{path.parent.parent.name}/{path.parent.name}"
            found[name] = found.get(name, 0) + 1
    return found


def test_runs_with_parameters_are_ordinary_runs_and_run_once(project: Project) -> None:
    done = pack(project, "--slots", 3, "--set", "k=1:7:1", "--cost", "k", "--json", "--", *QUICK, "print=k{k}")
    assert set(states(done).values()) == {"completed"} and len(states(done)) == 7
    name = "pack_train/train_k3"
    assert project.marks(name)[0]["args"] == ["print=k3"]
    assert project.shoal("logs", name).out.strip() == "k3"
    assert project.status(name)[name]["state"] == "completed"
    project.assert_ran_once(*states(done))
    again = pack(project, "--slots", 3, "--set", "k=1:8:1", "--cost", "k", "--json", "--", *QUICK, "print=k{k}")
    assert len(project.marks(name)) == 1 and states(again)["pack_train/train_k8"] == "completed"
    assert [bar["run"] for bar in again.json["timeline"]] == ["pack_train/train_k8"], "what this command ran"


def test_a_folder_without_settings_can_be_looked_at_after_a_pack(project: Project) -> None:
    (project.root / "shoal.toml").unlink()
    assert_clear_error(project.shoal("status", code=2), 2, "no shoal.toml")
    pack(project, "--slots", 2, "--set", "code=0,3", "--", *QUICK, "print=hello", "exit={code}", code=4)
    assert project.status()["pack_train/train_code3"]["state"] == "failed"
    assert project.shoal("logs", "pack_train/train_code0").out.strip() == "hello"
    for words in (
        ["report"],
        ["results"],
        ["why", "pack_train/train_code3"],
        ["retry", "--state", "failed", "--dry-run"],
    ):
        project.shoal(*words)
    (project.root / "below").mkdir()
    assert_clear_error(project.run([SHOAL, "status"], cwd=project.root / "below", code=2), 2, "no shoal.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("comands.txt",), "no file of commands, and no program"),
        (("--slots", 0, "--", *QUICK), "not a number for --slots"),
        (("--time", "50s", "--", *QUICK), "told to stop 60 s before the end of 50s: none would start"),
        (("--time", "soon", "--", *QUICK), "not a duration"),
        (("--set", "k=1,2", "--", *QUICK, "{j}"), "no parameter has this name"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    project: Project, words: tuple[object, ...], said: str
) -> None:
    assert_clear_error(project.shoal("pack", *words, code=2), 2, said)
    assert not project.home.exists()


def test_longest_first_by_cost_and_nothing_overlaps_on_a_slot(project: Project) -> None:
    meet = "wait=marks/pack_train.train_k8"  # the first is still there when the second begins, whenever it is claimed
    done = pack(project, "--slots", 2, "--set", "k=1:9:1", "--cost", "k", "--json", "--", *QUICK, "{k}", meet)
    bars = done.json["timeline"]
    assert {bar["run"][-1] for bar in bars[:2]} == {"9", "8"}
    assert bars[-1]["run"].endswith("k1") or bars[-2]["run"].endswith("k1")
    for lane in {bar["lane"] for bar in bars}:
        mine = sorted((bar["start"], bar["end"]) for bar in bars if bar["lane"] == lane)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(mine))
    assert len({bar["lane"] for bar in bars}) == 2


def test_a_dry_run_shows_the_order_and_changes_nothing(project: Project) -> None:
    done = pack(project, "--slots", 2, "--set", "k=1,30,2", "--cost", "k", "--dry-run", "-q", "--", *QUICK, "{k}")
    assert done.out.split() == ["pack_train/train_k30", "pack_train/train_k2", "pack_train/train_k1"]
    assert not (project.home / "runs").exists()


def test_one_that_fails_is_told_and_the_others_go_on(project: Project) -> None:
    words = ("--slots", 2, "--set", "what=exit=0,exit=7,kill=9,print=ok", "--json", "--", *QUICK, "{what}")
    done = pack(project, *words, code=4)
    assert sorted(states(done).values()) == ["completed", "completed", "failed", "failed"]
    reasons = {run["reason"] for run in done.json["runs"] if run["state"] == "failed"}
    assert reasons == {"exit code 7", "killed by SIGKILL"}
    pack(project, *words, code=4)
    assert sorted(good_ends(project).values()) == [1, 1], "what was done was not run again"


def test_a_failed_run_is_tried_again_as_often_as_allowed(project: Project) -> None:
    done = pack(project, "--retries", 2, "--slots", 1, "--json", "--", *QUICK, "exit=3", code=4)
    (name,) = states(done)
    assert len(project.marks(name)) == 3
    assert [end["exit_code"] for end in project.records(name, "attempt.*.end")] == [3, 3, 3]


def test_a_program_that_is_missing_fails_only_its_own_run(project: Project) -> None:
    project.write("jobs.txt", "no-such-program 1\n/etc/passwd\ntrue\n")
    done = pack(project, "--slots", 2, "--json", "jobs.txt", code=4)
    codes = sorted((run["exit_code"] or 0) for run in done.json["runs"])
    assert codes == [0, 126, 127]
    assert any("cannot start no-such-program" in run["reason"] for run in done.json["runs"])


def test_each_run_sees_its_own_gpu_by_its_own_id(project: Project) -> None:
    show = "import glob,os,time;print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS'])\n"
    # The first is still there when the second begins, whenever it is claimed.
    show += "while len(glob.glob('.shoal/runs/*/*/attempt.1.start')) < 2: time.sleep(0.02)"
    words = ("--slots", 2, "--set", "k=1:6:1", "--json", "--", sys.executable, "-c", show, "{k}")
    done = pack(project, *words, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b")
    lanes = {bar["lane"].rpartition(":")[2] for bar in done.json["timeline"]}
    assert lanes == {"gpuGPU-a", "gpuGPU-b"}
    seen = {project.shoal("logs", name).out.split()[0] for name in states(done)}
    assert seen == {"GPU-a", "GPU-b"}


def test_runs_share_a_gpu_when_there_are_more_slots_than_gpus(project: Project) -> None:
    done = pack(project, "--slots", 4, "--set", "k=1:4:1", "--json", "--", *QUICK, "{k}", CUDA_VISIBLE_DEVICES="0")
    bars = done.json["timeline"]
    assert {bar["lane"].rpartition(":")[2] for bar in bars} == {"gpu0"}
    assert {bar["share"] for bar in bars} == {0.25}


def test_a_run_that_asks_for_more_gpus_than_there_are_fails_with_a_reason(project: Project) -> None:
    done = pack(project, "--gpus-per-run", 2, "--json", "--", *QUICK, code=4, CUDA_VISIBLE_DEVICES="0")
    assert "it needs 2 GPUs and this node has 1" in done.json["runs"][0]["reason"]
    assert_clear_error(pack(project, "--gpus-per-run", 1.5, "--", "true", code=2), 2, "a share of one GPU")


def test_a_time_limit_ends_a_run_that_hangs_and_its_slot_is_used_again(project: Project) -> None:
    words = ("--slots", 1, "--run-time", "8s", "--set", "what=wait=never,print=after", "--json", "--", *QUICK, "{what}")
    done = pack(project, *words, code=4)
    assert sorted(states(done).values()) == ["completed", "timeout"]


def test_what_a_run_leaves_behind_is_ended_with_it(project: Project) -> None:
    daemon = "import subprocess,sys;subprocess.Popen(['sleep','600'],start_new_session=True)"
    words = ("--slots", 1, "--set", "k=1,2", "--json", "--", sys.executable, "-c", daemon, "{k}")
    pack(project, *words)
    assert not processes_of(project)


def _begin(project: Project, runs: int = 6, slots: int = 2, **env: str) -> subprocess.Popen[str]:
    """A pack whose runs wait for a file `go`; returns when `slots` of them have begun."""
    words = (
        "pack",
        "--slots",
        slots,
        "--set",
        f"k=1:{runs}:1",
        "--",
        "bash",
        "-c",
        f"{sys.executable} train.py wait=go {{k}}; exit $?",
    )
    begun = project.start(*words, **env)
    wait_until(lambda: len(started(project)) >= slots, 60, f"{slots} runs have begun")
    return begun


def _continue(project: Project, runs: int = 6) -> None:
    """The same command again, now that nothing waits: every run ends well exactly once."""
    project.write("go", "")
    script = f"{sys.executable} train.py wait=go {{k}}; exit $?"
    pack(project, "--slots", 3, "--set", f"k=1:{runs}:1", "--", "bash", "-c", script)
    assert list(good_ends(project).values()) == [1] * runs
    assert not processes_of(project)


def test_killing_the_engine_leaves_no_process_and_the_next_command_continues(project: Project) -> None:
    begun = _begin(project)
    os.kill(engine_pid(project), signal.SIGKILL)
    _, said = begun.communicate(timeout=300)
    wait_for_no_process(project)
    assert begun.returncode != 0, said
    before = project.status()
    assert sorted({run["state"] for run in before.values()}) == ["lost", "new"]
    assert len(started(project)) == 2, "no waiting run was started"
    _continue(project)


def test_killing_the_command_stops_the_engine_and_leaves_no_process(project: Project) -> None:
    begun = _begin(project)
    engine = engine_pid(project)
    end_process(begun)
    wait_for_no_process(project)
    wait_until(lambda: not Path(f"/proc/{engine}").exists(), 60, "the engine has ended")
    assert len(started(project)) == 2
    _continue(project)


def test_sigterm_reaches_every_run_and_starts_none(project: Project) -> None:
    begun = _begin(project)
    begun.send_signal(signal.SIGTERM)
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 143, said
    wait_for_no_process(project)
    ends = [end for path in (project.home / "runs").glob("*/*/attempt.*.end") for end in [read_record(path)]]
    assert [end["stopped_by"] for end in ends] == ["SIGTERM", "SIGTERM"]
    assert len(started(project)) == 2
    _continue(project)


def _interrupt(begun: subprocess.Popen[str], project: Project) -> None:
    """Ctrl-C as a terminal sends it: to every process of the foreground group."""
    os.kill(engine_pid(project), signal.SIGINT)
    begun.send_signal(signal.SIGINT)


def test_one_interrupt_lets_running_runs_finish_and_starts_no_more(project: Project) -> None:
    begun = _begin(project)
    _interrupt(begun, project)
    wait_until(lambda: "Ctrl-C: 2 running runs finish" in _stderr_so_far(begun), 60, "it was heard")
    project.write("go", "")
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 130, said
    assert sorted(good_ends(project).values()) == [1, 1] and len(started(project)) == 2
    _continue(project)


def test_a_second_interrupt_stops_them(project: Project) -> None:
    begun = _begin(project)
    for times in (1, 2):
        _interrupt(begun, project)
        if times == 1:
            wait_until(lambda: "Ctrl-C" in _stderr_so_far(begun), 60, "the first one was heard")
    begun.communicate(timeout=300)
    assert begun.returncode == 130
    wait_for_no_process(project)
    assert not good_ends(project)
    _continue(project)


def _stderr_so_far(begun: subprocess.Popen[str]) -> str:
    assert begun.stderr is not None
    return begun.stderr.readline()


def test_cancelling_one_run_stops_it_alone(project: Project) -> None:
    begun = _begin(project, runs=3, slots=2)
    name = sorted(started(project))[0].replace(".", "/", 1)
    project.shoal("cancel", name)
    wait_until(lambda: project.records(name, "attempt.*.end"), 60, "the run has ended")
    project.write("go", "")
    begun.communicate(timeout=300)
    assert project.status(name)[name]["state"] == "cancelled"
    assert sorted(run["state"] for run in project.status().values()) == ["cancelled", "completed", "completed"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB: half of it is the agent."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "shoal-test", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_holds_runs_back_until_there_is_room(project: Project, small_disk: Path) -> None:
    home = small_disk / "state"
    script = f"{sys.executable} -S train.py wait=go {{k}}"
    words = ("pack", "--slots", 1, "--set", "k=1:4:1", "--", "bash", "-c", script)
    begun = project.start(*words, SHOAL_HOME=str(home))
    wait_until(lambda: started(project) and is_claimed(home), 60, "the first run has begun and all are claimed")
    filler = fill(small_disk)
    project.write("go", "")
    lines = iter(begun.stderr or ())
    assert any("cannot write" in line and "no run is started until there is room" in line for line in lines)
    filler.unlink()
    begun.communicate(timeout=300)
    assert begun.returncode == 0
    ends = [read_record(path) for path in home.glob("runs/*/*/attempt.*.end")]
    assert [end["success"] for end in ends] == [True] * 4


def test_a_disk_that_stays_full_ends_the_pack_and_the_next_command_continues(
    project: Project, small_disk: Path
) -> None:
    home = small_disk / "state"
    words = ("pack", "--slots", 1, "--set", "k=1:3:1", "--", *QUICK, "wait=go", "{k}")
    begun = project.start(*words, SHOAL_HOME=str(home), SHOAL_DISK_S="1")
    wait_until(lambda: started(project) and is_claimed(home), 60, "the first run has begun and all are claimed")
    filler = fill(small_disk)
    project.write("go", "")
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 74 and f"error: the disk under {home} is full" in said and f"hint: df -h {home}" in said
    assert len(project.marks("pack_train/train_k1", "end")) == 1 and len(started(project)) == 1, "no other was started"
    filler.unlink()
    project.shoal(*words, SHOAL_HOME=str(home))
    ends = [read_record(path) for path in home.glob("runs/*/*/attempt.*.end")]
    assert sum(end["success"] for end in ends) == 3


def is_claimed(home: Path) -> bool:
    """Whether the command has written all that it writes before its runs are over."""
    return any(home.glob("submissions/*/claimed"))


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
    return filler


def test_two_commands_at_once_share_the_work_and_run_nothing_twice(project: Project) -> None:
    words = ("pack", "--slots", 2, "--set", "k=1:12:1", "--", *QUICK, "{k}")
    both = [project.start(*words) for _ in range(2)]
    for one in both:
        one.communicate(timeout=300)
    wait_until(lambda: len(good_ends(project)) == 12, 60, "all runs completed")
    assert set(good_ends(project).values()) == {1}
    assert all(len(project.marks(name)) == 1 for name in good_ends(project))


@pytest.mark.parametrize(
    "point", ["after-submission", "after-sending", "after-outcome", "between-claims", "after-claims"]
)
def test_wherever_the_command_dies_no_run_is_lost_and_none_runs_twice(project: Project, point: str) -> None:
    words = ("--slots", 2, "--set", "k=1:5:1", "--", *QUICK, "{k}")
    pack(project, *words, code=-9, SHOAL_FAILPOINT=point)
    wait_for_no_process(project)
    pack(project, *words)
    assert list(good_ends(project).values()) == [1] * 5


def test_an_engine_that_begins_before_all_runs_are_claimed_waits_for_the_next_in_order(project: Project) -> None:
    words = ("--slots", 2, "--set", "k=1:5:1", "--", *QUICK, "{k}")
    pack(project, *words, code=-9, SHOAL_FAILPOINT="after-claims")
    wait_for_no_process(project)
    (folder,) = project.submissions()

    # It may have begun or not, and it may have heard of the command's end before it could write down its own.
    def engines() -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in folder.glob("engine.*.json")]

    wait_until(lambda: not any(map(processes.is_process_alive, engines())), 60, "the first engine has ended")
    before = good_ends(project)
    (project.home / "runs/pack_train/train_k1/submit.1.claim").rename(project.root / "claim")
    env = {**project.env, "SHOAL_TOKEN": folder.name, "SHOAL_CLAIMING": "1"}
    known = len(engines())
    engine = subprocess.Popen(["bash", str(folder / "script.sh")], cwd=project.root, env=env)
    try:
        wait_until(
            lambda: len(engines()) > known and any(map(processes.is_process_alive, engines())), 60, "the engine lives"
        )
        assert engine.poll() is None and good_ends(project) == before
        (project.root / "claim").rename(project.home / "runs/pack_train/train_k1/submit.1.claim")
        (folder / "claimed").touch()
        assert engine.wait(300) == 0
    finally:
        end_process(engine)
    assert list(good_ends(project).values()) == [1] * 5


def test_bash_on_the_saved_script_continues_what_is_left(project: Project) -> None:
    begun = _begin(project, runs=4)
    os.kill(engine_pid(project), signal.SIGKILL)
    begun.communicate(timeout=300)
    project.write("go", "")
    (folder,) = project.submissions()
    project.bash(folder / "script.sh")
    assert list(good_ends(project).values()) == [1] * 4


def test_the_engine_works_under_python_3_8(project: Project) -> None:
    python = find_python38()
    if python is None:
        pytest.skip("there is no Python 3.8 on this machine")
    begun = _begin(project, runs=4)
    os.kill(engine_pid(project), signal.SIGKILL)
    begun.communicate(timeout=300)
    project.write("go", "")
    (folder,) = project.submissions()
    script = project.write("old.sh", (folder / "script.sh").read_text().replace(sys.executable, python))
    assert f"python={python}" in script.read_text()
    project.bash(script)
    assert list(good_ends(project).values()) == [1] * 4


def test_a_run_that_writes_a_huge_log_costs_nobody_anything(project: Project) -> None:
    """Its output goes to its file without passing through us, and whoever shows it reads the end alone."""
    size = 300 << 20
    flood = f"head -c {size} /dev/zero | tr '\\0' x; echo; echo last words; exit 3"
    project.write("jobs.txt", f"bash -c {shlex.quote(flood)}\ntrue\n")
    done = pack(project, "--slots", 2, "--json", "jobs.txt", code=4)
    assert sorted(states(done).values()) == ["completed", "failed"]
    (engine,) = project.home.glob("submissions/*/engine.*.end")
    assert json.loads(engine.read_text())["max_rss_mb"] < 60
    name = next(name for name, state in states(done).items() if state == "failed")
    (log,) = (path for path in project.root.glob("outputs/**/attempt-1.out") if path.stat().st_size > size)
    cramped = ("-c", 'ulimit -v 290000; exec "$@"', "-", SHOAL)  # in kB: less than the log
    told = project.bash(*cramped, "why", name).out
    assert "exit code 3" in told and f"hint: shoal retry {name}" in told  # there is no script to submit again
    assert project.bash(*cramped, "logs", name, "-n", 1).out.strip() == "last words"
    log.unlink()


def test_csv_and_svg_are_written_when_asked_for(project: Project) -> None:
    pack(project, "--slots", 2, "--set", "k=1,2", "--csv", "t.csv", "--svg", "t.svg", "--", *QUICK, "{k}")
    rows = (project.root / "t.csv").read_text().splitlines()
    assert rows[0].startswith("name,state,exit_code") and len(rows) == 3
    assert "<svg" in (project.root / "t.svg").read_text() and "idle" in (project.root / "t.svg").read_text()


def test_the_report_counts_the_share_that_a_run_held(project: Project) -> None:
    words = ("--slots", 4, "--set", "k=1:4:1", "-q", "--", sys.executable, "-c", "import time;time.sleep(0.5)", "{k}")
    pack(project, *words, CUDA_VISIBLE_DEVICES="0")
    hours = project.shoal("report", "--json").json["gpu_hours"]
    bars = pack(project, *words[:4], "--json", *words[5:], CUDA_VISIBLE_DEVICES="0").json["timeline"]
    names = project.status()
    held = sum((bar["end"] - bar["start"]) * 0.25 for bar in bars) / 3600
    records = [
        (project.records(name, "attempt.1.start")[0], project.records(name, "attempt.1.end")[0]) for name in names
    ]
    recorded = sum((end["ended"] - start["t"]) * 0.25 for start, end in records) / 3600
    assert held * 0.99 <= hours["runs"], "from the start record on, a moment before the program"
    assert hours["runs"] == pytest.approx(recorded, rel=0.01)
    assert hours["runs"] <= hours["allocated"]


def test_records_hold_what_a_run_held(project: Project) -> None:
    done = pack(project, "--slots", 2, "--json", "--", *QUICK)
    (name,) = states(done)
    start: dict[str, Any] = project.records(name, "attempt.1.start")[0]
    assert start["held"]["slot"] == 0 and start["held"]["engine"].endswith(str(start["pid"]))
