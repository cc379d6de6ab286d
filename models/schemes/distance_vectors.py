"""Schemes in which the query meets a vector for the distance: Shaw's and Transformer-XL's; and URPE's factor."""

import torch
from torch import Tensor, nn

from lengthlens.models.schemes.absolute import sinusoid
from lengthlens.models.schemes.distance_bias import Distanced, DistanceTable
from lengthlens.models.schemes.scheme import Positions, Sizes
from lengthlens.tasks import Task


def pick(products: Tensor, place: Tensor) -> Tensor:
    """From products with every vector, those at the place of each key.

    `products` [row, head, query, vector], `place` [1|row, query, key]; out [row, head, query, key].
    """
    rows, heads = products.shape[:2]
    return products.gather(3, place[:, None].expand(rows, heads, -1, -1))


class Shaw(DistanceTable):
    """A learned vector for each clipped distance, added to the key (Shaw et al. 2018); shared by heads."""

    name = "shaw"
    summary = "one learned vector per distance, clipped, added to keys"

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.vectors = nn.Parameter(torch.empty(sizes.n_layers, self.last + 1 - self.least, sizes.d_head))
        nn.init.normal_(self.vectors, std=0.02)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        vectors = self.vectors[layer].to(q.dtype)
        if not self.anchored:
            vectors = vectors[: positions.limit or queries.stop]  # no distance is longer than that
        products = torch.einsum("bqhd,vd->bhqv", q, vectors)
        return pick(products, self.place(self.distances(positions, queries)))


class TransformerXL(Distanced):
    """Sinusoids of the distance mapped to a key of their own, and learned queries u, v that all positions share.

    The score of a pair is (q_i+u)·k_j + (q_i+v)·W_R r_{i−j}, over the square root of d_head (Dai et al. 2019). The
    anchored twin has no u, since content needs no second one.
    """

    name = "xl"
    summary = "queries meet mapped sinusoids of the distance, and two learned biases"
    anchored_in_words = "i−j−n"

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.W_R = nn.Parameter(torch.empty(sizes.n_layers, sizes.n_heads, sizes.d_model, sizes.d_head))
        nn.init.normal_(self.W_R, std=sizes.d_model**-0.5)
        self.v = nn.Parameter(torch.zeros(sizes.n_heads, sizes.d_head))  # shared by layers, as published
        self.u = None if anchored else nn.Parameter(torch.zeros(sizes.n_heads, sizes.d_head))
        self.root = sizes.d_head**0.5  # queries arrive divided by it, u and v do not

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return distance[..., None]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        last = positions.limit or queries.stop
        least = -positions.tokens.shape[1] if self.anchored else 0  # a scale larger than the sequence is none
        every = torch.arange(least, last, device=q.device)
        r = torch.einsum("tm,hmd->thd", sinusoid(every, self.sizes.d_model), self.W_R[layer]).to(q.dtype)
        products = torch.einsum("bqhd,thd->bhqt", q + (self.v / self.root).to(q.dtype), r)
        of_distance = pick(products, self.distances(positions, queries).clamp(least, last - 1) - least)
        if self.u is None:
            return of_distance
        return of_distance + torch.einsum("hd,bkhd->bhk", (self.u / self.root).to(k.dtype), k)[:, :, None]


class Urpe(DistanceTable):
    """A learned factor for each head and distance, multiplied onto the pattern after the softmax (Luo et al. 2022).

    All factors start at 1. Rows of the pattern no longer sum to one, which lets a head count.
    """

    name = "urpe"
    summary = "one learned factor per distance, clipped, on the pattern after the softmax"

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.table = nn.Parameter(torch.ones(sizes.n_layers, sizes.n_heads, self.last + 1 - self.least))

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        table = self.table[layer]
        return self.by_distance(lambda distance: table[:, self.place(distance)], positions, queries)
