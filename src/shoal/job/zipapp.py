"""The code for jobs as one file: job/ and kernel/ in a zip that Python executes, named after its content."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import marshal
import os
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

from ..kernel import files

#: The launcher calls the same file again for its nodes and ranks, which load only what they need.
_MAIN_SOURCE = """import sys
role = sys.argv[1] if len(sys.argv) > 2 else ""
if role == "rank":
    from shoal_agent.job.launch.rank import main
elif role == "node":
    from shoal_agent.job.launch.node import main
elif role == "node-guard":
    from shoal_agent.job.launch.node_guards import main
elif role == "launch":
    from shoal_agent.job.launch.launcher import main
elif role == "pack":
    from shoal_agent.job.pack.main import main
elif role == "ray-node":
    from shoal_agent.job.pack.ray_cluster import node_main as main
elif role == "warm":
    from shoal_agent.job.pack.warm_server import main
elif role == "srun":
    from shoal_agent.job.local_slurm import srun as main
elif role == "scontrol":
    from shoal_agent.job.local_slurm import scontrol as main
elif role == "mlflow":
    from shoal_agent.job.trackers import main
elif role == "stage":
    from shoal_agent.job.run_data import main
elif role == "attach":
    from shoal_agent.job.attach import main
elif role == "forward":
    from shoal_agent.job.port_forward import main
else:
    from shoal_agent.job.main import main
if role in ("pack", "launch") or role.startswith("/"):
    from shoal_agent.kernel.safe_output import FailsafeStream
    sys.stdout, sys.stderr = FailsafeStream(sys.stdout), FailsafeStream(sys.stderr)
roles = ("rank", "node", "node-guard", "launch", "pack", "warm", "ray-node", "stage", "srun", "scontrol", "attach",
         "forward", "mlflow")
sys.exit(main(sys.argv[2:] if role in roles else sys.argv[1:]))
"""
#: The head of compiled code that is not compared with its source (PEP 552): the zip never changes.
_PYC_HEADER = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)


def write_agent_zip(home: str) -> str:
    """Path of the agent under the state folder, written there if it is not yet.

    Named after its content: queued jobs keep the agent they were submitted with when shoal is upgraded meanwhile. In a
    shared project everybody has their own, and one that somebody else could have written is a PermissionError.
    """
    modules = {name: path.read_text("utf-8") for name, path in _shipped_modules().items()}
    content = "\0".join([_MAIN_SOURCE, *modules, *modules.values()]).encode() + _PYC_HEADER
    folder = os.path.join(home, "agent", *([str(os.getuid())] if files.is_shared(home) else []))
    path = os.path.join(folder, f"{hashlib.sha256(content).hexdigest()[:12]}.pyz")
    if not os.path.exists(path):
        files.make_dir(folder)
        files.create_exclusive(path, build_agent_zip(), executable=True)
    files.refuse_untrusted(path)
    return path


@functools.lru_cache(maxsize=1)
def _shipped_modules() -> dict[str, Path]:
    """Name in the zip -> where it comes from."""
    root = Path(__file__).parent.parent
    paths = sorted({*root.glob("job/**/*.py"), *root.glob("kernel/**/*.py")} - {Path(__file__)})
    return {f"shoal_agent/{path.relative_to(root).as_posix()}": path for path in paths}


def build_agent_zip() -> bytes:
    """The zip's bytes: each module as source, and compiled for this Python, which jobs use as well.

    Another Python passes over the compiled ones. Without them every start of a rank would cost half as much again. They
    come from where Python keeps what it compiled, because the first pack of a project waits for this.
    """
    parts = {"__main__.py": _MAIN_SOURCE.encode(), "shoal_agent/__init__.py": b""}
    for name, path in _shipped_modules().items():
        parts[name] = path.read_bytes()
        parts[name + "c"] = _PYC_HEADER + marshal.dumps(SourceFileLoader(name, str(path)).get_code(name))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()
