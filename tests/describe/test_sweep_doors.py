"""One sweep in every kind of experiment file: TOML, Python, the command line; names that stay; and the public list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from project import Project

COMMAND = '["python3", "-S", "train.py", "depth={depth}", "seed={seed}"]'
SWEEP_FILE = f"""\
step = "train"
command = {COMMAND}
seeds = "0-2"
[sweep]
depth = "4:12:4"
lr = [0.1, 0.01]
[request]
gpus = 1
time = "20m"
"""
FILE = f"""\
import shoal
exp = shoal.Experiment("002_depth")
for depth in (4, 8, 12):
    for lr in (0.1, 0.01):
        exp.add("train", name="000_train", params={{"lr": lr, "depth": depth}}, seeds=range(3), command={COMMAND},
                request=shoal.Request(gpus=1, time="20m"))
exp.submit()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def plan(project: Project, *words: object) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in project.shoal("plan", "--json", "--on", "local", *words).json["runs"]}


def names(project: Project, *words: object) -> list[str]:
    return [name.partition("/")[2] for name in plan(project, *words)]


def sweep_file(project: Project, text: str, name: str = "000_train") -> Path:
    return project.write(f"experiments/002_depth/{name}.toml", text)


@pytest.mark.slow
def test_three_forms_of_one_sweep_give_the_same_runs(project: Project) -> None:
    toml = plan(project, sweep_file(project, SWEEP_FILE))
    python = plan(project, project.write("experiments/002_depth/sweep.py", FILE))
    bare = SWEEP_FILE.replace('seeds = "0-2"\n', "").replace('[sweep]\ndepth = "4:12:4"\nlr = [0.1, 0.01]\n', "")
    bare = bare.replace("[request]", "[params]\ndepth = 1\n[request]")
    flags = ("--set", "depth=4:12:4", "--set", "lr=0.1,0.01", "--seeds", "0-2")
    command_line = plan(project, sweep_file(project, bare), *flags)
    assert set(toml) == set(python) == set(command_line)
    assert len(toml) == 18
    for name, run in toml.items():
        for key in ("digest", "params", "seed", "request", "command", "args", "step"):
            assert run[key] == python[name][key] == command_line[name][key], (name, key)
    assert toml["002_depth/000_train_depth4_lr0.01_2"]["params"] == {"depth": 4, "lr": 0.01}
    assert toml["002_depth/000_train_depth4_lr0.01_2"]["args"] == ["--lr=0.01"]


@pytest.mark.slow
def test_a_python_file_called_after_its_step_names_its_runs_like_a_sweep_file(project: Project) -> None:
    text = (
        "import shoal\nexp = shoal.Experiment('004_x')\nexp.add('train', seeds=0)\nexp.add('evaluate')\nexp.submit()\n"
    )
    for file, train in (("010_train.py", "010_train_0"), ("sweep.py", "train_0"), ("010_graph.py", "train_0")):
        names = list(plan(project, project.write(f"experiments/004_x/{file}", text)))
        assert names == [f"004_x/{train}", "004_x/evaluate"]


@pytest.mark.slow
def test_a_plan_tells_requests_layouts_hours_and_scripts(project: Project) -> None:
    told = project.shoal("plan", sweep_file(project, SWEEP_FILE), "--on", "local")
    assert "18 runs asked for; 18 to submit" in told.out and "1 node 1 GPU 00:20:00" in told.out
    assert "at most 6 GPU-hours and 6h00m from the first start to the last end" in told.out
    document = project.shoal("plan", sweep_file(project, SWEEP_FILE), "--json", "--on", "local").json
    assert {(one["layout"], len(one["runs"])) for one in document["submissions"]} == {("job", 1)}
    assert all("exec" in one["script"] for one in document["submissions"])


@pytest.mark.slow
def test_a_bash_script_can_be_swept_as_well_and_gives_the_same_runs(project: Project) -> None:
    script = project.script("002_depth/000_train.sh", "train --time=20 -- depth={depth} '{{x}}'")
    bash = plan(project, script, "--set", "depth=4,8", "--set", "lr=0.1,0.2", "--seeds", "0-1")
    text = (
        'step = "train"\nseeds = "0-1"\nargs = ["depth={depth}", "{{x}}"]\n[sweep]\ndepth = [4, 8]\nlr = [0.1, 0.2]\n'
    )
    toml = plan(project, sweep_file(project, text))
    assert {name: run["digest"] for name, run in bash.items()} == {name: run["digest"] for name, run in toml.items()}
    assert bash["002_depth/000_train_depth4_lr0.1_0"]["args"] == ["depth=4", "{{x}}", "--lr=0.1"]


def test_the_program_gets_its_parameters(project: Project) -> None:
    text = 'step = "train"\nseeds = [3]\nenv = { TEST_D = "d{depth}" }\nargs = "seed={seed}"\n'
    text += "[sweep]\ndepth = [4]\nflag = [true]\n"
    project.shoal("submit", sweep_file(project, text), "--on", "local")
    mark = project.marks("002_depth/000_train_3")[0]
    assert mark["args"] == ["seed=3", "--depth=4", "--flag=true"]
    assert json.loads(mark["env"]["SHOAL_PARAMS"]) == {"depth": 4, "flag": True}
    assert mark["env"]["TEST_D"] == "d4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["python3", "deaf.py"], True),
        (["python3", "deaf.py", "{seed}"], False),
        (["python3", "hears.py"], False),
        (["bash", "-c", 'echo $SHOAL_SEED "$@"', "bash"], False),
        (["nothing\\u0000like a file"], True),
    ],
)
def test_seeds_that_the_program_never_hears_of_are_told(project: Project, command: list[str], told: bool) -> None:
    project.write("deaf.py", "print('the same numbers, three times')")
    project.write("hears.py", "import os; print(os.environ['SHOAL_SEED'])")
    text = f'seeds = "0-2"\nstep = "train"\ncommand = {json.dumps(command)}\n[sweep]\ndepth = [4, 8]\n'
    notes = project.shoal("plan", "--json", "--on", "local", sweep_file(project, text)).json["notes"]
    assert any("no argument of 000_train has the seed" in note for note in notes) == told
    alone = project.shoal("plan", "--json", "--on", "local", sweep_file(project, text.replace("0-2", "7"))).json[
        "notes"
    ]
    assert not any("seed" in note for note in alone)


def test_a_step_says_how_parameters_are_passed(tmp_path: Path) -> None:
    extra = '[steps.hydra]\ncommand = "x"\nparams = "{name}={value}"\n[steps.silent]\ncommand = "x"\nparams = "none"\n'
    project = Project(tmp_path, toml=extra)
    text = 'step = "hydra"\n[sweep]\noptim.lr = [0.1, 1e-5]\n'
    assert [run["args"] for run in plan(project, sweep_file(project, text)).values()] == [
        ["optim.lr=0.1"],
        ["optim.lr=1e-05"],
    ]
    assert [run["args"] for run in plan(project, sweep_file(project, text.replace("hydra", "silent"))).values()] == [
        [],
        [],
    ]


def test_names_show_only_what_varies(project: Project) -> None:
    text = (
        'step = "train"\n[params]\nwidth = 8\n[sweep]\nlr = [0.1, 0.01]\ndepth = [4]\n[derived]\nn = "int(lr * 100)"\n'
    )
    assert names(project, sweep_file(project, text)) == ["000_train_lr0.1", "000_train_lr0.01"]


def submit(project: Project, text: str) -> dict[str, str]:
    told = project.shoal("submit", "--json", "-q", "--on", "local", sweep_file(project, text)).json["runs"]
    return {run["name"].partition("/")[2]: run["did"] for run in told}


@pytest.mark.slow
def test_a_value_or_a_seed_that_is_added_leaves_what_exists_alone(project: Project) -> None:
    text = 'step = "train"\nseeds = "0-1"\n[sweep]\ndepth = [4]\nlr = [0.1, 0.2]\n'
    assert set(submit(project, text).values()) == {"ran"}
    assert set(submit(project, text).values()) == {"left alone"}
    more = submit(project, text.replace("0-1", "0-2").replace("[4]", "[4, 8]"))
    assert more == {
        **{f"000_train_lr{lr}_{seed}": "left alone" for lr in (0.1, 0.2) for seed in (0, 1)},
        **{f"000_train_lr{lr}_2": "ran" for lr in (0.1, 0.2)},
        **{f"000_train_depth8_lr{lr}_{seed}": "ran" for lr in (0.1, 0.2) for seed in (0, 1, 2)},
    }
    assert submit(project, text.replace("[0.1, 0.2]", "[0.1]")) == {
        "000_train_lr0.1_0": "left alone",
        "000_train_lr0.1_1": "left alone",
    }


@pytest.mark.slow
def test_a_parameter_that_is_added_with_its_default_leaves_what_exists_alone(project: Project) -> None:
    command = '["python3", "-S", "train.py", "--lr", "{lr}"]'
    text = f'step = "train"\ncommand = {command}\n[sweep]\nlr = [0.1, 0.2]\n'
    assert set(submit(project, text).values()) == {"ran"}
    grown = (
        text.replace('"{lr}"]', '"{lr}", "--wd", "{wd}"]') + "wd = [0, 1]\nwarm = [5]\n[defaults]\nwd = 0\nwarm = 5\n"
    )
    assert submit(project, grown) == {
        "000_train_lr0.1": "left alone",
        "000_train_lr0.2": "left alone",
        "000_train_lr0.1_wd1": "ran",
        "000_train_lr0.2_wd1": "ran",
    }
    assert project.marks("002_depth/000_train_lr0.1_wd1")[0]["args"] == ["--lr", "0.1", "--wd", "1"]


@pytest.mark.slow
def test_changed_parameters_are_new_runs(project: Project) -> None:
    text = 'step = "train"\n[params]\nwidth = 8\n[sweep]\nlr = [0.1, 0.2]\n'
    submit(project, text)
    assert submit(project, text.replace("width = 8", "width = 16")) == {
        "000_train_lr0.1_width16": "ran",
        "000_train_lr0.2_width16": "ran",
    }
    assert set(submit(project, text.replace("width = 8\n", ""))) == {
        "000_train_lr0.1_no-width",
        "000_train_lr0.2_no-width",
    }


@pytest.mark.slow
def test_files_can_be_the_values_of_a_sweep(project: Project) -> None:
    for number in (2, 1):
        project.write(f"routes/town/r{number}.xml", "")
    found = plan(project, sweep_file(project, 'step = "train"\n[sweep]\nroute = { stems = "routes/**/*.xml" }\n'))
    assert [run["params"]["route"] for run in found.values()] == ["r1", "r2"]
    found = plan(project, sweep_file(project, 'step = "train"\n[sweep]\nroute = { files = "routes/**/*.xml" }\n'))
    assert [run["params"]["route"] for run in found.values()] == ["routes/town/r1.xml", "routes/town/r2.xml"]
    for wrong, words in (("nothing/*.xml", "no file matches"), ("/etc/*", "below the project"), ("../*", "below the")):
        bad = sweep_file(project, f'step = "train"\n[sweep]\nroute = {{ files = "{wrong}" }}\n')
        done = project.shoal("plan", bad, code=2)
        assert words in done.err and "000_train.toml:3" in done.err


def test_long_names_are_cut_and_kept_apart(project: Project) -> None:
    long = ", ".join(f'"{"x" * 70}{end}"' for end in "ab")
    found = names(project, sweep_file(project, f'step = "train"\nseeds = "0"\n[sweep]\nnote = [{long}]\n'))
    assert len(set(found)) == 2 and all(len(name) <= 80 and name.endswith("_0") for name in found)


def test_strange_values_make_safe_names(project: Project) -> None:
    text = 'step = "train"\n[sweep]\ndata = ["a/b", "ä ö", "-3", "..", "$(x)"]\nz = [-1, 2]\n'
    found = names(project, sweep_file(project, text))
    assert len(set(found)) == 10
    assert all(all(letter.isalnum() or letter in "._-" for letter in name) and name.isascii() for name in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('step = "train"\ncommand = "x {dpeth}"\n[sweep]\ndepth = [1]\n', "did you mean {depth}?"),
        ('step = "trian"\n[sweep]\ndepth = [1]\n', "no step 'trian'"),
        ('step = "train"\n[sweep]\nx = [1, "1"]\n', "described twice"),
        ('step = "train"\n[[points]]\nx = 1\n[[points]]\nx = 1\n', "described twice"),
        ('step = "train"\nlaunch = "warp"\n', "launch"),
        ('step = "train"\n[request]\ngpus = -1\n', "gpus"),
        ('step = "train"\n[sweep]\na = "1:1000"\nb = "1:1000"\nc = "1:10"\n', "10,000,000 runs"),
    ],
)
def test_mistakes_on_a_sweep_file_end_with_code_2_and_its_name(project: Project, text: str, words: str) -> None:
    done = project.shoal("plan", sweep_file(project, text), code=2)
    assert words in done.err and "000_train.toml" in done.err
    assert not (project.home / "runs").exists()


@pytest.mark.slow
def test_a_python_file_that_fails_or_adds_nothing_is_told(project: Project) -> None:
    cases = {
        "raise SystemExit(3)": "exit code 3",
        "import shoal": "submits nothing",
        "import shoal\nshoal.Experiment('a b').submit()": "nothing was added",
        "import shoal\nshoal.Experiment('a').add('train', zip={'a': [1], 'b': [1, 2]})": "s.py:2: zipped lists",
    }
    for text, words in cases.items():
        done = project.run(["shoal", "plan", project.write("experiments/003_x/s.py", text)], code=2)
        assert words in done.err
    bad = project.write(
        "experiments/003_x/s.py",
        "import shoal\nexp = shoal.Experiment('003_x')\nexp.add('train', zip={'a': [1], 'b': [1, 2]})\n",
    )
    by_hand = subprocess.run(
        [sys.executable, bad], cwd=project.root, env=project.env, capture_output=True, text=True, check=False
    )
    assert "s.py:3: zipped lists must be equally long" in by_hand.stderr


@pytest.mark.slow
def test_a_python_file_run_by_hand_submits_and_a_loop_is_named_like_a_grid(project: Project) -> None:
    text = """\
import shoal
exp = shoal.Experiment("003_muon")
STEPS = {("s", 64): 100, ("l", 64): 400}
for model in "sl":
    exp.add("train", params={"model": model}, derived={"steps": STEPS[model, 64], "t": "look[model, 64]"},
            tables={"look": STEPS}, seeds=range(2))
print([run.name for run in exp.runs(__file__.rpartition("/")[0])])
print([run.name for run in exp.submit(on="local")])
print([run.state for run in exp.wait()], [row["name"] for row in exp.results()])
"""
    file = project.write("experiments/003_muon/sweep.py", text)
    done = project.run([sys.executable, file])
    wanted = [f"003_muon/train_model-{model}_{seed}" for model in "sl" for seed in (0, 1)]
    groups = ["003_muon/train_model-s", "003_muon/train_model-l"]
    states = ["completed"] * 4
    assert done.out.splitlines() == [str(wanted), str(wanted), f"{states} {sorted(groups)}"] and done.err == ""
    assert project.marks(wanted[-1])[0]["args"] == ["--model=l", "--steps=400", "--t=400"]
    assert all(run["left_alone"] for run in plan(project, file).values())


def test_the_public_list_is_what_the_package_has_and_importing_it_is_light() -> None:
    assert shoal.__all__ == sorted(shoal.__all__)
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    with pytest.raises(AttributeError):
        shoal.nothing  # noqa: B018
    code = (
        "import sys, shoal; print(sorted(m for m in sys.modules if m.split('.')[0] in ('msgspec', 'shoal', 'tomllib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['shoal']"
