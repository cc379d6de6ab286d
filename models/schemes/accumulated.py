"""Schemes whose codes content accumulates: what a pair counts is made of the tokens between key and query.

Each token contributes something that is made from the layer's input (`read`): a decay, an angle, a reflection. What all
tokens after the key, up to the query, contribute is put together. So there is no φ(i, j; n): with other tokens between
them, the same two positions are treated otherwise.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lengthlens.errors import UserError
from lengthlens.models.schemes.distance import alibi_slopes
from lengthlens.models.schemes.relation import BOTH, Code, Relation
from lengthlens.models.schemes.rotary import rope_frequencies, turned_by
from lengthlens.models.schemes.scheme import Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task

STEEPEST = -80.0  # exponents below it count as it: the product with a float32 is 0 for all that matters
FEW = 24  # queries of ``wall`` whose factors are counted from one place: they are at most e⁶⁰
LEAST = -5.0  # of the log of what stays in a channel after a token
TINY = 1e-12  # so that nothing is divided by 0
CHUNK = 64  # tokens whose reflections are put together at once


class Accumulated(PositionScheme):
    """A scheme that adds up what the tokens between a key and a query contribute.

    It states (i, j) where a relation is asked for: positions alone make no two pairs alike.
    """

    family = "accumulated"
    relation_in_words = "none: what the tokens from j+1 to i add up to"
    phi_name = BOTH
    hinges_on = "what the tokens between a key and a query add up to, which no positions tell"
    has_codes = False
    weighs_content = True
    no_random = "it counts tokens, not position ids"
    no_hint = "it counts tokens by content, so there is nothing to anchor at the scale"

    def phi(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return torch.stack(torch.broadcast_tensors(query_pos + 0 * scale, key_pos), -1)

    def describe(self, code: Code) -> str:
        return f"the tokens after position {code[1]}, up to {code[0]}"

    def relation(self) -> Relation:
        return Relation(self.phi, self.relation_in_words, self.describe, uses_scale=False, kind=self.kind)

    def sums(self, layer: int, positions: Positions) -> Tensor:
        """What tokens up to each position have contributed together. [row, pos, head, …]"""
        total: Tensor = positions.memo(("sums", layer), lambda: positions.kept(layer).float().cumsum(1))
        return total


def each_layer(sizes: Sizes, width: int, bias: float | None = 0.0, rank: int | None = None) -> nn.ModuleList:
    """A linear map of the layer's input for each layer, through `rank` numbers if that is given."""

    def layer() -> nn.Module:
        last = nn.Linear(rank or sizes.d_model, width, bias=bias is not None)
        if bias is not None:
            nn.init.constant_(last.bias, bias)
        return last if rank is None else nn.Sequential(nn.Linear(sizes.d_model, rank, bias=False), last)

    return nn.ModuleList(layer() for _ in range(sizes.n_layers))


class ShortConvolution(nn.Module):
    """Each channel of a position mixed with those of the few positions before it. [row, pos, channel]"""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        width = self.weight.shape[1]
        windows = F.pad(x, (0, 0, width - 1, 0)).unfold(1, width, 1)  # [row, pos, channel, width], itself the last
        return (windows * self.weight).sum(-1)


class Forgetting(Accumulated):
    """Each token lets a share of what lies before it be forgotten: its log is added to the scores of all earlier keys.

    The share is σ(w·x_t + b) for each head (Lin et al. 2025). Data-dependent ALiBi is the same with b = 5 at the start,
    which forgets little; CABLE (Veisi et al. 2025) adds −softplus(w·x_t + b), the same with the other sign of w and b.
    """

    name = "fox"
    summary = "a penalty that the tokens between key and query add up to, each by a gate of its content"

    @dataclass(frozen=True)
    class Options:
        gate: Literal["forgetting", "data-alibi", "cable"] = "forgetting"

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.gate = each_layer(sizes, sizes.n_heads, 5.0 if options.gate == "data-alibi" else 0.0)

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        gate = self.gate[layer](x).float()  # [row, pos, head]
        return -F.softplus(gate) if self.options.gate == "cable" else F.logsigmoid(gate)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return decays(self.sums(layer, positions), queries)


def decays(sums: Tensor, queries: slice) -> Tensor:
    """The difference of running sums [row, pos, head] between queries and keys. [row, head, query, key]"""
    sums = sums.transpose(1, 2)
    return sums[:, :, queries, None] - sums[:, :, None, : queries.stop]


class Wall(Accumulated):
    """Each token lets a share of each channel of the keys before it be forgotten (Tilde Research 2026).

    The score is Σ_c q_ic k_jc exp(P_ic − P_jc): P is the running sum of log σ(W x_t + b) in each channel c of a head.
    (At most 99.3 % is forgotten at a token, e⁻⁵ stays, so that a few tokens' factors are numbers of float32.)
    """

    name = "wall"
    summary = "a decay of each channel of a key, by gates of the tokens between key and query"

    @dataclass(frozen=True)
    class Options:
        start: float = 8.0  # b at the start, as published: hardly anything is forgotten

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.gate = each_layer(sizes, sizes.n_heads * sizes.d_head, options.start)

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        logs: Tensor = F.logsigmoid(self.gate[layer](x).float())
        return logs.clamp(min=LEAST).view(*x.shape[:2], self.sizes.n_heads, -1)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        """A few queries at a time: their factors are counted from the middle of them, those of earlier keys from where
        they begin. Pair by pair it would take four times as long."""
        sums, stop, rows = self.sums(layer, positions), queries.stop, []
        for start in range(queries.start, stop, FEW):
            few = slice(start, min(start + FEW, stop))
            asked, own = q[:, few.start - queries.start : few.stop - queries.start], sums[:, few]
            away = own - own[:, len(own[0]) // 2, None]
            parts = [products(asked * away.exp().to(q.dtype), k[:, few] * (-away).exp().to(k.dtype)).tril()]
            if start:
                border = sums[:, start - 1 : start]
                near = asked * (own - border).clamp(min=STEEPEST).exp().to(q.dtype)
                far = k[:, :start] * (border - sums[:, :start]).clamp(min=STEEPEST).exp().to(k.dtype)
                parts.insert(0, products(near, far))
            rows.append(F.pad(torch.cat(parts, -1), (0, stop - few.stop)))
        return torch.cat(rows, 2) - products(q, k).tril(queries.start)


def products(q: Tensor, k: Tensor) -> Tensor:
    """q·k of every query and key, [row, head, query, key]."""
    return q.transpose(1, 2) @ k.permute(0, 2, 3, 1)


class SelectiveRope(Accumulated):
    """Pair k of the dimensions turns by the running sum of angles that tokens contribute (Movahedi et al. 2026).

    An angle is θ_k times a linear function of the input, of length 1 in each head, mixed over the last four tokens.
    """

    name = "selective-rope"
    summary = "queries and keys turned by running sums of angles, which tokens contribute by content"
    weighs_content = False

    @dataclass(frozen=True)
    class Options:
        base: float = option(500000.0, at_least=1)  # as published
        rank: int = option(16, at_least=1, at_most=4096)  # of the map from the input to angles
        conv: int = option(4, at_least=1, at_most=64)  # tokens that are mixed

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        if sizes.d_head % 2:
            raise UserError(f"scheme '{self.name}' turns dimensions in pairs: d_head must be even, not {sizes.d_head}")
        width = sizes.n_heads * sizes.d_head // 2
        self.angle = each_layer(sizes, width, None, options.rank)
        self.mix = nn.ModuleList(ShortConvolution(width, options.conv) for _ in range(sizes.n_layers))

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        parts = x.unflatten(-1, (self.sizes.n_heads, -1)) if x.shape[-1] % self.sizes.n_heads == 0 else x[:, :, None]
        angle = self.mix[layer](self.angle[layer](F.normalize(parts, dim=-1).flatten(2)))
        frequencies = rope_frequencies(self.options.base, self.sizes.d_head, x.device)
        turned: Tensor = angle.float().unflatten(-1, (self.sizes.n_heads, -1)) * frequencies  # [row, pos, head, pair]
        return turned

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        def turn() -> tuple[Tensor, Tensor]:
            angle = self.sums(layer, positions)
            return angle.cos().repeat(1, 1, 1, 2), torch.cat([-angle.sin(), angle.sin()], -1)

        return turned_by(x, *positions.memo(("turn", layer), turn), adjacent=False)


class GrapeAdditive(Accumulated):
    """The query asks each token between it and the key how much of the keys before it is to be forgotten.

    The penalty is α_h Σ_{t=j+1…i} log σ(p_i · R_t p̂_t / d) with ALiBi's slopes α, p = W x, p̂ = p over its root mean
    square, and R_t turning every pair by t (Zhang et al. 2025, the form of their code that sums along the path).
    """

    name = "grape-additive"
    summary = "a penalty summed over the tokens between key and query, by what the query asks of each"

    @dataclass(frozen=True)
    class Options:
        pairs: int = option(4, at_least=1, at_most=4096)  # half the width of p, as published

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        self.ask = each_layer(sizes, sizes.n_heads * 2 * options.pairs, None)
        self.slope: Tensor
        self.register_buffer("slope", alibi_slopes(sizes.n_heads, "published"), persistent=False)

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        asked: Tensor = self.ask[layer](x).float().unflatten(-1, (self.sizes.n_heads, -1))
        return asked  # [row, pos, head, 2 pairs]

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        asked, stop = positions.kept(layer), queries.stop
        answer = F.rms_norm(asked[:, :stop], asked.shape[-1:])
        angle = torch.arange(stop, device=q.device)[None, :, None, None]
        sine = angle.sin().expand(-1, -1, -1, asked.shape[-1] // 2)
        answer = turned_by(answer, angle.cos(), torch.cat([sine, -sine], -1), adjacent=False)
        logs = asked[:, queries].transpose(1, 2) @ answer.permute(0, 2, 3, 1) / asked.shape[-1]
        edges = (F.logsigmoid(logs) * self.slope[:, None, None]).tril(queries.start)  # [row, head, query, token]
        return edges.sum(-1, keepdim=True) - edges.cumsum(-1)


class Reflected(Accumulated):
    """Each token reflects what lies before it: q_iᵀ H_i … H_{j+1} k_j, H_t = I − β_t w_t w_tᵀ (Yang et al. 2025).

    w has length 1 and β lies between 0 and 2; both are made from the input, and u = √β w holds them. With `forgets`,
    each token forgets besides, as under ``fox``. Long inputs are taken in chunks, of which products are kept and not
    matrices of all pairs.
    """

    name = "path"
    summary = "keys reflected by every token between key and query, along directions made from content"

    @dataclass(frozen=True)
    class Options:
        forgets: bool = False  # whether tokens forget, too, as under fox
        rank: int = option(32, at_least=1, at_most=4096)  # of the map from the input to w, as published
        conv: int = option(3, at_least=1, at_most=64)  # tokens that w is mixed over

    options: Options

    def __init__(self, sizes: Sizes, options: Options, task: Task | None) -> None:
        super().__init__(sizes, options, task)
        width = sizes.n_heads * sizes.d_head
        self.direction = each_layer(sizes, width, None, options.rank)
        self.mix = nn.ModuleList(ShortConvolution(width, options.conv) for _ in range(sizes.n_layers))
        self.strength = each_layer(sizes, sizes.n_heads)
        self.gate = each_layer(sizes, sizes.n_heads) if options.forgets else None

    def read(self, layer: int, x: Tensor, positions: Positions) -> Tensor | None:
        w = F.silu(self.mix[layer](self.direction[layer](x))).float().unflatten(-1, (self.sizes.n_heads, -1))
        strength = self.strength[layer](x).float().sigmoid()[..., None]  # half of β
        u: Tensor = F.rms_norm(w, w.shape[-1:], eps=TINY) * (2 / w.shape[-1] * strength).sqrt()
        if self.gate is None:
            return u  # [row, pos, head, d_head]
        return torch.cat([u, F.logsigmoid(self.gate[layer](x).float())[..., None]], -1)  # and the log of what stays

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        made, d = positions.kept(layer)[:, : queries.stop].float(), self.sizes.d_head
        u = made if self.gate is None else made[..., :d]
        q, k, u = (x.transpose(1, 2).float().contiguous() for x in (q, k, u))  # one copy of each, for all products
        lower = q.device.type != "meta" and torch.is_autocast_enabled(q.device.type)
        with torch.autocast(q.device.type, enabled=False) if lower else nullcontext():  # a system is solved
            bias = reflected(q, k, u, queries.start)
        return bias if self.gate is None else bias + decays(made[..., d].cumsum(1), queries)


def reflected(q: Tensor, k: Tensor, u: Tensor, start: int) -> Tensor:
    """q_iᵀ H_i … H_{j+1} k_j − q_iᵀ k_j for queries from `start` on and all keys up to the last, H_t = I − u_t u_tᵀ.

    `q` [row, head, query, d], the others [row, head, key, d]. Within a chunk it is −(Q Uᵀ)(T tril(U Kᵀ)) with
    T = (1 + tril(U Uᵀ))⁻¹; the product of a whole chunk turns the queries that earlier chunks meet.
    """
    first, stop, rows = start - start % CHUNK, k.shape[2], []
    for begin in range(first, stop, CHUNK):
        chunk, own = slice(begin, min(begin + CHUNK, stop)), slice(max(begin, start), min(begin + CHUNK, stop))
        asked = plain = q[:, :, own.start - start : own.stop - start]
        parts: list[Tensor] = []
        while True:
            keys, turns = k[:, :, chunk], u[:, :, chunk]
            meets = asked @ turns.transpose(-1, -2)
            meets = meets if parts else meets.tril(own.start - begin)
            system = (turns @ turns.transpose(-1, -2)).tril(-1)  # of which the diagonal counts as ones
            right = (turns @ keys.transpose(-1, -2)).tril(-1)
            right = torch.cat([right, turns], -1) if chunk.start else right
            solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
            change = meets @ solved
            here = -change[..., : keys.shape[2]]
            parts.insert(0, here + (asked - plain) @ keys.transpose(-1, -2) if parts else here)
            if not chunk.start:
                break
            asked = asked - change[..., keys.shape[2] :]
            chunk = slice(chunk.start - CHUNK, chunk.start)
        row = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        rows.append(F.pad(row, (0, stop - own.stop)) if own.stop < stop else row)
    return rows[0] if len(rows) == 1 else torch.cat(rows, 2)
