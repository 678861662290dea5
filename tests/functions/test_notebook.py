"""The tutorial notebook in a real Jupyter kernel on this machine: every cell shows what the page shows."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from notebook_kernel import Kernel

pytestmark = pytest.mark.slow
NOTEBOOK = Path(__file__).parents[2] / "docs/tutorial-notebook.ipynb"
ACCEPT = "SHOAL_ACCEPT=1 .venv/bin/pytest tests/functions/test_notebook.py"


def test_the_tutorial_notebook_shows_what_its_cells_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "tutorial.ipynb")
    monkeypatch.setenv("SHOAL_ON", "local")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    promised = [cell["outputs"] for cell in cells]
    kernel = Kernel(tmp_path)
    try:
        for cell in cells:
            cell["outputs"] = _outputs(kernel.run(cell["source"]))
    finally:
        kernel.close()
    if os.environ.get("SHOAL_ACCEPT"):
        NOTEBOOK.write_text(json.dumps(notebook, indent=1) + "\n")
    else:
        assert [cell["outputs"] for cell in cells] == promised, f"to accept: {ACCEPT}"
    assert sum(map(bool, promised)) >= 8, "the page shows results"


def test_two_kernels_that_execute_one_cell_at_once_share_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "study.ipynb")
    monkeypatch.setenv("SHOAL_ON", "local")
    marks = tmp_path / "marks"
    cell = (
        f"import shoal\ndef note(values):\n    with open({str(marks)!r}, 'a') as file:\n        file.write('x')\n"
        "    return sorted(values)\nrun = shoal.submit(note, {'b', 'a', 'c'})\nrun.result(120), run.attempts, run.name"
    )
    kernels = [Kernel(tmp_path), Kernel(tmp_path)]
    try:
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(lambda kernel: kernel.value(cell), kernels)
    finally:
        for kernel in kernels:
            kernel.close()
    assert one == other and one.startswith("(['a', 'b', 'c'], 1, 'study/note_values-") and marks.read_text() == "x"


def _outputs(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a cell showed, as a notebook file keeps it: one stream, however it came, and the text of other forms."""
    texts = [one["text"].replace("\r\n", "\n") for one in messages if one["type"] == "stream"]
    values = [one["data"]["text/plain"] for one in messages if one["type"] == "execute_result"]
    streams = [{"output_type": "stream", "name": "stdout", "text": "".join(texts)}] if texts else []
    rest: dict[str, Any] = {"output_type": "execute_result", "metadata": {}, "execution_count": None}
    return streams + [{**rest, "data": {"text/plain": value}} for value in values]
