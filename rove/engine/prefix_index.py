"""Finding the sequence that shares the longest beginning with a given one."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")
SIZE = array("I").itemsize
"""Bytes of a packed token."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences of one type share."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # a[:low] is shared, a[:high] is not
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixIndex(Generic[T]):
    """Values under token sequences, kept in dictionary order: who shares most with a sequence stands next to it.

    Sequences of different scopes share nothing, whatever their tokens.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes, int, T]] = []
        self._where: dict[T, tuple[int, bytes, int]] = {}
        self._serial = count()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, tokens: Sequence[int], value: T, scope: int = 0) -> None:
        """Put `value` (hashable) under these tokens, and under no others any more."""
        self.remove(value)
        key = (scope, _packed(tokens), next(self._serial))  # the serial number decides before values are ever compared
        self._where[value] = key
        insort(self._entries, (*key, value))

    def remove(self, value: T) -> None:
        """Forget `value`, if it is there."""
        key = self._where.pop(value, None)
        if key is not None:
            del self._entries[bisect_left(self._entries, key)]

    def nearest(self, tokens: Sequence[int], scope: int = 0) -> list[tuple[int, T]]:
        """(shared tokens, value) of the neighbours of a sequence; none shares more than the best of these."""
        wanted = _packed(tokens)
        i = bisect_left(self._entries, (scope, wanted, -1))
        near = self._entries[max(0, i - 1) : i + 1]
        return [(common_prefix(wanted, key) // SIZE, value) for other, key, _, value in near if other == scope]


def _packed(tokens: Sequence[int]) -> bytes:
    """Bytes in the same order as the tokens, and many times faster to compare."""
    packed = array("I", tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()
