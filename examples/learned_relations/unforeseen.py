"""Tasks that no scheme and no recipe was made for: five written by hand, and any number drawn at random.

They are not in `TASKS` until they are registered, as the plug-in tasks.py beside this file does with the five and with
twenty drawn ones. All are position-addressed; on their sources some form a·i + b·j + c·n + d is constant,
with |a|, |b| ≤ 2 and |c| ≤ 4.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthlens.tasks.arithmetic import Addition, value
from lengthlens.tasks.circuit import Circuit, Layout, Line, Operator, StepRange, along
from lengthlens.tasks.copying import COPY, DIGITS, _Copying
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import END, Task


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
        steps = StepRange(DIFFER.name, Line(0, 1, 1), Line(0, 2, 1), (Line(1, -1), Line(1, -1, -1)))
        return Layout(along("="), Line(0, 1, 2), Line(0, 2, 3), (steps,))


class AdditionBase7(Addition):
    """Addition of numbers to the base 7, lowest digit first. 26 + 51 = 110: ``^ 6 2 + 1 5 = 0 1 1 $``."""

    name, summary = "addition-base-7", "the sum of two numbers of n digits to the base 7, lowest digit first"

    def __init__(self) -> None:
        super().__init__(DIGITS[:7])


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
        steps = StepRange(COPY.name, Line(0, 2, 1), Line(0, 3, 1), (Line(2, -4, -1),))
        return Layout((("^", Line()), ("=", Line(0, 2, 1))), Line(0, 2, 2), Line(0, 3, 3), (steps,))

    def coupled_answer(self, scale: int) -> Ints:
        return self.sources(scale)


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
        return torch.stack([inputs[:, :scale], inputs[:, scale:]], 2).flatten(1)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        query = 2 * scale + 2 + np.arange(2 * scale + 1)
        take = Operator("copy", 1, lambda token: END if token == "|" else token)
        return Circuit.of(take, query, np.where(query % 2, (query + 1) // 2, query // 2 - scale))


# -- drawn at random ---------------------------------------------------------------------------------------------------

WINDOW = 3  # constants of the forms of which sources are drawn
LOOKED_AT = range(1, 25)  # scales at which a source must be there, at every step
REHEARSED = 10, 40  # what occurs at the larger scale must have been common at the smaller one …
COMMON = 0.002  # … that is, at this share of steps


class Source(NamedTuple):
    """The keys j with a·i + b·j + c·n = value: where that is a position, and what stands there if it is not."""

    form: tuple[int, int, int]  # a, b, c
    value: int

    def at(self, query: Ints, scale: Ints | int) -> Ints:
        """The position at each query, −1 where there is none. [query]"""
        a, b, c = self.form
        times_b = self.value - a * query - c * scale
        key = times_b // b
        return np.where((key * b == times_b) & (key >= 0) & (key <= query), key, -1)

    @property
    def line(self) -> Line | None:
        """The same at all scales at once; None if it is only there at queries of one residue."""
        (a, b, c), value = self.form, self.value
        return Line(-b * a, -b * c, b * value) if abs(b) == 1 else None


Operand = tuple[Source, ...]  # of several, the one that is there counts


class Pattern(NamedTuple):
    """How an instance is laid out, and its first operand, which comes upon a mark where the answer ends."""

    strings: int  # of n symbols each
    divided: bool  # by a mark
    turns: int  # answer tokens, in units of n
    first: Operand

    def equals(self, scale: int) -> int:
        """The position of ``=``."""
        return self.strings * scale + 1 + self.divided

    def queries(self, scale: int) -> Ints:
        """Those of all answer tokens, ``$`` included."""
        return self.equals(scale) + np.arange(self.turns * scale + 1)


PATTERNS = (
    Pattern(1, False, 1, (Source((1, -1, -1), 0),)),  # the string, forwards
    Pattern(1, False, 1, (Source((1, 1, -2), 1),)),  # backwards
    Pattern(2, True, 1, (Source((1, -1, -2), 1),)),  # the first of two, forwards
    Pattern(2, True, 1, (Source((1, -1, -1), 0),)),  # the second, forwards
    Pattern(2, True, 1, (Source((1, 1, -4), 3),)),  # the second, backwards
    Pattern(2, False, 1, (Source((2, -1, -4), 1),)),  # every second symbol
    Pattern(2, True, 2, (Source((1, -2, -2), 0), Source((1, -2, 0), -1))),  # both, by turns
)


def sources_at(operand: Operand, query: Ints, scale: int) -> Ints:
    """The position that an operand reads at each query, −1 where there is none. [query]"""
    found: Ints = np.max([source.at(query, scale) for source in operand], axis=0)
    return found


@cache
def operands_of(pattern: Pattern) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """All operands that are there at every step: those of one form, and pairs of forms with 2j that take turns."""
    forms = itertools.product(range(3), (1, -1, 2, -2), range(-4, 5))
    distinct = [(a, b, c) for a, b, c in forms if (a or b > 0) and any(x % 2 for x in (a, b, c))]
    sources = [Source(form, value) for form in distinct for value in range(-WINDOW, WINDOW + 1)]
    query = np.concatenate([pattern.queries(n) for n in LOOKED_AT])
    scale = np.concatenate([np.full(len(pattern.queries(n)), n) for n in LOOKED_AT])
    keys = np.stack([source.at(query, scale) for source in sources])  # [source, step]
    moves = np.ptp(keys[:, scale == max(LOOKED_AT)], axis=1) > 0  # else it reads one token again and again
    missing = (keys < 0).astype(np.float32)
    both_missing = missing @ missing.T
    alone = tuple((sources[k],) for k in np.flatnonzero((keys >= 0).all(1) & moves))
    half = np.array([abs(source.form[1]) == 2 for source in sources])
    pairs = np.argwhere(np.triu((both_missing == 0) & half & half[:, None], 1))
    return alone, tuple((sources[one], sources[other]) for one, other in pairs)


class DrawnTask(Task):
    """A random function of one to three tokens that stand at random places: all follows from the seed.

    The layout and the first operand are one of `PATTERNS`; further operands are forms, or pairs of forms with 2j, that
    are there at every step; they may read the answer so far. Marks count as one more symbol to the function, except
    that the answer ends where the first operand reads one. Drawn again until every operand matters, and until no row of
    the function's table occurs at n = 40 that is not common at n = 10: else the task could not be learned from there.

    >>> task = DrawnTask(3)
    >>> task.name, task.render(task.sample(2, 1, torch.Generator().manual_seed(0)).tokens[0])
    ('drawn-3', '^ c a = c c $')
    """

    family = "position-addressed"

    def __init__(self, seed: int) -> None:
        self.seed, self.name = seed, f"drawn-{seed}"  # type: ignore[misc]
        self.summary = f"random function number {seed} of tokens at random places"  # type: ignore[misc]
        draws = np.random.default_rng([16, seed])
        while not self._draw(draws):
            pass

    def _draw(self, draws: np.random.Generator) -> bool:
        """Draw all that the task consists of; whether it can be had."""
        self.__dict__.pop("vocab", None), self.__dict__.pop("ids", None)
        arity = int(draws.integers(1, 4))
        self.pattern = PATTERNS[draws.integers(len(PATTERNS))]
        self.marks = ("|", "=") if self.pattern.divided else ("=",)  # type: ignore[misc]
        self.symbols = tuple("abcdefgh"[: draws.integers(2, {1: 9, 2: 7, 3: 5}[arity])])
        alone, pairs = operands_of(self.pattern)
        self.operands = [self.pattern.first]
        for _ in range(arity - 1):
            kind = pairs if pairs and draws.random() < 0.25 else alone
            self.operands.append(kind[draws.integers(len(kind))])
        size = len(self.symbols)
        self.table = draws.integers(0, size, (size + 1,) * arity)
        inner = self.table[(slice(0, size),) * arity]  # without marks
        matters = all((np.diff(inner, axis=axis) != 0).any() for axis in range(arity))
        return matters and len(set(self.operands)) == arity and self._rehearsed()

    def _rehearsed(self) -> bool:
        """Whether every row of the table that occurs at the larger scale of `REHEARSED` is common at the smaller."""
        shares = []
        for scale in REHEARSED:
            inputs = self.draw(scale, 500, torch.Generator().manual_seed(0), torch.device("cpu"))
            rows = self._read(self.assemble(inputs, scale).tokens.numpy(), scale)[:, :-1]
            shares.append(np.bincount(rows.ravel(), minlength=self.table.size) / rows.size)
        return bool((shares[0][shares[1] > 0] >= COMMON).all())

    def _read(self, tokens: Ints, scale: int) -> Ints:
        """The row of the table that each step looks up, in instances [row, pos]. [row, step]"""
        query = self.pattern.queries(scale)
        places = np.stack([sources_at(operand, query, scale) for operand in self.operands])  # [operand, step]
        return np.ravel_multi_index(tuple(self._values(tokens[:, own]) for own in places), self.table.shape)

    def _values(self, tokens: Ints) -> Ints:
        """Ids as the function takes them: all marks are one."""
        return np.minimum(tokens, len(self.symbols))

    def input_length(self, scale: int) -> int:
        return self.pattern.strings * scale

    def answer_length(self, scale: int) -> int:
        return self.pattern.turns * scale + 1

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs[:, :scale], "|", inputs[:, scale:], "="] if self.pattern.divided else [inputs, "="]

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        query = self.pattern.queries(scale)[:-1]
        places = np.stack([sources_at(operand, query, scale) for operand in self.operands], 1)  # [step, operand]
        tokens = np.zeros((len(inputs), query[-1] + 2), dtype=np.int64)
        tokens[:, : query[0] + 1] = self._prompt_of(inputs.cpu(), scale).numpy()
        for i, own in zip(query, places):  # one after the other: a step may read what was written before
            tokens[:, i + 1] = self.table[tuple(self._values(tokens[:, own]).T)]
        return torch.from_numpy(tokens[:, query[0] + 1 :]).to(inputs.device)

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        query = self.pattern.queries(scale)
        sources = [sources_at(operand, query, scale) for operand in self.operands]
        return Circuit.of(Operator("look up", len(sources), self._look_up), query, *sources)

    def _look_up(self, *tokens: str) -> str:
        first = self.symbols.index(tokens[0]) if tokens[0] in self.symbols else None
        if first is None:
            return END
        place = tuple(self.symbols.index(t) if t in self.symbols else len(self.symbols) for t in tokens)
        return self.symbols[int(self.table[place])]

    def layout(self) -> Layout | None:
        if any(len(operand) > 1 for operand in self.operands):
            return None
        strings, divided, turns, _ = self.pattern
        equals = Line(0, strings, 1 + divided)
        marks = [("^", Line()), *([("|", Line(0, 1, 1))] if divided else []), ("=", equals)]
        last = Line(0, strings + turns, 1 + divided)
        read = tuple(line for operand in self.operands for source in operand if (line := source.line))
        steps = StepRange("look up", equals, last, read)
        after = Line(0, strings, 2 + divided), Line(0, strings + turns, 3 + divided)
        return Layout(tuple(marks), *after, (steps,))


BY_HAND = (PalindromeCompletion, FirstDifference, AdditionBase7, EverySecond, Interleave)
