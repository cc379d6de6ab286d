"""Schemes that give each position a vector, and the scheme that gives it nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthlens.errors import TooLongError
from lengthlens.models.schemes.relation import BOTH, Code
from lengthlens.models.schemes.scheme import LARGEST, Anchorable, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task


def pairs(query_pos: Tensor, key_pos: Tensor) -> Tensor:
    """Both positions of each pair, [*broadcast, 2]."""
    both = 0 * (query_pos + key_pos)
    return torch.stack([query_pos + both, key_pos + both], -1)


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Sines and cosines of Vaswani et al. (2017), in turns. [*] to [*, width]

    >>> sinusoid(torch.tensor([0, 1]), 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    even = torch.arange(0, width, 2, device=position.device)
    angle = position[..., None] * 10000.0 ** (-even / width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


class NoPosition(PositionScheme):
    """No position embedding: attention sees a set of earlier tokens."""

    name = "none"
    family = "none"
    summary = "nothing"
    relation_in_words = "one code for all pairs"
    no_random = "it does not look at positions"
    no_hint = "it does not look at positions, so there is no relation to anchor at the scale"

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.zeros_like(query_pos + key_pos + scale)[..., None]

    def describe(self, code: Code) -> str:
        return "any position"


class _Table(Anchorable):
    """One learned vector for each position, up to n_ctx; in the anchored twin, for each of i−n.

    Positions begin at `start`. With a `spread` they begin at a random place from there on, up to `spread` further and
    as far as the table goes: in training another one for each batch (Kiyono et al. 2021); in evaluation `draws` fixed
    ones, over which exact match is averaged. The anchored twin counts from the scale and has no start.
    """

    @dataclass(frozen=True)
    class Options:
        start: int = option(0, at_least=0, at_most=LARGEST, before=0)
        spread: int = option(0, at_least=0, at_most=LARGEST, before=0)
        draws: int = option(8, at_least=1, at_most=1000, before=8)  # without a spread there is but one

    options: Options

    family = "absolute"
    relation_in_words = phi_name = BOTH
    anchored_in_words = "(i−n, j−n)"

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.least = -sizes.n_ctx if anchored else 0
        self.W_pos = nn.Parameter(torch.empty(sizes.n_ctx - self.least, sizes.d_model))
        nn.init.normal_(self.W_pos, std=0.02)  # as small as token embeddings usually start

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return pairs(query_pos - self.anchor(scale), key_pos - self.anchor(scale))

    def describe(self, code: Code) -> str:
        return f"position {code[1]} seen from {code[0]}"

    def vectors(self, positions: Positions) -> Tensor:
        length = positions.limit or positions.tokens.shape[1]
        n_ctx, start = self.sizes.n_ctx, 0 if self.anchored else self.options.start
        if start + length > n_ctx:
            held = f"has {n_ctx} positions and cannot process a sequence of {length}"
            raise TooLongError(f"scheme '{self.name}' {held}" + (f" that starts at {start}" if start else ""))
        if not self.anchored:
            return self.W_pos[positions.position + (start + positions.offset)]
        assert positions.scale is not None
        return self.W_pos[(positions.position - positions.scale[:, None]).clamp(min=self.least) - self.least]

    @property
    def placements(self) -> int:
        return self.options.draws if self.options.spread else 1

    def offset(self, length: int) -> int:
        """How far behind `start` the positions of a sequence of this length begin in this pass."""
        if not self.options.spread or self.anchored:
            return 0
        room = min(self.options.spread, self.sizes.n_ctx - self.options.start - length)
        generator = self.generator if self.training else torch.Generator(device="cpu").manual_seed(self.placement)
        return int(torch.rand((), generator=generator, device="cpu") * (room + 1))


class LearnedPositions(_Table):
    """One learned vector for each position, up to n_ctx."""

    name = "learned"
    summary = "one learned vector per position, added to the embedding"

    def embed(self, positions: Positions) -> Tensor | None:
        return self.vectors(positions)


class Shortformer(_Table):
    """One learned vector for each position, for queries and keys only: what values carry is free of position."""

    name = "shortformer"
    summary = "one learned vector per position, added to what queries and keys are made from"

    def embed_qk(self, positions: Positions) -> Tensor | None:
        return self.vectors(positions)


class Sinusoidal(PositionScheme):
    """Fixed sines and cosines of each position (Vaswani et al. 2017)."""

    name = "sinusoidal"
    family = "absolute"
    relation_in_words = phi_name = BOTH
    summary = "fixed sines and cosines of the position, added to the embedding"
    no_hint = "sines of i and of i−n add up to a sine of i whose size depends on the scale and may be zero"

    @dataclass(frozen=True)
    class Options:
        amplitude: float = option(1.0, at_least=0)  # as published, for token embeddings of about unit entries

    options: Options

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return pairs(query_pos + 0 * scale, key_pos)

    def describe(self, code: Code) -> str:
        return f"position {code[1]} seen from {code[0]}"

    def embed(self, positions: Positions) -> Tensor | None:
        return self.options.amplitude * sinusoid(positions.position, self.sizes.d_model)
