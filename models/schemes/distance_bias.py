"""Schemes that add a bias for each distance: one learned value each, one for a bucket of them, or a fixed slope."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.schemes.distance import DistanceBias, DistanceTable
from lengthlens.models.schemes.options import LARGEST, option
from lengthlens.models.schemes.scheme import CodeTable, Sizes
from lengthlens.tasks import Task


class Relative(DistanceTable, DistanceBias):
    """One learned value for each head and distance, clipped at `max_distance`.

    With max_distance 3, distances 0 1 2 have values of their own and 3 4 5 … share one.
    """

    name = "relative"
    summary = "one learned bias per distance, clipped"

    @dataclass(frozen=True)
    class Options:
        # larger than any training length here: each distance has a value of its own
        max_distance: int = option(128, at_least=1, at_most=LARGEST)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, self.last + 1 - self.least))

    @property
    def last(self) -> int:
        return self.options.max_distance

    def values(self, layer: int, distance: Tensor) -> Tensor:
        return self.table[layer][:, self.place(distance)]

    def tables(self) -> list[CodeTable]:
        return [CodeTable(self.table, self.least, self.in_words)]


def t5_buckets(num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance 0 … max_distance: one each up to half of the buckets, then logarithmically wider.

    >>> t5_buckets(32, 128)[[15, 16, 20, 32, 64, 128]].tolist()
    [15, 16, 17, 21, 26, 31]
    """
    exact = num_buckets // 2
    distance = torch.arange(max_distance + 1)
    ratio = torch.log(distance.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    wide = (exact + (ratio * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, wide)


class T5(DistanceBias):
    """One learned value for each head and bucket of distances, shared by all layers (Raffel et al. 2020)."""

    name = "t5"
    summary = "one learned bias per bucket of distances, shared by all layers"
    relation_in_words = "bucket(i−j)"
    anchored_in_words = "bucket(i−j−n)"

    @dataclass(frozen=True)
    class Options:
        num_buckets: int = option(32, at_least=4, at_most=LARGEST)
        # distances from here on share the last bucket
        max_distance: int = option(128, at_least=2, at_most=LARGEST)

        def __post_init__(self) -> None:
            if self.max_distance <= self.num_buckets // 2:
                raise UserError(
                    f"scheme 't5' gives each of the first {self.num_buckets // 2} distances a bucket of its own: "
                    f"max_distance must be more than that, not {self.max_distance}"
                )

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.one_side = options.num_buckets // 2 if anchored else options.num_buckets
        self.table = nn.Parameter(torch.zeros(sizes.n_heads, options.num_buckets))
        self.bucket: Tensor
        self.register_buffer("bucket", t5_buckets(self.one_side, options.max_distance), persistent=False)

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        size = distance.abs() if self.anchored else distance.clamp(min=0)
        code = self.bucket.to(size.device)[size.clamp(max=self.options.max_distance)]
        return (code + self.one_side * (distance < 0) if self.anchored else code)[..., None]

    def values(self, layer: int, distance: Tensor) -> Tensor:
        return self.table[:, self.codes(distance, distance)[..., 0]]

    def tables(self) -> list[CodeTable]:
        return [CodeTable(self.table, 0, self.in_words)]

    def describe(self, code: tuple[int, ...]) -> str:
        members = (self.bucket == code[0] % self.one_side).nonzero().squeeze(1).tolist()
        sign = "-" if code[0] >= self.one_side else ""
        if members[-1] == self.options.max_distance:
            return f"distance {sign}{members[0]} and beyond"
        return f"distance {sign}{members[0]}" + (f" to {sign}{members[-1]}" if len(members) > 1 else "")


def alibi_slopes(heads: int, rule: Literal["published", "transformer-lens"]) -> Tensor:
    """The slope of each head: 2^(−8h/H) for h = 1 … H where H is a power of two.

    For other H the published rule takes those of the next lower power of two, then every other one of twice that
    power; TransformerLens takes the same formula for every H.

    >>> alibi_slopes(3, "published").tolist()
    [0.0625, 0.00390625, 0.25]
    """
    if rule == "transformer-lens":
        return _geometric(heads)
    power = 2 ** int(math.log2(heads))
    return torch.cat([_geometric(power), _geometric(2 * power)[::2][: heads - power]])


def _geometric(heads: int) -> Tensor:
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)


class Alibi(DistanceBias):
    """A penalty that grows linearly with distance, with a fixed slope for each head (Press et al. 2022).

    Its twin under ``hinted:`` penalises the distance to the anchor, |i−j−n|, with a slope that is learned: with the
    same fixed slopes the two penalties would cancel between distance 0 and n.
    """

    name = "alibi"
    summary = "a penalty proportional to distance, with a fixed slope per head"

    @dataclass(frozen=True)
    class Options:
        slopes: Literal["published", "transformer-lens"] = "published"

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        slopes = alibi_slopes(sizes.n_heads, options.slopes).expand(sizes.n_layers, -1).clone()
        self.slope: Tensor
        if anchored:
            self.slope = nn.Parameter(slopes)
        else:
            self.register_buffer("slope", slopes, persistent=False)

    def values(self, layer: int, distance: Tensor) -> Tensor:
        return -self.slope[layer].view(-1, *[1] * distance.ndim) * distance.abs()
