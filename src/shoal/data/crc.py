"""CRC-32 of a whole file from the CRCs of its pieces, without reading a byte twice.

zlib's CRC is linear: crc(A + B) = shift(crc(A), len(B)) xor crc(B), where shift multiplies by x^(8 len) modulo the
polynomial. So the checksums of a shard's records, which the index keeps, give the checksum of the shard, which the
manifest keeps and every copy is compared with. One pass at 4 GB/s does both; any Python on any node can check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.data import needs

_POLYNOMIAL = 0xEDB88320


def combine(pieces: Sequence[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of pieces given as (crc, length)."""
    np = needs.numpy()
    if not pieces:
        return 0
    crcs = np.fromiter((crc for crc, _ in pieces), dtype=np.uint32, count=len(pieces))
    lengths = np.fromiter((length for _, length in pieces), dtype=np.uint64, count=len(pieces))
    behind = int(lengths.sum()) - np.cumsum(lengths)
    power = _x_to_8()
    while behind.any():
        odd = (behind & np.uint64(1)).astype(bool)
        crcs[odd] = _times(crcs[odd], power)
        power = int(_times(np.array([power], dtype=np.uint32), power)[0])
        behind >>= np.uint64(1)
    return int(np.bitwise_xor.reduce(crcs))


def _x_to_8() -> int:
    """x^8 in the reflected notation of CRC-32, where the highest bit is x^0."""
    return 1 << 23


def _times(values: Any, factor: int) -> Any:
    """Each value times the factor, modulo the polynomial: shift and add, one bit of the factor after the other."""
    np = needs.numpy()
    rest = np.asarray(values, dtype=np.uint32).copy()
    total = np.zeros_like(rest)
    for bit in range(31, -1, -1):
        if factor >> bit & 1:
            total ^= rest
        rest = (rest >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) * (rest & np.uint32(1)))
    return total
