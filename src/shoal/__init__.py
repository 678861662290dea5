"""shoal runs many ML training experiments on Slurm clusters, or on a laptop without Slurm, from one description."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["Experiment", "InputError", "Request", "ShoalError"]

_HOMES = {
    "Experiment": "shoal.api",
    "InputError": "shoal.errors",
    "Request": "shoal.model",
    "ShoalError": "shoal.errors",
}


def __getattr__(name: str) -> object:
    """The public names, imported when they are first used: `import shoal` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
