"""Inside the user's program: after some steps, report the size of its process group in a file. See rank_group.py.

torch calls `begin` at the end of its own import. Ranks of a launch report only if they train without the others; in a
smoke run of `shoal doctor --fix --smoke`, where a file `steps` lies beside this one, every rank reports. The program is
not affected: nothing is patched, and nothing is raised.
Standard library only, and Python 3.8 or newer: it runs with the program's own Python.
"""

import json
import os
import socket
import sys
from typing import Any, Callable, Dict, Tuple

#: A few steps may be a trial (a warm-up, a search for the batch size) before the ranks meet.
MIN_STEPS = 10
#: Ranks can also meet through these.
_OTHER_LIBRARIES = ("horovod", "mpi4py", "torchft", "torch_xla", "ray", "bagua")


def begin() -> None:
    try:
        torch, folder = sys.modules["torch"], os.path.dirname(os.path.abspath(__file__))
        if os.path.exists(os.path.join(folder, "steps")):
            with open(os.path.join(folder, "steps")) as file:
                steps = int(file.read())
            _after_steps(torch, steps, lambda: _report_smoke(torch.distributed, folder, steps))
        else:
            world, _, path = os.environ["SHOAL_WATCH"].partition(" ")
            _after_steps(torch, MIN_STEPS, lambda: _report_alone(torch.distributed, int(world), path))
    except Exception:  # whatever it is, the program continues
        return


def _after_steps(torch: Any, count: int, report: Callable[[], None]) -> None:
    """Call `report` once, after so many steps of optimizers."""
    compiling = torch.compiler.is_compiling
    seen = [0]

    def after_step(optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if compiling() or seen[0] > count:
            return
        seen[0] += 1
        if seen[0] == count:
            try:
                report()
            except Exception:  # as above
                return

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)


def _report_alone(distributed: Any, world: int, path: str) -> None:
    size = _rank_and_size(distributed)[1]
    if size < world and not any(name in sys.modules for name in _OTHER_LIBRARIES):
        with open(path, "w") as file:
            file.write(str(size))


def _report_smoke(distributed: Any, folder: str, steps: int) -> None:
    rank, size = _rank_and_size(distributed)
    path = os.path.join(folder, "%s-%d" % (socket.gethostname(), os.getpid()))
    with open(path + ".tmp", "w") as file:
        json.dump({"rank": rank, "world": size, "steps": steps}, file)
    os.rename(path + ".tmp", path + ".json")


def _rank_and_size(distributed: Any) -> Tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
