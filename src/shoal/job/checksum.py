"""CRC-32 as zlib has it; where the package isal is installed (`pip install 'shoal[data]'`), ten times as fast."""

from typing import Callable


def _choose_crc32() -> "Callable[..., int]":
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return crc32


crc32 = _choose_crc32()
