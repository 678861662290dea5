"""A real Slurm cluster on this machine, for trying shoal out and for tests.

spec      what it should look like          layout    where its files are, and its record
conf      the text of its configuration     machine   what this machine has and allows
process   find and signal exactly its processes
daemons   munged, slurmctld, slurmd ...     accounting   MariaDB and slurmdbd    hosts   nodes with an address
status    what it does now
bringup   start                             cluster   `Sandbox`: start, use, stop and clean up
"""

from shoal.sandbox.cluster import Sandbox, load, names
from shoal.sandbox.spec import Partition, SandboxSpec, parse_partitions

__all__ = ["Partition", "Sandbox", "SandboxSpec", "load", "names", "parse_partitions"]
