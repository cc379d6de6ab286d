"""Schemes for which a pair counts by its distance, the plain i−j or, in their anchored twin, i−j−n.

They add a bias: one learned value for each distance or for a bucket of them, a fixed slope, or a function with few
learned numbers. Or the query meets a vector for the distance, or the pattern is multiplied by a factor.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lengthlens.errors import UserError
from lengthlens.models.schemes.absolute import sinusoid
from lengthlens.models.schemes.relation import BACK, Code, CodeTable
from lengthlens.models.schemes.scheme import LARGEST, Anchorable, Positions, Scope, Sizes, option
from lengthlens.tasks import Task

Values = Callable[[slice, Tensor], Tensor]  # of some layers, at distances [*]: [layer, head, *]


def of_layers(parameter: Tensor, layers: slice) -> Tensor:
    """Of something learned for each layer, [layer, …], that of some. All of them are no slice, which has a gradient."""
    return parameter if layers == slice(None) else parameter[layers]


def along_diagonals(line: Tensor, queries: int) -> Tensor:
    """One value for each distance, spread over a block of queries and keys. [*, queries+keys−1] to [*, query, key]

    `line` runs from the last query's distance to key 0 down to the first query's distance to the last key. The
    keys of one query are a window on it, so no index tensor is needed and the gradient is a sum along diagonals.

    >>> along_diagonals(torch.tensor([2, 1, 0, -1, -2]), queries=3)
    tensor([[ 0, -1, -2],
            [ 1,  0, -1],
            [ 2,  1,  0]])
    """
    return line.unfold(-1, line.shape[-1] - queries + 1, 1).flip(-2)


class Distanced(Anchorable):
    """A scheme for which a pair counts by its distance, and perhaps by where the query is."""

    family = "relative"
    relation_in_words = "i−j"
    anchored_in_words = "|i−j−n|"

    @abstractmethod
    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        """The code of each pair from its distance, [*, component]."""

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.codes(query_pos - key_pos - self.anchor(scale), query_pos)

    def describe(self, code: Code) -> str:
        return f"distance {code[0]}"

    def distances(self, positions: Positions, queries: slice) -> Tensor:
        """i−j, or i−j−n in the anchored twin, for a block of queries. [1|row, query, key]"""
        if not self.anchored:
            return positions.distance(queries)
        assert positions.scale is not None
        return positions.distance(queries) - positions.scale[:, None, None]

    def by_distance(self, values: Values, layer: int, positions: Positions, queries: slice) -> Tensor:
        """A function of distance in a layer, for a block of queries. [1|row, head, query, key]

        Where positions have no gaps it is asked for one distance per diagonal, and once for each scale that occurs.
        """
        device, size = positions.tokens.device, queries.stop - queries.start

        def line() -> Tensor:
            return torch.arange(queries.stop - 1, queries.start - queries.stop, -1, device=device)

        def spread(layers: slice) -> tuple[Tensor, ...]:
            if positions.limit is not None:
                return values(layers, self.distances(positions, queries)).transpose(1, 2).unbind()
            own = positions.memo(("line", queries.start, queries.stop), line, "length")
            if not self.anchored:
                return along_diagonals(values(layers, own), size)[:, None].unbind()
            of_size = positions.per_scale(
                lambda n: along_diagonals(values(layers, own - n[:, None]), size).movedim(2, 0)
            )
            return of_size.transpose(0, 1).unbind()

        return positions.of_layer((self, queries.start, queries.stop), layer, spread)


class DistanceBias(Distanced):
    """A scheme that adds to each score one value per head and distance, whatever the tokens are."""

    phi_name = BACK

    @abstractmethod
    def values(self, layers: slice, distance: Tensor) -> Tensor:
        """The bias of each head at distances [*], finite at negative ones too, even if never read. [layer, head, *]"""

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return (distance.abs() if self.anchored else distance)[..., None]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return self.by_distance(self.values, layer, positions, queries)


class DistanceTable(Distanced):
    """A scheme with something learned for each distance up to `max_distance`, which all longer ones share.

    A table starts at distance `least`: 0, or −max_distance in the anchored twin.
    """

    relation_in_words = phi_name = "min(i−j, max_distance)"
    anchored_in_words = "clip(i−j−n, ±max_distance)"

    @dataclass(frozen=True)
    class Options:
        max_distance: int = option(128, at_least=1, at_most=LARGEST)  # beyond any training length here

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.last, self.least = options.max_distance, -options.max_distance if anchored else 0

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return distance.clamp(self.least if self.anchored else None, self.last)[..., None]

    def place(self, distance: Tensor) -> Tensor:
        """The place in the table of each distance."""
        return distance.clamp(self.least, self.last) - self.least

    def describe(self, code: Code) -> str:
        edge = " or more" if code[0] == self.last else " or less" if code[0] == -self.last else ""
        return f"distance {code[0]}{edge}"


class Relative(DistanceTable, DistanceBias):
    """One learned value for each head and distance, clipped at `max_distance`.

    With max_distance 3, distances 0 1 2 have values of their own and 3 4 5 … share one.
    """

    name = "relative"
    summary = "one learned bias per distance, clipped"

    def __init__(self, sizes: Sizes, options: DistanceTable.Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.table = nn.Parameter(torch.zeros(sizes.n_layers, sizes.n_heads, self.last + 1 - self.least))

    def values(self, layers: slice, distance: Tensor) -> Tensor:
        return of_layers(self.table, layers)[:, :, self.place(distance)]

    def tables(self) -> list[CodeTable]:
        return [CodeTable(self.table, self.least, self.relation_in_words)]


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
        max_distance: int = option(128, at_least=2, at_most=LARGEST)  # distances from here on share a bucket

        def __post_init__(self) -> None:
            if self.max_distance <= self.num_buckets // 2:
                own = f"gives each of the first {self.num_buckets // 2} distances a bucket of its own"
                raise UserError(f"scheme 't5' {own}: max_distance must be more than that, not {self.max_distance}")

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

    def values(self, layers: slice, distance: Tensor) -> Tensor:
        shared = self.table[:, self.codes(distance, distance)[..., 0]]
        return shared.expand(len(range(self.sizes.n_layers)[layers]), *shared.shape)

    def tables(self) -> list[CodeTable]:
        return [CodeTable(self.table, 0, self.relation_in_words)]

    def describe(self, code: Code) -> str:
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

    def geometric(heads: int) -> Tensor:
        return 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)

    if rule == "transformer-lens":
        return geometric(heads)
    power = 2 ** int(math.log2(heads))
    return torch.cat([geometric(power), geometric(2 * power)[::2][: heads - power]])


class Alibi(DistanceBias):
    """A penalty that grows linearly with distance, with a fixed slope for each head (Press et al. 2022).

    Its twin under ``hinted:`` penalises the distance to the anchor, |i−j−n|, with a slope that is learned: with the
    same fixed slopes the two penalties would cancel between distance 0 and n.
    """

    by_formula = True
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

    def values(self, layers: slice, distance: Tensor) -> Tensor:
        return of_layers(self.slope, layers).view(-1, self.sizes.n_heads, *[1] * distance.ndim) * -distance.abs()


LEAST = 0.01  # the published lower bound of KERPLE's parameters


class _Kerple(DistanceBias):
    """Two learned positive numbers for each head: `a` within the function of distance, and `p` (Chi et al. 2022)."""

    def __init__(self, sizes: Sizes, options: object, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        p, a = (torch.empty(sizes.n_layers, sizes.n_heads).uniform_(0.05, most) for most in (2, 1))  # as published
        self.raw_p, self.raw_a = (nn.Parameter(torch.log(torch.expm1(start - LEAST))) for start in (p, a))

    def p(self) -> Tensor:
        """[layer, head]"""
        return LEAST + softplus(self.raw_p)

    def a(self) -> Tensor:
        """[layer, head]"""
        return LEAST + softplus(self.raw_a)

    def per_head(self, layers: slice, ndim: int) -> tuple[Tensor, Tensor]:
        """p and a of each head, [layer, head, 1 …] with `ndim` further dimensions."""
        shape = (-1, self.sizes.n_heads, *[1] * ndim)
        return of_layers(self.p(), layers).view(shape), of_layers(self.a(), layers).view(shape)


class KerpleLog(_Kerple):
    """−p·ln(1 + a·d) at distance d."""

    by_formula = True
    name = "kerple-log"
    summary = "a penalty −p·ln(1+a·d) at distance d, with p and a learned per head"

    def values(self, layers: slice, distance: Tensor) -> Tensor:
        p, a = self.per_head(layers, distance.ndim)
        return -p * torch.log1p(a * distance.abs())


class KerplePower(_Kerple):
    """−a·d^p at distance d, with p at most 2: beyond that the kernel is not conditionally positive definite."""

    by_formula = True
    name = "kerple-power"
    summary = "a penalty −a·d^p at distance d, with p ≤ 2 and a learned per head"

    def p(self) -> Tensor:
        return 2 * torch.sigmoid(self.raw_p)

    def values(self, layers: slice, distance: Tensor) -> Tensor:
        p, a = self.per_head(layers, distance.ndim)
        return -a * distance.abs() ** p


class Fire(Distanced):
    """f(ln(c·d+1) / ln(c·max(i, L)+1)), a small network f of the distance relative to the position (Li et al. 2024).

    c and the threshold L are learned, for each layer. Up to L the ratio depends on the distance alone, and beyond on
    the query too; the relation uses what L is at the time.
    """

    by_formula = True
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

    def describe(self, code: Code) -> str:
        return f"distance {code[0]} seen from {code[1]} or before" if code[0] else "distance 0"

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        key, dtype = (queries.start, queries.stop), self.raw_c.dtype
        scope: Scope = "sizes" if self.anchored else positions.scope
        distance = positions.memo((self, *key), lambda: self.distances(positions, queries).abs(), scope, square=True)
        query = positions.memo(
            ("query", *key), lambda: positions.position[:, queries, None].to(dtype), positions.scope, square=True
        )

        def bias(layers: slice) -> tuple[Tensor, ...]:
            c, threshold = (of_layers(part, layers).view(-1, 1, 1, 1) for part in (self.raw_c.abs(), self.threshold))
            above = torch.maximum(query, threshold)
            ratio = torch.log1p(c * distance) / (torch.log1p(c * above) + 1e-6)  # 1e-6: c may become 0
            W_in, b_in = (of_layers(part, layers)[:, None, None, None] for part in (self.W_in, self.b_in))
            hidden = torch.relu(torch.addcmul(b_in, ratio[..., None], W_in))  # [layer, 1|row, query, key, hidden]
            out = hidden.flatten(1, -2) @ of_layers(self.W_out, layers)
            return out.view(*ratio.shape, -1).movedim(-1, 2).unbind()

        return positions.of_layer((self, *key), layer, bias)


def pick(products: Tensor, place: Tensor) -> Tensor:
    """From products with every vector, those at the place of each key.

    `products` [row, head, query, vector], `place` [1|row, query, key]; out [row, head, query, key].
    """
    rows, heads = products.shape[:2]
    return products.gather(3, place[:, None].expand(rows, heads, -1, -1))


class Shaw(DistanceTable):
    """A learned vector for each clipped distance, added to the key (Shaw et al. 2018); shared by heads."""

    name = "shaw"
    weighs_content = True
    summary = "one learned vector per distance, clipped, added to keys"

    def __init__(self, sizes: Sizes, options: DistanceTable.Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.vectors = nn.Parameter(torch.empty(sizes.n_layers, self.last + 1 - self.least, sizes.d_head))
        nn.init.normal_(self.vectors, std=0.02)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        vectors = self.vectors[layer].to(q.dtype)
        if not self.anchored:
            vectors = vectors[: positions.limit or queries.stop]  # no distance is longer than that
        products = torch.einsum("bqhd,vd->bhqv", q, vectors)
        key = (self, queries.start, queries.stop)
        place = positions.memo(key, lambda: self.place(self.distances(positions, queries)), square=True)
        return pick(products, place)


class TransformerXL(Distanced):
    """Sinusoids of the distance mapped to a key of their own, and learned queries u, v that all positions share.

    The score of a pair is (q_i+u)·k_j + (q_i+v)·W_R r_{i−j}, over the square root of d_head (Dai et al. 2019). The
    anchored twin has no u, since content needs no second one.
    """

    by_formula = True
    name = "xl"
    weighs_content = True
    summary = "queries meet mapped sinusoids of the distance, and two learned biases"
    anchored_in_words = "i−j−n"
    phi_name = "signed i−j"

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
        last, length = positions.limit or queries.stop, positions.tokens.shape[1]
        least = -length if self.anchored else 0  # a scale larger than the sequence is none
        every = (least, positions.limit or length)
        waves = positions.memo(
            (self, every), lambda: sinusoid(torch.arange(*every, device=q.device), self.sizes.d_model), "length"
        )
        r = torch.einsum("tm,hmd->thd", waves[: last - least], self.W_R[layer]).to(q.dtype)
        products = torch.einsum("bqhd,thd->bhqt", q + self._shared("v", positions).to(q.dtype), r)
        key = (self, queries.start, queries.stop)
        place = positions.memo(
            key, lambda: self.distances(positions, queries).clamp(least, last - 1) - least, square=True
        )
        of_distance = pick(products, place)
        if self.u is None:
            return of_distance
        return of_distance + torch.einsum("hd,bkhd->bhk", self._shared("u", positions).to(k.dtype), k)[:, :, None]

    def _shared(self, name: str, positions: Positions) -> Tensor:
        """A query that all positions and layers share, over the root. [head, d_head]"""
        shared: Tensor = positions.memo((self, name), lambda: getattr(self, name) / self.root, "pass")
        return shared


class Urpe(DistanceTable):
    """A learned factor for each head and distance, multiplied onto the pattern after the softmax (Luo et al. 2022).

    All factors start at 1. Rows of the pattern no longer sum to one, which lets a head count.
    """

    name = "urpe"
    summary = "one learned factor per distance, clipped, on the pattern after the softmax"

    def __init__(self, sizes: Sizes, options: DistanceTable.Options, task: Task | None, anchored: bool = False) -> None:
        super().__init__(sizes, options, task, anchored)
        self.table = nn.Parameter(torch.ones(sizes.n_layers, sizes.n_heads, self.last + 1 - self.least))

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        def values(layers: slice, distance: Tensor) -> Tensor:
            return of_layers(self.table, layers)[:, :, self.place(distance)]

        return self.by_distance(values, layer, positions, queries)
