"""The rules of the checks, one module for each topic; `load_rules` registers them in `finding.RULES`.

    directives.py  D        #SBATCH lines that sbatch ignores or reads differently
    values.py      D        values of the header that Slurm reads differently than meant
    cluster.py     D, G     the request against the cluster
    geometry.py    G        nodes, tasks, GPUs and CPUs against each other
    launch.py      S, G, R  launchers against the header, and calls of srun
    nodes.py       G        launchers over several nodes
    shell.py       D, S     exit codes, environments, directories, and files next to the script
    network.py     N        ports, addresses and network settings
    gpu_env.py     X, G     variables for GPUs, threads, trackers and secrets
    signals.py     R        signals before the time limit, requeueing

The letter begins the code of a finding.
"""

from importlib import import_module

RULE_MODULES = (
    "directives",
    "values",
    "cluster",
    "geometry",
    "launch",
    "nodes",
    "shell",
    "network",
    "gpu_env",
    "signals",
)


def load_rules() -> None:
    """Import every family; doing so twice changes nothing."""
    for family in RULE_MODULES:
        import_module(f"shoal.doctor.rules.{family}")
