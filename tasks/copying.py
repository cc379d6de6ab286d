"""Tasks that move symbols: every answer token is a copy of one earlier token, so its position says everything."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lengthlens.tasks.circuit import Circuit, Layout, Line, Operator, StepRange, along
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import BEGIN, END, Task

DIGITS = tuple("0123456789")
# Repeat a symbol; stop where the reading head has run out of the string, at either edge.
COPY = Operator("copy", 1, lambda token: END if token in ("=", BEGIN) else token)


@dataclass(frozen=True)
class _Copying(Task):
    """Answer, circuit and coupling follow from the sources."""

    programs = ()
    family = "position-addressed"
    symbols: tuple[str, ...] = DIGITS

    @abstractmethod
    def sources(self, scale: int) -> Ints:
        """The position that each answer token is copied from; the end token from an edge of the string. [answer]"""

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs[:, torch.from_numpy(self.sources(scale)[:-1] - 1)]

    def reading(self) -> Sequence[tuple[Line, Line]]:
        """The same at all sizes at once, in parts: a source, and the last query that reads it."""
        return []

    def layout(self) -> Layout | None:
        steps, first = [], Line(0, 1, 1)
        for source, last in self.reading():
            steps.append(StepRange(COPY.name, first, last, (source,)))
            first = last._replace(constant=last.constant + 1)
        return (
            Layout(along("="), Line(0, 1, 2), first._replace(constant=first.constant + 1), tuple(steps))
            if steps
            else None
        )

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        sources = self.sources(scale)
        return Circuit.of(COPY, scale + 1 + np.arange(len(sources)), sources)

    def coupled_answer(self, scale: int) -> Ints:
        return self.sources(scale)


class Copy(_Copying):
    """The string again. ``^ 7 3 = 7 3 $``: each token is read n back, and n back from the last query stands ``=``."""

    name, summary = "copy", "the string again"

    def sources(self, scale: int) -> Ints:
        return np.arange(1, scale + 2)

    def reading(self) -> Sequence[tuple[Line, Line]]:
        return [(Line(1, -1), Line(0, 2, 1))]


@dataclass(frozen=True)
class RepeatCopy(Copy):
    """The string again, of two letters, so that what stands near a symbol does not tell its place."""

    name, summary = "repeat-copy", "a string of two letters again"
    symbols: tuple[str, ...] = ("a", "b")


class Reverse(_Copying):
    """The string backwards. ``^ 7 3 = 3 7 $``: query i reads position 2n+1−i, and in the end that is ``^``."""

    name, summary = "reverse", "the string backwards"

    def sources(self, scale: int) -> Ints:
        return np.arange(scale, -1, -1)

    def reading(self) -> Sequence[tuple[Line, Line]]:
        return [(Line(-1, 2, 1), Line(0, 2, 1))]


@dataclass(frozen=True)
class Shift(_Copying):
    """The string rotated left by `by`. With by = 1, ``^ 7 3 5 = 3 5 7 $``."""

    name, summary = "shift", "the string, rotated left by one"
    by: int = 1

    def sources(self, scale: int) -> Ints:
        return np.append(1 + (np.arange(scale) + self.by) % scale, scale + 1)

    def reading(self) -> Sequence[tuple[Line, Line]]:
        before_the_wrap = Line(1, -1, self.by), Line(0, 2, -self.by)
        return [before_the_wrap, (Line(1, -2, self.by), Line(0, 2)), (Line(0, 1, 1), Line(0, 2, 1))]

    def layout(self) -> Layout | None:
        layout = super().layout() if self.by >= 0 else None
        return layout and replace(layout, since=max(1, self.by))  # shorter strings are rotated more than once

    def coupled_answer(self, scale: int) -> Ints:
        return np.append(self.sources(scale)[:-1], 0)


class Duplicate(_Copying):
    """The string twice. ``^ 7 3 = 7 3 7 3 $``."""

    name, summary = "duplicate", "the string twice"

    def answer_length(self, scale: int) -> int:
        return 2 * scale + 1

    def sources(self, scale: int) -> Ints:
        return np.append(1 + np.arange(2 * scale) % scale, scale + 1)

    def reading(self) -> Sequence[tuple[Line, Line]]:
        return [(Line(1, -1), Line(0, 2)), (Line(1, -2), Line(0, 3)), (Line(0, 1, 1), Line(0, 3, 1))]


@dataclass(frozen=True)
class NBack(_Copying):
    """The symbol `back` before the last. With back = 2, ``^ 7 3 5 1 = 3 $``."""

    name, summary = "n-back", "the symbol two before the last"
    min_scale: int = 3
    back: int = 2

    def answer_length(self, scale: int) -> int:
        return 2

    def sources(self, scale: int) -> Ints:
        return np.array([scale - self.back, scale + 1])

    def reading(self) -> Sequence[tuple[Line, Line]]:
        return [(Line(1, 0, -1 - self.back), Line(0, 1, 1)), (Line(0, 1, 1), Line(0, 1, 2))]

    def layout(self) -> Layout | None:
        layout = super().layout()
        return layout and replace(layout, since=self.min_scale)
