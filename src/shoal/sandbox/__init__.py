"""A real Slurm cluster on this machine, for trying shoal out and for tests.

spec      what it should look like          layout    where its files are, and its record
conf      the text of its configuration     machine   what this machine has and allows
process   find and signal exactly its processes
daemons   munged, slurmctld, slurmd ...     accounting   MariaDB and slurmdbd    hosts   nodes with an address
status    what it does now
bringup   start                             cluster   `Sandbox`: start, use, stop and clean up
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.sandbox.daemons import SandboxStatus
    from shoal.sandbox.sandbox import Sandbox, load_sandbox, sandbox_names
    from shoal.sandbox.spec import PartitionSpec, SandboxSpec, check_sandbox_name, parse_partitions, parse_setting
else:
    __getattr__ = lazy_exports(__name__)
