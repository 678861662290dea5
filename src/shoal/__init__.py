"""shoal runs many ML training experiments on Slurm clusters, or on a laptop without Slurm, from one description."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.api import Experiment
    from shoal.errors import (
        InputError,
        RefusedError,
        RemoteError,
        ResultNotKept,
        RunCancelled,
        RunFailed,
        RunLost,
        RunOOM,
        RunStopped,
        RunTimeout,
        SchedulerError,
        ShoalError,
    )
    from shoal.functions import (
        Executor,
        Run,
        RunContext,
        Runs,
        as_completed,
        context,
        map,
        progress,
        register_joblib,
        result,
        runs,
        submit,
    )
    from shoal.model import Request

_HOMES = {
    "Executor": "shoal.functions",
    "Experiment": "shoal.api",
    "InputError": "shoal.errors",
    "RefusedError": "shoal.errors",
    "RemoteError": "shoal.errors",
    "Request": "shoal.model",
    "ResultNotKept": "shoal.errors",
    "Run": "shoal.functions",
    "RunCancelled": "shoal.errors",
    "RunContext": "shoal.functions",
    "RunFailed": "shoal.errors",
    "RunLost": "shoal.errors",
    "RunOOM": "shoal.errors",
    "RunStopped": "shoal.errors",
    "RunTimeout": "shoal.errors",
    "Runs": "shoal.functions",
    "SchedulerError": "shoal.errors",
    "ShoalError": "shoal.errors",
    "as_completed": "shoal.functions",
    "context": "shoal.functions",
    "map": "shoal.functions",
    "progress": "shoal.functions",
    "register_joblib": "shoal.functions",
    "result": "shoal.functions",
    "runs": "shoal.functions",
    "submit": "shoal.functions",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    """The public names, imported when they are first used: `import shoal` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
