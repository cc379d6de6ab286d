"""Codes as single numbers, so that a billion of them can be compared with those of the sources in seconds."""

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lengthlens.models.codes import Ints

Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[Any]  # integers of 64 or 32 bits


class Hash:
    """Codes as single numbers, different for all the codes given: what differs in hash is a different code."""

    def __init__(self, codes: Codes) -> None:
        """`codes` [code, component], all different; the numbers are as wide as their components."""
        self.codes = codes
        self.factors: Codes | None = None
        rng, half = np.random.default_rng(0), 2 ** (8 * codes.itemsize - 2)
        of_codes = self(codes)
        while codes.shape[1] > 1 and (self.factors is None or len(np.unique(of_codes)) < len(codes)):
            self.factors = (rng.integers(-half, half, codes.shape[1]) | 1).astype(codes.dtype)
            of_codes = self(codes)
        self.of_codes = of_codes  # [code]
        self.order = np.argsort(of_codes)
        self.sorted = of_codes[self.order]

    def __call__(self, codes: Codes) -> Codes:
        """[*, component] to [*]"""
        if self.factors is None:  # one component: the codes are numbers already
            return codes[..., 0]
        total = codes[..., 0] * self.factors[0]  # wraps around, and may
        for k in range(1, codes.shape[-1]):
            total += codes[..., k] * self.factors[k]
        return np.asarray(total)

    @cached_property
    def table(self) -> Bools:
        """Which buckets hold a code, at least sixteen times as many as codes: a sieve in front of the search."""
        table = np.zeros(1 << max(16, (16 * len(self.sorted)).bit_length()), dtype=np.bool_)
        table[bucket(self.sorted, len(table))] = True
        return table

    def known(self, hashes: Codes) -> Bools:
        """Which hashes are those of the codes."""
        if len(self.sorted) <= 6:
            found = np.zeros(hashes.shape, dtype=np.bool_)
            for one in self.sorted:
                found |= hashes == one
            return found
        found = self.table[bucket(hashes, len(self.table))]
        rest = hashes[found]
        found[found] = self.sorted[self.place(rest)] == rest
        return found

    def place(self, hashes: Codes) -> Ints:
        return np.minimum(np.searchsorted(self.sorted, hashes), len(self.sorted) - 1)

    def index(self, codes: Codes) -> Ints:
        """Which of the codes each row of `codes` [row, component] is, or −1."""
        index = self.order[self.place(self(codes))]
        return np.where((self.codes[index] == codes).all(1), index, -1)


def bucket(hashes: Codes, buckets: int) -> Codes:
    """The upper bits of a product with an odd number, for hashes of 32 or 64 bits and a power of two of buckets."""
    shift = 8 * hashes.itemsize - (buckets.bit_length() - 1)
    if hashes.itemsize == 4:
        return np.asarray((hashes.view(np.uint32) * np.uint32(2654435769)) >> np.uint32(shift))
    return np.asarray((hashes.view(np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(shift))
