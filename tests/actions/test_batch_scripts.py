"""Any batch script is a run: in the shapes that people write, on the real Slurm and without it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.batch import parse_option_words
from shoal.job.batch_step import expand_pattern
from shoal.job.local_slurm import parse_srun
from shoal.sandbox import Sandbox
from waiting import wait_until

PLAIN = """\
#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --time=00:05:00
#SBATCH --mem=60M
#SBATCH --cpus-per-task=1
#SBATCH --output=logs/%x-%j.out
echo "job $SLURM_JOB_NAME in $PWD from $SLURM_SUBMIT_DIR with '$*'"
echo "array '${SLURM_ARRAY_TASK_ID:-none}' tasks '${SLURM_NTASKS:-none}'"
printf x >> count
exit ${CODE:-0}
"""


class Directory(Project):
    """A directory without shoal.toml."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None) -> None:
        super().__init__(folder, cluster, name="work")
        (self.root / "shoal.toml").unlink()
        if cluster is None:
            self.env["SHOAL_ON"] = "local"

    def runs(self, *words: object) -> list[str]:
        return [run["name"] for run in self.shoal("plan", "--json", *words).json["runs"]]

    def options(self, *words: object) -> dict[str, str | None]:
        document = self.shoal("plan", "--json", "--on", "slurm", *words).json
        return {one.name: one.value for one in parse_option_words(document["submissions"][0]["options"])[0]}


@pytest.fixture
def here(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


# ---- without Slurm


@pytest.mark.slow
def test_a_script_runs_here_once_with_the_variables_of_a_job(here: Directory) -> None:
    here.write("jobs/plain.sbatch", PLAIN)
    here.shoal("run", "jobs/plain.sbatch")
    assert "left alone" in here.shoal("run", "jobs/plain.sbatch").out
    assert (here.root / "count").read_text() == "x"
    text = here.shoal("logs", "jobs/hello").out
    assert f"job hello in {here.root} from {here.root} with ''" in text
    assert "array 'none' tasks 'none'" in text
    (log,) = (here.root / "logs").iterdir()
    assert log.name.startswith("hello-1000") and log.read_text() in text


@pytest.mark.slow
def test_srun_starts_the_tasks_here_and_errors_go_to_their_own_file(here: Directory) -> None:
    here.write(
        "tasks.sh",
        "#!/bin/bash\n#SBATCH --ntasks=3\n#SBATCH -o o.txt\n#SBATCH -e e.txt\nset -e\n"
        "srun bash -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS'\necho oops >&2\n"
        "scontrol show hostnames $SLURM_JOB_NODELIST\nsrun -n 1 --label false\necho unreached\n",
    )
    here.shoal("run", "tasks.sh", code=None)
    assert here.status("work/tasks")["work/tasks"]["exit_code"] == 1
    out = (here.root / "o.txt").read_text()
    assert all(f"rank {number} of 3" in out for number in range(3)) and "unreached" not in out and "oops" not in out
    assert (here.root / "e.txt").read_text() == "oops\n"
    assert "oops" in here.shoal("logs", "work/tasks").out and "rank 2 of 3" in here.shoal("logs", "work/tasks").out
    assert not list(here.root.rglob("*.stderr"))


@pytest.mark.slow
def test_an_array_is_a_run_for_each_index(here: Directory) -> None:
    here.write(
        "sweep.slurm",
        "#!/bin/bash\n#SBATCH --array=1-5:2,8%2\n#SBATCH --output=t_%a.txt\n"
        "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN $SLURM_ARRAY_TASK_MAX\n",
    )
    here.shoal("run", "sweep.slurm")
    assert sorted(here.status("--all")) == [f"work/sweep_task{index}" for index in (1, 3, 5, 8)]
    assert {path.name: path.read_text() for path in here.root.glob("t_*")} == {
        f"t_{index}.txt": f"{index} 4 1 8\n" for index in (1, 3, 5, 8)
    }
    # A larger array is the same runs and some more.
    assert "to submit" in here.shoal("plan", "sweep.slurm", "--array=1-9:2").out
    assert here.runs("sweep.slurm", "--array=1,10") == ["work/sweep_task1", "work/sweep_task10"]


@pytest.mark.slow
def test_parameters_reach_a_script_as_arguments_and_as_variables(here: Directory) -> None:
    here.write(
        "p.sh", '#!/bin/bash\n#SBATCH -t 5\nLR=${LR:-1}\necho "lr $LR args $*" | tee -a all.txt\nenv $1 >/dev/null'
    )
    here.shoal("run", "p.sh", "--set", "LR=0.1,0.2", "--seeds", "3", "--", "s={seed}")
    assert sorted(here.status("--all")) == ["work/p_LR0.1_3", "work/p_LR0.2_3"]
    assert (here.root / "all.txt").read_text() == "lr 0.1 args s=3\nlr 0.2 args s=3\n"
    assert here.runs("p.sh", "--", "--depth", "4") == ["work/p_depth4"]


@pytest.mark.slow
def test_a_changed_script_is_told_where_it_is_done_and_started_where_it_failed(here: Directory) -> None:
    here.write("plain.sbatch", PLAIN)
    here.shoal("run", "plain.sbatch", code=7, CODE="7")
    here.write("plain.sbatch", PLAIN + "# changed\n")
    here.shoal("run", "plain.sbatch")
    here.write("plain.sbatch", PLAIN)
    assert_clear_error(here.shoal("run", "plain.sbatch", code=None), 2, "completed with other settings", "script")
    assert (here.root / "count").read_text() == "xx"


@pytest.mark.slow
def test_a_directory_of_scripts_and_scripts_of_one_name(here: Directory) -> None:
    here.write("all/a.sbatch", PLAIN.replace("hello", "a"))
    here.write("all/b.slurm", PLAIN.replace("hello", "b"))
    here.write("all/helper.sh", "echo no directives\n")
    here.write("all/train.py", "raise SystemExit('not executed')\n")
    assert here.runs("all") == ["all/a", "all/b"]
    here.write("all/b.slurm", PLAIN.replace("hello", "a"))
    assert_clear_error(
        here.shoal("plan", "all", code=None), 2, "all/a.sbatch and all/b.slurm would both be named all/a"
    )
    assert here.runs("all/b.slurm", "--name", "other") == ["other/a"]
    here.shoal("run", "all/a.sbatch")
    assert_clear_error(here.shoal("plan", "all/b.slurm", code=None), 2, "would both be named all/a", "--name")


@pytest.mark.slow
def test_other_interpreters_run_as_their_first_line_says(here: Directory) -> None:
    here.write("j.py", "#!/usr/bin/env python3\n#SBATCH --time=5\nimport sys\nprint('python', sys.argv[1:])\n")
    here.write("login.sh", "#!/bin/bash -l\n#SBATCH --time=5\nshopt login_shell\n")
    here.shoal("run", "j.py", "--", "a b")
    here.shoal("run", "login.sh")
    assert "python ['a b']" in here.shoal("logs", "work/j_a-b").out
    assert "on" in here.shoal("logs", "work/login").out


@pytest.mark.slow
def test_options_of_the_command_line_win(here: Directory) -> None:
    here.write(
        "g.sh", "#!/bin/bash\n#SBATCH --gres=gpu:a100:4,lic:1\n#SBATCH --mem-per-cpu=4G\n#SBATCH -N 2 -n 8\ntrue\n"
    )
    plain = here.options("g.sh")
    assert plain["gres"] == "gpu:a100:4,lic:1" and plain["mem-per-cpu"] == "4G" and plain["ntasks"] == "8"
    assert "ntasks-per-node" not in plain and "mem" not in plain
    asked = here.options(
        "g.sh", "--gpus", "2", "--mem", "8G", "--time", "4h", "--partition=long", "--exclude", "n[1-3]"
    )
    assert asked["gres"] == "gpu:a100:2,lic:1" and asked["mem"] == "8G" and "mem-per-cpu" not in asked
    assert (asked["time"], asked["partition"], asked["exclude"]) == ("04:00:00", "long", "n[1-3]")
    here.write("p.sh", "#!/bin/bash\n#SBATCH --ntasks=64\ntrue\n")
    assert "nodes" not in here.options("p.sh")  # Slurm decides, as with sbatch


@pytest.mark.slow
def test_a_profile_translates_and_says_so(tmp_path: Path) -> None:
    project = Project(
        tmp_path,
        toml='[clusters.a]\naccount = "lab-a"\npartition = { a100 = "gpu-a" }\n'
        '[clusters.b]\naccount = "lab-b"\npartition = { a100 = "big" }\ngpu_types = { a100 = "nvidia_a100" }\n'
        "gpus_per_node = 4\ncpus_per_node = 64\n",
    )
    project.write("j.sh", "#!/bin/bash\n#SBATCH -p gpu-a -A lab-a --gres=gpu:a100:2 --time=5\ntrue\n")
    document = project.shoal("plan", "--json", "--on", "b", "j.sh").json
    options = document["submissions"][0]["options"]
    assert {"--partition=big", "--account=lab-b", "--gres=gpu:nvidia_a100:2"} <= set(options)
    assert not any("cpus-per-task" in option for option in options)  # only what the script asks for
    told = " ".join(document["notes"])
    assert "gpu-a of a is big here" in told and "lab-a of a is lab-b here" in told and "nvidia_a100" in told


BAD = {
    "unknown.sh": ("#!/bin/bash\n#SBATCH --gpus-per-nod=1\n#SBATCH --cpus-pre-task=2\ntrue\n", "unknown sbatch option"),
    "crlf.sbatch": ("#!/bin/bash\n#SBATCH --time=5\r\ntrue\n", "crlf.sbatch:2: the line ends with a carriage return"),
    "binary.sbatch": ("\x7fELF\0\0\0\0\0\0", "is not a text file"),
    "huge.sbatch": ("#!/bin/bash\n#SBATCH --time=5\n" + "#" * 10_000_000, "has 10.0 MB"),
    "het.sbatch": ("#!/bin/bash\n#SBATCH -n 1\n#SBATCH hetjob\n#SBATCH -n 2\ntrue\n", "heterogeneous"),
    "first.sbatch": ("#SBATCH --time=5\ntrue\n", "does not name an interpreter"),
    "stray.sbatch": ("#!/bin/bash\n#SBATCH --time 5 minutes\ntrue\n", "'minutes' belongs to no option"),
    "template.sbatch": ("#!/bin/bash\n#SBATCH -p <PARTITION>\ntrue\n", "placeholder"),
    "array.sbatch": ("#!/bin/bash\n#SBATCH --array=5-1\ntrue\n", "array.sbatch:2: invalid --array=5-1"),
    "many.sbatch": (
        "#!/bin/bash\n#SBATCH -a 0-3,5-100000000\ntrue\n",
        "many.sbatch:2: --array=0-3,5-100000000 describes",
    ),
    "nodes.sbatch": ("#!/bin/bash\n#SBATCH --time=5\n#SBATCH -N 2\ntrue\n", "nodes.sbatch:3: --nodes=2 needs Slurm"),
    "srun.sbatch": ("#!/bin/bash\n#SBATCH --time=5\n\nsrun -N 2 hostname\n", "srun.sbatch:4: srun --nodes=2"),
    "waits.sbatch": ("#!/bin/bash\n#SBATCH -d afterok:12\ntrue\n", "--dependency=afterok:12 needs Slurm"),
    "update.sbatch": ("#!/bin/bash\n#SBATCH -t 5\nscontrol requeue 1\n", "update.sbatch:3: scontrol requeue 1"),
    "input.sbatch": ("#!/bin/bash\n#SBATCH --wrap=hostname\ntrue\n", "input.sbatch:2: --wrap=hostname"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_script_that_cannot_work_is_one_sentence_and_changes_nothing(here: Directory, name: str) -> None:
    text, told = BAD[name]
    here.write("x/none", "")
    (here.root / name).write_bytes(text.encode("latin-1"))
    assert_clear_error(here.shoal("submit", name, code=None), 2, told)
    assert not here.home.exists() and not (here.root / "outputs").exists()


@pytest.mark.slow
def test_missing_files_and_programs_are_one_sentence(here: Directory) -> None:
    here.write("notes.txt", "hello")
    assert_clear_error(here.shoal("submit", "nope.sbatch", code=None), 2, "no such file: nope.sbatch")
    assert_clear_error(here.shoal("submit", "notes.txt", code=None), 2, "neither an experiment file")
    assert_clear_error(here.shoal("submit", "python3", "x", code=None), 2, "neither an experiment file")
    os.mkfifo(here.root / "pipe.sbatch")
    for words in (("submit", "pipe.sbatch"), ("init", "--from", "pipe.sbatch"), ("doctor", "pipe.sbatch")):
        assert_clear_error(here.shoal(*words, code=None), 2, "pipe.sbatch is not a")


@pytest.mark.slow
def test_set_without_a_reader_is_refused_and_own_paths_are_told(here: Directory) -> None:
    here.write("s.sh", '#!/bin/bash\n#SBATCH -t 5\nLR=1\ncd "$(dirname "$0")"\nawk "{print}" <<< x\nsbatch next.sh\n')
    assert_clear_error(here.shoal("plan", "s.sh", "--set", "LR=1,2", code=None), 2, "s.sh:3", "sets LR itself")
    assert_clear_error(here.shoal("plan", "s.sh", "--set", "wd=1,2", code=None), 2, "does not read $wd")
    assert_clear_error(here.shoal("plan", "s.sh", "--", "{seed}", code=None), 2, "--seeds is not set")
    told = " ".join(here.shoal("plan", "--json", "--on", "slurm", "s.sh", "--force").json["notes"])
    assert "s.sh:4 reads the script's own path" in told and "s.sh:6 calls sbatch" in told


@pytest.mark.slow
def test_the_doctor_looks_at_a_script_before_it_is_sent(here: Directory) -> None:
    here.write("late.sh", "#!/bin/bash\n#SBATCH --time=5\ncd /tmp\n#SBATCH --mem=4G\ntrue\n")
    assert_clear_error(here.shoal("submit", "--on", "slurm", "late.sh", code=None), 3, "late.sh:4", "D01")
    assert not here.home.exists()
    assert "D01" in " ".join(here.shoal("plan", "--json", "--on", "slurm", "late.sh", "--force").json["notes"])


def test_patterns_of_log_files_are_sbatchs() -> None:
    script = {"job_name": "train", "array": {"index": 7}}
    env = {"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURMD_NODENAME": "node1.site"}
    assert expand_pattern("%x-%j.out", script, env) == "train-12.out"
    assert expand_pattern("%A_%3a.%N", script, env) == "10_007.node1"
    assert expand_pattern("100%%.%t", script, env) == "100%.0"


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("python train.py -n 3", {}, "python train.py -n 3"),
        ("-n4 -l --mpi=pmix python x", {"ntasks": "4", "l": "", "mpi": "pmix"}, "python x"),
        ("--ntasks 2 --exclusive -N 1 -c 4 true", {"ntasks": "2", "exclusive": "", "nodes": "1", "c": "4"}, "true"),
        ("-u -K1 --cpu-bind none a b", {"u": "", "kill-on-bad-exit": "", "cpu-bind": "none"}, "a b"),
    ],
)
def test_options_of_srun_end_at_its_program(words: str, options: dict[str, str], command: str) -> None:
    assert parse_srun(words.split()) == (options, command.split())


# ---- on Slurm


@pytest.mark.slurm
def test_a_script_on_slurm_is_what_sbatch_would_have_run(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write("jobs/plain.sbatch", PLAIN)
    here.shoal("submit", "jobs/plain.sbatch")
    job = here.wait("jobs/hello", "completed")["job_id"]
    assert "left alone" in here.shoal("submit", "jobs/plain.sbatch").out
    assert (here.root / "count").read_text() == "x"
    text = (here.root / "logs" / f"hello-{job}.out").read_text()
    assert f"job hello in {here.root} from {here.root}" in text and "tasks 'none'" in text
    assert text == here.shoal("logs", "jobs/hello", "--raw").out
    assert here.shoal("report", "--json").json["runs"]


@pytest.mark.slurm
def test_a_failed_script_is_explained_and_retried_with_more_memory(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write("plain.sbatch", PLAIN.replace("exit ${CODE:-0}", '[ "$SHOAL_ATTEMPT" = 2 ]'))
    here.shoal("submit", "plain.sbatch")
    here.wait("work/hello", "failed")
    assert "exit code 1" in here.shoal("why", "work/hello").out
    here.write("plain.sbatch", "#!/bin/bash\nexit 9\n")  # the copy is executed
    here.shoal("retry", "work/hello", "--mem", "x2", "--time", "x2")
    assert here.wait("work/hello", "completed")["attempt"] == 2
    sent = [json.loads(path.read_text())["argv"] for path in here.home.glob("submissions/*/send.0")]
    assert any({"--mem=120M", "--time=00:10:00"} <= set(argv) for argv in sent)


@pytest.mark.slurm
def test_a_script_that_the_kernel_kills_for_memory_is_oom_and_retried_by_cause(
    quiet_cluster: Sandbox, tmp_path: Path
) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write(
        "big.sbatch",
        "#!/bin/bash\n#SBATCH --time=5 --mem=60M\n"
        "python3 -c \"x = [b'x' * 20_000_000 for _ in range(7)]; print('fits')\"\necho ends with $?\n",
    )
    here.shoal("submit", "big.sbatch")
    ended = here.wait("work/big", "oom")  # although the script itself ends with 0
    assert ended["cause"] == "oom" and "ends with 137" in here.shoal("logs", "work/big").out
    here.shoal("retry", "--cause", "oom", "--mem", "x4")
    assert here.wait("work/big", "completed")["attempt"] == 2
    assert "fits" in here.shoal("logs", "work/big").out


@pytest.mark.slurm
def test_an_array_on_slurm_keeps_its_indices_and_retries_one_task(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write(
        "arr.sh",
        "#!/bin/bash\n#SBATCH --array=2-6:2%2\n#SBATCH --time=5\n#SBATCH --mem=50M\n#SBATCH -o out/%a.txt\n"
        "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT\n"
        '[ "$SLURM_ARRAY_TASK_ID" != 4 ] || [ "$SHOAL_ATTEMPT" = 2 ]\n',
    )
    here.shoal("submit", "arr.sh")
    assert any(path.read_text().count("%2") for path in here.home.glob("submissions/*/script.sh"))
    here.wait("work/arr_task4", "failed")
    here.wait("work/arr_task2", "completed")
    here.wait("work/arr_task6", "completed")
    here.shoal("retry")
    here.wait("work/arr_task4", "completed")
    assert {path.name: path.read_text() for path in (here.root / "out").iterdir()} == {
        f"{index}.txt": f"{index} of 3\n" for index in (2, 4, 6)
    }


@pytest.mark.slurm
def test_srun_over_nodes_dependencies_and_several_tasks(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write(
        "first.sh",
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --time=5\n#SBATCH --mem=50M\n"
        "echo \"tasks $SLURM_NTASKS nodes $SLURM_JOB_NUM_NODES\"\nsrun bash -c 'echo rank $SLURM_PROCID'\n",
    )
    here.write("second.sh", "#!/bin/bash\n#SBATCH --time=5\n#SBATCH --mem=50M\necho after\n")
    job = here.shoal("submit", "first.sh", "--json").json["runs"][0]["job_id"]
    here.shoal("submit", "second.sh", f"--dependency=afterok:{job}")
    here.wait("work/second", "completed")
    text = here.shoal("logs", "work/first").out
    assert "tasks 4 nodes 2" in text and all(f"rank {number}" in text for number in range(4))


@pytest.mark.slurm
def test_environment_directory_and_appended_logs_are_as_asked(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write("sub/old.log", "before\n")
    here.write(
        "env.sh",
        "#!/bin/bash\n#SBATCH -t 5 --mem=50M\n#SBATCH -D sub\n#SBATCH --export=ALL,FOO=bar\n#SBATCH -o old.log\n"
        '#SBATCH --open-mode=append\necho "foo $FOO other $OTHER in $(basename $PWD)"\n',
    )
    here.write("bare.sh", '#!/bin/bash\n#SBATCH -t 5 --mem=50M --export=NONE\necho "other ${OTHER:-none}"\n')
    here.shoal("submit", "env.sh", OTHER="x")
    here.shoal("submit", "bare.sh", "--force", OTHER="x")
    here.wait("work/env", "completed")
    assert (here.root / "sub/old.log").read_text() == "before\nfoo bar other x in sub\n"
    here.wait("work/bare", "completed")
    assert "other none" in here.shoal("logs", "work/bare").out


@pytest.mark.slurm
def test_a_signal_reaches_the_script_and_not_its_program(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write(
        "trap.sh",
        "#!/bin/bash\n#SBATCH --time=5\n#SBATCH --mem=50M\ntrap 'touch warned' USR1\n"
        "(while [ ! -e end ]; do sleep 0.1; done; echo program ended) &\ntouch ready\nwait $!; wait $!\n",
    )
    here.shoal("submit", "trap.sh")
    job = wait_until(lambda: (here.root / "ready").exists() and here.status()["work/trap"]["job_id"], 60, "it runs")
    here.slurm("scancel", "--batch", "--signal=USR1", job)
    wait_until(lambda: (here.root / "warned").exists(), 30, "the script hears the signal")
    (here.root / "end").touch()
    here.wait("work/trap", "completed")
    assert "program ended" in here.shoal("logs", "work/trap").out


@pytest.mark.slurm
def test_the_script_that_plan_prints_is_the_same_run(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write("plain.sbatch", PLAIN)
    document = here.shoal("plan", "plain.sbatch", "--json").json
    here.write("printed.sh", document["submissions"][0]["script"])
    here.slurm("sbatch", "--parsable", "printed.sh")
    wait_until(lambda: "work/hello" in (here.status("--all") if here.home.exists() else {}), 60, "it is known")
    here.wait("work/hello", "completed")
    assert "left alone" in here.shoal("submit", "plain.sbatch").out
    assert (here.root / "count").read_text() == "x"


@pytest.mark.slurm
def test_the_script_that_plan_prints_for_an_array_starts_its_tasks(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write(
        "a.sh", '#!/bin/bash\n#SBATCH -a 2,5 -t 5 --mem=60M\nprintf "$SLURM_ARRAY_TASK_ID $LR" >> t$1\n: ${LR:-1}\n'
    )
    words = ("a.sh", "--set", "LR=0.5", "--", "x")
    here.write("printed.sh", here.shoal("plan", "--json", *words).json["submissions"][0]["script"])
    here.slurm("sbatch", "printed.sh")
    names = ["work/a_x_LR0.5_task2", "work/a_x_LR0.5_task5"]
    wait_until(lambda: here.home.exists() and set(here.status("--all")) == set(names), 90, "both are known")
    for name in names:
        here.wait(name, "completed", deadline_s=90)
    assert here.shoal("submit", *words).out.count("left alone") == 2
    assert sorted((here.root / "tx").read_text()) == sorted("2 0.55 0.5")


@pytest.mark.slurm
def test_resume_where_a_checkpoint_pattern_is_given(quiet_cluster: Sandbox, tmp_path: Path) -> None:
    here = Directory(tmp_path, quiet_cluster)
    here.write(
        "train.sh",
        '#!/bin/bash\n#SBATCH --time=5\n#SBATCH --mem=50M\necho "from ${SHOAL_RESUME_FROM:-nothing}"\n'
        'echo weights > "$SHOAL_OUTPUT_DIR/model_1.pt"\n[ -n "$SHOAL_RESUME_FROM" ]\n',
    )
    here.shoal("submit", "train.sh", "--checkpoint", "model_*.pt")
    here.wait("work/train", "failed")
    here.shoal("resume", "work/train")
    here.wait("work/train", "completed")
    assert "model_1.pt" in here.shoal("logs", "work/train").out
