"""All rules of the doctor, one module for each family. `load` registers them in `finding.RULES`."""

from importlib import import_module

FAMILIES = ("directives", "values", "files", "cluster", "geometry", "steps", "shell", "network", "gpu_env", "signals")


def load() -> None:
    """Import every family; doing so twice changes nothing."""
    for family in FAMILIES:
        import_module(f"shoal.doctor.rules.{family}")
