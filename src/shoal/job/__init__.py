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
    from . import accounts, admission, cache, copies, environment, nodes, notices, packages, stages, survival
    from .admission import Need
    from .checksum import crc32
    from .environment import (
        BUILT_IN,
        NotSet,
        complete,
        escape,
        expand,
        fill,
        fill_known,
        placeholders,
        read_secrets,
        text_of,
    )
    from .launch import family
    from .launch.container import (
        GPUS,
        NONE,
        RUNTIMES,
        VARIABLE,
        Container,
        ContainerError,
        build,
        merge,
        parse_bind,
        whole,
        words,
    )
    from .launch.geometry import DEFAULTS, MODES, PORT_BASE, PORT_COUNT, Geometry, GeometryError, compute, describe
    from .pack import follow
    from .pack.books import WHOLE, Allocator, Assignment, Demand, even_share, parts
    from .pack.node import CLAIMED
    from .pack.queue import Item, Queue
    from .pack.search import Rule
    from .shipping import ship
    from .staging import Stage, StageError
    from .trial import trials_of
    from .workdir import UPWARD, upward
else:
    __getattr__ = lazy_exports(__name__)
