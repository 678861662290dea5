"""Make the pictures in docs/images/ from real runs: python docs/make_pictures.py."""

from __future__ import annotations

import os
import pty
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
SHOAL = Path(sys.executable).with_name("shoal")
COLUMNS = 118


def record(argv: list[str]) -> str:
    """What a program shows on a terminal of our width."""
    said = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(COLUMNS=str(COLUMNS), LINES="60", TERM="xterm-256color")
        os.execv(argv[0], argv)
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        said += data
    os.waitpid(pid, 0)
    return said.decode("utf-8", "replace").replace("\r\n", "\n")


def picture(name: str, title: str, text: str) -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text))
        svg = console.export_svg(title=title, unique_id=name)
    # The fonts would be fetched from the network; a browser's own do as well.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (HERE / "images" / f"{name}.svg").write_text(svg)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    try:
        text = record([str(SHOAL), "demo", "--dir", str(folder / "lead")])
    finally:
        shutil.rmtree(folder)
    text = text.replace(str(folder / "lead"), "~/lead").replace(str(SHOAL), "shoal")
    lines = text.strip().split("\n")
    # The middle is more of the same: two seeds and two evaluations.
    start = next(number for number, line in enumerate(lines) if "run 001_example/011_posttrain1_1," in line)
    end = next(number for number, line in enumerate(lines) if "run 001_example/022_evaluate1_2," in line)
    picture("demo", "make demo", "\n".join([*lines[:start], "  ...", *lines[end:]]))


if __name__ == "__main__":
    main()
