"""What a Slurm cluster has, allows and is doing: every question about it, and the records that answer.

facts.py          the records: partitions, kinds of node, associations, QOS, reservations
read.py           `read_cluster(environ, "nodes", "user", ...)`: asks what is named, and nothing else
parse.py          one parser for each question
submit_limits.py  how many jobs this user may have submitted
sbatch_check.py   `sbatch --test-only`: is a request accepted, and when would it start?
queue_state.py    our jobs: one squeue, one sacct
commands.py       kernel/slurm.py, which starts the programs, with shoal's errors and hints

Imports only kernel, errors, units and names. Profiles, which say how to use a cluster, are config's.
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.clusters.facts import UNKNOWN, ClusterFacts, NodeKind, Partition
    from shoal.clusters.parse import parse_time_limit_s
    from shoal.clusters.queries import (
        ProgramMissingError,
        QueueState,
        ask,
        by_token,
        check_with_sbatch,
        newest,
        run,
        sacct,
        scancel,
        squeue,
    )
    from shoal.clusters.read import cluster_name, read_cluster
    from shoal.clusters.submit_limits import read_submit_limit
else:
    __getattr__ = lazy_exports(__name__)
