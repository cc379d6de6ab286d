"""Tasks on symbols that occur once, or pairs that do: what stands at a place tells where the place is."""

from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.tasks.scale import Ints
from lengthlens.tasks.task import Task

NUMBERS = tuple(map(str, range(150)))  # as many as the longest published instance needs


def drawn_distinct(
    symbols: int, number: int, batch: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """So many different ids below `symbols`, in random order. [row, number]"""
    return torch.rand(batch, symbols, generator=generator, device=device).topk(number, dim=1).indices


def all_distinct(ids: Tensor) -> Tensor:
    """Which rows hold no id twice. [row, *] to [row]"""
    ordered = ids.sort(1).values
    return (ordered[:, 1:] != ordered[:, :-1]).all(1)


@dataclass(frozen=True)
class UniqueCopy(Task):
    """The string again, of distinct symbols. ``^ 7 3 = 7 3 $``. n is at most the number of symbols."""

    name, summary = "unique-copy", "a string of distinct numbers again"
    programs = ("if k = 0: x[^+1]; first(prompt, x[j-1] = x[i]) or $", "x[^+k+1] or $")
    family = "content-addressed"
    symbols: tuple[str, ...] = NUMBERS

    @property
    def max_scale(self) -> int:  # type: ignore[override]
        return len(self.symbols)

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return drawn_distinct(len(self.symbols), scale, batch, generator, device)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & all_distinct(inputs)

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs

    def coupled_answer(self, scale: int) -> Ints:
        return np.arange(1, scale + 2)


class UniqueReverse(UniqueCopy):
    """The string backwards, of distinct symbols. ``^ 7 3 = 3 7 $``."""

    name, summary = "unique-reverse", "a string of distinct numbers backwards"
    programs = ("if k = 0: x[=-1]; first(prompt, x[j] = x[i])[-1] or $", "x[=-k-1] or $")

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs.flip(1)

    def coupled_answer(self, scale: int) -> Ints:
        return np.arange(scale, -1, -1)


@dataclass(frozen=True)
class UniqueBigramCopy(UniqueCopy):
    """The string again. Symbols repeat, two neighbours never do: ``^ a b a a = a b a a $``, and not ``^ a b a b``.

    n is at most half the square of the number of symbols.
    """

    name, summary = "unique-bigram-copy", "a string again in which no two neighbours occur twice"
    programs = (
        "if k = 0: x[^+1]; if k = 1: x[^+2] or $; first(prompt, x[j-1] = x[i], x[j-2] = x[i-1]) or $",
        "x[^+k+1] or $",
    )
    symbols: tuple[str, ...] = tuple(ascii_lowercase)

    @property
    def max_scale(self) -> int:  # type: ignore[override]
        return len(self.symbols) ** 2 // 2

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return self.redrawn(lambda rows: self._trails(scale, rows, generator, device), scale, batch)

    def _trails(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Each symbol is drawn from those that did not yet follow the one before; where none is left, from all."""
        keys = torch.rand(scale, batch, len(self.symbols), generator=generator, device=device)
        used = torch.zeros(batch, len(self.symbols), len(self.symbols), dtype=torch.bool, device=device)
        row, symbols = torch.arange(batch, device=device), [keys[0].argmax(1)]
        for key in keys[1:]:
            last = symbols[-1]
            symbols.append(key.masked_fill(used[row, last], -1.0).argmax(1))
            used[row, last, symbols[-1]] = True
        return torch.stack(symbols, 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        known = (inputs < len(self.symbols)).all(1)
        return known & all_distinct(inputs[:, :-1] * len(self.symbols) + inputs[:, 1:])


@dataclass(frozen=True)
class CountUp(Task):
    """All numbers from the first to the last. ``^ 5 8 = 5 6 7 8 $``. n is how many they are: here 4."""

    name, summary = "count-up", "all numbers from the first given to the last"
    programs = ("if k = 0: x[^+1]; if any(prompt, x[j] > x[i]) = no: write $; next(x[i])",)
    family = "content-addressed"
    symbols: tuple[str, ...] = NUMBERS

    @property
    def max_scale(self) -> int:  # type: ignore[override]
        return len(self.symbols)

    def input_length(self, scale: int) -> int:
        return 2

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs, "="]

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        first = torch.randint(len(self.symbols) - scale + 1, (batch, 1), generator=generator, device=device)
        return torch.cat([first, first + scale - 1], 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & (inputs[:, 1] - inputs[:, 0] == scale - 1)

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return inputs[:, :1] + torch.arange(scale, device=inputs.device)

    def scale_of(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] < 3:
            raise UserError(f"the tokens are too few for a prompt of task '{self.name}': it begins with two numbers")
        return tokens[:, 2] - tokens[:, 1] + 1
