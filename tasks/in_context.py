"""Sequences that follow a rule which each instance has anew: the model finds it in the prompt, and goes on by it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lengthlens.tasks.task import Task


@dataclass(frozen=True)
class AffineShown(Task):
    """The next term of x → a·x + b modulo 17, with a and b in front. ``^ 3 2 : 1 5 0 2 = 8 $``.

    n is the number of terms in the prompt: here 4.
    """

    programs = ()
    name, summary = "affine-shown", "the next term of an affine recurrence modulo 17 whose coefficients are shown"
    family = "content-addressed"
    marks: ClassVar[tuple[str, ...]] = (":", "=")
    symbols: tuple[str, ...] = tuple(map(str, range(17)))  # as many as the modulus, which is a prime

    def input_length(self, scale: int) -> int:
        return scale + 2

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs[:, :2], ":", inputs[:, 2:], "="]

    def answer_length(self, scale: int) -> int:
        return 2

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        a, b, *terms = torch.randint(len(self.symbols), (3, batch), generator=generator, device=device)
        for _ in range(scale - 1):
            terms.append((a * terms[-1] + b) % len(self.symbols))
        return torch.stack([a, b, *terms], 1)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        a, b, terms = self.rule(inputs)
        return super().valid(inputs, scale) & ((a * terms[:, :-1] + b) % len(self.symbols) == terms[:, 1:]).all(1)

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        a, b, terms = self.rule(inputs)
        return (a * terms[:, -1:] + b) % len(self.symbols)

    def rule(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a [row, 1], b [row, 1] and the terms [row, n]."""
        return inputs[:, :1], inputs[:, 1:2], inputs[:, 2:]


class AffineHidden(AffineShown):
    """The next term of x → a·x + b modulo 17, from n terms alone. ``^ 1 5 0 2 = 8 $``.

    From three terms on, it is certain: if the first two differ, they and the third give a and b, else all are equal.
    """

    name, summary = "affine-hidden", "the next term of an affine recurrence modulo 17, from n terms alone"
    marks = ("=",)
    min_scale = 3

    def input_length(self, scale: int) -> int:
        return scale

    def prompt(self, inputs: Tensor, scale: int) -> list[Tensor | str]:
        return [inputs, "="]

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return super().draw(scale, batch, generator, device)[:, 2:]

    def rule(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        modulus, (first, second, third) = len(self.symbols), inputs[:, :3, None].unbind(1)
        inverses = torch.tensor([pow(k, -1, modulus) if k else 0 for k in range(modulus)], device=inputs.device)
        a = (third - second) * inverses[(second - first) % modulus] % modulus
        return a, (second - a * first) % modulus, inputs


@dataclass(frozen=True)
class MarkovChain(Task):
    """The symbol that most often followed the last one before, never a tie. ``^ a b a c a b a = b $``.

    Each instance is a walk on a chain of its own: each symbol has a favourite successor, which it takes more often
    than any other. n is the number of symbols in the prompt.
    """

    programs = ("mode(prompt, x[j-1] = x[i-1]) or $",)
    name, summary = "markov", "the most frequent successor of the last symbol, in a chain of the instance's own"
    family = "content-addressed"
    symbols: tuple[str, ...] = tuple("abcde")
    min_scale: int = 2
    favoured: ClassVar[float] = 0.6  # how often the favourite is taken, beside random choices that hit it as well

    def answer_length(self, scale: int) -> int:
        return 2

    def draw(self, scale: int, batch: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        def walks(rows: int) -> Tensor:
            favourite = torch.randint(len(self.symbols), (rows, len(self.symbols)), generator=generator, device=device)
            others = torch.randint(len(self.symbols), (scale, rows), generator=generator, device=device)
            favoured = torch.rand(scale, rows, generator=generator, device=device) < self.favoured
            walk = [others[0]]
            for other, takes in zip(others[1:], favoured[1:]):
                walk.append(torch.where(takes, favourite.gather(1, walk[-1][:, None])[:, 0], other))
            return torch.stack(walk, 1)

        return self.redrawn(walks, scale, batch)

    def valid(self, inputs: Tensor, scale: int) -> Tensor:
        most = self._successors(inputs.clamp(max=len(self.symbols) - 1)).topk(2, dim=1).values
        return super().valid(inputs, scale) & (most[:, 0] > most[:, 1])

    def answer(self, inputs: Tensor, scale: int) -> Tensor:
        return self._successors(inputs).argmax(1, keepdim=True)

    def _successors(self, inputs: Tensor) -> Tensor:
        """How often each symbol followed the last one. [row, symbol]"""
        counts = torch.zeros(len(inputs), len(self.symbols), dtype=torch.long, device=inputs.device)
        return counts.scatter_add(1, inputs[:, 1:], (inputs[:, :-1] == inputs[:, -1:]).long())
