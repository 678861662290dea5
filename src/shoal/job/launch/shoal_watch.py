"""Inside the user's program: a rank that trains without the others reports it in a file. See rank_group.py.

torch calls `begin` at the end of its own import. A healthy program is not affected: nothing is patched, nothing is
raised, and no file is written.
"""

import os
import sys
from typing import Any, Dict, Tuple

#: A few steps may be a trial (a warm-up, a search for the batch size) before the ranks meet.
MIN_STEPS = 10
#: Ranks can also meet through these.
_OTHER_LIBRARIES = ("horovod", "mpi4py", "torchft", "torch_xla", "ray", "bagua")


def begin() -> None:
    try:
        world, _, path = os.environ["SHOAL_WATCH"].partition(" ")
        _watch(sys.modules["torch"], int(world), path)
    except Exception:  # whatever it is, the program goes on
        return


def _watch(torch: Any, world: int, path: str) -> None:
    compiling = torch.compiler.is_compiling
    seen = [0]

    def after_step(optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if compiling() or seen[0] > MIN_STEPS:
            return
        seen[0] += 1
        if seen[0] == MIN_STEPS:
            try:
                _report(torch.distributed, world, path)
            except Exception:  # as above
                return

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)


def _report(distributed: Any, world: int, path: str) -> None:
    size = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if size < world and not any(name in sys.modules for name in _OTHER_LIBRARIES):
        with open(path, "w") as file:
            file.write(str(size))
