"""Schemes that count by content: CoPE the tokens that a query cares for, RPE-Square from special tokens."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lengthlens.models.schemes.absolute import pairs_of_ids, place_in_run
from lengthlens.models.schemes.relation import BACK, Code
from lengthlens.models.schemes.scheme import LARGEST, Positions, PositionScheme, Sizes, option
from lengthlens.tasks import Task

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

    Query i and key j each look back, by an attention of their own, for the token they count from (a mark, say), with
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
        looking = torch.einsum("bqhd,hde->bqhe", q, self.W_query[layer].to(q.dtype))
        from_keys = torch.einsum("bkhd,hde->bkhe", k, self.W_key[layer].to(q.dtype) / self.sizes.d_head**0.5)
        if queries.start == 0:  # all queries: both look in one go
            back = partial(self._back, queries, queries.stop, q.device)
            known = positions.memo(("back", queries.stop), back, square=True)
            both = _counts(torch.cat([looking, from_keys], 2), torch.cat([k, k], 2), known)
            of_query, of_key = both.chunk(2, 1)
            return self._bias(layer, of_query, 0, queries.stop, known) @ of_key.transpose(-1, -2)
        of_query = _counts(looking, k, self._back(queries, queries.stop, q.device))
        # In pieces of counts and of keys, so that no square of the length is ever there.
        step, parts = max(queries.stop - queries.start, SHORT), []
        pieces = [slice(start, min(start + step, queries.stop)) for start in range(0, queries.stop, step)]
        bias = torch.cat([self._bias(layer, of_query, own.start, own.stop) for own in pieces], -1)
        for piece in reversed(pieces):  # the largest first: what it frees fits all others
            known = self._back(piece, piece.stop, q.device)
            of_piece = _counts(from_keys[:, piece], k[:, : piece.stop], known)  # [row, head, piece, count]
            parts.append(bias[..., : piece.stop] @ of_piece.transpose(-1, -2))
        return torch.cat(parts[::-1], -1)

    def _bias(self, layer: int, of_query: Tensor, start: int, stop: int, known: Any = None) -> Tensor:
        """The expected bias of queries with keys that count from `start` to `stop`. [row, head, query, count]"""
        last, device = self.options.max_distance, of_query.device
        if known is None:
            count, other = (torch.arange(*ends, device=device) for ends in ((of_query.shape[-1],), (start, stop)))
            place = (count[:, None] - other).clamp(-last, last) + last  # [count of query, count of key]
        else:
            place = known[2]
        return of_query @ self.table[layer][:, place].to(of_query.dtype)

    def _back(self, queries: slice, keys: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """For each position the token that far back, −∞ where there is none, and the place of differences in the table.

        [pos, count] each.
        """
        position, last = torch.arange(queries.start, queries.stop, device=device), self.options.max_distance
        back = position[:, None] - torch.arange(keys, device=device)
        return back.clamp(min=0), torch.where(back < 0, -torch.inf, 0.0), back.clamp(-last, last) + last


def _counts(looking: Tensor, k: Tensor, known: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """How likely each position counts from how far back. [row, pos, head, d_head] to [row, head, pos, count]

    Attention over tokens, turned around so that entry c of position i is the weight of the token at i−c.
    """
    back, none, _ = known
    scores = torch.einsum("bqhd,bkhd->bhqk", looking, k)
    return scores.gather(-1, back.expand_as(scores)).add_(none).softmax(-1)
