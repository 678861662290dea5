"""`hydra/launcher=shoal` with the real Hydra: points are ordinary runs, on this machine and on Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from hydra.errors import CompactHydraException

from hydra_plugins.shoal_launcher import _points, launcher, return_value
from project import Done, Project
from shoal.describe.sweep_file import RequestKeys
from shoal.errors import InputError
from shoal.plan import PackOptions
from shoal.sandbox import Sandbox
from waiting import wait_until

APP = """\
import os, time
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    job = HydraConfig.get()
    print("num", job.job.num, "dir", job.runtime.output_dir, "id", job.job.id, "cwd", os.getcwd(), flush=True)
    while cfg.wait_for and not os.path.exists(cfg.wait_for):
        time.sleep(0.05)
    if cfg.lr == 3:
        raise ValueError("boom 3")
    return float(cfg.lr) ** 2

if __name__ == "__main__":
    main()
"""
CONFIG = "defaults: [_self_, {model: small}]\nlr: 0.1\nseed: 0\nnote: null\nwait_for: null\n"
#: A sweeper that chooses its second point by the value of the first, as optimising ones do.
SWEEPER = """\
from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

class HalvingSweeper(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        from hydra.core.plugins import Plugins
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments):
        values = {}
        for number, lr in enumerate((8, 8, 4)):
            (result,) = self.launcher.launch([[*arguments, f"lr={lr}"]], initial_job_idx=number)
            values[lr] = result.return_value
        (failed,) = self.launcher.launch([[*arguments, "lr=3"]], initial_job_idx=3)
        print("values", values, failed.status.name)

ConfigStore.instance().store(
    group="hydra/sweeper", name="halving", provider="test",
    node={"_target_": "hydra_plugins.halving_sweeper.HalvingSweeper"})
"""


class App:
    """A project with a Hydra program in git, called as a person calls it."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None, *, toml: str = "") -> None:
        self.project = Project(folder, cluster, name="app")
        self.project.write("shoal.toml", toml)
        self.project.write("app.py", APP)
        self.project.write("conf/config.yaml", CONFIG)
        for name, cpus in (("small", 1), ("big", 2)):
            self.project.write(f"conf/model/{name}.yaml", f"name: {name}\ncpus: {cpus}\n")
        self.project.write(".gitignore", "multirun/\noutputs/\nmarks/\n")
        self.project.env |= {"PYTHONWARNINGS": "ignore"}
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "init", "-q"], cwd=self.project.root, check=True)
        subprocess.run(["git", "add", "-A"], cwd=self.project.root, check=True)
        subprocess.run([*git, "commit", "-qm", "app"], cwd=self.project.root, check=True)

    def argv(self, *words: str) -> list[str]:
        on = [] if self.project.cluster else ["hydra.launcher.on=local"]
        return [sys.executable, "app.py", "--multirun", "hydra/launcher=shoal", *on, *words]

    def sweep(self, *words: str, code: int | None = 0, cwd: Path | None = None) -> Done:
        return self.project.run(self.argv(*words), code=code, cwd=cwd)

    def states(self) -> dict[str, str]:
        return {name: run["state"] for name, run in self.project.status().items()}

    def log(self, name: str) -> str:
        found = self.project.status()[name]
        return Path(found["output_dir"], f"attempt-{found['attempt']}.out").read_text()


@pytest.mark.slow
def test_points_are_runs_with_their_own_exit_codes_and_only_what_failed_runs_again(tmp_path: Path) -> None:
    app = App(tmp_path)
    done = app.sweep("lr=2,3", "seed=0,1", "hydra.launcher.layout=pack", "hydra.launcher.pack.slots=4", code=1)
    names = {"app/lr2_0": "completed", "app/lr2_1": "completed", "app/lr3_0": "failed", "app/lr3_1": "failed"}
    assert app.states() == names
    assert "error: app/lr3_0 failed: exit code 1" in done.err and "hint: shoal why app/lr3_0" in done.err
    assert "2 completed, 2 failed" in done.out
    folder = app.project.status()["app/lr3_1"]["output_dir"]
    told = app.log("app/lr3_1")
    assert f"num 3 dir {folder} id app/lr3_1 cwd {folder}/work/app" in told and "boom 3" in told
    assert "boom 3" in app.project.shoal("why", "app/lr3_1").out
    rows = app.project.shoal("results").out
    assert "return_value" in rows and "app/lr2" in rows
    app.project.write("app.py", APP.replace("cfg.lr == 3", "cfg.lr == 33"))
    again = app.sweep("lr=3,2,4", "seed=1", "hydra.launcher.layout=pack", "hydra.launcher.pack.slots=4")
    assert "completed already" in again.out and "2 failed" not in again.out
    attempts = {name: run["attempt"] for name, run in app.project.status().items()}
    assert attempts == {"app/lr2_0": 1, "app/lr2_1": 1, "app/lr3_0": 1, "app/lr3_1": 2, "app/lr4_1": 1}
    assert app.states()["app/lr3_1"] == "completed" and app.states()["app/lr3_0"] == "failed"


@pytest.mark.slow
def test_overrides_reach_the_program_as_they_are(tmp_path: Path) -> None:
    values = ["'a b'", '"it\\\'s"', "'k=v'", "[1,2]", "{a:{b:1}}", "null", "'{seed}'", "'$HOME'", "'é'", "a\\,b"]
    app = App(tmp_path)
    pack = ("hydra.launcher.layout=pack", "hydra.launcher.pack.slots=4", "hydra.launcher.experiment=002_notes")
    app.sweep(f"note={','.join(values)}", "++extra={w:[1,'x y']}", "model=big", *pack)
    runs = app.project.status()
    assert len(runs) == len(values) and {run["state"] for run in runs.values()} == {"completed"}
    assert all(name.startswith("002_notes/extra-w-1-x-y-") for name in runs)
    seen = set()
    for run in runs.values():
        lines = Path(run["output_dir"], ".hydra/overrides.yaml").read_text().splitlines()
        seen.add(lines[0].removeprefix("- ").strip("'\"").removeprefix("note="))
        assert lines[1].strip("- '\"").startswith("++extra={w:[1,") and lines[2] == "- model=big"
    assert {"[1,2]", "{a:{b:1}}", "null"} <= seen and len(seen) == len(values)


@pytest.mark.slow
def test_an_optimising_sweeper_gets_the_values_of_its_points(tmp_path: Path) -> None:
    """And a point that it proposes twice is one run."""
    app = App(tmp_path)
    app.project.write("hydra_plugins/halving_sweeper/__init__.py", SWEEPER)
    done = app.sweep("hydra/sweeper=halving", "hydra.launcher.wait=true")
    assert "values {8: 64.0, 4: 16.0} FAILED" in done.out
    assert app.states() == {"app/lr8": "completed", "app/lr4": "completed", "app/lr3": "failed"}
    app.project.write("shoal.toml", '[clusters.far]\npartition = "main"\n')
    refused = app.sweep("hydra/sweeper=halving", "hydra.launcher.on=far", code=1)
    assert "HalvingSweeper needs the results of its points" in refused.err
    assert "hint: add hydra.launcher.wait=true" in refused.err and len(app.states()) == 3


@pytest.mark.slow
def test_hydra_optuna_sweeper_finds_the_minimum(tmp_path: Path) -> None:
    """`make hydra` installs it: it needs an old Optuna."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    app = App(tmp_path)
    done = app.sweep(
        "hydra/sweeper=optuna", "hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=3", "hydra.sweeper.sampler.seed=1",
        "lr=choice(1,2,3,5)", "hydra.sweeper.max_failure_rate=1.0", "hydra.launcher.wait=true",
        "hydra.launcher.layout=pack", "hydra.launcher.pack.slots=3",
    )  # fmt: skip
    values = {name: state for name, state in app.states().items() if name != "app/lr3"}
    assert set(values.values()) == {"completed"} and "Best value" in done.out


@pytest.mark.slow
def test_a_module_in_a_directory_without_a_project_is_submitted_too(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/__init__.py").write_text("")
    (folder / "pkg/work.py").write_text(
        "import hydra\n@hydra.main(version_base='1.3')\ndef main(cfg):\n    print('x', cfg.x)\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    env = {name: text for name, text in os.environ.items() if not name.startswith(("SHOAL_", "SLURM"))}
    words = ["-m", "pkg.work", "-m", "hydra/launcher=shoal", "hydra.launcher.on=local", "+x=7"]
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**env, "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (log,) = folder.glob("outputs/work/work/x7/*/attempt-1.out")
    assert "x 7" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("hydra.launcher.layout=shape",), "hydra.launcher.layout: invalid layout 'shape'"),
        (("hydra.launcher.pack.slots=2",), "hydra.launcher.pack has no effect without layout=pack"),
        (("hydra.launcher.request.gpu=1",), "Key 'gpu' not in 'RequestConf'"),
        (("hydra.launcher.request.time=soon",), "soon"),
        (("hydra.launcher.requests=[{when:'depth > 1',gpus:1}]",), "depth"),
        (("hydra.launcher.on=nowhere",), "nowhere"),
    ],
)
def test_a_wrong_setting_is_a_sentence_and_submits_nothing(words: Sequence[str], told: str, tmp_path: Path) -> None:
    app = App(tmp_path)
    done = app.sweep("lr=1,2", *words, code=1)
    assert told in done.err and "Traceback" not in done.err
    assert not app.project.home.exists() or not app.states()


@pytest.mark.slow
def test_a_sweep_directory_is_told_to_hold_no_outputs(tmp_path: Path) -> None:
    app = App(tmp_path)
    done = app.sweep("lr=5", "hydra.sweep.dir=results/mine", "hydra.job.chdir=true")
    assert "hydra.sweep.dir has multirun.yaml only" in done.out
    assert (app.project.root / "results/mine/multirun.yaml").exists()
    folder = app.project.status()["app/lr5"]["output_dir"]
    assert f"cwd {folder}\n" in app.log("app/lr5")


@pytest.mark.slurm
def test_on_slurm_the_command_returns_at_once_and_points_have_their_requests(
    accounting_cluster: Sandbox, tmp_path: Path
) -> None:
    app = App(tmp_path, accounting_cluster, toml='[clusters.here]\npartition = "main"\n')
    gate = tmp_path / "gate"
    common = ("hydra.launcher.on=here", "hydra.launcher.request.memory=200M", "hydra.launcher.request.time=5m")
    app.sweep(
        "lr=2,3", "model=small,big", f"wait_for={gate}", *common, "hydra.launcher.request.cpus=${model.cpus}",
        "hydra.launcher.requests=[{when:'lr > 2',time:7m}]",
    )  # fmt: skip
    assert set(app.states().values()) <= {"pending", "running"} and len(app.states()) == 4
    rows = {
        name: json.loads(sorted(app.project.home.glob(f"runs/{name}/spec.*.json"))[-1].read_text())["request"]
        for name in app.states()
    }
    for name, request in rows.items():
        assert request["cpus"] == (2 if "model-big" in name else 1), rows
        assert request["time"] == ("00:07:00" if "lr3" in name else "00:05:00")
    waiting = subprocess.Popen(
        app.argv("lr=2,3", "model=small,big", f"wait_for={gate}", *common, "hydra.launcher.wait=true"),
        cwd=app.project.root, env=app.project.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert waiting.stdout is not None
    lines = iter(waiting.stdout.readline, "")
    told = next((line for line in lines if "waiting for 4 of 4 runs" in line), "")
    assert told
    waiting.send_signal(signal.SIGINT)
    rest = "".join(lines)
    assert waiting.wait(300) == 130 and "stopped waiting; the runs continue" in rest
    assert set(app.states().values()) <= {"pending", "running"}
    gate.write_text("")
    done = app.sweep("lr=2,3", "model=small,big", f"wait_for={gate}", *common, "hydra.launcher.wait=true", code=1)
    assert "failed: exit code 1: ValueError: boom 3" in done.err
    wait_until(lambda: set(app.states().values()) == {"completed", "failed"}, 60, "all runs have ended")
    for name, run in app.project.status().items():
        wanted = "FAILED" if "lr3" in name else "COMPLETED"
        sacct = ("sacct", "-X", "-n", "-P", "-j", str(run["job_id"]), "-o", "State,ExitCode")
        told = f"{wanted}|{int(wanted == 'FAILED')}:0"
        wait_until(lambda: told in app.project.slurm(*sacct), 30, f"accounting tells {told} of {name}")  # noqa: B023


def test_overrides_become_parameters_and_a_seed() -> None:
    words = ["lr=1e-3", "model=resnet", "++a.b='x y'", "~drop", "db/engine@back=sql", "seed=3", "flag=true", "n=null"]
    found = _points.read_overrides(words)
    assert found.seed == 3
    assert found.params == {
        "lr": 0.001,
        "model": "resnet",
        "a.b": "x y",
        "drop": "deleted",
        "db.engine.back": "sql",
        "flag": True,
        "n": "null",
    }
    assert _points.read_overrides(["seed=null"]).params == {"seed": "null"}
    assert _points.read_overrides(["x=inf", "y={a:1}"]).params == {"x": "inf", "y": "(a:1)"}


def test_settings_about_the_sweep_are_not_given_to_points() -> None:
    about_sweep = ["hydra/launcher=shoal", "hydra.launcher.wait=true", "hydra/sweeper=optuna", "+hydra.sweeper.x=1"]
    about_sweep += ["hydra.sweep.dir=x", "hydra.mode=MULTIRUN", "hydra.run.dir=y", "hydra.job.num=3"]
    about_points = ["hydra.job.chdir=true", "hydra/job_logging=none", "hydra.verbose=true", "hydra.job.name=x"]
    assert _points.kept_hydra_overrides([*about_sweep, *about_points]) == about_points


def test_the_command_is_what_started_the_program() -> None:
    def command(original: Sequence[str], argv: Sequence[str]) -> list[str]:
        return _points.program_command(original, argv, "/venv/python", "/p/sub", "/p")

    assert command(["python", "-u", "app.py", "-m", "a=1"], ["app.py", "-m", "a=1"]) == ["/venv/python", "-u", "app.py"]
    assert command(["python", "-m", "pkg.app", "-m"], ["/p/pkg/app.py", "-m"]) == ["/venv/python", "-m", "pkg.app"]
    assert command(["python", "/p/app.py", "-m"], ["/p/app.py", "-m"]) == ["/venv/python", "../app.py"]
    assert command(["python", "/v/bin/tool", "-m"], ["/v/bin/tool", "-m"]) == ["/venv/python", "/v/bin/tool"]
    for original, argv in (
        (["python", "app.py", "-m"], ["app.py", "x"]),
        (["python", "-c", "code", "-m"], ["-c", "-m"]),
    ):
        with pytest.raises(InputError):
            command(original, argv)


def test_settings_of_the_launcher_are_those_of_shoal() -> None:
    assert {field.name for field in fields(launcher.PackConf)} == set(PackOptions._fields)
    assert {field.name for field in fields(launcher.RequestConf)} == set(RequestKeys.__struct_fields__)


def test_an_old_hydra_is_refused() -> None:
    with pytest.raises(CompactHydraException, match=r"needs Hydra 1.3 or later \(found 1.1.2\)"):
        launcher._refuse_old_hydra("1.1.2")
    for version in ("1.3.0", "1.4.0.dev1", "2.0.0"):
        launcher._refuse_old_hydra(version)


def test_the_plugin_costs_programs_no_import_of_shoal() -> None:
    code = "import hydra_plugins.shoal_launcher.launcher, sys; print([m for m in sys.modules if m.startswith('shoal')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.5, {"value": 0.5}),
        ((1, 2.0), {"value": [1, 2.0]}),
        (None, {"value": None}),
        (object(), {"type": "builtins.object"}),
    ],
)
def test_a_returned_value_is_kept_as_json(value: object, kept: dict[str, object], tmp_path: Path) -> None:
    return_value.write_return_value(tmp_path, value)
    assert json.loads((tmp_path / return_value.FILE_NAME).read_text()) == {"schema": 1, **kept}
    assert (tmp_path / "metrics.json").exists() == (value == 0.5)
