"""Tasks that move symbols: every answer token is a copy of one earlier token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from lengthlens.tasks.task import BEGIN, END, Circuit, Family, Ints, Operator, Task

DIGITS = tuple("0123456789")


def copy_or_stop(token: str) -> str:
    """Repeat a symbol; stop where the reading head has run out of the string, at either edge."""
    return END if token in ("=", BEGIN) else token


COPY = Operator("copy", 1, copy_or_stop)


@dataclass(frozen=True)
class Copy(Task):
    """The string again. ``^ 7 3 = 7 3 $``: token k+n is read n back, and n behind the last symbol stands ``=``."""

    name: ClassVar[str] = "copy"
    family: ClassVar[Family] = "position-addressed"
    summary: ClassVar[str] = "the string again"
    symbols: tuple[str, ...] = DIGITS

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(1, scale + 2)
        return Circuit.of(COPY, scale + k, k)

    def coupled_answer(self, scale: int) -> Ints:
        return np.arange(1, scale + 2)


@dataclass(frozen=True)
class Reverse(Task):
    """The string backwards. ``^ 7 3 = 3 7 $``: query i reads position 2n+1−i, and in the end that is ``^``."""

    name: ClassVar[str] = "reverse"
    family: ClassVar[Family] = "position-addressed"
    summary: ClassVar[str] = "the string backwards"
    symbols: tuple[str, ...] = DIGITS

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.flip(1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(1, scale + 2)
        return Circuit.of(COPY, scale + k, scale + 1 - k)

    def coupled_answer(self, scale: int) -> Ints:
        return np.arange(scale, -1, -1)


@dataclass(frozen=True)
class Shift(Task):
    """The string rotated left by `by`. With by = 1, ``^ 7 3 5 = 3 5 7 $``."""

    name: ClassVar[str] = "shift"
    family: ClassVar[Family] = "position-addressed"
    summary: ClassVar[str] = "the string, rotated left by one"
    symbols: tuple[str, ...] = DIGITS
    by: int = 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.roll(-self.by, 1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(scale)
        sources = np.append(1 + (k + self.by) % scale, scale + 1)  # the last step reads "="
        return Circuit.of(COPY, scale + 1 + np.arange(scale + 1), sources)

    def coupled_answer(self, scale: int) -> Ints:
        return np.append(1 + (np.arange(scale) + self.by) % scale, 0)


@dataclass(frozen=True)
class Duplicate(Task):
    """The string twice. ``^ 7 3 = 7 3 7 3 $``."""

    name: ClassVar[str] = "duplicate"
    family: ClassVar[Family] = "position-addressed"
    summary: ClassVar[str] = "the string twice"
    symbols: tuple[str, ...] = DIGITS

    def answer_length(self, scale: int) -> int:
        return 2 * scale + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.repeat(1, 2)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(2 * scale)
        sources = np.append(1 + k % scale, scale + 1)  # the last step reads "="
        return Circuit.of(COPY, scale + 1 + np.arange(2 * scale + 1), sources)

    def coupled_answer(self, scale: int) -> Ints:
        return np.append(1 + np.arange(2 * scale) % scale, scale + 1)
