"""The agent as one file: the other modules of this folder in a zip that Python runs, named after its content."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import zipfile
from pathlib import Path

from . import files

#: The launcher calls the same file again for its nodes and ranks, which load only what they need.
_ENTRY = """import sys
role = sys.argv[1] if len(sys.argv) > 2 else ""
if role == "rank":
    from shoal_agent.launch.rank import main
elif role == "node":
    from shoal_agent.launch.node import main
elif role == "launch":
    from shoal_agent.launch.entry import main
elif role == "pack":
    from shoal_agent.pack.entry import main
elif role == "ray-node":
    from shoal_agent.pack.ray_cluster import node_main as main
elif role == "warm":
    from shoal_agent.pack.warm_server import main
elif role == "stage":
    from shoal_agent.handover import main
else:
    from shoal_agent.main import main
roles = ("rank", "node", "launch", "pack", "warm", "ray-node", "stage")
sys.exit(main(sys.argv[2:] if role in roles else sys.argv[1:]))
"""


def ship(home: str) -> str:
    """Path of the agent under the state folder, written there if it is not yet.

    Named after its content: queued jobs keep the agent they were submitted with when shoal is upgraded meanwhile.
    """
    data = build()
    folder = os.path.join(home, "agent")
    path = os.path.join(folder, f"{hashlib.sha256(data).hexdigest()[:12]}.pyz")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        files.create_exclusive(path, data)
    return path


@functools.lru_cache(maxsize=1)
def build() -> bytes:
    """The zip's bytes; the same for the same source, whenever and wherever it is built."""
    buffer, here = io.BytesIO(), Path(__file__).parent
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "__main__.py", _ENTRY)
        for path in sorted(set(here.rglob("*.py")) - {Path(__file__)}):
            _add(archive, f"shoal_agent/{path.relative_to(here).as_posix()}", path.read_text("utf-8"))
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), text)
