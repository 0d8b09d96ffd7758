"""How often each row failed: a small number for few rows among very many, as the bits of all numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from pyroaring import BitMap64

from mq_broker.core.model.selection import offsets_array, range_bitmap

_BITS: Final = 8
#: Counts stop here.
COUNT_MAX: Final = (1 << _BITS) - 1


class RowCounts:
    """Counts by offset, 0 for most.

    `bits[k]` holds the offsets whose count has bit k: to count one more costs the same at the first and at
    the hundredth time. The bitmaps are never changed: whoever holds `bits` keeps the counts of that moment.
    """

    __slots__ = ("bits",)

    def __init__(self, bits: Iterable[BitMap64] = ()) -> None:
        self.bits: tuple[BitMap64, ...] = tuple(bits)

    def add(self, offsets: BitMap64, times: int = 1) -> None:
        """Adds `times` to the count of each of these rows, up to `COUNT_MAX`."""
        times = min(times, COUNT_MAX)
        bits, over = list(self.bits), BitMap64()
        for first in range(times.bit_length()):
            carry = offsets if times >> first & 1 else BitMap64()
            for at in range(first, _BITS):
                if not carry:
                    break
                bits += [BitMap64()] * (at + 1 - len(bits))
                bits[at], carry = bits[at] ^ carry, bits[at] & carry
            over |= carry
        self.bits = tuple(known | over for known in bits) if over else tuple(bits)

    def restore(self, bit: int, offsets: BitMap64) -> None:
        """Takes one bit of some rows from a snapshot."""
        bits = [*self.bits, *([BitMap64()] * (bit + 1 - len(self.bits)))]
        bits[bit] = bits[bit] | offsets
        self.bits = tuple(bits)

    def forget(self, offsets: BitMap64) -> None:
        """Makes the counts of these rows 0."""
        if self.bits:
            left = [known - offsets for known in self.bits]
            while left and not left[-1]:
                left.pop()
            self.bits = tuple(left)


def counts_of(bits: Iterable[BitMap64], offsets: np.ndarray) -> np.ndarray:
    """Returns the count of each of some ascending offsets."""
    counts = np.zeros(len(offsets), np.int64)
    low, high = int(offsets[0]), int(offsets[-1]) + 1
    for at, known in enumerate(bits):
        if known.range_cardinality(low, high):
            within = offsets_array(known & range_bitmap(low, high))
            counts += np.isin(offsets, within, assume_unique=True).astype(np.int64) << at
    return counts
