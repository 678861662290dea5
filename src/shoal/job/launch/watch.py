"""Do the ranks train together? Ranks that start well may still train alone, each the whole run on its own GPU.

A script that never reads its rank, Lightning with `devices=1`, a process group of one: N copies of a training, and one
GPU's worth of progress. Nothing outside the program can tell this from ranks that need not talk (an evaluation in
parts), but torch can: `shoal_watch.py` counts the steps of its optimizers, and after ten of them asks for the size of
the process group. It comes in by torch's own door for extensions (an entry point that `import torch` calls, 2.5 and
later), found in a folder at the end of PYTHONPATH; where that door is closed nobody watches, and nothing else happens.
"""

import os
import time
from typing import Mapping

from .unit import RankGroup

_MODULE = "shoal_watch"
_CHECK_EVERY_S = 1.0


def write_watch_module(unit: RankGroup) -> None:
    """Write what a rank's Python is to find."""
    import pkgutil  # not needed by ranks, which import this too

    folder = _watch_dir(unit)
    about = os.path.join(folder, _MODULE + "-1.dist-info")
    os.makedirs(about, exist_ok=True)
    for path, data in (
        (os.path.join(folder, _MODULE + ".py"), pkgutil.get_data(__name__, _MODULE + ".py") or b""),
        (os.path.join(about, "METADATA"), b"Metadata-Version: 2.1\nName: shoal-watch\nVersion: 1\n"),
        (os.path.join(about, "entry_points.txt"), ("[torch.backends]\nshoal = %s:begin\n" % _MODULE).encode()),
    ):
        with open(path, "wb") as file:
            file.write(data)


def watch_variables(unit: RankGroup, rank: int, env: Mapping[str, str]) -> "dict[str, str]":
    """What makes a rank's torch call us; nothing where there is nobody to train with."""
    folder = _watch_dir(unit)
    if not unit.watched or not os.path.exists(os.path.join(folder, _MODULE + ".py")):
        return {}
    theirs = env.get("PYTHONPATH")
    return {
        "SHOAL_WATCH": "%d %s" % (unit.world, _alone_file(unit, rank)),
        "PYTHONPATH": "%s%s%s" % (theirs, os.pathsep, folder) if theirs else folder,
    }


class RanksTrainAlone(Exception):
    """The ranks train, and each for itself; the message says so."""


class DdpCheck:
    """The launcher's eye on a unit; to be called now and then while it runs, raises Apart when that is certain."""

    def __init__(self, unit: RankGroup) -> None:
        self.unit = unit
        self._looked = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if self.unit.watched and now - self._looked >= _CHECK_EVERY_S:
            self._looked = now
            self._look()

    def _look(self) -> None:
        """Every rank must say it: where one learns and the others play for it, that one is alone, and rightly so."""
        here = set(os.listdir(os.path.dirname(self.unit.log)))
        marks = [_alone_file(self.unit, rank) for rank in range(self.unit.world)]
        if not here.issuperset(os.path.basename(mark) for mark in marks):
            return
        with open(marks[0]) as file:
            size = file.read().strip()
        raise RanksTrainAlone(
            "each of the %d ranks trains alone: the size of its process group is %s and not %d, so the run would be %d "
            "copies of one training; call torch.distributed.init_process_group(), with Lightning leave out devices and "
            'say strategy="ddp", or say independent = true in the launch if they are meant to be apart'
            % (self.unit.world, size or "1", self.unit.world, self.unit.world)
        )


def _watch_dir(unit: RankGroup) -> str:
    return os.path.join(os.path.dirname(unit.log), "watch")


def _alone_file(unit: RankGroup, rank: int) -> str:
    return "%srank-%d.alone" % (unit.log, rank)
