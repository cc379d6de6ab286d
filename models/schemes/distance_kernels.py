"""Schemes whose bias is a function of distance with few learned numbers: KERPLE and FIRE."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lengthlens.models.schemes.distance import DistanceBias, Distanced
from lengthlens.models.schemes.options import option
from lengthlens.models.schemes.scheme import Frame, Sizes
from lengthlens.tasks import Task

LEAST = 0.01  # the published lower bound of KERPLE's parameters


def positive(raw: Tensor) -> Tensor:
    """A number above `LEAST` from any number."""
    return LEAST + softplus(raw)


def inverse_positive(value: Tensor) -> Tensor:
    """The number that `positive` maps to a value, which must lie above `LEAST`."""
    return torch.log(torch.expm1(value - LEAST))


class _Kerple(DistanceBias):
    """Two learned positive numbers for each head: `a` within the function of distance, and `p` (Chi et al. 2022)."""

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        shape = (sizes.n_layers, sizes.n_heads)
        self.raw_p = nn.Parameter(inverse_positive(torch.empty(shape).uniform_(0.05, 2)))  # the published start
        self.raw_a = nn.Parameter(inverse_positive(torch.empty(shape).uniform_(0.05, 1)))

    def p(self) -> Tensor:
        """[layer, head]"""
        return positive(self.raw_p)

    def a(self) -> Tensor:
        """[layer, head]"""
        return positive(self.raw_a)

    def per_head(self, layer: int, ndim: int) -> tuple[Tensor, Tensor]:
        """p and a of each head, [head, 1 …] with `ndim` further dimensions."""
        p, a = self.p()[layer], self.a()[layer]
        return p.view(-1, *[1] * ndim), a.view(-1, *[1] * ndim)


class KerpleLog(_Kerple):
    """−p·ln(1 + a·d) at distance d."""

    name = "kerple-log"
    summary = "a penalty −p·ln(1+a·d) at distance d, with p and a learned per head"

    def values(self, layer: int, distance: Tensor) -> Tensor:
        p, a = self.per_head(layer, distance.ndim)
        return -p * torch.log1p(a * distance.abs())


class KerplePower(_Kerple):
    """−a·d^p at distance d, with p at most 2: beyond that the kernel is not conditionally positive definite."""

    name = "kerple-power"
    summary = "a penalty −a·d^p at distance d, with p ≤ 2 and a learned per head"

    def p(self) -> Tensor:
        return 2 * torch.sigmoid(self.raw_p)

    def values(self, layer: int, distance: Tensor) -> Tensor:
        p, a = self.per_head(layer, distance.ndim)
        return -a * distance.abs() ** p


class Fire(Distanced):
    """f(ln(c·d+1) / ln(c·max(i, L)+1)), a small network f of the distance relative to the position (Li et al. 2024).

    c and the threshold L are learned, for each layer. Up to L the ratio depends on the distance alone, and beyond on
    the query too; `relation` goes by what L is at the time.
    """

    name = "fire"
    summary = "a small network of log distance over log position"
    relation_in_words = "(i−j, max(i, L)) with the learned threshold L"
    anchored_in_words = "(|i−j−n|, max(i, L))"

    @dataclass(frozen=True)
    class Options:
        hidden: int = option(32, at_least=1, at_most=4096)
        threshold: float = option(512.0, at_least=1)  # L at the start, as published
        c: float = option(0.1, at_least=0.0001)  # c at the start

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        layers, hidden = sizes.n_layers, options.hidden
        self.raw_c = nn.Parameter(torch.full((layers,), options.c))
        self.raw_threshold = nn.Parameter(torch.ones(layers))  # in units of `options.threshold`, to move at a fair pace
        self.W_in = nn.Parameter(torch.randn(layers, hidden))
        self.b_in = nn.Parameter(torch.randn(layers, hidden))
        self.W_out = nn.Parameter(torch.randn(layers, hidden, sizes.n_heads) / hidden**0.5)

    @property
    def threshold(self) -> Tensor:
        """L of each layer, [layer]."""
        return self.options.threshold * self.raw_threshold.abs()

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        size = distance.abs() if self.anchored else distance
        shared = int(self.threshold.detach().min().floor())  # below it no layer looks at the query
        above = query_pos.clamp(min=shared) + 0 * size
        return torch.stack([size, torch.where(size == 0, 0, above)], -1)  # at distance 0 the ratio is 0 everywhere

    def describe(self, code: tuple[int, ...]) -> str:
        return f"distance {code[0]} seen from {code[1]} or before" if code[0] else "distance 0"

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        c = self.raw_c[layer].abs()
        distance = self.distances(frame, rows).abs()
        above = torch.maximum(frame.position[:, rows, None].to(c.dtype), self.threshold[layer])
        ratio = torch.log1p(c * distance) / (torch.log1p(c * above) + 1e-6)  # 1e-6: c may become 0
        hidden = torch.relu(ratio[..., None] * self.W_in[layer] + self.b_in[layer])
        return (hidden @ self.W_out[layer]).movedim(-1, 1)
