"""Codes of a position relation as arrays: numbered, so that they can be counted and compared."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def numbered(codes: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of `codes` [row, component], and for each row which of them it is.

    Exact, and much faster than sorting whole rows: columns are folded into one number two at a time.

    >>> distinct, which = numbered(np.array([[5, 0], [7, 1], [5, 0]]))
    >>> distinct.tolist(), which.tolist()
    ([[5, 0], [7, 1]], [0, 1, 0])
    """
    which = np.zeros(len(codes), dtype=np.int64)
    for column in codes.T:
        values, place = np.unique(column, return_inverse=True)
        which = np.unique(which * len(values) + place, return_inverse=True)[1]
    first = np.unique(which, return_index=True)[1]
    return codes[first], which
