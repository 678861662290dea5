"""What runs inside a job, on Slurm or on this machine.

main.py      a job of one run: who am I, may I run, which attempt is this, what follows its end
single.py    the executor with a queue of one, and what only a single run has
pack/        the executor with a queue of many
executor.py  starts attempts, passes signals on, stops what must stop, writes down how each one ended
attempt.py   one attempt: its start record, its phases, how it is asked to stop, its end record
children.py  processes: started, signalled, and nothing of them left behind
ledger.py    start and end records on their way to the disk
data.py      data of runs, brought in threads (handover.py: on all nodes; staging.py, copying.py: how)
usage.py     what runs use, sampled
survival.py  what an end means, and the job that follows it
launch/      processes of one run: torchrun, srun, replicas, containers

Standard library only and Python 3.8 or newer, because it runs with whatever Python a node has. The modules here and
those of `kernel/` travel as one file (`shipping.py` zips them into the project's state folder).
"""

from ..kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import admission, cache, dataset_copy, environment, job_constraints, notifications, recovery
    from .admission import ResourceCounts
    from .environment import (
        BUILT_IN_PLACEHOLDERS,
        VariableNotSet,
        escape_placeholders,
        expand_path,
        fill_all,
        fill_known_placeholders,
        fill_placeholders,
        format_value,
        placeholder_names,
        read_secrets,
    )
    from .file_copy import crc32
    from .launch import launcher_args
    from .launch.container import (
        CONTAINER_VARIABLE,
        GPU_VENDORS,
        NO_CONTAINER,
        RUNTIMES,
        Container,
        ContainerError,
        build_container,
        container_argv,
        merge_settings,
        parse_bind,
        with_absolute_paths,
    )
    from .launch.geometry import (
        LAUNCH_DEFAULTS,
        LAUNCH_MODES,
        PORT_BASE,
        PORT_COUNT,
        TORCH_LAUNCHERS,
        GeometryError,
        LaunchGeometry,
        compute_geometry,
        describe_geometry,
    )
    from .launch.rank_group import RankGroup
    from .pack import follow_up
    from .pack.allocator import GPU_PARTS, Allocator, Assignment, Demand, count_gpu_parts, even_share
    from .pack.early_stopping import HalvingRule
    from .pack.node import CLAIMED_FILE
    from .pack.queue import QueuedRun, RunQueue
    from .replacement import replacements_of
    from .staging import Stage, StageError
    from .workdir import PARENT_PATH, parent_paths
    from .zipapp import write_agent_zip
else:
    __getattr__ = lazy_exports(__name__)
