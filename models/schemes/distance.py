"""Schemes for which a pair counts by its distance: the plain i−j, or one that content decides.

They add a bias: one learned value for each distance or for a bucket of them, a fixed slope, or a function with few
learned numbers. Or the query meets a vector for the distance, or the pattern is multiplied by a factor. Most have an
anchored twin, the same scheme with i−j−n for i−j, where n is the input size. At the end stand two that count by
content: CoPE the tokens that a query cares for, RPE-Square from special tokens.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lengthlens.errors import UserError
from lengthlens.models.schemes.absolute import pairs_of_ids, place_in_run, sinusoid
from lengthlens.models.schemes.relation import BACK, Code, CodeTable
from lengthlens.models.schemes.scheme import LARGEST, Anchorable, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task

Values = Callable[[Tensor], Tensor]  # at distances [*], in a layer: [head, *]


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

    family, beyond = "relative", "bounded"
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

    def by_distance(self, values: Values, positions: Positions, queries: slice) -> Tensor:
        """A function of distance, for a block of queries. [1|row, head, query, key]

        Where positions have no gaps it is asked for one distance per diagonal, and once for each size n that occurs.
        """
        if positions.limit is not None:
            return values(self.distances(positions, queries)).transpose(0, 1)
        size, device = queries.stop - queries.start, positions.tokens.device
        line = torch.arange(queries.stop - 1, queries.start - queries.stop, -1, device=device)
        if not self.anchored:
            return along_diagonals(values(line), size)[None]
        return positions.per_scale(lambda n: along_diagonals(values(line - n[:, None]), size).transpose(0, 1))


class DistanceBias(Distanced):
    """A scheme that adds to each score one value per head and distance, whatever the tokens are."""

    phi_name = BACK

    @abstractmethod
    def values(self, layer: int, distance: Tensor) -> Tensor:
        """The bias of each head at distances [*], finite at negative ones too, even if never read. [head, *]"""

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return (distance.abs() if self.anchored else distance)[..., None]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return self.by_distance(partial(self.values, layer), positions, queries)


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

    def values(self, layer: int, distance: Tensor) -> Tensor:
        return self.table[layer][:, self.place(distance)]

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
                buckets = f"gives each of the first {self.num_buckets // 2} distances a bucket of its own"
                raise UserError(f"scheme 't5' {buckets}: max_distance must be more than that, not {self.max_distance}")

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

    by_formula = real_positions = True
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
        return self.slope[layer].view(-1, *[1] * distance.ndim) * -distance.abs()


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

    def per_head(self, layer: int, ndim: int) -> tuple[Tensor, Tensor]:
        """p and a of each head, [head, 1 …] with `ndim` further dimensions."""
        return self.p()[layer].view(-1, *[1] * ndim), self.a()[layer].view(-1, *[1] * ndim)


class KerpleLog(_Kerple):
    """−p·ln(1 + a·d) at distance d."""

    by_formula = real_positions = True
    name = "kerple-log"
    summary = "a penalty −p·ln(1+a·d) at distance d, with p and a learned per head"

    def values(self, layer: int, distance: Tensor) -> Tensor:
        p, a = self.per_head(layer, distance.ndim)
        return -p * torch.log1p(a * distance.abs())


class KerplePower(_Kerple):
    """−a·d^p at distance d, with p at most 2: beyond that the kernel is not conditionally positive definite."""

    by_formula = real_positions = True
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
    the query too; the relation uses what L is at the time.
    """

    by_formula = real_positions = True
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
        key = (self, queries.start, queries.stop)
        distance = positions.memo(key, lambda: self.distances(positions, queries).abs(), square=True)
        c, threshold = self.raw_c[layer].abs(), self.threshold[layer]
        above = torch.maximum(positions.position[:, queries, None].to(c.dtype), threshold)
        ratio = torch.log1p(c * distance) / (torch.log1p(c * above) + 1e-6)  # 1e-6: c may become 0
        hidden = torch.relu(torch.addcmul(self.b_in[layer], ratio[..., None], self.W_in[layer]))
        return (hidden @ self.W_out[layer]).movedim(-1, 1)  # from [1|row, query, key, head]


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
    """Sinusoids of the distance mapped to keys, and learned queries u, v that all positions share.

    The score of a pair is (q_i+u)·k_j + (q_i+v)·W_R r_{i−j}, over the square root of d_head (Dai et al. 2019). The
    anchored twin has no u, since content needs no second one.
    """

    by_formula, beyond = True, "unknown"
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
            (self, every), lambda: sinusoid(torch.arange(*every, device=q.device), self.sizes.d_model)
        )
        r = torch.einsum("tm,hmd->thd", waves[: last - least], self.W_R[layer]).to(q.dtype)
        products = torch.einsum("bqhd,thd->bhqt", q + (self.v / self.root).to(q.dtype), r)
        key = (self, queries.start, queries.stop)
        place = positions.memo(
            key, lambda: self.distances(positions, queries).clamp(least, last - 1) - least, square=True
        )
        of_distance = pick(products, place)
        if self.u is None:
            return of_distance
        return of_distance + torch.einsum("hd,bkhd->bhk", (self.u / self.root).to(k.dtype), k)[:, :, None]


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
        return self.by_distance(lambda distance: self.table[layer][:, self.place(distance)], positions, queries)


class Dape(Distanced):
    """A small network of the content scores and biases of all heads at a pair, beside the bias (Zheng et al. 2024).

    What is added to the scores of a pair is b + W₂ leaky(W₁ [s; b]), of the scores s of all heads and their biases b.
    (The published network ends with a number for each head, which all keys have in common, so that softmax ignores it.)
    """

    name = "dape"
    family = "contextual"  # type: ignore[assignment]
    weighs_content = True
    summary = "a bias, and a small network of the scores and biases of all heads"
    relation_in_words = "i−j, which content may weigh otherwise at each pair"
    phi_name = BACK
    hinges_on = "what the network makes of content and distance together"
    no_hint = "its biases have no twin that the network knows of"

    @dataclass(frozen=True)
    class Options:
        over: Literal["alibi", "kerple-log", "fire"] = "kerple-log"  # the best of those published
        hidden: int = option(32, at_least=1, at_most=4096)  # as published

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        kinds: dict[str, type[Distanced]] = {"alibi": Alibi, "kerple-log": KerpleLog, "fire": Fire}
        kind = kinds[options.over]
        self.bias = kind(sizes, kind.Options(), task)
        heads = sizes.n_heads
        self.network = nn.ModuleList(
            nn.Sequential(
                nn.Linear(2 * heads, options.hidden), nn.LeakyReLU(), nn.Linear(options.hidden, heads, bias=False)
            )
            for _ in range(sizes.n_layers)
        )

    def codes(self, distance: Tensor, query_pos: Tensor) -> Tensor:
        return distance[..., None]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        bias = self.bias.score(layer, positions, queries, q, k)
        assert bias is not None
        content = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)  # [row, head, query, key]
        both = torch.cat([content, bias.to(content.dtype).expand_as(content)], 1).movedim(1, -1)
        made: Tensor = self.network[layer](both)  # [row, query, key, head]
        return bias + made.movedim(-1, 1)


# -- distances that content decides ------------------------------------------------------------------------------------

SHORT = 64  # tokens up to which a square of the length is no matter


class Cope(PositionScheme):
    """Contextual position encoding (Golovneva et al. 2024): distance counts only the tokens whose gate is open.

    The gate of key t at query i is σ(q_i·k_t); the position of key j is the sum of gates from j to i, a fraction in
    general; the query's product with the learned vector of that position, interpolated, is added to the score. If
    all gates are open the position is i−j+1, if only those of ``=`` are, it is the number of ``=`` since j.

    The relation stated is i−j: the position lies between 0 and i−j+1, and is a function of i−j alone where tokens do
    not differ. Content can make pairs at the same distance differ, or pairs at different distances alike.
    """

    name = "cope"
    weighs_content = True
    family = "contextual"
    summary = "queries meet learned vectors of a position that counts only the tokens they gate in"
    relation_in_words = "i−j at most: the number of tokens from j to i that content lets count"
    phi_name = BACK
    hinges_on = "which tokens it learns to count"
    no_random = "it counts tokens, not position ids"
    no_hint = "it counts tokens by content, so its distances are not the scale's"

    @dataclass(frozen=True)
    class Options:
        max_position: int = option(64, at_least=2, at_most=LARGEST)  # from the last one on they share a vector

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        # Shared by heads, as published; zero at the start, so that training begins without positions.
        self.vectors = nn.Parameter(torch.zeros(sizes.n_layers, options.max_position, sizes.d_head))

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return (query_pos - key_pos + 0 * scale)[..., None]

    def describe(self, code: Code) -> str:
        return f"distance {code[0]}, less the tokens that do not count"

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        key = ("behind", queries.start, queries.stop)
        behind = positions.memo(key, lambda: positions.distance(queries)[:, None] < 0, square=True)
        gates = torch.einsum("bqhd,bkhd->bhqk", q, k).float().sigmoid().masked_fill(behind, 0)
        last = self.options.max_position - 1
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        products = torch.einsum("bqhd,pd->bhqp", q, self.vectors[layer].to(q.dtype)).float()
        below = position.detach().long()
        low, high = products.gather(-1, torch.cat([below, (below + 1).clamp(max=last)], -1)).chunk(2, -1)
        return torch.lerp(low, high, position - below)  # between the vectors of the two whole positions


class RpeSquare(PositionScheme):
    """RPE-Square (arXiv 2410.08898), in this project's operational version: relative positions of relative positions.

    Query i and key j each look back, by a second attention, for the token they count from (a mark, say), with
    weights α_i(l) over l ≤ i and β_j(m) over m ≤ j. What is added to the score is the expected bias of the
    difference of the two counts, Σ_l Σ_m α_i(l) β_j(m) R[(i−l) − (j−m)], with one learned R per head, clipped at
    `max_distance`. (The published attention is over the layer's input; here it is over its queries and keys.)

    Example: in ``^ 7 3 = 7`` with both looking for the last mark, the query 7 is 1 behind ``=`` and the key 3 is 2
    behind ``^``, so R[−1] is added, at every scale.

    The relation stated is that example's: the difference of the places in runs of symbols, for a model that knows
    its task (without one, i−j, the case in which both count from the same token). The network may learn to count from
    other tokens. A block of queries costs as much time as the square of its last position, for each row and head, and
    memory in proportion to it.
    """

    name = "rpe-square"
    weighs_content = True
    family = "contextual"
    summary = "a learned bias of the difference of two distances, each to a token found by attention"
    relation_in_words = "(i−l) − (j−m), clipped, with l, m the last tokens before i and j that are no symbols"
    hinges_on = "the tokens that queries and keys learn to count from"
    no_random = "it counts tokens from one another, not position ids"
    no_hint = "it counts from tokens, which stand where the scale puts them"

    @dataclass(frozen=True)
    class Options:
        max_distance: int = option(64, at_least=1, at_most=LARGEST)

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        heads = (sizes.n_layers, sizes.n_heads)
        self.table = nn.Parameter(torch.zeros(*heads, 2 * options.max_distance + 1))
        self.W_query = nn.Parameter(torch.randn(*heads, sizes.d_head, sizes.d_head) / sizes.d_head**0.5)
        self.W_key = nn.Parameter(torch.randn(*heads, sizes.d_head, sizes.d_head) / sizes.d_head**0.5)

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        last = self.options.max_distance
        if self.task is None:
            return (query_pos - key_pos + 0 * scale).clamp(-last, last)[..., None]
        places = pairs_of_ids(partial(place_in_run, self.task), query_pos, key_pos, scale)
        return (places[..., :1] - places[..., 1:]).clamp(-last, last)

    def describe(self, code: Code) -> str:
        return f"{abs(code[0])} places {'less' if code[0] >= 0 else 'more'} into its run than the query is"

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        """In pieces of counts and of keys, so that for a block of queries no square of the length is ever there."""
        looking = torch.einsum("bqhd,hde->bqhe", q, self.W_query[layer].to(q.dtype))
        from_keys = torch.einsum("bkhd,hde->bkhe", k, self.W_key[layer].to(q.dtype) / self.sizes.d_head**0.5)
        of_query, step = counts_back(looking, k, queries), max(queries.stop - queries.start, SHORT)
        pieces = [slice(start, min(start + step, queries.stop)) for start in range(0, queries.stop, step)]
        every, last = torch.arange(queries.stop, device=q.device), self.options.max_distance
        biases, parts = [], []
        for piece in pieces:  # the expected bias of queries with keys that count so far back
            place = (every[:, None] - every[piece]).clamp(-last, last) + last  # [count of query, count of key]
            biases.append(of_query @ self.table[layer][:, place].to(q.dtype))
        bias = torch.cat(biases, -1)  # [row, head, query, count of key]
        for piece in reversed(pieces):  # the largest first: what it frees fits all others
            of_key = counts_back(from_keys[:, piece], k[:, : piece.stop], piece)
            parts.append(bias[..., : piece.stop] @ of_key.transpose(-1, -2))
        return torch.cat(parts[::-1], -1)


def counts_back(looking: Tensor, k: Tensor, queries: slice) -> Tensor:
    """How likely each position counts from how far back. [row, pos, head, d_head] to [row, head, pos, count]

    Attention over tokens, turned around so that entry c of position i is the weight of the token at i−c.
    """
    query = torch.arange(queries.start, queries.stop, device=k.device)
    back = query[:, None] - torch.arange(k.shape[1], device=k.device)
    scores = torch.einsum("bqhd,bkhd->bhqk", looking, k)
    return scores.gather(-1, back.clamp(min=0).expand_as(scores)).masked_fill(back < 0, -torch.inf).softmax(-1)
