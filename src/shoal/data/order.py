"""Orders that need no memory: a seeded permutation of any length whose value at any place is computed, not stored.

A Feistel network over the smallest power of four that holds the range, walked until the value falls into it. So an
epoch of a billion samples begins, and resumes anywhere, at once, and every rank and worker computes the same order.
The order for (length, seed, epoch) is part of the format: it must never change, since resumed trainings rely on it.
"""

from __future__ import annotations

from typing import Any

from shoal.data import needs

_FEISTEL_ROUNDS = 6
_MASK_64 = (1 << 64) - 1


class Permutation:
    """A permutation of range(length). `at(positions)` takes and gives arrays of int64."""

    def __init__(self, length: int, *words: int) -> None:
        self.length = length
        self._half = max(1, ((max(length, 2) - 1).bit_length() + 1) // 2)
        key = 0x9E3779B97F4A7C15
        keys = []
        for word in (*words, *range(_FEISTEL_ROUNDS)):
            key = _splitmix64(key ^ _splitmix64(word & _MASK_64))
            keys.append(key)
        self._keys = keys[-_FEISTEL_ROUNDS:]

    def at(self, positions: Any) -> Any:
        np = needs.numpy()
        values = self._permute_once(np.asarray(positions, dtype=np.uint64))
        outside = np.flatnonzero(values >= self.length)
        while len(outside):
            moved = self._permute_once(values[outside])
            values[outside] = moved
            outside = outside[moved >= self.length]
        return values.astype(np.int64)

    def _permute_once(self, values: Any) -> Any:
        np = needs.numpy()
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = values >> half, values & mask
        for key in self._keys:
            mixed = (right + np.uint64(key)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed >> np.uint64(33)) & mask)
        return (left << half) | right


def _splitmix64(word: int) -> int:
    """One step of splitmix64: neighbouring seeds give unrelated keys."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK_64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return word ^ (word >> 31)
