"""Commands on a cluster over a real ssh, with a real Slurm behind it, through connections that break."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from conftest import cancel_all
from project import assert_clear_error, git
from remote_project import CutOnce, RemoteProject
from shoal.sandbox import Sandbox
from ssh_server import SshServer
from waiting import wait_until

pytestmark = pytest.mark.slurm

#: Notes its start, as train.py does.
NOTE_START = """\
import os, sys
with open(os.path.join(sys.argv[-1], os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
    file.write("started\\n")
"""
#: Fails after its first checkpoint, and completes from there.
KEEP = """\
import os, sys
came_from = os.environ.get("SHOAL_RESUME_FROM") or "nothing"
with open(os.path.join(sys.argv[-1], os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
    file.write("from " + os.path.basename(came_from) + "\\n")
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "a.ckpt"), "w") as file:
    file.write("weights")
sys.exit(1 if came_from == "nothing" else 0)
"""
#: Writes its progress and a checkpoint until it is ended.
STEPS = """\
import os, sys, time
with open(os.path.join(sys.argv[-1], os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
    file.write("from " + (os.environ.get("SHOAL_RESUME_FROM") or "nothing") + "\\n")
for step in range(1, 1000):
    with open(os.environ["SHOAL_PROGRESS"], "a") as file:
        file.write("%d/1000\\n" % step)
    open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "a.ckpt"), "w").close()
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, cluster: Sandbox) -> Iterator[RemoteProject]:
    """One project for all tests, each with experiments of its own. Nothing of shoal is on the cluster before."""
    folder = tmp_path_factory.mktemp("remote")
    server = SshServer(folder / "ssh", cluster.env())
    yield RemoteProject(folder, server, cluster)
    server.close()
    cancel_all(cluster)


@pytest.fixture(autouse=True)
def whole_connection(project: RemoteProject) -> Iterator[None]:
    """What a test did to the connection is over when it ends."""
    yield
    project.server.proxy.watch = lambda way, count: None
    project.server.proxy.refuses = project.server.proxy.is_frozen = False


def test_a_sweep_from_a_laptop(project: RemoteProject) -> None:
    """Code that is not committed travels; outputs stay on the cluster; what the cluster alone has is linked."""
    names = project.sweep(3)
    project.write("helper.py", 'WORD = "changed"\n')
    planned = project.shoal("plan", "experiments/001_a/000_train.toml", "--on", "galvani", "--json").json
    assert [run["name"] for run in planned["runs"]] == names
    done = project.shoal("submit", "experiments/001_a/000_train.toml", "--on", "galvani")
    assert done.out.count("submitted") >= 1
    project.assert_once(*names)
    assert project.starts(names[0]) == ["1 changed"]
    assert not (project.root / "outputs").exists() and (project.there / "outputs" / "training").is_dir()
    assert project.notes() == []
    assert "loss" in project.shoal("results", "--on", "galvani", "--json").out
    assert "completed" in project.shoal("why", names[0], "--on", "galvani").out
    assert f"done {names[0]}" in project.shoal("logs", names[0], "--on", "galvani").out
    assert_clear_error(project.shoal("why", "nope", "--on", "galvani", code=None), 2, "nope")
    again = project.shoal("submit", "experiments/001_a/000_train.toml", "--on", "galvani", "--json").json
    assert {run["state"] for run in again["runs"]} == {"completed"}


def test_only_changed_files_are_sent_and_unchanged_ones_are_the_same_file(project: RemoteProject) -> None:
    names = project.sweep(2, name="002_b/000_train")
    for number in range(50):
        project.write(f"lib/part{number}.py", f"# {number}\n" * 200)
    digits = "\n".join(hashlib.sha256(b"%d" % number).hexdigest() for number in range(74_000))
    project.write("notes/large.txt", digits)  # of more text than the head of a frame has room for
    project.shoal("plan", "experiments/002_b", "--on", "galvani")
    project.write("lib/part7.py", "# other\n")
    (project.root / "lib" / "part8.py").chmod(0o755)
    project.shoal("submit", "experiments/002_b", "--on", "galvani")
    trees = sorted((path for path in (project.there / ".shoal" / "snapshots").glob("*/lib")), key=os.path.getctime)
    old, new = trees[-2:]
    same = [path.name for path in new.iterdir() if path.samefile(old / path.name)]
    assert len(same) == 48 and "part7.py" not in same and os.access(new / "part8.py", os.X_OK)
    assert (new / "part7.py").read_text() == "# other\n" and (old / "part7.py").read_text() != "# other\n"
    difference = next(path for path in new.parents if path.parent.name == "snapshots").with_suffix(".diff")
    assert digits.splitlines()[-1] in difference.read_text()
    project.assert_once(*names)
    (project.root / "notes" / "large.txt").unlink()


def test_a_project_in_a_subdirectory_a_command_and_data_of_the_cluster(project: RemoteProject) -> None:
    """`run` follows to the end; its exit code is that of the same command on the login node."""
    (project.there / "data").mkdir(exist_ok=True)
    (project.there / "data" / "words.txt").write_text("hello from the cluster\n")
    inner = project.write("sub/where.sh", "cat ../data/words.txt; pwd\n").parent
    git(project.root, "add", "-f", "sub")
    done = project.start("run", "--on", "galvani", "--name", "c1", "--", "bash", "where.sh", cwd=inner)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, out + err
    assert "hello from the cluster" in out, out + err
    failed = project.shoal(
        "run", "--on", "galvani", "--name", "c2", "--", "bash", "-c", "echo $0 no; exit 3", "a b'c", code=4
    )
    assert "a b'c no" in failed.out


def _delivered(project: RemoteProject, count: int) -> Callable[[str], bool]:
    snapshots, before = project.there / ".shoal" / "snapshots", count
    return lambda way: len(list(snapshots.glob("*.files"))) > before


@pytest.mark.parametrize("moment", ["code", "order", "received", "working", "answered"])
def test_a_connection_that_is_cut_loses_no_run_and_starts_none_twice(project: RemoteProject, moment: str) -> None:
    """The command connects again by itself, and its answer is that of the one order. --rerun under another id would
    start all runs again."""
    flags, name = ("--rerun",), f"010_{moment}"
    names = project.sweep(4, name=f"{name}/000_train")
    before, trees = set(project.requests()), len(list((project.there / ".shoal" / "snapshots").glob("*.files")))

    def order(file: str) -> bool:
        return any(list(path.glob(file)) for path in project.requests() if path not in before)

    conditions: dict[str, Callable[[str], bool]] = {
        "code": lambda way: any((project.there / ".shoal" / "snapshots").glob("*.tmp-*")),
        "order": lambda way: way == "up" and _delivered(project, trees)(way),
        "received": lambda way: order("request.json"),
        "working": lambda way: order("*/out") and any((project.there / ".shoal" / "runs" / name).glob("*/*.claim")),
        "answered": lambda way: order("answer.json"),
    }
    cut = CutOnce(project, conditions[moment])
    done = project.shoal("submit", f"experiments/{name}", "--on", "galvani", "--json", *flags, code=None)
    if done.code == 5 and moment in ("code", "order"):  # lost before the order was sent: nothing was begun
        assert_clear_error(done, 5, "galvani", "shoal connect")
        done = project.shoal("submit", f"experiments/{name}", "--on", "galvani", "--json", *flags)
    assert cut.happened and done.code == 0, done.err
    assert [run["name"] for run in done.json["runs"]] == names
    assert len(set(project.requests()) - before) == 1
    project.assert_once(*names)
    assert project.notes() == []


def test_an_order_without_an_answer_is_completed_by_the_same_command(project: RemoteProject) -> None:
    """The network stays away for longer than anybody waits; --rerun would start all runs again under another id."""
    names = project.sweep(3, name="020_gone/000_train")
    before = set(project.requests())
    cut = CutOnce(
        project, lambda way: any((path / "request.json").exists() for path in project.requests() if path not in before),
        stays_down=True,
    )  # fmt: skip
    words = ("submit", "experiments/020_gone", "--on", "galvani", "--rerun")
    done = project.shoal(*words, code=None, timeout_s=70)
    assert_clear_error(done, 5, "not known", "shoal connect galvani", "same command")
    assert cut.happened and len(project.notes()) == 1
    project.server.proxy.refuses = False
    again = project.shoal(*words)
    assert all(name in again.out for name in names)
    project.assert_once(*names)
    assert project.notes() == [] and len(set(project.requests()) - before) == 1


def test_the_next_order_first_completes_one_that_has_no_answer(project: RemoteProject) -> None:
    first = project.sweep(2, name="021_first/000_train")
    before = set(project.requests())
    CutOnce(
        project, lambda way: any((path / "request.json").exists() for path in project.requests() if path not in before),
        stays_down=True,
    )  # fmt: skip
    process = project.start("submit", "experiments/021_first", "--on", "galvani")
    wait_until(lambda: project.server.proxy.refuses, 60, "the connection is cut")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    project.server.proxy.refuses = False
    second = project.sweep(2, name="021_second/000_train")
    done = project.shoal("submit", "experiments/021_second", "--on", "galvani")
    assert "submit experiments/021_first" in done.err and "exit code 0" in done.err
    project.assert_once(*first, *second)
    assert project.notes() == []


@pytest.mark.skipif("SHOAL_LONG" not in os.environ, reason="takes up to 6 minutes if sbatch is hit: SHOAL_LONG=1")
@pytest.mark.parametrize("verb", ["submit", "retry"])
def test_a_worker_that_is_killed_in_the_middle_is_started_again_and_repeats_nothing(
    project: RemoteProject, verb: str
) -> None:
    """As a reboot does it: the worker and its command are gone while runs are being claimed."""
    name = f"030_{verb}"
    names = project.sweep(12, *(["fail"] if verb == "retry" else []), name=f"{name}/000_train")
    words = ["submit", f"experiments/{name}", "--rerun", "--layout", "job"]
    times = 1
    if verb == "retry":
        project.shoal(*words, "--on", "galvani")
        project.wait_ended(*names, state="failed")
        (project.marks / "fixed").touch()
        words, times = ["retry", name], 2
    before = set(project.requests())
    claims = project.there / ".shoal" / "runs" / name
    process = project.start(*words, "--on", "galvani")

    def claimed() -> bool:
        return len(list(claims.glob(f"*/submit.{times}.claim"))) >= 2

    wait_until(claimed, 60, "some runs are claimed", poll_s=0.005)
    killed = project.kill_workers([path for path in project.requests() if path not in before])
    out, err = process.communicate(timeout=120)
    assert killed and process.returncode == 0, out + err
    if (
        "unclear" in out
    ):  # it was killed while sbatch was called: what Slurm has not got after a while is submitted again
        wait_until(lambda: "unknown" not in states_of(project, names), 90, "it is clear what Slurm has")
        project.shoal("submit", f"experiments/{name}", "--on", "galvani")
        wait_until(lambda: states_of(project, names) == {"completed"}, 90, "all have completed")
    else:
        project.wait_ended(*names)
    assert {run: len(project.starts(run)) for run in names} == dict.fromkeys(names, times), out + err


def states_of(project: RemoteProject, names: Sequence[str]) -> set[str]:
    states = project.status()
    return {states[name]["state"] for name in names}


def test_cancel_and_logs_that_are_followed_through_a_cut(project: RemoteProject) -> None:
    names = project.sweep(2, "wait", name="040_follow/000_train")
    project.shoal("submit", "experiments/040_follow", "--on", "galvani")
    project.wait_started(*names)
    process = project.start("logs", names[0], "-f", "--on", "galvani")
    wait_until(lambda: any(path.joinpath("1", "out").exists() for path in project.requests()), 30, "logs are followed")
    project.server.proxy.cut()
    refused = project.shoal("cancel", "040_follow", "--on", "galvani", code=None)
    assert_clear_error(refused, 2, "--yes")
    assert "cancelled" in project.shoal("cancel", names[1], "--on", "galvani").out
    (project.marks / "go").touch()
    out, err = process.communicate(timeout=120)
    (project.marks / "go").unlink()
    assert process.returncode == 0, out + err
    assert out.splitlines() == [f"began {names[0]} changed", f"done {names[0]}"]
    states = project.status()
    assert (states[names[0]]["state"], states[names[1]]["state"]) == ("completed", "cancelled")


def test_report_doctor_budget_and_watch_are_those_of_the_cluster(project: RemoteProject) -> None:
    """Files that a command writes are on this machine; flags that would write on the cluster are refused."""
    names = project.sweep(2, "wait", name="050_look/000_train")
    project.shoal("submit", "experiments/050_look", "--on", "galvani")
    project.wait_started(*names)
    watching = project.start("watch", "050_look", "--exit-status", "--on", "galvani")
    before = project.shoal("budget", "--on", "galvani", "--json").json
    assert before["cluster"] == "galvani" and before["scopes"] == []
    assert "050_look on galvani: jobs=3" in project.shoal("budget", "050_look", "jobs=3", "--on", "galvani").out
    limits = project.shoal("budget", "--on", "galvani", "--json").json["scopes"]
    assert [(one["scope"], one["limits"]) for one in limits] == [("050_look", {"jobs": 3})]
    (project.marks / "go").touch()
    out, err = watching.communicate(timeout=120)
    (project.marks / "go").unlink()
    assert watching.returncode == 0 and all(name in out for name in names), out + err
    assert project.shoal("report", "050_look", "--on", "galvani", "--csv").out.count("completed") == 2
    page = project.root / "report.html"
    assert "wrote report.html" in project.shoal("report", "050_look", "--html", "report.html", "--on", "galvani").out
    assert names[0] in page.read_text() and not list(project.there.rglob("report.html"))
    page.unlink()
    assert_clear_error(project.shoal("report", "--png", "x.png", "--on", "galvani", code=None), 2, "--html")
    project.write("jobs/train.sh", "#!/bin/bash\n#SBATCH --partition=nowhere\n#SBATCH --time=10\nsrun hostname\n")
    found = project.shoal("doctor", "jobs/train.sh", "--on", "galvani", "--json", code=3).json
    assert "nowhere" in str(found), "the request was tried on the cluster"
    fix = project.shoal("doctor", "jobs/train.sh", "--fix", "--on", "galvani", code=None)
    assert_clear_error(fix, 2, "--fix cannot be used over ssh", "SHOAL_ON= shoal doctor jobs/train.sh --fix")


def _new_order(project: RemoteProject) -> Callable[[str], bool]:
    before = set(project.requests())
    return lambda way: any((path / "request.json").exists() for path in project.requests() if path not in before)


def test_a_pack_is_one_order_and_runs_in_the_clusters_slurm(project: RemoteProject) -> None:
    words = ["pack", "--on", "galvani", "--slots", "2", "--name", "051_pack", "--set", "x=0,1", "--rerun"]
    words += ["--", sys.executable, "-S", "-c", NOTE_START, "--x={x}", str(project.marks)]
    assert len(project.shoal(*words[:-7], "--dry-run", *words[-7:]).out.splitlines()) >= 2
    assert not (project.there / ".shoal" / "runs" / "051_pack").exists()
    cut = CutOnce(project, _new_order(project))
    project.shoal(*words)
    assert cut.happened
    names = sorted(name for name in project.status() if name.startswith("051_pack/"))
    assert len(names) == 2
    project.assert_once(*names)
    assert project.notes() == []


def test_resume_is_one_order_and_continues_from_the_checkpoint(project: RemoteProject) -> None:
    project.write("keep.py", KEEP)
    command = ["--", sys.executable, "-S", "keep.py", str(project.marks)]
    project.shoal("submit", "--on", "galvani", "--name", "052_resume", "--checkpoint", "*.ckpt", *command)
    name = next(name for name in project.status() if name.startswith("052_resume/"))
    project.wait_ended(name, state="failed")
    assert "a.ckpt" in project.shoal("resume", name, "--dry-run", "--on", "galvani").err
    cut = CutOnce(project, _new_order(project))
    project.shoal("resume", name, "--yes", "--on", "galvani")
    assert cut.happened
    project.wait_ended(name)
    assert project.starts(name) == ["from nothing", "from a.ckpt"]


def test_switch_compares_there_and_its_replacement_is_one_order(project: RemoteProject) -> None:
    project.write("steps.py", STEPS)
    command = ["--", sys.executable, "-S", "steps.py", str(project.marks)]
    project.shoal("submit", "--on", "galvani", "--name", "053_switch", "--checkpoint", "*.ckpt", *command)
    name = next(name for name in project.status() if name.startswith("053_switch/"))
    project.wait_started(name)
    wait_until(lambda: any(project.there.glob("outputs/**/053_switch/**/a.ckpt")), 30, "a checkpoint is there")
    compared = project.shoal("switch", name, "--nodes", "2", "--on", "galvani", "--json").json
    assert not compared.get("applied"), compared
    cut = CutOnce(project, _new_order(project))
    project.shoal("switch", name, "--nodes", "2", "--apply", "--on", "galvani")
    assert cut.happened
    replacements = [run for run in project.status() if run.startswith("053_switch/") and run != name]
    assert len(replacements) == 1 and len(list(project.there.glob(f".shoal/runs/{replacements[0]}/*.claim"))) == 1
    project.shoal("cancel", "053_switch", "--yes", "--on", "galvani")
