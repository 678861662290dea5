"""CRC-32 of a whole file from the CRCs of its pieces, without reading a byte twice.

zlib's CRC is linear: crc(A + B) = shift(crc(A), len(B)) xor crc(B), where shift multiplies by x^(8 len) modulo the
polynomial. So the checksums of a shard's records, which the index keeps, give the checksum of the shard, which the
manifest keeps and every copy is compared with. One pass does both; any Python on any node can check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from shoal.data import needs

_POLYNOMIAL = 0xEDB88320


def combine_crcs(pieces: Sequence[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of pieces given as (crc, length)."""
    np = needs.numpy()
    if not pieces:
        return 0
    crcs = np.fromiter((crc for crc, _ in pieces), dtype=np.uint32, count=len(pieces))
    lengths = np.fromiter((length for _, length in pieces), dtype=np.int64, count=len(pieces))
    behind = int(lengths.sum()) - np.cumsum(lengths)
    for bit in range(int(behind[0]).bit_length()):
        odd = np.flatnonzero(behind >> bit & 1)
        crcs[odd] = _multiply(crcs[odd], _byte_products(bit))
    return int(np.bitwise_xor.reduce(crcs))


def _multiply(values: Any, table: Any) -> Any:
    """Each value times the factor of a table: the product is the sum of the products of its four bytes."""
    return table[0][values & 255] ^ table[1][values >> 8 & 255] ^ table[2][values >> 16 & 255] ^ table[3][values >> 24]


@cache
def _byte_products(bit: int) -> Any:
    """Products of every byte, in each of the four places, with x^(8 * 2^bit) modulo the polynomial."""
    np = needs.numpy()
    table = np.zeros((4, 256), dtype=np.uint32)
    product = _shift_factor(bit)
    for place in range(31, -1, -1):  # In CRC-32's notation the highest bit is x^0, and shifting down multiplies by x.
        byte, power = divmod(place, 8)
        table[byte, 1 << power] = product
        product = product >> 1 ^ (_POLYNOMIAL if product & 1 else 0)
    for power in range(8):
        table[:, (1 << power) + 1 : 2 << power] = table[:, 1 : 1 << power] ^ table[:, 1 << power, None]
    return table


@cache
def _shift_factor(bit: int) -> int:
    """x^(8 * 2^bit): the square of the one before, beginning with x^8."""
    if bit == 0:
        return 1 << 23
    before = _shift_factor(bit - 1)
    return int(_multiply(needs.numpy().array([before], dtype="uint32"), _byte_products(bit - 1))[0])
