"""A real Slurm cluster on this machine, for trying shoal out and for tests.

spec.py     what it should look like: the record, its command-line form, what is refused
sandbox.py  `Sandbox`: start, use, damage, stop and clean up
start.py    the steps of starting it
daemons.py  munged, slurmctld, slurmd, MariaDB and slurmdbd; what the sandbox is doing now
conf.py     the text of its configuration files, and the accounts and QOS of its accounting
hosts.py    nodes with an address of their own
machine.py  what this machine has and allows
slurm_root.py  Slurm of another release, unpacked into the user's cache
paths.py    where its files are, and its record
process.py  find and signal exactly its processes
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.sandbox.daemons import SandboxStatus
    from shoal.sandbox.sandbox import Sandbox, load_sandbox, sandbox_names
    from shoal.sandbox.slurm_root import SUITES, ensure_slurm_root
    from shoal.sandbox.spec import (
        PartitionSpec,
        SandboxSpec,
        check_sandbox_name,
        default_slurm,
        parse_partitions,
        parse_setting,
    )
else:
    __getattr__ = lazy_exports(__name__)
