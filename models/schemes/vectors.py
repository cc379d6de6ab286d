"""Schemes in which the query meets a vector for the distance: Shaw's and Transformer-XL's; and URPE's factor."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthlens.models.schemes.absolute import sinusoid
from lengthlens.models.schemes.distance import Distanced, along_diagonals, shifted
from lengthlens.models.schemes.options import option
from lengthlens.models.schemes.scheme import Family, Frame, PositionScheme, Sizes
from lengthlens.tasks import Task

FACTORS = "it multiplies the pattern by a factor per distance, and a second factor for the anchor would have no scale"


def pick(products: Tensor, place: Tensor) -> Tensor:
    """From products with every vector, those at the place of each key.

    `products` [row, head, query, vector], `place` [1|row, query, key]; out [row, head, query, key].
    """
    rows, heads = products.shape[:2]
    return products.gather(3, place[:, None].expand(rows, heads, -1, -1))


class Shaw(Distanced):
    """A learned vector for each clipped distance, added to the key (Shaw et al. 2018); shared by heads."""

    name = "shaw"
    summary = "one learned vector per distance, clipped, added to keys"
    relation_in_words = "min(i−j, max_distance)"
    anchored_in_words = "clip(i−j−n, ±max_distance)"

    @dataclass(frozen=True)
    class Options:
        max_distance: int = option(128, at_least=1)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, signed: bool = False) -> None:
        super().__init__(sizes, options, task, signed)
        self.least = -options.max_distance if signed else 0
        self.vectors = nn.Parameter(
            torch.empty(sizes.n_layers, options.max_distance + 1 - self.least, sizes.d_head)
        )
        nn.init.normal_(self.vectors, std=0.02)

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return distance.clamp(self.least, self.options.max_distance)[..., None]

    def score_at(self, layer: int, frame: Frame, rows: slice, q: Tensor, shift: Tensor | None) -> Tensor:
        products = torch.einsum("bqhd,vd->bhqv", q, self.vectors[layer].to(q.dtype))
        place = self.codes(shifted(frame, rows, shift), frame.position)[..., 0] - self.least
        return pick(products, place)


class TransformerXL(PositionScheme):
    """Sinusoids of the distance mapped to a key of their own, and learned queries u, v that all positions share.

    The score of a pair is (q_i+u)·k_j + (q_i+v)·W_R r_{i−j}, over the square root of d_head (Dai et al. 2019).
    """

    name = "xl"
    family: Family = "relative"
    summary = "queries meet mapped sinusoids of the distance, and two learned biases"
    relation_in_words = "i−j"
    no_hint = "its keys of distance are sinusoids mapped by one matrix, in which the anchor is a change of phase only"

    def __init__(self, sizes: Sizes, options: object, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.W_R = nn.Parameter(torch.empty(sizes.n_layers, sizes.n_heads, sizes.d_model, sizes.d_head))
        nn.init.normal_(self.W_R, std=sizes.d_model**-0.5)
        self.u = nn.Parameter(torch.zeros(sizes.n_heads, sizes.d_head))  # shared by layers, as published
        self.v = nn.Parameter(torch.zeros(sizes.n_heads, sizes.d_head))

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale)[..., None]

    def describe(self, code: tuple[int, ...]) -> str:
        return f"distance {code[0]}"

    def score(self, layer: int, frame: Frame, rows: slice, q: Tensor, k: Tensor) -> Tensor | None:
        root = self.sizes.d_head**0.5  # q is divided by it already, u and v are not
        distances = torch.arange(frame.limit or rows.stop, device=q.device)
        r = torch.einsum("tm,hmd->thd", sinusoid(distances, self.sizes.d_model), self.W_R[layer]).to(q.dtype)
        by_distance = torch.einsum("bqhd,thd->bhqt", q + (self.v / root).to(q.dtype), r)
        by_key = torch.einsum("hd,bkhd->bhk", (self.u / root).to(k.dtype), k)[:, :, None]
        return pick(by_distance, frame.distance(rows).clamp(min=0)) + by_key


class Urpe(PositionScheme):
    """A learned factor for each head and distance, multiplied onto the pattern after the softmax (Luo et al. 2022).

    All factors start at 1. Rows of the pattern no longer sum to one, which lets a head count.
    """

    name = "urpe"
    family: Family = "relative"
    summary = "one learned factor per distance, clipped, on the pattern after the softmax"
    relation_in_words = "min(i−j, max_distance)"
    no_hint = FACTORS

    @dataclass(frozen=True)
    class Options:
        max_distance: int = option(128, at_least=1)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.table = nn.Parameter(torch.ones(sizes.n_layers, sizes.n_heads, options.max_distance + 1))

    def relation(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale).clamp(max=self.options.max_distance)[..., None]

    def describe(self, code: tuple[int, ...]) -> str:
        return f"distance {code[0]}" + (" or more" if code[0] == self.options.max_distance else "")

    def factor(self, layer: int, frame: Frame, rows: slice) -> Tensor | None:
        queries, last = rows.stop - rows.start, self.options.max_distance
        if frame.limit is not None:
            return self.table[layer][:, frame.distance(rows).clamp(0, last)].transpose(0, 1)
        line = torch.arange(rows.stop - 1, -queries, -1, device=frame.tokens.device).clamp(0, last)
        return along_diagonals(self.table[layer][:, line], queries)[None]
