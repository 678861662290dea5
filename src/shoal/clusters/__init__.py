"""What a Slurm cluster has and allows, and the state of our jobs on it: every question to Slurm, and typed answers.

    facts.py          the records: partitions, node types, associations, QOS, reservations
    read.py           `read_cluster(environ, "nodes", "user", ...)`: asks only the named questions; kept answers; how
                      many jobs this user may have submitted
    parse.py          one parser for each question
    load.py           what is free now: GPUs by type, the queue of everybody, fair share
    queries.py        our jobs by squeue and sacct, scancel, and `sbatch --test-only`, with shoal's errors and hints

Programs are started by kernel/slurm.py. Imports only kernel, errors, units and names. Cluster profiles, which say how
to use a cluster, are in describe/cluster.py.
"""

from shoal.kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.clusters.facts import UNKNOWN, ClusterFacts, NodeKind, Partition
    from shoal.clusters.load import ClusterLoad, read_load
    from shoal.clusters.parse import parse_time_limit_s
    from shoal.clusters.queries import (
        ProgramMissingError,
        QueueState,
        SbatchCheck,
        ask,
        by_token,
        check_with_sbatch,
        newest,
        run,
        sacct,
        scancel,
        squeue,
    )
    from shoal.clusters.read import ClusterAnswers, cluster_name, read_cluster, read_submit_limit
else:
    __getattr__ = lazy_exports(__name__)
