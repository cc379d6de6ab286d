"""Sizes of instances: a number n, or, for a task on several fields of symbols, the tuple of the fields' lengths.

Tensors hold one number for each instance. So a tuple has a number that stands for it, above all sizes n. The remainder
modulo `SHAPES` is the size n of the tuple, which training ranges and tables are about: usually the largest length.
Whatever
tells tuples from numbers is in this module; a task (`lengthlens.tasks.fields.FieldsTask`) keeps the `Tuples` that it
has numbered.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lengthlens.errors import UserError

Ints: TypeAlias = NDArray[np.int64]
Lengths: TypeAlias = tuple[int, ...]
SHAPES = 1 << 32  # more than any size n


def size_of(scale: Any) -> Any:
    """n itself, or the size of the tuple that a number stands for. Of numbers, arrays and tensors."""
    return scale % SHAPES


class Tuples:
    """The tuples of lengths that a task has met, numbered in the order in which it met them.

    The numbers mean nothing to another task, nor in another process. Copies of the task share them.

    >>> known = Tuples()
    >>> number = known.number((3, 5))
    >>> size_of(number), known.lengths(number), known.number((3, 5)) == number
    (5, (3, 5), True)
    """

    def __init__(self, size: Callable[[Lengths], int] = max) -> None:
        self._size = size  # of a tuple, which is its number modulo `SHAPES`
        self._lengths: list[Lengths] = [()]  # at k the tuple whose number is k·SHAPES + n
        self._numbers: dict[Lengths, int] = {}

    def number(self, lengths: Lengths) -> int:
        """The number that stands for a tuple of lengths."""
        if lengths not in self._numbers:
            self._numbers[lengths] = len(self._lengths) * SHAPES + self._size(lengths)
            self._lengths.append(lengths)
        return self._numbers[lengths]

    def lengths(self, number: int) -> Lengths:
        """The tuple that a number stands for."""
        if number // SHAPES >= len(self._lengths):
            raise UserError(f"{number} is the number of a tuple of lengths that this task has not met")
        return self._lengths[number // SHAPES]

    def __deepcopy__(self, memo: object) -> "Tuples":
        return self


def tuple_in_words(lengths: Lengths) -> str:
    """As it is written on the command line.

    >>> tuple_in_words((3, 5)), tuple_in_words((200,) * 20)
    ('3:5', '20x200')
    """
    same = len(set(lengths)) == 1
    return f"{len(lengths)}x{lengths[0]}" if same else ":".join(map(str, lengths))
