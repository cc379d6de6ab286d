"""Schemes that give each position a vector, and the scheme that gives it nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthlens.errors import TooLongError
from lengthlens.models.schemes.relation import Code
from lengthlens.models.schemes.scheme import Anchorable, Positions, PositionScheme, Sizes, option
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
    """One learned vector for each position, up to n_ctx; in the anchored twin, for each of i−n."""

    family = "absolute"
    relation_in_words = "(i, j)"
    anchored_in_words = "(i−n, j−n)"

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
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
        n_ctx = self.sizes.n_ctx
        if length > n_ctx:
            raise TooLongError(f"scheme '{self.name}' has {n_ctx} positions and cannot process a sequence of {length}")
        if not self.anchored:
            return self.W_pos[positions.position]
        assert positions.scale is not None
        return self.W_pos[(positions.position - positions.scale[:, None]).clamp(min=self.least) - self.least]


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
    relation_in_words = "(i, j)"
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
