"""The more frequent symbol, as others publish it: how many there are of each is drawn evenly, and no vote is a tie."""

from dataclasses import dataclass
from string import ascii_lowercase

import torch
from torch import Tensor

from lengthlens.tasks.arithmetic import Parity
from lengthlens.tasks.retrieval import Majority, Mode
from lengthlens.tasks.task import Task


def drawn_bits(
    length: int, batch: int, generator: torch.Generator | None, device: torch.device, ties: bool = False
) -> Tensor:
    """Bits with any number of ones equally often; without ties never half of them. [row, length]"""
    tie = not ties and length % 2 == 0
    ones = torch.randint(length + 1 - tie, (batch, 1), generator=generator, device=device)
    ones = ones + (tie & (ones >= length // 2))
    order = torch.rand(batch, length, generator=generator, device=device).argsort(1).argsort(1)
    return (order < ones).long()


class BinaryParity(Parity):
    """`Parity`, with any number of ones equally often."""

    name, summary = "binary-parity", "the parity of the string, at once, any number of ones equally often"

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return drawn_bits(scale, batch, generator, device, ties=True)


class BinaryMajority(Majority):
    """The bit that occurs more often, never a tie. ``^ 0 1 0 = 0 $``."""

    name, summary = "binary-majority", "the more frequent bit, any number of ones equally often, never a tie"

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return drawn_bits(scale, batch, generator, device)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & (2 * inputs.sum(1) != scale)


@dataclass(frozen=True)
class BinaryMajorityInterleave(Task):
    """The majority of every third bit, from the first, the second and the third on. ``^ 0 1 1 0 1 0 0 0 1 = 0 1 1 $``.

    n is the number of bits of the prompt, as published. The three strings have n/3 bits each; where three does not
    divide n, the first or the first two have one more.
    """

    name, summary = "binary-majority-interleave", "the majorities of three interleaved bit strings of n bits together"
    programs = (
        "if k = 0: mode(prompt, j % 3 = 0); if k = 1: mode(prompt, j % 3 = 1); if k = 2: mode(prompt, j % 3 = 2);"
        "write $",
    )
    family = "content-addressed"
    symbols: tuple[str, ...] = ("0", "1")
    min_scale: int = 3

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        inputs = torch.empty(batch, scale, dtype=torch.long, device=device)
        for first in range(3):
            inputs[:, first::3] = drawn_bits((scale + 2 - first) // 3, batch, generator, device)
        return inputs

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & (self._lead(inputs) != 0).all(1)

    def answer_length(self, scale: int) -> int:
        return 4

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return (self._lead(inputs) > 0).long()

    def _lead(self, inputs: Tensor) -> Tensor:
        """How many more ones than zeros each string has. [row, 3]"""
        return torch.stack([(2 * inputs[:, first::3] - 1).sum(1) for first in range(3)], 1)


@dataclass(frozen=True)
class LetterMajority(Mode):
    """The letter that occurs most often, of 26, never a tie. ``^ c a b c = c $``."""

    name, summary = "letter-majority", "the most frequent of 26 letters, never a tie"
    symbols: tuple[str, ...] = tuple(ascii_lowercase)

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Random letters. In a tie, one of the winners also takes the place of the first other letter."""
        inputs = super().draw(scale, batch, generator, device)
        counts = self._counts(inputs)
        winner = (counts + torch.rand(counts.shape, generator=generator, device=device)).argmax(1, keepdim=True)
        place = (inputs != winner).to(torch.uint8).argmax(1, keepdim=True)
        letter = torch.where(self._tied(counts)[:, None], winner, inputs.gather(1, place))
        return inputs.scatter(1, place, letter)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        return super().valid(inputs, scale) & ~self._tied(self._counts(inputs.clamp(max=len(self.symbols) - 1)))

    def _tied(self, counts: Tensor) -> Tensor:
        most = counts.topk(2, dim=1).values
        return most[:, 0] == most[:, 1]
