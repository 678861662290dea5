"""Functions as runs on this machine: results, identity, changed code, errors of every kind, waiting."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from disks import small_disk
from function_project import FunctionProject
from shoal.functions.watcher import WATCHER
from shoal.job.function_call import CallError, load_file
from waiting import wait_until

pytestmark = pytest.mark.slow
LIMIT_S = 120.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionProject:
    root = tmp_path / "project"
    root.mkdir()
    return FunctionProject(root, monkeypatch)


def test_a_function_is_a_run_and_the_same_call_is_the_same_run(
    project: FunctionProject, capfd: pytest.CaptureFixture[str]
) -> None:
    run = shoal.submit(project.module.add, 1, seed=3, experiment="001_a")
    assert run.name == "001_a/add_a1_3" and run.result(LIMIT_S) == {"sum": 6}
    assert (run.state, run.params, run.seed, run.attempts) == ("completed", {"a": 1, "b": 2}, 3, 1)
    assert run.logs() == "adding 1\n" and run.metrics() == {"sum": 6}
    assert run.output_dir is not None and run.output_dir.is_relative_to(project.root / "outputs/add/001_a/add_a1_3")
    assert stat.S_IMODE((run.output_dir / "result.pkl").stat().st_mode) == 0o600
    assert json.loads((run.output_dir / "call.json").read_text())["qualname"] == "add"
    again = shoal.submit(project.module.add, a=1, b=2, seed=3, experiment="001_a")
    assert again == run and again.result() == {"sum": 6} and again.attempts == 1
    assert shoal.result("001_a/add_a1_3") == {"sum": 6}
    code = "import shoal; print(shoal.result('001_a/add_a1_3'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project.root)
    assert other.stdout == "{'sum': 6}\n"
    rerun = shoal.submit(project.module.add, 1, seed=3, experiment="001_a", rerun=True)
    assert rerun.result(LIMIT_S) == {"sum": 6} and rerun.attempts == 2
    assert capfd.readouterr() == ("", "")


def test_a_map_is_one_submission_with_results_in_order_and_a_table(project: FunctionProject) -> None:
    runs = shoal.map(project.module.add, {"a": [3, 1], "b": [5, 2]}, seeds=range(2), experiment="002_b", slots=2)
    assert runs.results(LIMIT_S) == [{"sum": a + b + seed} for a in (3, 1) for b in (5, 2) for seed in (0, 1)]
    assert runs[0].name == "002_b/add_a3_b5_0" and runs[2].name == "002_b/add_a3_0"
    assert len(list((project.root / ".shoal/submissions").iterdir())) == 1
    found = shoal.runs("002_b", state="completed", where={"a": 1, "seed": 0})
    assert {run.name for run in found} == {"002_b/add_a1_b5_0", "002_b/add_a1_0"}
    frame = found.to_pandas().set_index("name")
    assert (frame["submitted"] <= frame["started"]).all() and (frame["started"] < frame["ended"]).all()
    assert frame.loc["002_b/add_a1_b5_0", "sum"] == 6 and frame.loc["002_b/add_a1_0", "state"] == "completed"
    assert found.to_polars().height == found.to_arrow().num_rows == 2
    assert "8 <span" in runs._repr_html_() and "002_b/add_a3_b5_0" in runs._repr_html_()
    with pytest.raises(shoal.InputError, match="no experiment or run named 'x'"):
        shoal.runs("x")


def test_changed_code_runs_again_unless_it_is_to_be_kept(project: FunctionProject) -> None:
    run = shoal.submit(project.module.add, 1)
    assert run.result(LIMIT_S) == {"sum": 3}
    project.change("a + b + seed", "a + b + seed + 100")
    with pytest.warns(UserWarning, match="the code of .* changed"):
        kept = shoal.submit(project.module.add, 1, on_change="keep")
    assert kept.result() == {"sum": 3} and kept.code_changed
    with pytest.raises(shoal.InputError, match="changed since"):
        shoal.submit(project.module.add, 1, on_change="error")
    new = shoal.submit(project.module.add, 1)
    assert new.name == run.name and new.result(LIMIT_S) == {"sum": 103} and new.attempts == 2


def test_closures_of_one_factory_are_runs_of_their_own(project: FunctionProject) -> None:
    def make(factor: int) -> Callable[[int], int]:
        def scale(x: int) -> int:
            return factor * x

        return scale

    runs = [shoal.submit(make(factor), 5) for factor in (2, 3)]
    assert [run.result(LIMIT_S) for run in runs] == [10, 15]
    assert [run.name.rpartition("/")[2] for run in runs] == ["scale_factor2_x5", "scale_factor3_x5"]
    assert runs[0].params == {"factor": 2, "x": 5} and shoal.submit(make(2), 5).refresh().attempts == 1


def test_changed_code_behind_a_function_or_class_that_is_an_argument_is_noticed(project: FunctionProject) -> None:
    project.path.write_text(
        project.path.read_text()
        + "\ndef bonus(x):\n    return x + 1\n\ndef score(x):\n    return bonus(x)\n"
        + "\ndef apply(f, x):\n    return f(x) if callable(f) else f.scale(x)\n"
    )
    project.change("nothing", "nothing")
    first = [shoal.submit(project.module.apply, project.module.score, 1)]
    first.append(shoal.submit(project.module.apply, project.module.Scaler(3), 1))
    assert [run.result(LIMIT_S) for run in first] == [2, 3]
    project.change("return x + 1", "return x + 10")
    project.change("return self.factor * x", "return self.factor * x * 100")
    again = [shoal.submit(project.module.apply, project.module.score, 1)]
    again.append(shoal.submit(project.module.apply, project.module.Scaler(3), 1))
    assert [run.result(LIMIT_S) for run in again] == [11, 300]
    assert [run.name for run in again] == [run.name for run in first] and again[0].attempts == 2
    assert shoal.submit(project.module.apply, project.module.score, 1).refresh().attempts == 2


def test_the_code_of_the_submission_runs_although_the_module_is_edited_and_deleted(project: FunctionProject) -> None:
    """Of two runs the second waits for its turn while the module goes."""
    gate = project.root.parent / "gate"
    project.path.write_text(
        project.path.read_text()
        + "\ndef waits(number, gate):\n    while not os.path.exists(gate):\n        time.sleep(0.05)\n"
        + "    return add(number)\n"
    )
    project.change("nothing", "nothing")
    runs = shoal.map(project.module.waits, {"number": [1, 2], "gate": [str(gate)]}, slots=1)
    wait_until(lambda: runs[0].refresh().state == "running", 60, "the first run starts")
    assert runs[1].refresh().state == "waiting"
    project.path.unlink()
    gate.touch()
    assert runs.results(LIMIT_S) == [{"sum": 3}, {"sum": 4}]


def test_a_run_knows_itself_and_large_arguments_are_kept_once(project: FunctionProject) -> None:
    told = shoal.submit(project.module.tell)
    name, output, seed, resume_from, stop, cwd = told.result(LIMIT_S)
    assert (name, seed, resume_from, stop) == (told.name, None, None, False)
    assert told.output_dir == Path(output) and cwd.startswith(output) and told.metrics() == {"loss": 0.5}
    big = os.urandom(200_000)
    runs = shoal.map(project.module.size, [{"data": big}, {"data": [1, 2, 3]}], slots=2)
    assert runs.results(LIMIT_S) == [200_000, 3]
    assert runs[0].name.startswith(f"{project.module_name}/size_data-") and runs[1].params == {"data": "[1, 2, 3]"}
    kept = list((project.root / ".shoal/objects").rglob("*.pkl"))
    assert len(kept) == 2 and {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in kept} == {0o700}
    shoal.submit(project.module.size, big).result(LIMIT_S)
    assert len(list((project.root / ".shoal/objects").rglob("*.pkl"))) == 2


#: What a function does -> the error of its caller, its cause, words of the message, the state.
FAULTS: list[tuple[str, type[shoal.RunFailed], type[BaseException] | None, str, str]] = [
    ("raise", shoal.RunFailed, ValueError, "ValueError: boom", "failed"),
    ("unbuildable", shoal.RunFailed, shoal.RemoteError, "1 and 2", "failed"),
    ("local class", shoal.RunFailed, shoal.RemoteError, "inner", "failed"),
    ("lock", shoal.ResultNotKept, None, "its result cannot be pickled (_thread.lock)", "failed"),
    ("exit", shoal.RunFailed, None, "sys.exit(3)", "failed"),
    ("exit0", shoal.ResultNotKept, None, "sys.exit(0)", "completed"),
    ("_exit", shoal.RunFailed, None, "exit code 7", "failed"),
    ("kill", shoal.RunFailed, None, "SIGKILL", "failed"),
    ("disk", shoal.RunFailed, OSError, "No space left on device", "failed"),
]


def test_methods_of_objects_and_of_classes_run(project: FunctionProject) -> None:
    """A class's code counts: another method body is another attempt, under the same name."""
    work = project.module
    runs = [shoal.submit(work.Scaler(3).scale, 5), shoal.submit(work.Doubler().scale, 5)]
    runs += [shoal.submit(work.Scaler.describe, 1), shoal.submit(work.Doubler.describe, 1)]
    assert [run.result(LIMIT_S) for run in runs] == [15, 10, "Scaler 1", "Doubler 1"]
    assert len({run.name for run in runs}) == 4
    project.change("self.factor * x", "self.factor * x + 100")
    again = shoal.submit(project.module.Doubler().scale, 5)
    assert again == runs[1] and again.result(LIMIT_S) == 110 and again.attempts == 2


def test_every_fault_has_its_own_clear_end(project: FunctionProject) -> None:
    runs = shoal.map(project.module.fail, {"how": [fault[0] for fault in FAULTS]}, slots=3)
    runs.wait(LIMIT_S)
    found = {}
    for run, (how, *_) in zip(runs, FAULTS, strict=True):
        error = run.exception()
        assert isinstance(error, shoal.RunFailed) and error.run is run, how
        found[how] = (type(error), type(error.__cause__) if error.__cause__ else None, error.message, run.state)
    for how, kind, cause, words, state in FAULTS:
        assert found[how][:2] == (kind, cause) and found[how][3] == state and words in found[how][2], found[how]
    raised = runs[0].exception()
    assert raised is not None and any("in fail" in text for text in vars(raised)["__notes__"])
    assert "ValueError: boom" in runs[0].why() and "ValueError: boom" in runs[0]._repr_html_()
    with pytest.raises(shoal.RunFailed):
        runs.results()
    # Asked for again it stays failed; a retry with repaired code completes.
    assert shoal.submit(project.module.fail, "raise").attempts == 1
    project.change('raise ValueError("boom")', "return 5")
    with pytest.warns(UserWarning, match="changed"):
        repaired = shoal.submit(project.module.fail, "raise", on_change="keep")
    assert repaired.state == "failed" and repaired.retry().result(LIMIT_S) == 5 and repaired.attempts == 2
    with pytest.raises(shoal.InputError, match=r"cannot retry .* it completed"):
        repaired.retry()


def test_waiting_has_a_limit_a_cancel_ends_it_and_one_thread_serves_all(project: FunctionProject) -> None:
    runs = shoal.map(project.module.sleep, {"seconds": [600, 601, 602]}, slots=3)
    with pytest.raises(TimeoutError, match="3 of 3 runs"):
        runs.wait(0.3)
    assert not runs[0].done() and len([one for one in threading.enumerate() if one.name == "shoal-watcher"]) <= 1
    futures = [run.future() for run in runs]
    assert [one.name for one in threading.enumerate()].count("shoal-watcher") == 1
    attached = shoal.submit(project.module.sleep, 600)
    assert attached == runs[0] and attached.state in ("waiting", "running")
    assert runs.cancel() == 3
    for run in runs:
        with pytest.raises(shoal.RunCancelled):
            run.result(LIMIT_S)
    assert all(isinstance(one.exception(LIMIT_S), shoal.RunCancelled) for one in futures)
    wait_until(lambda: WATCHER._thread is None, 10, "the watcher ends when nothing is waited for")


def test_clean_takes_objects_that_only_completed_runs_name(project: FunctionProject) -> None:
    done, failed = shoal.submit(project.module.size, [1, 2]), shoal.submit(project.module.note, ["no path"])
    assert done.result(LIMIT_S) == 2 and isinstance(failed.exception(LIMIT_S), shoal.RunFailed)
    objects = [path for path in (project.root / ".shoal/objects").rglob("*") if path.is_file()]
    for path in objects:
        os.utime(path, (1.0, 1.0))

    def clean(*flags: str) -> set[Path]:
        argv = [sys.executable, "-m", "shoal", "clean", "--only", "object", "--json", *flags]
        out = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=project.root).stdout
        return {project.root / item["path"] for item in json.loads(out)["items"]}

    of_done = {
        path for path in objects if path.stem in (*done.spec.args[0].split("="), Path(done.spec.command[-1]).stem)
    }
    assert len(of_done) == 2 and len(objects) == 4 and clean() == of_done and all(path.exists() for path in objects)
    assert clean("--apply") == of_done and {path for path in objects if path.exists()} == set(objects) - of_done
    with pytest.raises(shoal.RunFailed, match="TypeError"):
        failed.retry().result(LIMIT_S)
    assert shoal.submit(project.module.size, [1, 2], rerun=True).result(LIMIT_S) == 2


def test_a_function_ends_at_its_time_limit_and_missing_gpus_are_a_warning(
    project: FunctionProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.warns(UserWarning, match=r"this machine has 0 GPUs \(requested: 1\)") as warned:
        run = shoal.submit(project.module.sleep, 600, request=shoal.Request(gpus=1, time="2s"))
    assert warned[0].filename == __file__
    with pytest.raises(shoal.RunTimeout, match="time limit"):
        run.result(LIMIT_S)


def test_asyncio_and_as_completed(project: FunctionProject) -> None:
    runs = shoal.map(project.module.add, {"a": [1, 2]}, slots=2)
    assert {run.name for run in shoal.as_completed(runs, LIMIT_S)} == {run.name for run in runs}

    async def main() -> list[Any]:
        first = await runs[0]
        return [first, [run.name async for run in shoal.as_completed(runs, LIMIT_S)]]

    first, names = asyncio.run(main())
    assert first == {"sum": 3} and set(names) == {run.name for run in runs}


def test_pickles_of_others_of_another_python_and_damaged_ones_are_not_loaded(
    project: FunctionProject, tmp_path: Path
) -> None:
    run = shoal.submit(project.module.add, 1)
    run.result(LIMIT_S)
    assert run.output_dir is not None
    path = run.output_dir / "result.pkl"
    whole = path.read_bytes()
    for content, mode, words in (
        (whole, 0o666, "other users can change it"),
        (whole.replace(b'"python": "3.', b'"python": "2.'), 0o600, "written with Python 2."),
        (b"no json\n" + whole, 0o600, "is damaged"),
    ):
        path.write_bytes(content)
        path.chmod(mode)
        with pytest.raises(shoal.ResultNotKept, match=words):
            shoal.result(run.name)
    with pytest.raises(CallError, match="attempt 1"):
        path.write_bytes(whole)
        load_file(str(path), 2)


def test_a_value_of_another_type_is_not_the_same_call(project: FunctionProject) -> None:
    assert shoal.submit(project.module.size, "1").result(LIMIT_S) == 1
    with pytest.raises(shoal.InputError, match="is the name of a call with"):
        shoal.submit(project.module.size, 1)


def test_a_job_with_another_python_or_a_full_disk_says_so(project: FunctionProject, tmp_path: Path) -> None:
    """The runner itself, with what a job would find."""
    run = shoal.submit(project.module.add, 1)
    run.result(LIMIT_S)
    record = Path(run.spec.command[-1])
    other = record.parent / "other.json"
    other.write_text(record.read_text().replace('"python": "3.', '"python": "2.'))
    env = {
        **os.environ,
        "SHOAL_PARAMS": '{"a": 1}',
        "SHOAL_SEED": "0",
        "SHOAL_ATTEMPT": "1",
        "SHOAL_OUTPUT_DIR": str(tmp_path),
    }

    def call(path: Path) -> tuple[int, str]:
        argv = [sys.executable, "-m", "shoal.job.function_call", str(path)]
        done = subprocess.run(argv, cwd=project.root, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    code, err = call(other)
    assert code == 1 and "the function was submitted with Python 2." in err
    assert json.loads((tmp_path / "error.json").read_text())["kind"] == "versions"
    other.write_text(record.read_text().replace('"qualname": "add"', '"qualname": "fills"'))
    env["SHOAL_SEED"] = ""
    with small_disk(tmp_path / "disk") as disk:
        env["SHOAL_OUTPUT_DIR"] = env["TEST_DISK"] = str(disk)
        code, err = call(other)
        assert not (disk / "result.pkl").exists()
    assert code == 74 and "its result cannot be written: [Errno 28] No space left on device" in err


def test_a_script_needs_a_guard_and_its_functions_and_classes_come_back(project: FunctionProject) -> None:
    text = (
        "import shoal\nclass Point:\n    def __init__(self, x):\n        self.x = x\n"
        "def make(x):\n    return Point(x + 1)\n"
    )
    script = project.root / "scripts/make.py"
    script.parent.mkdir()
    script.write_text(f"{text}shoal.submit(make, 1)\n")
    bare = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=project.root, check=False)
    assert bare.returncode == 1 and "make.py:7: make is defined in make.py" in bare.stderr
    assert not (project.root / ".shoal").exists()
    guarded = (
        'if __name__ == "__main__":\n    point = shoal.submit(make, 1).result(120)\n'
        "    print(type(point) is Point, point.x)\n"
    )
    script.write_text(text + guarded)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=project.root, check=False)
    assert (done.stdout, done.stderr) == ("True 2\n", "")
    assert [run.name for run in shoal.runs()] == ["scripts_make/make_x1"]


def test_scripts_of_one_name_in_two_directories_are_two_and_outside_of_the_project_they_are_told_apart(
    project: FunctionProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of a surrounding launch change nothing: a function is one process and keeps its result."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("SLURM_PROCID", "3")

    def call(directory: Path, result: int) -> subprocess.CompletedProcess[str]:
        script = directory / "train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            f"import shoal\ndef fit(x):\n    return {result}\n"
            'if __name__ == "__main__":\n    print(shoal.submit(fit, 1).result(120))\n'
        )
        argv = [sys.executable, str(script)]
        return subprocess.run(argv, capture_output=True, text=True, cwd=project.root, check=False)

    outside = project.root.parent
    done = [call(one, at) for at, one in enumerate([project.root / "a", project.root / "b", outside / "c"])]
    assert [one.stdout for one in done] == ["0\n", "1\n", "2\n"], done
    refused = call(outside / "d", 3)
    assert "train/fit_x1 is the name of a run of" in refused.stderr and "c/train.py:fit, and would" in refused.stderr
    assert [run.name for run in shoal.runs()] == ["a_train/fit_x1", "b_train/fit_x1", "train/fit_x1"]


def test_two_processes_that_submit_one_call_at_once_share_its_run(project: FunctionProject) -> None:
    marks = project.root.parent / "marks"
    code = f"import shoal, {project.module_name} as work; print(shoal.submit(work.note, {str(marks)!r}, 7).result(120))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=project.root)
        for _ in range(2)
    ]
    assert [one.communicate(timeout=300)[0] for one in both] == ["7\n", "7\n"]
    assert marks.read_text() == "7\n"


def test_ctrl_c_while_waiting_leaves_the_run_alone(project: FunctionProject) -> None:
    code = (
        f"import shoal, {project.module_name} as work\nrun = shoal.submit(work.sleep, 3)\nprint(run.name, flush=True)\n"
        "run.result()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=project.root
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    process.send_signal(2)
    _, err = process.communicate(timeout=300)
    assert "KeyboardInterrupt" in err
    (run,) = shoal.runs()
    assert run.name == name and run.result(LIMIT_S) is None
