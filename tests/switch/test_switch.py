"""Keep or switch: the advice in numbers, and the switch itself on a real Slurm, with everything that may go wrong."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import _session_sandbox, cancel_all
from disks import empty, fill, small_disk
from project import Done, Project, assert_clear_error, end_process
from published import complaints
from shoal.kernel import progress
from shoal.kernel.progress import totals_of_command
from shoal.sandbox import Sandbox
from shoal.switch.advice import Replacement, RunningJob, advise, batch_notes
from waiting import wait_until

HOUR = 3600.0
#: A training of `total` steps, ten per second and GPU; saves every fifth; bad=N fails on N GPUs, mute=1 says nothing.
TRAINING = """\
import json, os, sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:])
out, total = os.environ["SHOAL_OUTPUT_DIR"], int(words.get("total", 100000))
gpus = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))
resume = os.environ["SHOAL_RESUME_FROM"]
first = int(os.path.basename(resume)[6:-4]) if resume else 0
with open(os.path.join(ROOT, "marks", os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
    file.write(json.dumps({"what": "start", "gpus": gpus, "first": first, "resume": resume}) + "\\n")
if str(gpus) == words.get("bad"):
    sys.exit("RuntimeError: NCCL error: unhandled system error")
while gpus > 1 and os.path.exists(os.path.join(ROOT, "hold")):
    time.sleep(0.05)
for step in range(first + 1, total + 1):
    time.sleep(0.1 / gpus)
    if os.path.exists(os.path.join(ROOT, "finish")):
        break
    if gpus > 1 and words.get("stop") and step > first + 2:
        time.sleep(600)
    while step > 40 and os.path.exists(os.path.join(ROOT, "hold seed " + words.get("seed", ""))):
        time.sleep(0.05)
    if "mute" not in words:
        print("step %d/%d loss 0.1" % (step, total), flush=True)
    if step % 5 == 0 and "nosave" not in words:
        with open(os.path.join(out, "model_%d.pth.tmp" % step), "w") as file:
            file.write("weights of step %d" % step)
        os.rename(os.path.join(out, "model_%d.pth.tmp" % step), os.path.join(out, "model_%d.pth" % step))
"""
TOML = """
[steps.pretrain]
command = [{python}, "-S", {program}]
checkpoint = "model_*.pth"
request = {{ gpus = 1, cpus = 1, memory = "50M", time = "2h" }}
env = {{ SHOAL_LOOK_S = "0.2", SHOAL_GRACE_S = "2" }}
"""
#: A training that tells its steps to its tracker alone; as wandb writes in blocks of 32 KiB, it logs many numbers.
TRACKED = """\
import os, sys, time
out = os.environ["SHOAL_OUTPUT_DIR"]
if sys.argv[1] == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(os.path.join(out, "logs"), flush_secs=1)
    log = lambda step: writer.add_scalar("train/loss", 1 / step, step)
elif sys.argv[1] == "rich":
    from rich.progress import track
    for step in track(range(5000), description="Training"):
        time.sleep(0.05 / int(os.environ.get("SLURM_GPUS_ON_NODE") or 1))
else:
    import wandb
    run = wandb.init(project="navsim", mode="offline")
    log = lambda step: run.log({"layer %d norm" % layer: 0.5 / step for layer in range(100)}, step=step)
for step in range(1, 100001):
    log(step)
    time.sleep(0.05)
"""
#: squeue, which an agent calls between the claim and the end of the other job, and which is the end of that agent.
DEADLY = """\
#!/bin/bash
if tr '\\0' ' ' < /proc/$PPID/cmdline | grep -q pyz; then kill -9 $PPID; exit 1; fi
PATH=${PATH#*:} exec squeue "$@"
"""
NAME, REPLACEMENT = "001_navsim/000_train_0", "001_navsim/000_train_0_8gpus"


# ---- the advice


def seed_story(**changes: Any) -> RunningJob:
    """Seed 004: 24 hours on one GPU, 30 % done, a checkpoint of an hour ago, 3 days of time."""
    facts = {"gpus": 1, "fraction": 0.3, "measured_s": 24 * HOUR, "checkpoint_age_s": HOUR, "time_left_s": 60 * HOUR}
    return RunningJob(**{**facts, **changes})


def test_the_seeds_question_is_answered_with_numbers() -> None:
    told = advise(seed_story(), Replacement(gpus=8, efficiency=0.8, efficiency_from="given", wait_s=1.5 * HOUR))
    assert told.recommend == "switch"
    assert told.keep_s == pytest.approx(56 * HOUR)
    # While the other waits, the first goes on: 55.5 hours of work are left at its start (54.5 and the lost one).
    assert told.switch_s == pytest.approx(1.5 * HOUR + 55.5 * HOUR / 6.4)
    assert told.lost_s == pytest.approx(HOUR)
    assert told.keep_gpu_hours == pytest.approx(56) and told.switch_gpu_hours == pytest.approx(1.5 + 8 * 55.5 / 6.4)
    assert told.worth_above is not None
    even = advise(seed_story(), Replacement(gpus=8, efficiency=told.worth_above, wait_s=1.5 * HOUR))
    assert even.saved_s == pytest.approx(0, abs=1) and even.recommend == "keep"


@pytest.mark.parametrize(
    ("changes", "other", "recommend", "why"),
    [
        ({"fraction": 0.99}, {"wait_s": 2 * HOUR}, "keep", "completes before the new one would start"),
        ({"fraction": 0.9, "checkpoint_age_s": None}, {"efficiency": 0.5}, "keep", "does not complete sooner"),
        ({"fraction": 0.3}, {"efficiency": 0.12}, "keep", "does not complete sooner"),
        ({"time_left_s": 20 * HOUR}, {"efficiency": 0.12}, "switch", "time limit"),
        ({}, {"time_limit_s": 2 * HOUR}, "keep", "not complete within its time limit"),
        ({"checkpoint_age_s": None}, {}, "switch", "sooner"),
    ],
)
def test_it_recommends_what_the_numbers_bear(
    changes: dict[str, Any], other: dict[str, Any], recommend: str, why: str
) -> None:
    told = advise(seed_story(**changes), Replacement(gpus=8, **other))
    assert told.recommend == recommend and why in told.why, told


def test_what_is_not_known_is_said() -> None:
    told = advise(seed_story(checkpoint_age_s=None, time_left_s=HOUR), Replacement(gpus=8))
    said = "\n".join(told.notes)
    for words in (
        "no checkpoint",
        "no estimate",
        "0.8 is assumed; a run of the same command on 8 GPUs",
        "does not fit into its time limit",
    ):
        assert words in said


def test_the_batch_and_the_learning_rate_are_mentioned() -> None:
    notes = batch_notes(["python", "run.py", "dataloader.params.batch_size=22", "--lr", "0.001"], 8)
    assert "8 times as large (22 becomes 176)" in notes[0] and "0.008" in notes[1]
    assert batch_notes(["python"], 1) == []
    assert totals_of_command(["python", "x.py", "--max-steps", "500", "trainer.max_epochs=40"]) == (500, 40)
    assert totals_of_command(["x.py", "--steps_per_epoch=9", "--eval-steps", "3", "--warmup-epochs=2"]) == (None, None)


# ---- progress


@pytest.mark.parametrize(
    ("line", "step", "fraction"),
    [
        ("step 120/1000 loss 0.3", 120, 0.12),
        ("[2026-11-15 10:00] iter 120 of 1,000: loss=0.1", 120, 0.12),
        ("Epoch 3:  45%|####5     | 45/100 [00:10<00:12, 4.5it/s, v_num=0]", 345, 345 / 4000),
        ("Epoch 3/40: loss 0.2", 2, 0.05),
        ("Epoch [3/40], Step [50/100], Loss: 0.1", 250, 0.0625),
        (" 12%|#2        | 120/1000 [00:10<01:13, 12.0it/s]", 120, 0.12),
        ("global_step=7000", 7000, None),
        ("Validation DataLoader 0:  30%|###   | 3/10 [00:01<00:02]", None, None),
        ("Downloading shards: 100%|######| 3/3 [00:01<00:02]", None, None),
        ("loaded 3/4 files", None, None),
        ("accuracy 97 %", None, None),
    ],
)
def test_progress_is_read_from_lines_of_logs(line: str, step: float | None, fraction: float | None) -> None:
    found = progress.parse_progress(line, epochs=40)
    if step is None:
        assert found is None
    else:
        assert found is not None
        assert found.step == pytest.approx(step)
        assert found.fraction == (None if fraction is None else pytest.approx(fraction))


def test_the_progress_file_comes_before_the_log_and_the_log_before_events(tmp_path: Path) -> None:
    log = tmp_path / "attempt-1.out"
    assert progress.read_progress(progress.RunOutput(str(tmp_path), [str(log)])) is None
    event = b"\x09" + struct.pack("<d", 1e9) + b"\x10\xd8\x36" + b"\x00" * 40  # step 7000
    (tmp_path / "tb").mkdir()
    frame = struct.pack("<Q", len(event)) + b"crc_" + event + b"crc_"
    (tmp_path / "tb" / "events.out.tfevents.1.host").write_bytes(frame + frame + frame[:9])
    seen = progress.read_progress(progress.RunOutput(str(tmp_path), [str(log)], steps=10000))
    assert seen is not None and (seen.step, seen.fraction, seen.source) == (7000, 0.7, "TensorBoard")
    log.write_bytes(b"noise\rstep 5/10\r\0step 6/10\nsaved\n")
    seen = progress.read_progress(progress.RunOutput(str(tmp_path), [str(log)]))
    assert seen is not None and (seen.step, seen.source) == (6, "log")
    (tmp_path / "progress").write_text('1/10\n{"step": 7, "total": 10, "loss": 0.1}\n')
    seen = progress.read_progress(progress.RunOutput(str(tmp_path), [str(log)]))
    assert seen is not None and (seen.fraction, seen.source) == (0.7, "progress file")


# ---- the switch


@pytest.fixture(scope="module")
def eight() -> Iterator[Sandbox]:
    """2 nodes with 8 GPUs each."""
    yield from _session_sandbox("eight", nodes=2, gpus=8, cpus=8)


@pytest.fixture
def slurm(eight: Sandbox) -> Iterator[Sandbox]:
    yield eight
    cancel_all(eight)


def project_with(folder: Path, slurm: Sandbox | None) -> Project:
    words = {"python": json.dumps(sys.executable), "program": json.dumps(str(folder / "project" / "training.py"))}
    project = Project(folder, slurm, toml=TOML.format(**words))
    project.write("training.py", f"ROOT = {str(project.root)!r}\n{TRAINING}")
    return project


def start(folder: Path, slurm: Sandbox | None, *args: str, home: Path | None = None) -> Project:
    """The 1-GPU job of the story, under way."""
    project = project_with(folder, slurm)
    if home is not None:
        project.home, project.env["SHOAL_HOME"] = home, str(home)
    script = project.script(f"{NAME}.sh", f"pretrain -- {' '.join(args)}")
    if slurm is not None:
        project.shoal("submit", script)
        project.wait_started(NAME)
        checkpoint = Path(project.status(NAME)[NAME]["output_dir"]) / "model_5.pth"
        if "nosave=1" not in args:
            wait_until(checkpoint.exists, 30, "it has a checkpoint")
    return project


def deadly(project: Project) -> str:
    """A PATH on which squeue is the end of an agent that calls it."""
    squeue = project.write("deadly/squeue", DEADLY)
    squeue.chmod(0o755)
    return f"{squeue.parent}{os.pathsep}{project.env['PATH']}"


def steps(folder: Path) -> list[int]:
    """The steps that the program has printed."""
    lines = (folder / "attempt-1.out").read_text().splitlines(keepends=True)
    return [int(line.split()[1].partition("/")[0]) for line in lines if line.endswith("\n")]


def wait_steps(project: Project, name: str, number: int) -> None:
    project.wait_started(name)
    folder = Path(project.status(name)[name]["output_dir"])
    wait_until(lambda: len(steps(folder)) >= number, 60, f"{name} has done {number} steps")


def job_words(project: Project, job: str) -> str:
    return project.slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).strip()


def assert_one_writer_each(project: Project) -> None:
    """The two never shared a folder."""
    folders = {record["output_dir"] for record in project.records(NAME, "attempt.*.start")}
    later = {record["output_dir"] for record in project.records(REPLACEMENT, "attempt.*.start")}
    first = project.records(NAME, "attempt.1.start")[0]["output_dir"]
    assert first not in later and folders <= {first} | later


@pytest.mark.slurm
def test_the_seeds_story_one_gpu_runs_eight_take_over_when_they_are_healthy(tmp_path: Path, slurm: Sandbox) -> None:
    project = start(tmp_path, slurm, "total=30000")
    old = project.status(NAME)[NAME]
    advice = project.shoal("switch", NAME, "--gpus", "8", "--json").json
    assert complaints("switch", advice) == []
    assert advice["progress"]["from"] == "log" and advice["progress"]["total"] == 30000
    assert advice["efficiency_from"] == "assumed" and advice["speedup"] == pytest.approx(6.4)
    assert advice["wait_s"] is not None and advice["keep_s"] > advice["switch_s"] > 0
    assert advice["alternative"]["request"]["cpus"] == 8 and advice["applied"] == []
    assert REPLACEMENT not in project.status()
    told = project.shoal("switch", NAME, "--gpus", "8", "--apply", "--after-step", "4").out
    assert f"submitted {REPLACEMENT} as job" in told
    wait_until(lambda: project.status(NAME)[NAME]["attempt"] == 2, 60, "the run is another job")
    now = project.wait(NAME, "running")
    assert now["output_dir"] != old["output_dir"] and now["job_id"] != old["job_id"] and now["gpus"] == 8
    wait_until(lambda: job_words(project, old["job_id"]) in ("CANCELLED", ""), 30, "the old job is cancelled")
    began = project.marks(REPLACEMENT)[0]
    assert began["gpus"] == 8 and began["first"] >= 5 and now["output_dir"] in began["resume"]
    replacement = project.status(REPLACEMENT)[REPLACEMENT]
    assert replacement["state"] == "completed" and replacement["reason"] == f"it goes on as {NAME}"
    assert project.records(NAME, "submit.2.claim")[0]["switched"] is True
    wait_until(lambda: project.records(NAME, "attempt.1.end"), 30, "the old attempt wrote its end")
    assert project.records(NAME, "attempt.1.end")[0]["stopped_by"] == "superseded"
    assert "step" in project.shoal("logs", NAME, "-n", "3").out
    # The replacement completed, but its folder is now the live run's.
    assert project.shoal("clean", "--keep", "1", "--json").json["items"] == []
    again = project.shoal("submit", f"experiments/{NAME}.sh", "--json").json["runs"]
    assert [run["did"] for run in again] == ["left alone"]
    (project.root / "finish").touch()
    assert project.wait(NAME, "completed")["attempt"] == 2
    assert len(project.marks(NAME)) == 1 and len(project.marks(REPLACEMENT)) == 1
    report = project.shoal("report", NAME, "--json").json
    attempts = [(one["state"], one["cause"]) for one in report["runs"][0]["attempts"]]
    assert attempts == [("stopped", None), ("completed", None)] and report["failures"] == []
    assert_one_writer_each(project)


@pytest.mark.slurm
def test_how_well_it_scales_is_measured_from_runs_that_did_the_same_on_so_many_gpus(
    tmp_path: Path, slurm: Sandbox
) -> None:
    project = project_with(tmp_path, slurm)
    done, cancelled, short = (f"001_navsim/{stem}" for stem in ("001_train8_0", "002_train8_1", "003_short8_0"))
    for name, args in {done: "total=800 seed=0", cancelled: "total=800 seed=1", short: "total=40"}.items():
        project.script(f"{name}.sh", f"pretrain --gpus-per-node=8 -- {args}")
    project.write("hold seed 1", "")  # it is not done before it is cancelled
    project.shoal("submit", "experiments/001_navsim")
    wait_steps(project, cancelled, 20)
    project.shoal("cancel", cancelled)
    project.wait(cancelled, "cancelled")
    for name in (done, short):
        project.wait(name, "completed")
    project.shoal("submit", project.script(f"{NAME}.sh", "pretrain -- total=800 seed=2"))
    switch = ("switch", NAME, "--gpus")
    wait_steps(project, NAME, 40)
    told = project.shoal(*switch, "8", "--json").json
    assert told["efficiency_from"].startswith("measured: 001_navsim/00")
    assert told["efficiency_from"].endswith("on 8 GPUs, and 1 more like it")
    # Eight GPUs take an eighth of the time for a step; a start takes its time as well, and the machine may be busy.
    assert 0.2 < told["efficiency"] < 2 and told["speedup"] == pytest.approx(8 * told["efficiency"])
    assert "assumed" not in "".join(told["notes"])
    assert ", measured: 001_navsim/00" in project.shoal(*switch, "8").out
    nobody = project.shoal(*switch, "4", "--json").json
    assert (nobody["efficiency_from"], nobody["efficiency"]) == ("assumed", 0.8)


def _answer(project: Project, words: Sequence[str]) -> Done | None:
    done = project.shoal(*words, code=None)
    return done if done.code == 0 else None


@pytest.mark.slurm
def test_steps_are_read_from_what_the_real_trackers_write_while_they_run(tmp_path: Path, slurm: Sandbox) -> None:
    project = project_with(tmp_path, slurm)
    command = json.dumps([sys.executable, str(project.write("tracked.py", TRACKED))])
    env = 'env = { TERM = "xterm", TTY_COMPATIBLE = "1", SHOAL_LOOK_S = "0.2", SHOAL_GRACE_S = "2" }'
    project.write("shoal.toml", f'[steps.fit]\ncommand = {command}\nrequest = {{ gpus = 1, memory = "2G" }}\n{env}\n')
    sources = {"tensorboard": "TensorBoard", "wandb": "W&B"}
    for number, word in enumerate(sources):
        project.script(f"001_navsim/00{number}_{word}_0.sh", f"fit -- {word} --max-steps 100000")
    project.shoal("submit", "experiments/001_navsim")
    for number, (word, source) in enumerate(sources.items()):
        ask = ("switch", f"001_navsim/00{number}_{word}_0", "--gpus", "8", "--json", "--", "--mem=2G")
        told = wait_until(partial(_answer, project, ask), 90, f"{source} tells", poll_s=0.5).json
        seen = told["progress"]
        assert told["alternative"]["request"]["memory"] == "2G"
        assert seen["from"] == source and seen["total"] == 100000 and seen["step"] >= 1, seen
    project.shoal("cancel", "001_navsim", "--yes")  # the nodes have memory for two of them
    project.script("001_navsim/002_rich_0.sh", "fit -- rich")
    project.shoal("submit", "experiments/001_navsim/002_rich_0.sh")
    assert_switched_by_its_bar(project, "001_navsim/002_rich_0")


def assert_switched_by_its_bar(project: Project, name: str) -> None:
    """A run whose only progress is a bar of rich is compared, and handed over when the replacement's bar moves."""
    ask = ("switch", name, "--gpus", "8", "--json", "--", "--mem=2G")
    told = wait_until(partial(_answer, project, ask), 90, "the bar tells", poll_s=0.5).json
    assert told["progress"]["from"] == "log" and 0 < told["progress"]["fraction"] < 1, told["progress"]
    refused = project.shoal(*ask[:4], "--apply", "--after-step", "100", "--", "--mem=2G", code=2).err
    assert "a percentage only" in refused and "--after-step" in refused
    project.shoal(*ask[:4], "--apply", "--", "--mem=2G")
    wait_until(lambda: project.status(name)[name]["attempt"] == 2, 60, "the run is another job")
    assert project.status(name)[name]["gpus"] == 8


@pytest.mark.slurm
def test_of_an_array_each_task_is_switched_kept_or_taken_back_alone(tmp_path: Path, slurm: Sandbox) -> None:
    project = project_with(tmp_path, slurm)
    fails, dies, switched = names = [f"002_sweep/000_train_{seed}" for seed in range(3)]
    sweep_file = 'step = "pretrain"\nseeds = "0-2"\nargs = ["bad=2"]\n'
    project.shoal("submit", project.write("experiments/002_sweep/000_train.toml", sweep_file))
    for name in names:
        wait_steps(project, name, 1)
    # The last task of an array has the array's own number.
    jobs = {name: project.status(name)[name]["job_id"] for name in names}
    project.shoal("switch", fails, "--gpus", "2", "--apply")
    project.shoal("switch", dies, "--gpus", "4", "--apply", PATH=deadly(project))
    project.shoal("switch", switched, "--gpus", "8", "--apply")
    wait_until(lambda: project.status(switched)[switched]["job_id"] != jobs[switched], 60, "it is another job")
    wait_until(lambda: job_words(project, jobs[switched]) in ("CANCELLED", ""), 30, "its task is cancelled")
    wait_until(lambda: project.records(dies, "submit.3.claim"), 60, "the task has taken its run back")
    assert [record["switched"] for record in project.records(dies, "submit.[23].claim")] == [True, True]
    project.wait(f"{fails}_2gpus", "failed")
    for name in (fails, dies):
        assert project.wait(name, "running")["job_id"] == jobs[name]
        assert job_words(project, jobs[name]) == "RUNNING" and len(project.marks(name)) == 1
    (project.root / "finish").touch()
    for name in names:
        project.wait(name, "completed")


@pytest.mark.slurm
def test_a_switch_that_meets_a_full_disk_is_made_when_there_is_room(tmp_path: Path, slurm: Sandbox) -> None:
    with small_disk(tmp_path / "disk") as disk:
        project = start(tmp_path, slurm, home=disk / "state")
        old = project.status(NAME)[NAME]["job_id"]
        fill(disk)
        assert_clear_error(project.shoal("switch", NAME, "--gpus", "8", "--apply", code=74), 74, "no space left")
        empty(disk)
        assert project.wait(NAME, "running")["job_id"] == old
        hold = project.write("hold", "")
        project.shoal("switch", NAME, "--gpus", "8", "--apply")
        project.wait_started(REPLACEMENT)
        output_dir = Path(project.wait(REPLACEMENT, "running")["output_dir"])
        fill(disk, leave=4096)  # room for a record, but not for all that a switch writes
        hold.unlink()
        wait_until(lambda: len(steps(output_dir)) > 80, 60, "it would have taken over")
        assert job_words(project, old) == "RUNNING"
        empty(disk)
        wait_until(lambda: project.status(NAME)[NAME]["job_id"] != old, 60, "the run is another job")
        wait_until(lambda: job_words(project, old) in ("CANCELLED", ""), 30, "the old job is cancelled")
        (project.root / "finish").touch()
        project.wait(NAME, "completed")
        assert len(project.marks(NAME)) == 1 and len(project.marks(REPLACEMENT)) == 1


@pytest.mark.slurm
def test_if_the_alternative_fails_the_old_one_goes_on(tmp_path: Path, slurm: Sandbox) -> None:
    project = start(tmp_path, slurm, "bad=8")
    old = project.status(NAME)[NAME]
    project.shoal("switch", NAME, "--gpus", "8", "--apply", "--progress", "10%", code=2)
    project.shoal("switch", NAME, "--gpus", "8", "--apply")
    assert project.wait(REPLACEMENT, "failed")["reason"].startswith("exit code 1")
    kept = project.wait(NAME, "running")
    assert (kept["job_id"], kept["attempt"]) == (old["job_id"], 1)
    assert job_words(project, old["job_id"]) == "RUNNING"
    assert "NCCL" in project.shoal("why", REPLACEMENT).out
    (project.root / "finish").touch()
    project.wait(NAME, "completed")


@pytest.mark.slurm
def test_an_alternative_that_never_starts_is_ended_when_the_old_one_is_done(tmp_path: Path, slurm: Sandbox) -> None:
    project = start(tmp_path, slurm)
    for node in slurm.run("sinfo", "-h", "-N", "-o", "%N").stdout.split():
        slurm.run(
            "sbatch", "--wrap=sleep 600", f"--nodelist={node}", "--gpus-per-node=1", "--mem=10", "--output=/dev/null"
        )
    told = project.shoal("switch", NAME, "--gpus", "8", "--apply", "--json").json
    assert complaints("switch", told) == []
    job = told["applied"][0]["job_id"]
    wait_until(lambda: job_words(project, job) == "PENDING", 30, "it waits")
    assert any(REPLACEMENT in line for line in project.shoal("why", NAME, "--json").json["evidence"])
    again = project.shoal("switch", NAME, "--gpus", "8", "--apply", "--json").json
    assert again["applied"][0]["did"] == "left alone" and again["alternative"]["state"] == "pending"
    (project.root / "finish").touch()
    project.wait(NAME, "completed")
    ended = project.wait(REPLACEMENT, "cancelled")
    assert ended["reason"] == f"cancelled: {NAME} completed" and project.marks(REPLACEMENT) == []


@pytest.mark.slurm
def test_cancelling_the_run_cancels_what_would_take_it_over(tmp_path: Path, slurm: Sandbox) -> None:
    project = start(tmp_path, slurm, "stop=1")
    project.shoal("switch", NAME, "--gpus", "8", "--apply", "--after-step", "50")
    project.wait_started(REPLACEMENT)
    project.shoal("cancel", NAME)
    project.wait(NAME, "cancelled")
    project.wait(REPLACEMENT, "cancelled")


@pytest.mark.slurm
@pytest.mark.parametrize("point", ["after-claims", "after-sbatch"])
def test_a_command_that_is_killed_leaves_the_old_one_running(tmp_path: Path, slurm: Sandbox, point: str) -> None:
    project = start(tmp_path, slurm)
    old = project.status(NAME)[NAME]["job_id"]
    killed = project.start("switch", NAME, "--gpus", "8", "--apply", SHOAL_FAILPOINT=point)
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    kept = project.status(NAME)[NAME]
    assert kept["state"] == "running"
    if point != "after-sbatch":
        assert kept["job_id"] == old
        wait_until(lambda: project.status()[REPLACEMENT]["state"] in ("new", "lost"), 30, "it was given up", poll_s=0.5)
        project.shoal("switch", NAME, "--gpus", "8", "--apply")
    wait_until(lambda: project.status(NAME)[NAME]["job_id"] != old, 60, "the run is another job", poll_s=0.5)
    assert len(project.marks(REPLACEMENT)) == 1
    project.shoal("cancel", NAME)


@pytest.mark.slurm
def test_a_job_that_took_over_and_is_requeued_goes_on_as_the_run(tmp_path: Path, slurm: Sandbox) -> None:
    project = start(tmp_path, slurm)
    old = project.status(NAME)[NAME]["job_id"]
    project.shoal("switch", NAME, "--gpus", "8", "--apply")
    wait_until(lambda: project.status(NAME)[NAME]["job_id"] != old, 60, "the run is another job", poll_s=0.5)
    new = project.wait(NAME, "running")
    wait_until(lambda: len(list(Path(new["output_dir"]).glob("model_*.pth"))) > 2, 30, "it has saved")
    project.slurm("scontrol", "requeue", new["job_id"])
    wait_until(lambda: len(project.records(NAME, "attempt.*.start")) == 3, 90, "it began again as the run")
    back = project.wait(NAME, "running")
    assert back["job_id"] == new["job_id"] and back["output_dir"] == new["output_dir"] and back["attempt"] == 3
    mark = project.wait_started(NAME, 2)
    assert mark["first"] > 5 and mark["gpus"] == 8
    project.shoal("cancel", NAME)
    project.wait(NAME, "cancelled")
    # Whoever resumes it means what it was switched to; what they add comes on top.
    project.shoal("resume", NAME, "-q", "--", "--time=30")
    assert project.wait_started(NAME, 3)["gpus"] == 8
    assert project.wait(NAME, "running")["gpus"] == 8


@pytest.mark.slurm
def test_what_cannot_be_switched_is_told_with_a_next_command(tmp_path: Path, slurm: Sandbox) -> None:
    project = start(tmp_path, slurm, "mute=1")
    assert_clear_error(project.shoal("switch", "nothing", "--gpus", "8", code=2), 2, "no run named")
    assert_clear_error(
        project.shoal("switch", NAME, "--gpus", "8", code=2), 2, "cannot read the progress", "--progress"
    )
    told = project.shoal("switch", NAME, "--gpus", "8", "--progress", "300/1000", "--efficiency", "0.5", "--json").json
    assert told["progress"]["fraction"] == 0.3 and told["speedup"] == 4 and told["efficiency_from"] == "given"
    done = project.shoal("switch", NAME, "--gpus", "8", "--progress", "300/1000", "--apply", code=2)
    assert_clear_error(done, 2, "cannot detect the progress")
    assert_clear_error(project.shoal("switch", NAME, "--gpus", "1", code=2), 2, "has 1 GPU already")
    assert_clear_error(
        project.shoal("switch", NAME, "--gpus", "8", "--progress", "much", code=2), 2, "expected 300/1000"
    )
    refused = project.shoal("switch", NAME, "--gpus", "64", "--progress", "30%", code=3)
    assert "64" in refused.err and "8" in refused.err
    project.shoal("cancel", NAME)
    project.wait(NAME, "cancelled")
    assert_clear_error(project.shoal("switch", NAME, "--gpus", "8", code=2), 2, "is cancelled, and not running")


@pytest.mark.slurm
def test_status_and_switch_tell_the_same_progress_and_end_and_a_node_keeps_its_name(
    tmp_path: Path, slurm: Sandbox
) -> None:
    project = start(tmp_path, slurm, "total=2000")
    wait_steps(project, NAME, 30)
    wait_until(lambda: project.status(NAME)[NAME]["remaining_s"] is not None, 60, "it is past its start-up")
    times = [time.time()]
    advice = project.shoal("switch", NAME, "--gpus", "8", "--json").json
    times.append(time.time())
    run = project.status(NAME)[NAME]
    times.append(time.time())
    assert run["progress"].startswith("step ") and "/2000 (" in run["progress"] and run["progress_source"] == "log"
    # Both follow from the time since the start and the steps until then, whenever they looked.
    steps = (advice["progress"]["step"], int(run["progress"].split()[1].partition("/")[0]))
    for left_s, step, asked, answered in zip(
        (advice["keep_s"], run["remaining_s"]), steps, times, times[1:], strict=False
    ):
        least_s, most_s = ((t - run["started"]) * (2000 - step) / step for t in (asked, answered))
        assert least_s * 0.99 <= left_s <= most_s * 1.01
    assert "ends ~" in project.shoal("status", NAME).out
    node = run["node"]
    assert node in project.slurm("sinfo", "-h", "-N", "-o", "%N").split()
    (project.root / "finish").touch()
    assert project.wait(NAME, "completed")["node"] == node
    report = project.shoal("report", "--json").json
    assert {bar["lane"].partition(":")[0] for bar in report["timeline"]} == {node}
    assert {attempt["host"] for one in report["runs"] for attempt in one["attempts"]} == {node}


@pytest.mark.slurm
def test_a_run_without_gpus_is_compared_by_nodes_and_nothing_speaks_of_gpus(tmp_path: Path, slurm: Sandbox) -> None:
    project = project_with(tmp_path, slurm)
    toml = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", toml.replace("request = { gpus = 1, cpus", "request = { cpus"))
    script = project.script(f"{NAME}.sh", "pretrain -- total=2000")
    project.shoal("submit", script)
    wait_steps(project, NAME, 20)
    told = project.shoal("switch", NAME, "--nodes", "2").out
    assert told.startswith(f"{NAME} runs without GPUs as job ") and "2 nodes" in told
    assert "GPU" not in told.replace("without GPUs", "")
    assert_clear_error(project.shoal("switch", NAME, "--gpus", "8", code=2), 2, "runs without GPUs", "--nodes 2")
    assert_clear_error(project.shoal("switch", NAME, code=2), 2, "has 1 node already", "--nodes 2")


@pytest.mark.slow
def test_a_run_on_this_machine_has_nothing_to_switch_to(tmp_path: Path) -> None:
    project = start(tmp_path, None)
    here = project.start("submit", f"experiments/{NAME}.sh", "--on", "local", "-q")
    try:
        project.wait_started(NAME)
        assert_clear_error(project.shoal("switch", NAME, "--gpus", "8", code=2), 2, "runs on this machine")
        assert_clear_error(project.shoal("switch", NAME, "--gpus", "0", code=2), 2)
    finally:
        (project.root / "finish").touch()
        here.communicate(timeout=300)
        end_process(here)
    assert os.listdir(project.root / "marks") == [NAME.replace("/", ".")]
