"""Looking changes nothing: a plan submits, writes and removes nothing, whatever is in the file that it is made from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from conftest import cancel_all
from project import Project, assert_clear_error
from shoal.sandbox import Sandbox
from waiting import wait_until

LOOKING = [
    ("plan",),
    ("plan", "--script"),
    ("plan", "--json"),
    ("plan", "--layouts"),
    ("submit", "--dry-run"),
]
#: What was seen to be executed: a training, two jobs, a file removed.
BATCH = """#!/bin/bash
#SBATCH --gres=gpu:4
rm -f precious
touch trained
sbatch --wrap=true
python train.py
"""
PYTHON = """
import shoal
exp = shoal.Experiment("003_python")
exp.add("train", seeds="0-1", request={"time": "5m"})
exp.submit()
"""


SWEEP = 'step = "train"\n[sweep]\nlr = [0.1, 0.2]\n[request]\ntime = "5m"\n'
FAILED = "001_a/001_train_0"


def tree(root: Path, without: str = "/") -> dict[str, tuple[int, float]]:
    """Every file with its size and time, and every folder; what was read may be kept in a cache.

    Paths with `without` in them are not looked at: a process that is at work may remove them meanwhile.
    """
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "cache" and without not in name]
        for name in [*folders, *(name for name in names if without not in name)]:
            path = Path(folder, name)
            told = path.stat() if path.is_file() else None
            found[str(path.relative_to(root))] = (told.st_size, told.st_mtime) if told else (0, 0.0)
    return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """With programs on the PATH that tell if somebody calls them."""
    made = Project(tmp_path)
    for name in ("sbatch", "srun", "salloc", "scancel", "scontrol", "qsub"):
        program = made.write(f"../bin/{name}", f'#!/bin/sh\necho {name} >> "{tmp_path}/called"\n')
        program.chmod(0o755)
    made.env["PATH"] = f"{tmp_path}/bin:{made.env['PATH']}"
    made.write("precious", "")
    return made


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_batch_script_is_never_executed(project: Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    """It is a run, so looking at it plans it; `--layouts` compares packs, which no batch script can be part of."""
    script = project.write("experiments/001_a/000_train_0.sh", BATCH)
    before = tree(project.root)
    done = project.shoal(*words, script, code=None)
    if "--layouts" in words:
        assert_clear_error(done, 2, "--layouts does not compare batch scripts")
    else:
        assert done.code == 0 and "calls sbatch" in done.out + done.err
    called = tmp_path / "called"
    assert tree(project.root) == before and "sbatch" not in (called.read_text() if called.exists() else "")


@pytest.mark.parametrize("line", ['# source "$(shoal shell)"', "source env.sh", 'echo "shoal shell"'])
def test_a_script_that_only_mentions_the_functions_is_not_executed(project: Project, line: str) -> None:
    project.write("env.sh", "touch trained\n")
    script = project.write("experiments/001_a/000_train_0.sh", f"{line}\ntouch trained\n")
    assert_clear_error(project.shoal("plan", script, code=None), 2, "does not source shoal's functions")
    assert not (project.root / "trained").exists()


@pytest.mark.parametrize(
    "line",
    [
        "source slurm/init.sh",
        '. "$(dirname "$0")/../../slurm/init.sh"',
        'cd . && source "$REPOSITORY/slurm/init.sh"',
        'source "$(dirname "${BASH_SOURCE[0]}")/../../slurm/init.sh"',
    ],
)
def test_functions_may_be_sourced_by_a_file_that_the_script_sources(project: Project, line: str) -> None:
    project.write("slurm/init.sh", 'export LR=0.1\nsource "$(shoal shell)"\n')
    script = project.write("experiments/001_a/000_train_0.sh", f"{line}\ntrain\n")
    planned = project.shoal("plan", "--json", script, REPOSITORY=str(project.root)).json
    assert [run["name"] for run in planned["runs"]] == ["001_a/000_train_0"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sbatch", "srun", "salloc", "scancel", "scontrol", "qsub"])
def test_a_script_that_acts_on_a_cluster_while_it_is_read_is_refused(
    project: Project, tmp_path: Path, name: str
) -> None:
    script = project.script("001_a/000_train_0.sh", f"{name} --some --flags || true", "train")
    for words in LOOKING:
        assert_clear_error(project.shoal(*words, script, code=None), 2, f"calls {name}", "not executed")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "lines",
    [
        'cat > gen.sh <<EOF\nsource "\\$(shoal shell)"\ntrain\nEOF',
        "cat > gen.sh <<'EOF'\nsource \"$(shoal shell)\"\nEOF",
        "echo '\nsource \"$(shoal shell)\"\n'",
        "echo $'it\\'s' '\nsource \"$(shoal shell)\"\n'",
    ],
)
def test_a_batch_script_that_writes_a_script_is_not_executed(project: Project, lines: str) -> None:
    script = project.write("experiments/001_a/000_train_0.sh", f"{lines}\nrm precious\n")
    assert_clear_error(project.shoal("plan", script, code=None), 2, "does not source shoal's functions")
    assert (project.root / "precious").exists()


@pytest.mark.parametrize(
    "line",
    [
        "{bin}/sbatch job.sh",
        'S="{bin}/sbatch"; $S job.sh',
        "PATH={bin}:$PATH; sbatch job.sh",
        "export PATH={bin}:$PATH; bash -c 'sbatch job.sh'",
        "export PATH={bin}:$PATH; bash child.sh",
        "bash path.sh",
        "PATH={bin}:$PATH; command sbatch job.sh",
        "PATH={bin}:$PATH; env A=1 sbatch job.sh",
        "(PATH={bin}:$PATH; exec sbatch job.sh)",
        "echo job.sh | PATH={bin}:$PATH xargs -n1 sbatch",
        "ssh login 'cd work && sbatch job.sh'",
    ],
)
def test_no_way_to_call_sbatch_acts_while_a_script_is_read(project: Project, tmp_path: Path, line: str) -> None:
    project.write("child.sh", "sbatch job.sh\n")
    project.write("path.sh", f"{tmp_path}/bin/sbatch job.sh\n")
    script = project.script("001_a/000_train_0.sh", line.format(bin=f"{tmp_path}/bin") + " || true", "train")
    assert_clear_error(project.shoal("plan", script, code=None), 2, "calls sbatch")
    assert not (tmp_path / "called").exists()


def test_a_script_may_ask_where_a_program_is(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "command -v sbatch; type sbatch; echo 'use sbatch'", "train")
    assert project.shoal("plan", script)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["submit", "run", "cancel", "retry"])
def test_commands_of_shoal_do_not_act_while_a_script_is_read(project: Project, name: str) -> None:
    other = project.script("002_b/000_train_0.sh", "train")
    script = project.script("001_a/000_train_0.sh", f"shoal {name} {other} || true", "train")
    refused = project.shoal("plan", script, code=None)
    assert refused.code == 2 and f"calls shoal {name}" in refused.err
    sweep_file = project.write(
        "experiments/001_a/001_x.py", f"import subprocess\nsubprocess.call(['shoal', {name!r}, {str(other)!r}])\n"
    )
    refused = project.shoal("plan", sweep_file, code=None)
    assert refused.code == 2 and f"calls shoal {name}" in refused.err
    assert project.status() == {} and project.marks("002_b/000_train_0") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["001_a/000_train_0.sh", "001_a b/000_train_0.sh", "001_a/000_train.py"])
def test_the_hint_of_a_file_that_fails_begins_nothing(project: Project, name: str) -> None:
    file = project.script(name, "train", "false")
    if name.endswith(".py"):
        file.write_text('import shoal\nexp = shoal.Experiment("001_a")\nexp.add("train")\nexp.submit()\nexit(1)\n')
    refused = project.shoal("plan", file, code=None, SHOAL_ON="local")
    assert_clear_error(refused, 2, "ended with exit code 1")
    hint = refused.err.split("hint: ")[1].replace(" python ", f" {sys.executable} ")
    assert project.bash("-c", hint, code=1, SHOAL_ON="local")
    assert project.status() == {} and not list((project.root / "marks").iterdir())


def test_steps_in_the_background_are_waited_for(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "train &")
    assert [run["name"] for run in project.shoal("plan", "--json", script).json["runs"]] == ["001_a/000_train_0"]


@pytest.mark.slow
def test_a_process_that_outlives_its_script_is_told(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "sleep 20 &", "train")
    assert_clear_error(project.shoal("plan", script, code=None), 2, "a process that it started still runs")


SEEDED = """\
case $SHOAL_SEED in 0) D=fold0 ;; 1) D=fold1 ;; *) D=fold2 ;; esac
train -- --seed $SHOAL_SEED --data $D --fold $((SHOAL_SEED % 3)) --file part_$(printf %03d $SHOAL_SEED)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 4])
def test_a_script_is_read_for_each_seed_however_many(project: Project, seeds: int) -> None:
    script = project.script("001_a/000_train.sh", SEEDED)
    planned = project.shoal("plan", "--json", "--seeds", f"0-{seeds - 1}", script).json["runs"]
    assert [run["args"] for run in planned] == [
        ["--seed", f"{n}", "--data", f"fold{min(n, 2)}", "--fold", f"{n % 3}", "--file", f"part_{n:03d}"]
        for n in range(seeds)
    ]


@pytest.mark.slow
def test_a_script_that_passes_its_seed_on_is_read_twice(project: Project) -> None:
    lines = ('echo "seed $SHOAL_SEED"', "export TEST_SEED=s$SHOAL_SEED", 'train -- --out "a/${SHOAL_SEED}" $TEST_SEED')
    done = project.shoal("plan", "--json", "--seeds", "0-9", project.script("001_a/000_train.sh", *lines))
    assert [run["args"] for run in done.json["runs"]] == [["--out", f"a/{n}", f"s{n}"] for n in range(10)]
    assert done.err.count("seed ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_plan_changes_nothing_on_disk(project: Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    project.script("001_a/000_train_0.sh", "train --time=5")
    project.write("experiments/002_b/000_train.toml", SWEEP)
    project.write("experiments/003_c/000_train.py", PYTHON)
    project.shoal("submit", "experiments/001_a", "--on", "local")
    before = tree(project.root)
    for folder in ("001_a", "002_b", "003_c"):
        again = ("--rerun",) if "--layouts" in words else ()  # the run of 001_a completed
        project.shoal(*words, *again, f"experiments/{folder}", "--on", "local")
    assert tree(project.root) == before and not (tmp_path / "called").exists()


#: Every command that shows without acting, as it is on a project with a run that completed and one that failed.
WITHOUT_FILES = [
    ("status",),
    ("status", "--all", "--json"),
    ("status", "last", "--exit-status"),
    ("why", FAILED),
    ("logs", FAILED),
    ("logs", "--errors"),
    ("results",),
    ("report", "--json"),
    ("retry", "--dry-run"),
    ("retry", "--fresh", "--mem", "2G", "--dry-run"),
    ("resume", FAILED, "--dry-run"),
    ("resume", FAILED, "--dry-run", "--", "--time=10"),
    ("cancel", FAILED, "--dry-run"),
    ("switch", FAILED, "--gpus", "2"),
    ("clean",),
    ("clean", "--keep", "0", "--older-than", "0s"),
    ("clean", "--list"),
    ("clusters", "list"),
    ("clusters", "show"),
    ("clusters", "detect"),
    ("doctor", "job.sbatch"),
    ("doctor", "experiments", "--explain"),
    ("generate", "--step", "train"),
    ("init", "--dry-run"),
    ("run", "experiments", "--dry-run"),
    ("submit", "experiments", "--dry-run", "--rerun", "--yes"),
    ("submit", "experiments", "--dry-run", "--smoke"),
    ("submit", "experiments", "--dry-run", "--prune", "--command-id", "mine"),
    ("submit", "experiments", "--dry-run", "--budget", "jobs=1"),
    ("pack", "--dry-run", "--slots", "2", "--set", "lr=1,2", "--", "touch", "packed-{lr}"),
    ("pack", "--dry-run", "--slots", "2", "--csv", "table.csv", "jobs.txt"),
    ("data", "shard", "experiments", "sharded", "--dry-run"),
    ("completion", "bash"),
    ("watch", "--exit-status"),
]


def look(project: Project, *words: str) -> None:
    """Run a command that only looks; it may say no, and it must not break."""
    done = project.shoal(*words, code=None)
    assert done.code in (0, 2, 3, 4) and "shoal broke" not in done.err, (words, done)


def with_files(project: Project) -> None:
    project.write("experiments/002_b/000_train.toml", SWEEP)
    project.write("job.sbatch", BATCH)
    project.write("jobs.txt", "touch packed-1\ntouch packed-2\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", WITHOUT_FILES, ids=" ".join)
def test_looking_changes_nothing_on_disk(seen: Project, words: tuple[str, ...]) -> None:
    before = tree(seen.root.parent)
    look(seen, *words)
    assert tree(seen.root.parent) == before


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project on this machine after a run that completed and one that failed with a checkpoint."""
    made = Project(tmp_path_factory.mktemp("seen"))
    made.script("001_a/000_train_0.sh", "train --time=5 -- save=1")
    made.script("001_a/001_train_0.sh", "train --time=5 --mem=1G -- save=1 exit=3")
    made.shoal("submit", "experiments/001_a", code=4)
    with_files(made)
    return made


#: Those that might begin a state folder.
FIRST = {"status", "retry", "results", "clean", "doctor", "run", "submit", "pack"}


@pytest.mark.parametrize("words", [*LOOKING, *(one for one in WITHOUT_FILES if one[0] in FIRST)], ids=" ".join)
def test_looking_at_a_project_without_runs_leaves_no_state(tmp_path: Path, words: tuple[str, ...]) -> None:
    project = Project(tmp_path)
    with_files(project)
    before = tree(tmp_path)
    look(project, *words, *(["experiments/002_b"] if words in LOOKING else []))
    assert tree(tmp_path) == before and not project.home.exists()


def queue(cluster: Sandbox) -> str:
    return cluster.run("squeue", "-h", "-o", "%i %T %l %m %D %Q %E").stdout


@pytest.mark.slurm
def test_a_plan_changes_nothing_in_the_queue(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    project.script("001_a/001_train_0.sh", "sbatch --wrap='sleep 60'", "train")
    script = project.write("experiments/002_b/000_train_0.sh", BATCH)
    cancel_all(cluster)
    before = cluster.run("squeue", "-h", "-o", "%i").stdout
    for words in LOOKING:
        project.shoal(*words, "experiments/001_a/000_train_0.sh")
        project.shoal(*words, "experiments/001_a/001_train_0.sh", code=2)
        project.shoal(*words, script, code=2 if "--layouts" in words else 3)  # the doctor refuses the script
    assert cluster.run("squeue", "-h", "-o", "%i").stdout == before == ""


@pytest.mark.slurm
def test_looking_changes_nothing_on_slurm(tmp_path: Path, cluster: Sandbox) -> None:
    """A run that failed with a checkpoint, one that waits, and one that runs: none of them is touched.

    What Slurm says of a job that ended is kept by the first look that asks, before Slurm forgets it, and so it is asked
    here before the others look."""
    project = Project(tmp_path, cluster)
    project.script("001_a/001_train_0.sh", "train --time=5 --mem=50 -- save=1 exit=3")
    project.script("001_a/002_train_0.sh", "train --time=5 --mem=50 --begin=now+2hours")
    project.script("001_a/003_train_0.sh", "train --time=5 --mem=50 -- print=1/10 wait=go")
    project.shoal("submit", "experiments/001_a")
    project.wait(FAILED, "failed")
    kept = (project.home / "runs" / FAILED).glob
    wait_until(lambda: project.status() and [*kept("submit.*.verdict*")], 60, "Slurm's word on the failed job is kept")
    project.wait_started("001_a/003_train_0")
    project.shoal("report", "--json")
    with_files(project)
    words = [
        *WITHOUT_FILES,
        ("cancel", "001_a", "--yes", "--dry-run"),
        ("cancel", "001_a/002_train_0", "--dry-run"),
        ("switch", "001_a/003_train_0", "--gpus", "2", "--progress", "1/10"),
        ("why", "001_a/002_train_0"),
        ("clusters", "test"),
    ]
    words.remove(("watch", "--exit-status"))  # it waits for the runs
    jobs, files = queue(cluster), quiet(project)
    for one in words:
        look(project, *one)
        assert queue(cluster) == jobs, one
        assert quiet(project) == files, one
    project.write("go", "")
    project.wait("001_a/003_train_0", "completed")
    project.shoal("cancel", "001_a/002_train_0")


def quiet(project: Project) -> dict[str, tuple[int, float]]:
    """The files of a project, without those that the run at work writes itself."""
    return tree(project.root, without="003_train_0")
