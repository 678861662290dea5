"""The bytes of a batch script as lines, in whatever encoding they come; nothing is refused here, only described."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import NamedTuple

#: Slurm's default max_script_size; a longer script is refused by the controller.
SLURM_MAX_BYTES = 4 * 1024 * 1024
#: Beyond this the text is generated, and reading it would take longer than people wait; directives stand at the top.
MAX_BYTES = 512 * 1024

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class ScriptText(NamedTuple):
    """`encoding` is utf-8, utf-8-sig, utf-16, latin-1 or binary; lines of a binary file are not given."""

    lines: tuple[str, ...]
    encoding: str
    size: int
    cut: bool = False
    crlf: int = 0
    first_crlf: int = 0
    has_nul: bool = False

    @property
    def body(self) -> str:
        return "\n".join(self.lines)


def read_text(path: Path) -> ScriptText:
    """The text of a file; OSError when it cannot be read, never anything else."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES)
        size = len(data) if len(data) < MAX_BYTES else path.stat().st_size
    return decode_text(data, size)


def decode_text(data: bytes, size: int | None = None) -> ScriptText:
    """Describe bytes; `size` is the whole file's when `data` is its beginning."""
    size = len(data) if size is None else size
    cut = size > len(data)
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), None) or _guess_encoding(data)
    if encoding == "binary":
        return ScriptText((), encoding, size, cut, has_nul=b"\0" in data)
    text = data.decode(encoding, "replace")
    if cut:
        text = text[: text.rfind("\n") + 1]
    ends_crlf = [number for number, line in enumerate(text.split("\n"), start=1) if line.endswith("\r")]
    # Not splitlines(): a form feed or a Unicode separator does not end a line for sbatch or bash.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    return ScriptText(
        tuple(lines), encoding, size, cut, len(ends_crlf), ends_crlf[0] if ends_crlf else 0, b"\0" in data
    )


def _guess_encoding(data: bytes) -> str:
    head = data[:4096]
    nuls = head.count(b"\0")
    if nuls:
        # Text in UTF-16 has a NUL in every second byte; a program has them in runs.
        odd, even = head[1::2].count(b"\0"), head[::2].count(b"\0")
        if nuls * 3 > len(head) and min(odd, even) * 8 < nuls:
            return "utf-16-le" if odd > even else "utf-16-be"
        return "binary"
    if len(_CONTROL.findall(head)) * 20 > len(head) > 0:
        return "binary"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        # A cut inside a character at the end is not another encoding.
        return "utf-8" if error.start > len(data) - 4 else "latin-1"
    return "utf-8"
