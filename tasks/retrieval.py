"""Content-addressed tasks: the sources of a step depend on the tokens, so every instance has its circuit.

Finding the sources is the hard part of these tasks, and SRC does not count it; that is why they are a family apart.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.tasks.circuit import Circuit, Operator
from lengthlens.tasks.copying import COPY
from lengthlens.tasks.distinct import NUMBERS, all_distinct, drawn_distinct
from lengthlens.tasks.task import BEGIN, END, Task


@dataclass(frozen=True)
class _ContentAddressed(Task):
    """A task whose circuit needs the instance; a subclass says its sources."""

    family = "content-addressed"
    operator: ClassVar[Operator] = COPY  # writes every token of the answer

    @abstractmethod
    def sources(self, scale: int, tokens: list[str]) -> list[int]:
        """The position that each answer token is read from; the end token too."""

    def circuit(self, scale: int, tokens: Sequence[str] | None = None) -> Circuit:
        if tokens is None:
            raise UserError(f"task '{self.name}' is content-addressed: its circuit needs the tokens of the instance")
        sources = self.sources(scale, list(tokens))
        return Circuit.of(self.operator, self.prompt_length(scale) - 1 + np.arange(len(sources)), sources)


@dataclass(frozen=True)
class Sort(_ContentAddressed):
    """Distinct numbers in increasing order. ``^ 7 3 5 = 3 5 7 $``. n is at most the number of symbols."""

    name, summary = "sort", "distinct numbers in increasing order"
    programs = ("if k = 0: least(prompt); least(prompt, x[j] > x[i]) or $",)
    symbols: tuple[str, ...] = tuple(map(str, range(128)))

    @property
    def max_scale(self) -> int:  # type: ignore[override]
        return len(self.symbols)

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return drawn_distinct(len(self.symbols), scale, batch, generator, device)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & all_distinct(inputs)

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.sort(1).values

    def sources(self, scale: int, tokens: list[str]) -> list[int]:
        return [*sorted(range(1, scale + 1), key=lambda k: int(tokens[k])), scale + 1]


@dataclass(frozen=True)
class SortPublished(Sort):
    """`Sort` with as many symbols as published."""

    name, summary = "sort-150", "distinct numbers below 150 in increasing order"
    symbols: tuple[str, ...] = NUMBERS


@dataclass(frozen=True)
class Count(_ContentAddressed):
    """As many ones as the queried letter occurs, in n slots. ``^ a c a ? a = 1 1 . $``."""

    name, summary = "count", "how often a letter occurs, in strokes, filled up to n"
    programs = (
        "if x[^+k+1] = '?': write $; if count(before ?, x[j] = x[=-1]) - count(answer) = more: write 1; write .",
    )
    marks = ("?", "=", "1", ".")
    symbols: tuple[str, ...] = tuple("abcd")
    operator = Operator("tally", 1, lambda token: {"=": ".", BEGIN: END}.get(token, "1"))

    def input_length(self, scale: int) -> int:
        return scale + 1

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        count = (inputs[:, :scale] == inputs[:, scale:]).sum(1, keepdim=True)
        slots = torch.arange(scale, device=inputs.device)
        return torch.where(slots < count, self.ids["1"], self.ids["."])

    def sources(self, scale: int, tokens: list[str]) -> list[int]:
        equal = [k for k in range(1, scale + 1) if tokens[k] == tokens[scale + 2]]
        return [*equal, *[scale + 3] * (scale - len(equal)), 0]  # "=" for an empty slot, "^" to stop


@dataclass(frozen=True)
class Mode(_ContentAddressed):
    """The letter that occurs most often; the first of the alphabet in a tie. ``^ c a b c = c $``."""

    name, summary = "mode", "the most frequent letter, the first of the alphabet in a tie"
    programs = ("if k = 0: mode(prompt); write $",)
    symbols: tuple[str, ...] = tuple("abcdefgh")
    preference: ClassVar[int] = 1  # in a tie: the first symbol, or, with −1, the last

    def answer_length(self, scale: int) -> int:
        return 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        places = torch.arange(len(self.symbols), device=inputs.device)
        return (self._counts(inputs) * len(self.symbols) - self.preference * places).argmax(1, keepdim=True)

    def _counts(self, inputs: Tensor) -> Tensor:
        """How often each symbol occurs. [row, symbol]"""
        counts = torch.zeros(len(inputs), len(self.symbols), dtype=torch.long, device=inputs.device)
        return counts.scatter_add(1, inputs, torch.ones_like(inputs))

    def sources(self, scale: int, tokens: list[str]) -> list[int]:
        winner = max(self.symbols[:: self.preference], key=tokens[1 : scale + 1].count)
        return [tokens.index(winner), scale + 1]


@dataclass(frozen=True)
class Majority(Mode):
    """The bit that occurs more often; 1 if both do equally. ``^ 0 1 0 = 0 $``."""

    name, summary = "majority", "the more frequent bit, 1 in a tie"
    programs = ("if k = 0: mode>(prompt); write $",)
    symbols: tuple[str, ...] = ("0", "1")
    preference = -1


@dataclass(frozen=True)
class Induction(_ContentAddressed):
    """The letter right of the queried one, which occurs once in the string. ``^ c a b = a b $``."""

    name, summary = "induction", "the letter right of the queried one"
    programs = ("if k = 0: first(prompt, x[j-1] = x[i]); write $",)
    symbols: tuple[str, ...] = tuple(ascii_lowercase)
    min_scale: int = 2
    offset: ClassVar[int] = 1

    def input_length(self, scale: int) -> int:
        return scale + 1

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        queried = torch.randint(len(self.symbols), (batch, 1), generator=generator, device=device)
        others = torch.randint(len(self.symbols) - 1, (batch, scale), generator=generator, device=device)
        place = torch.randint(scale - 1, (batch, 1), generator=generator, device=device)
        string = others + (others >= queried).long()  # every letter but the queried one
        return torch.cat([string.scatter(1, place + max(0, -self.offset), queried), queried], 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        equal = inputs[:, :scale] == inputs[:, scale:]
        has_neighbour = equal[:, :-1] if self.offset > 0 else equal[:, 1:]
        return super().valid(inputs, scale) & (equal.sum(1) == 1) & has_neighbour.any(1)

    def answer_length(self, scale: int) -> int:
        return 2

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        place = (inputs[:, :scale] == inputs[:, scale:]).to(torch.uint8).argmax(1, keepdim=True)
        return inputs.gather(1, place + self.offset)

    def sources(self, scale: int, tokens: list[str]) -> list[int]:
        return [tokens.index(tokens[scale + 2]) + self.offset, scale + 1]


class AntiInduction(Induction):
    """The letter left of the queried one. ``^ c a b = a c $``."""

    name, summary = "anti-induction", "the letter left of the queried one"
    programs = ("if k = 0: first(prompt, x[j] = x[i])[-1]; write $",)
    offset = -1


@dataclass(frozen=True)
class RightNeighbour(Induction):
    """The symbol right of the queried one, in a string of distinct symbols. ``^ 4 9 2 = 9 2 $``."""

    name, summary = "right-neighbour", "the number right of the queried one, among distinct numbers"
    symbols: tuple[str, ...] = NUMBERS

    @property
    def max_scale(self) -> int:  # type: ignore[override]
        return len(self.symbols)

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        string = drawn_distinct(len(self.symbols), scale, batch, generator, device)
        place = torch.randint(scale - 1, (batch, 1), generator=generator, device=device) + max(0, -self.offset)
        return torch.cat([string, string.gather(1, place)], 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & all_distinct(inputs[:, :scale])


class LeftNeighbour(RightNeighbour):
    """The symbol left of the queried one, in a string of distinct symbols. ``^ 4 9 2 = 9 4 $``."""

    name, summary = "left-neighbour", "the number left of the queried one, among distinct numbers"
    programs = ("if k = 0: first(prompt, x[j] = x[i])[-1]; write $",)
    offset = -1
