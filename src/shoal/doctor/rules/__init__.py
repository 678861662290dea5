"""All rules of the doctor, one module for each family. `load` registers them in `finding.RULES`."""

from importlib import import_module

FAMILIES = (
    "directives", "values", "files", "cluster", "geometry", "launch", "steps", "shell", "network", "gpu_env", "signals",
)  # fmt: skip


def load() -> None:
    """Import every family; doing so twice changes nothing."""
    for family in FAMILIES:
        import_module(f"shoal.doctor.rules.{family}")
