"""Tasks that no scheme and no recipe was made for: five written by hand, and any number drawn at random.

They are not in `TASKS` until this module is loaded as a plug-in, ``--plugin lengthlens.tasks.unforeseen``, or imported.
All are position-addressed, with sources on which some form a·i + b·j + c·n + d is constant, |a|, |b| ≤ 2 and |c| ≤ 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lengthlens.plugins.registry import register
from lengthlens.tasks.arithmetic import Addition
from lengthlens.tasks.copying import COPY, DIGITS, _Copying
from lengthlens.tasks.counting import value
from lengthlens.tasks.layout import Ints, Layout, Line, Stretch, along
from lengthlens.tasks.task import END, Circuit, Operator, Task


@register
class PalindromeCompletion(_Copying):
    """What makes a palindrome of a string, its last symbol in the middle. ``^ 7 3 5 = 3 7 $``."""

    name, summary = "palindrome-completion", "the string backwards, without its last symbol"

    def answer_length(self, scale: int) -> int:
        return scale

    def sources(self, scale: int) -> Ints:
        return np.arange(scale - 1, -1, -1)

    def reading(self) -> Sequence[tuple[Line, Line]]:
        return [(Line(-1, 2), Line(0, 2))]


def differ(x: str, x_before: str) -> str:
    """A digit less the one before it, modulo ten; at the first one nothing is taken off.

    >>> differ("3", "7"), differ("7", "^")
    ('6', '7')
    """
    return END if x == "=" else str((value(x) - value(x_before)) % 10)


DIFFER = Operator("subtract", 2, differ)


@register
@dataclass(frozen=True)
class FirstDifference(Task):
    """Every digit less the one before it. ``^ 7 3 = 7 6 $``."""

    name, family, summary = "first-difference", "position-addressed", "every digit less the one before it, modulo ten"
    symbols: tuple[str, ...] = DIGITS
    coupled_from = 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return (inputs - torch.nn.functional.pad(inputs, (1, -1))) % 10

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        k = np.arange(1, scale + 2)
        return Circuit.of(DIFFER, scale + k, k, k - 1)

    def layout(self) -> Layout | None:
        steps = Stretch(DIFFER.name, Line(0, 1, 1), Line(0, 2, 1), (Line(1, -1), Line(1, -1, -1)))
        return Layout(along("="), Line(0, 1, 2), Line(0, 2, 3), (steps,))


@register
class AdditionBase7(Addition):
    """Addition of numbers to the base 7, lowest digit first. 26 + 51 = 110: ``^ 6 2 + 1 5 = 0 1 1 $``."""

    name, summary = "addition-base-7", "the sum of two numbers of n digits to the base 7, lowest digit first"

    def __init__(self) -> None:
        super().__init__(DIGITS[:7])


@register
class EverySecond(_Copying):
    """The first symbol of each of n pairs. ``^ 7 3 5 1 = 7 5 $``: query i reads position 2i−4n−1."""

    name, summary = "every-second", "every second symbol of a string of 2n"

    def input_length(self, scale: int) -> int:
        return 2 * scale

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs, "="]

    def sources(self, scale: int) -> Ints:
        return 1 + 2 * np.arange(scale + 1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        return Circuit.of(COPY, 2 * scale + 1 + np.arange(scale + 1), self.sources(scale))

    def layout(self) -> Layout | None:
        steps = Stretch(COPY.name, Line(0, 2, 1), Line(0, 3, 1), (Line(2, -4, -1),))
        return Layout((("^", Line()), ("=", Line(0, 2, 1))), Line(0, 2, 2), Line(0, 3, 3), (steps,))

    def coupled_answer(self, scale: int) -> Ints:
        return self.sources(scale)


@register
@dataclass(frozen=True)
class Interleave(Task):
    """Two strings of n, by turns. ``^ 7 3 | 5 1 = 7 5 3 1 $``: query i reads i/2 − n where i is even, else (i+1)/2."""

    name, family, summary = "interleave", "position-addressed", "two strings of n symbols, by turns"
    symbols: tuple[str, ...] = DIGITS
    marks = ("|", "=")

    def input_length(self, scale: int) -> int:
        return 2 * scale

    def answer_length(self, scale: int) -> int:
        return 2 * scale + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.unflatten(1, (2, scale)).mT.flatten(1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        query = 2 * scale + 2 + np.arange(2 * scale + 1)
        take = Operator("copy", 1, lambda token: END if token == "|" else token)
        return Circuit.of(take, query, np.where(query % 2, (query + 1) // 2, query // 2 - scale))
