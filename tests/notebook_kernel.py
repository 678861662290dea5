"""A real Jupyter kernel that executes cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager


class Kernel:
    """A real Jupyter kernel; `run` executes a cell and returns what it showed."""

    def __init__(self, cwd: Path) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel(cwd=str(cwd))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, cell: str) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = []
        reply = self.client.execute_interactive(cell, timeout=180, output_hook=shown.append)
        assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", []))
        return [
            {"type": message["msg_type"], **message["content"]} for message in shown if message["msg_type"] != "status"
        ]

    def value(self, cell: str) -> str:
        """The text of a cell's last expression."""
        (found,) = (one for one in self.run(cell) if one["type"] == "execute_result")
        return str(found["data"]["text/plain"])

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
