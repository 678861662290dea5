"""joblib's calls as runs: `shoal.register_joblib()`, then `with joblib.parallel_config("shoal", n_jobs=8): ...`."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import InputError
from shoal.functions.executor import Executor
from shoal.model import Request


def register_joblib(
    *, request: Request | Mapping[str, Any] | None = None, layout: str = "pack", on: str | None = None
) -> None:
    """Make the backend "shoal" known to joblib; `n_jobs` is the number of calls at a time (-1: one for each CPU)."""
    try:
        import joblib
        from joblib.parallel import ParallelBackendBase
    except ImportError:
        raise InputError("joblib is not installed", hint="pip install joblib") from None

    class ShoalBackend(ParallelBackendBase):  # type: ignore[misc]
        supports_retrieve_callback = True
        supports_return_generator = True
        default_n_jobs = -1

        def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
            self.parallel = parallel
            count = self.effective_n_jobs(n_jobs)
            self._pool = Executor(count, request=request, layout=layout, on=on, experiment="901_joblib")
            return count

        def effective_n_jobs(self, n_jobs: int | None) -> int:
            if n_jobs == 0:
                raise ValueError("n_jobs must not be 0")
            return max(1, (os.cpu_count() or 1) + 1 + n_jobs if n_jobs and n_jobs < 0 else n_jobs or 1)

        def submit(
            self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None
        ) -> concurrent.futures.Future[Any]:
            future = self._pool.submit(func)
            if callback is not None:
                future.add_done_callback(callback)
            return future

        def retrieve_result_callback(self, out: concurrent.futures.Future[Any]) -> Any:
            return out.result()

        def terminate(self) -> None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    joblib.register_parallel_backend("shoal", ShoalBackend)
