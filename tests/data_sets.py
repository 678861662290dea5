"""Small data sets for the tests of shoal.data: folders of files with known bytes, and ways to compare them."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import shoal.data
from project import Project
from shoal.data.shard_plan import ShardSettings

#: The command line, run by the Python of the tests.
SHOAL = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())"]


def make_folder(root: Path, count: int = 60, *, classes: int = 3, size: int = 3000, seed: int = 0) -> Path:
    """Class folders with files of random bytes and random sizes around `size`."""
    dice = random.Random(seed)
    for number in range(count):
        folder = root / f"class{number % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"img_{number:05d}.jpg").write_bytes(dice.randbytes(dice.randint(size // 2, size * 2)))
    return root


def contents(root: Path) -> dict[bytes, bytes]:
    """Relative name -> bytes of every file under a folder, names as the disk has them."""
    base = os.fsencode(root)
    found = {}
    for where, _, names in os.walk(base):
        for name in names:
            path = os.path.join(where, name)
            found[os.path.relpath(path, base)] = Path(os.fsdecode(path)).read_bytes()
    return found


def make_data(folder: Path) -> Path:
    """folder/src with files, and the same as shards in folder/data."""
    make_folder(folder / "src", 200, size=5000)
    shoal.data.shard_dataset(str(folder / "src"), str(folder / "data"), ShardSettings(shard_mb=0.1, first_mb=0.08))
    return folder / "data"


def with_data(project: Project, line: str) -> None:
    """Give the step `train` its data."""
    path = project.root / "shoal.toml"
    path.write_text(path.read_text().replace('output = "training"\n', f'output = "training"\n{line}\n'))
