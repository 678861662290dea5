"""`shoal.Executor` is a concurrent.futures.Executor, and joblib's backend over it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import joblib
import pytest

import shoal
from function_project import FunctionProject

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionProject:
    root = tmp_path / "project"
    root.mkdir()
    return FunctionProject(root, monkeypatch)


def test_calls_of_an_executor_are_runs_in_few_submissions(project: FunctionProject) -> None:
    with shoal.Executor(2) as pool:
        assert list(pool.map(project.module.add, range(5))) == [{"sum": number + 2} for number in range(5)]
        assert list(pool.map(project.module.size, ["a", "bb", "ccc"], chunksize=2)) == [1, 2, 3]
        same = [pool.submit(project.module.note, str(project.root.parent / "marks")) for _ in range(2)]
        assert [one.result(120) for one in same] == [1, 1]
        failed = pool.submit(project.module.fail, "raise")
        with pytest.raises(ValueError, match="boom"):
            failed.result(120)
        run = pool.run_of(failed)
        assert run is not None and run.state == "failed" and run.name.startswith("900_executor/fail_")
        unpicklable = pool.submit(project.module.size, threading.Lock())
        with pytest.raises(shoal.InputError, match="argument 'data' of size cannot be pickled"):
            unpicklable.result(60)

        async def main() -> object:
            return await asyncio.get_running_loop().run_in_executor(pool, project.module.size, "abcd")

        assert asyncio.run(main()) == 4
    assert (project.root.parent / "marks").read_text() == "1\n1\n"
    assert len(list((project.root / ".shoal/submissions").iterdir())) == 5
    with pytest.raises(RuntimeError):
        pool.submit(project.module.add, 1)
    with pytest.raises(shoal.InputError, match="expected pack or pilots"):
        shoal.Executor(layout="job")


def test_joblib_runs_on_shoal(project: FunctionProject) -> None:
    shoal.register_joblib()
    with joblib.parallel_config("shoal", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(project.module.size)("x" * n) for n in range(4)) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="boom"):
            joblib.Parallel()(joblib.delayed(project.module.fail)(how) for how in ("raise",))
