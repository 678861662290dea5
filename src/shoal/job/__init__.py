"""What runs inside a job, on Slurm or on this machine. Its main process is called the agent.

    main.py             a job of one run: identify the run, check that it may start, execute it, plan what follows
    single_run.py       the executor with a queue of one; smoke tests
    pack/               the executor with a queue of many runs
    executor.py         starts attempts, forwards signals, stops what must stop, records how each attempt ended
    attempt.py          one attempt: command, start record, phases, stopping, end record
    environment.py      environment and arguments of the user's process; its Python and packages
    trackers.py         the run's name and id for W&B, MLflow, TensorBoard, Comet
    workdir.py          the working directory of an attempt with a copy of the code
    child_processes.py  start, watch, signal and clean up the processes of a run
    sampler.py          the parameters of a search's trial when it starts; the sampler as a child process
    record_writer.py    write start and end records in the background
    recovery.py         whether an attempt succeeded, why it ended, and the follow-up job
    job_constraints.py  nodes to avoid and runs to wait for
    replacement.py      the job that `shoal switch` submits
    admission.py        submissions that wait for room under the project's budget
    notifications.py    messages to a person
    allocation.py       nodes, CPUs, GPUs, memory, time, addresses and ports of this job
    launch/             the processes of one run: torchrun, srun, replicas, containers
    run_data.py         data of runs, staged on all nodes before they start
    staging.py cache.py dataset_copy.py file_copy.py   one copy of a dataset per node
    usage.py usage_readers.py   CPU, memory and GPU use of a run
    function_call.py    call a Python function as the program of a run
    batch_step.py local_slurm.py   a user's batch script: its variables and log files; srun where no Slurm is
    attach.py port_forward.py   a shell beside a running program; a port of its node
    zipapp.py           packs this package and kernel/ into one file for jobs

Standard library only and Python 3.8 or newer, because it runs with whatever Python a node has. The modules here and
those of kernel/ travel as one file, which zipapp.py writes into the project's state directory.
"""

from ..kernel import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import (
        admission,
        cache,
        dataset_copy,
        environment,
        function_call,
        job_constraints,
        notifications,
        recovery,
    )
    from .admission import ResourceCounts, ScopedCounts
    from .allocation import visible_gpus_of_node
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
    from .launch.launcher_args import LaunchValues, find_launcher
    from .launch.rank_group import RankGroup, write_smoke_module
    from .local_slurm import parse_srun
    from .pack import follow_up
    from .pack.allocator import GPU_PARTS, Allocator, Assignment, Demand, count_gpu_parts, even_share
    from .pack.early_stopping import HalvingRule
    from .pack.node import CLAIMED_FILE
    from .pack.queue import QueuedRun, RunQueue
    from .port_forward import Multiplexer
    from .replacement import replacements_of
    from .sampler import needs_no_sampler
    from .staging import Stage, StageError
    from .workdir import PARENT_PATH, parent_paths
    from .zipapp import write_agent_zip
else:
    __getattr__ = lazy_exports(__name__)
