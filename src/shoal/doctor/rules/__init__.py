"""All rules of the doctor, one module for each family. `load_rules` registers them in `finding.RULES`."""

from importlib import import_module

RULE_MODULES = ("directives", "values", "cluster", "geometry", "launch", "shell", "network", "gpu_env", "signals")


def load_rules() -> None:
    """Import every family; doing so twice changes nothing."""
    for family in RULE_MODULES:
        import_module(f"shoal.doctor.rules.{family}")
