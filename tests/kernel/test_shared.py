"""Two people, one project: both submit, look, cancel and retry, whatever their umask; nobody runs another's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from people import Group, Person, group, share_state
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make two users")]
UMASKS = pytest.mark.parametrize(
    "umasks", [(0o002, 0o002), (0o077, 0o077), (0o022, 0o002)], ids=["002", "077", "022 and 002"]
)


@pytest.fixture(scope="module")
def people() -> Iterator[Group]:
    with group("here", slurm=False) as made:
        yield made


@pytest.fixture(scope="module")
def on_slurm() -> Iterator[Group]:
    with group("slurm", slurm=True) as made:
        yield made


@pytest.fixture
def quiet(on_slurm: Group) -> Iterator[Group]:
    """The people's own cluster, empty again after the test."""
    yield on_slurm
    assert on_slurm.sandbox is not None
    queue = on_slurm.sandbox
    ids = queue.run("squeue", "-h", "-o", "%A").stdout.split()
    if ids:
        queue.run("scancel", *ids)
    wait_until(lambda: not queue.run("squeue", "-h", "-t", "PD,R,CG,S").stdout, 60, "the queue is empty")


def script(person: Person, seed: int, *words: str, flags: str = "") -> Path:
    path = person.root / f"experiments/001_a/000_train_{seed}.sh"
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o2777)
    path.write_text(f'source "$(shoal shell)"\ntrain --time=5 --mem=50 {flags} -- {" ".join(words)}\n')
    path.chmod(0o664)
    return path


def go(person: Person, name: str = "go") -> None:
    (person.root / name).touch()


def closed_to_group(folder: Path, group: int) -> list[str]:
    """What a member of the group could not use: read, and in folders also write."""
    found = []
    for path in folder.rglob("*"):
        about = path.lstat()
        needed = 0o070 if path.is_dir() else 0o040
        if path.is_symlink() or path.parent.parent.name == "environments" or path.parent.name == "environments":
            continue
        if about.st_mode & needed != needed or about.st_gid != group:
            found.append(f"{about.st_mode:o} {path}")
    return found


# --- on Slurm


@pytest.mark.slurm
@UMASKS
def test_both_submit_and_see_each_other(quiet: Group, umasks: tuple[int, int]) -> None:
    """D3: the second could not submit at all, because the first one's environments were in a folder of mode 0700."""
    first, second = quiet.project(f"both{umasks[0]:o}{umasks[1]:o}", umasks=umasks)
    home = share_state(first)
    first.shoal("submit", script(first, 0, "save=1"))
    second.shoal("submit", script(second, 1, "save=2"))
    for person in (first, second):
        person.wait(_0="completed", _1="completed")
        assert person.shoal("submit", script(first, 0, "save=1"), "--json").json["runs"][0]["did"] == "left alone"
    gid = home.stat().st_gid
    assert closed_to_group(home, gid) == [] and closed_to_group(first.root / "outputs", gid) == []
    assert "attempt 1" in second.shoal("logs", "000_train_0", "--slurm").out


@pytest.mark.slurm
def test_an_ending_job_leaves_the_other_persons_waiting_run_to_them(quiet: Group) -> None:
    """D4: it was taken by the ending job, which could not read its environment: `unknown`, and nothing was sent."""
    first, second = quiet.project("budget")
    home = share_state(first)
    first.shoal("submit", script(first, 0, "wait=go0"))
    # On the old commit the folder has to be opened by hand to come as far as this (D3).
    if (home / "environments").stat().st_mode & 0o077 == 0:
        (home / "environments").chmod(0o2770)
    second.shoal("submit", script(second, 1, "wait=go1"))
    first.wait(_0="running", _1="running")
    second.shoal("submit", "--budget", "jobs=1", script(second, 2))
    second.wait(_2="waiting")
    go(first, "go0")
    first.wait(_0="completed")
    wait_until(lambda: jobs_of(quiet) == 1, 60, "the first one's job has ended")
    assert second.states()["000_train_2"] == "waiting"
    go(second, "go1")
    second.wait(_2="completed")
    assert owners(second, 2) == {second.uid}


@pytest.mark.slurm
def test_a_budget_counts_the_jobs_of_both_and_each_line_is_one_persons(quiet: Group) -> None:
    first, second = quiet.project("count", umasks=(0o077, 0o002))
    share_state(first)
    first.shoal("submit", "--budget", "jobs=2", script(first, 0, "wait=go0"))
    second.shoal("submit", script(second, 1, "wait=go1"))
    first.wait(_0="running", _1="running")
    for seed, person in ((2, first), (3, second), (4, first)):
        person.shoal("submit", script(person, seed, f"wait=go{seed}"))
    first.wait(_2="waiting", _3="waiting", _4="waiting")
    go(second, "go1")
    second.wait(_1="completed", _3="running")  # the second's own, though the first's 2 waits longer
    assert first.states()["000_train_2"] == "waiting"
    for name in ("go0", "go2", "go3", "go4"):
        go(first, name)
    first.wait(_0="completed", _2="completed", _3="completed", _4="completed")
    assert owners(first, 2) == {first.uid} and owners(first, 3) == {second.uid}


@pytest.mark.slurm
def test_a_job_of_the_other_person_ends_itself_when_it_is_cancelled(quiet: Group) -> None:
    first, second = quiet.project("cancel", umasks=(0o077, 0o077))
    share_state(first)
    first.shoal("submit", script(first, 0, "wait=go"))
    first.shoal("submit", script(first, 1, flags="--hold"))
    first.wait(_0="running", _1="blocked")
    told = second.shoal("cancel", "001_a", "--yes").out
    assert f"belong to {first.name}" in told and "next heartbeat" in told
    second.wait(_0="cancelled", _1="blocked")  # held, so it does not start; the first one's next look removes it
    first.wait(_0="cancelled", _1="cancelled")
    assert not marks(first, 1)


@pytest.mark.slurm
def test_the_other_person_retries_and_continues_from_the_checkpoint(quiet: Group) -> None:
    first, second = quiet.project("retry", umasks=(0o077, 0o077))
    share_state(first)
    first.shoal("submit", script(first, 0, "save=3", "exit=7"))
    first.wait(_0="failed")
    (folder,) = (first.root / "outputs/training/001_a/000_train_0").iterdir()
    second.shoal("retry", "000_train_0")
    wait_until(lambda: len(marks(first, 0)) == 2, 60, "it began again")
    again = marks(first, 0)[1]
    assert again["env"]["SHOAL_RESUME_FROM"] == str(folder / "model_3.pth")
    second.wait(_0="failed")
    assert owners(second, 0) == {first.uid, second.uid} and len(list(folder.glob("attempt-*.out"))) == 2


@pytest.mark.slurm
def test_each_has_their_own_environments_agent_and_snapshots(quiet: Group) -> None:
    first, second = quiet.project("own", umasks=(0o002, 0o002), toml="#")
    text = (first.root / "shoal.toml").read_text()
    (first.root / "shoal.toml").write_text(text.replace("#snapshot = false", ""))
    home = share_state(first)
    first.shoal("submit", script(first, 0), TEST_MINE="a-private-thing")
    second.shoal("submit", script(second, 1))
    first.wait(_0="completed", _1="completed")
    (kept,) = (home / "environments" / str(first.uid)).iterdir()
    assert "a-private-thing" in kept.read_text() and kept.parent.stat().st_mode & 0o777 == 0o700
    assert first.can_read(kept) and not second.can_read(kept)
    for person, other in ((first, second), (second, first)):
        (agent,) = (home / "agent" / str(person.uid)).glob("*.pyz")
        (train,) = (home / "snapshots" / str(person.uid)).glob("*/train.py")
        for path in (agent, train):
            assert path.stat().st_uid == person.uid
            assert other.can_read(path) and not other.can_write(path)


@pytest.mark.slurm
def test_a_script_an_agent_or_an_environment_of_somebody_else_is_not_executed(quiet: Group) -> None:
    first, second = quiet.project("foreign")
    home = share_state(first)
    first.shoal("submit", script(first, 9))
    first.wait(_9="completed")
    (submission,) = (home / "submissions").iterdir()
    by_hand = second.run("bash", submission / "script.sh", code=1)
    assert "another user's file" in by_hand.err
    first.shoal("submit", "--budget", "jobs=1", script(first, 0, "wait=go"))
    first.wait(_0="running")
    first.shoal("submit", script(first, 1))
    (waiting,) = (path for path in (home / "submissions").iterdir() if not (path / "send.0").exists())
    assert not second.can_write(waiting / "script.sh")
    second.run(
        "bash", "-c", f"cd {waiting} && cp script.sh x && echo 'touch {first.root}/evil' >> x && mv -f x script.sh"
    )
    go(first)
    first.wait(_0="completed")
    job_has_ended(quiet)
    assert first.states()["000_train_1"] == "new" and not (first.root / "evil").exists()
    assert "its owner is another user" in first.shoal("why", "000_train_1").out
    # A job that starts later looks once more.
    first.shoal("submit", script(first, 2, flags="--hold"))
    (agent,) = (home / "agent" / str(first.uid)).glob("*.pyz")
    second.run("bash", "-c", f"cd {agent.parent} && cp {agent.name} x && mv -f x {agent.name}")
    assert quiet.sandbox is not None
    held = quiet.sandbox.run("squeue", "-h", "-o", "%A").stdout.split()
    quiet.sandbox.run("scontrol", "release", ",".join(held))
    job_has_ended(quiet)
    assert not marks(first, 2)
    told = [path.read_text() for path in (home / "submissions").glob("*/slurm-*.out")]
    assert any("is another user's file" in text for text in told)


def owners(person: Person, seed: int) -> set[int]:
    """The users whose jobs worked on a run, by the logs that these wrote."""
    outputs = person.root / f"outputs/training/001_a/000_train_{seed}"
    return {path.stat().st_uid for path in outputs.glob("*/attempt-*.out")}


def marks(person: Person, seed: int) -> list[dict[str, dict[str, str]]]:
    path = person.root / f"marks/001_a.000_train_{seed}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [mark for mark in map(json.loads, lines) if mark["what"] == "start"]


def job_has_ended(people: Group) -> None:
    wait_until(lambda: jobs_of(people) == 0, 60, "no job is left")


def jobs_of(people: Group) -> int:
    assert people.sandbox is not None
    return len(people.sandbox.run("squeue", "-h", "-t", "PD,R,CG").stdout.splitlines())


# --- on this machine


@UMASKS
def test_both_run_here_in_a_project_that_says_shared(people: Group, umasks: tuple[int, int]) -> None:
    first, second = people.project(f"here{umasks[0]:o}{umasks[1]:o}", toml="shared = true\n", umasks=umasks)
    first.shoal("submit", script(first, 0, "save=1", "exit=7"), code=None)
    second.shoal("submit", script(second, 1))
    home = first.root / ".shoal"
    assert home.stat().st_mode & 0o7777 == 0o2770
    second.shoal("retry", "000_train_0", code=None)
    assert marks(first, 0)[1]["env"]["SHOAL_RESUME_FROM"].endswith("model_1.pth")
    gid = first.root.stat().st_gid
    assert closed_to_group(home, gid) == [] and closed_to_group(first.root / "outputs", gid) == []


def test_both_work_through_queues_here(people: Group) -> None:
    first, second = people.project("pack", toml="shared = true\n", umasks=(0o077, 0o077))
    for person, name in ((first, "000_train"), (second, "001_train")):
        sweep_file = first.root / f"experiments/002_b/{name}.toml"
        sweep_file.parent.mkdir(exist_ok=True)
        sweep_file.write_text('step = "train"\nseeds = "0-2"\n')
        for path in (sweep_file.parent, sweep_file):
            path.chmod(0o2777 if path.is_dir() else 0o666)
        person.shoal("submit", "--layout", "pack", sweep_file)
    assert set(first.states().values()) == {"completed"} and len(second.states()) == 6
    gid = first.root.stat().st_gid
    for folder in (first.root / ".shoal", first.root / "outputs"):
        assert closed_to_group(folder, gid) == []


def test_a_private_state_in_a_groups_folder_leaves_outputs_to_the_umask(people: Group) -> None:
    first, second = people.project("mine", umasks=(0o077, 0o002))
    first.shoal("submit", script(first, 0, "save=1"))
    assert not second.can_read(first.root / "outputs/training")


def test_a_run_of_the_other_person_on_this_machine_ends_itself(people: Group) -> None:
    first, second = people.project("stop", toml="shared = true\n")
    running = first.start("submit", script(first, 0, "wait=never"))
    try:
        wait_until(lambda: marks(first, 0), 60, "it began")
        assert f"belong to {first.name}" in second.shoal("cancel", "000_train_0").out
        second.wait(_0="cancelled")
    finally:
        running.terminate()
        running.communicate(timeout=300)


def test_a_private_project_says_who_can_share_it_and_then_done_runs_stay_done(people: Group) -> None:
    first, second = people.project("private", umasks=(0o077, 0o077))
    first.shoal("submit", script(first, 0))
    assert (first.root / ".shoal").stat().st_mode & 0o777 == 0o700
    refused = second.shoal("submit", script(first, 0), code=None)
    assert refused.code != 0 and f"ask {first.name} to share the project" in refused.err, refused.err
    assert second.shoal("init", "--shared", code=2).err.startswith("error: cannot share")
    first.shoal("init", "--shared")
    assert second.shoal("submit", script(first, 0), "--json").json["runs"][0]["did"] == "left alone"
    second.shoal("submit", script(second, 1))
    assert first.states() == {"000_train_0": "completed", "000_train_1": "completed"}


def test_a_project_that_says_shared_but_is_not_says_what_to_do(people: Group) -> None:
    first, _ = people.project("says", toml="shared = true\n")
    first.run("chmod", "g-s", first.root)
    refused = first.shoal("submit", script(first, 0), code=2)
    assert "the group cannot write" in refused.err and "hint: shoal init --shared" in refused.err
    first.shoal("init", "--shared")
    first.shoal("submit", script(first, 0))
    first.run("chmod", "700", first.root / ".shoal")
    assert f"private to {first.name}" in first.shoal("submit", script(first, 1), code=2).err
    first.run("chmod", "2777", first.root / ".shoal")
    assert "anybody may write" in first.shoal("submit", script(first, 1), code=2).err
