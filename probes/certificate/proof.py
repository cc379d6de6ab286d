"""What is proven from the weights alone, for every instance: how much attention can leak, and that answers are right.

The leak is the share of attention that goes to keys that are not named (`lengthlens.probes.certificate.places`).

A proof that the answer is right is for models in which logits are linear in what heads move: one layer of attention, no
norm, no MLP. There the right token's lead over another is a sum over heads of weighted means Σ w g / Σ w, with one term
for each key: g is what the key's token adds to the lead, and w is e^score, divided by the number of pooled keys for
those. Named keys that are the circuit's sources hold known tokens. All other keys may hold any symbol; the least value
of such a quotient is found by Dinkelbach's method, head by head.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.certificate.places import Places
from lengthlens.tasks import Task

ROUNDS = 8  # of the iteration, which converges quadratically; a bound holds after any of them
MOST_CASES = 100_000  # combinations of tokens that a step may read
FINE = 1.002  # ratio of the ends of a range of positions that is not halved any more


@torch.no_grad()
def leak_bound(model: HookedModel, task: Task, steps: Places, length: int) -> Tensor:
    """An upper bound on the share of attention that goes to keys without a name, at any answer query of any instance of
    scale `length`. [layer, head]

    `steps` are places of a scale with all kinds of steps that there are at `length`. At a query with token q let x be
    the largest score of a symbol, and x + δ_m the least score of the named key m. There are fewer than i+2 other keys,
    and all scores are multiplied by the temperature s(i), so the share is at most 1 / (1 + Σ_m e^{s(i)·δ_m} / (i+2)).
    Each term is a power of i+2 under length-scaled scores, and falls with i otherwise: over the answer's queries it is
    least at an end. Where other keys weigh together as one, and scores are not scaled, they have e^x at most, however
    many they are: the number i+2 then stands only below named keys that are pooled themselves.

    In layer 0 scores are known from the tokens. Behind it, a norm leaves vectors of length √d_model, which bounds by
    how much the scores of two keys can differ; without a norm nothing does.

    Example: one head, no content, one named key with a bias of 5, no scaling, n = 100. The last query is i = 201; it
    attends to ``=``, and names ``^`` and itself, without a bias: at most 1 / (1 + (e⁵ + 1 + 1) / 203) = 0.57 leaks.
    """
    ends = torch.tensor([task.prompt_length(length) - 1, task.length(length) - 2])
    heat, number = temperature(model, ends), torch.log(ends + 2.0)
    query, token, symbols = steps.answer_queries, torch.arange(len(task.vocab)), len(task.symbols)
    key, own = steps.named.key[query], steps.tokens[query][:, None]
    occurs = torch.where(own < symbols, token < symbols, token == own)  # [query, token], at the query itself
    table = score_table(model)
    lowest, highest = (table[..., :symbols].amin(-1)[:, None, :, None], table[..., :symbols].amax(-1)[:, None, :, None])
    holds = steps.tokens[key.clamp(min=0)]  # of a mark; a symbol may be any
    score = torch.where((holds < symbols)[:, None], lowest, table[:, :, holds].transpose(1, 2))
    score = torch.where((key == query[:, None])[:, None], table[:, token, token][:, None, :, None], score)
    bounds = []
    for layer in range(model.cfg.n_layers):
        least, most = score, highest  # [head, query, token, name or 1]
        if layer > 0:
            least, most = torch.zeros(()), score_range(model, layer)[:, None, None, None]
        gap = least + steps.named.bias[layer][:, query, None] - most
        gap = gap.masked_fill((key < 0)[:, None], -math.inf)
        pooled = steps.named.pooled[layer][:, query, None]
        # Whether a named key loses weight against the rest as that grows in number.
        fades = (pooled if model.pos_embed.pools_others else torch.ones_like(pooled)).to(gap.dtype)
        kept = (gap[..., None] * heat - fades[..., None] * number).amin(-1).exp().sum(-1)  # [head, query, token or 1]
        bounds.append(torch.where(occurs, 1 / (1 + kept), 0.0).amax((1, 2)))
    return torch.stack(bounds)


def temperature(model: HookedModel, position: Tensor) -> Tensor:
    """What the scores of a query at a position are multiplied by."""
    if model.config.score_scaling == "none":
        return torch.ones(position.shape)
    return torch.log(position + 2.0) / math.log(model.config.train_ctx + 2)


def score_table(model: HookedModel) -> Tensor:
    """Layer 0's score of every token as a key for every token as a query. [head, query token, key token]"""
    attn = model.layers[0].attn
    y = model.layers[0].ln1(model.embed.W_E)
    q, k = (torch.einsum("tm,hmd->htd", y, w) + b[:, None] for w, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)))
    return q @ k.transpose(1, 2) / model.cfg.attn_scale


def score_range(model: HookedModel, layer: int) -> Tensor:
    """By how much the scores of two keys can differ at one query, at most, whatever the residual stream. [head]

    Behind a norm, queries are q = yA + a and keys k = y'B + b with |y|, |y'| ≤ √d: |q·(k−k')| ≤ 2√d·(√d·‖ABᵀ‖ + ‖aBᵀ‖).
    """
    block, d = model.layers[layer], model.cfg.d_model
    if model.cfg.normalization_type is None:
        return torch.full((model.cfg.n_heads,), math.inf)
    norm: Any = block.ln1
    scale, shift = torch.ones(d) if norm.w is None else norm.w, torch.zeros(d) if norm.b is None else norm.b
    A, B = scale[:, None] * block.attn.W_Q, scale[:, None] * block.attn.W_K  # [head, d_model, d_head]
    a = torch.einsum("m,hmd->hd", shift, block.attn.W_Q) + block.attn.b_Q
    moved = math.sqrt(d) * torch.linalg.matrix_norm(A @ B.transpose(1, 2), 2)
    fixed = torch.linalg.vector_norm(torch.einsum("hd,hmd->hm", a, B), dim=-1)
    most: Tensor = 2 * math.sqrt(d) * (moved + fixed) / model.cfg.attn_scale
    return most


class ProofStep(NamedTuple):
    """An answer query: what it names, and all that the circuit may find there."""

    query: int
    key: Tensor  # [name]
    bias: Tensor  # [head, name]
    pooled: Tensor  # [head, name], whether it weighs together with the rest as one key
    token: Tensor  # [case, name], −1 where it may be any symbol
    target: Tensor  # [case]


def steps_of(task: Task, places: Places, seen: set[int] | None = None) -> Iterator[ProofStep]:
    """The steps of one scale, with all combinations of tokens; if `seen` is given, one of each kind not in it."""
    circuit = task.circuit(places.scale)
    steps = {step.query: step for step in circuit}
    for query, kind in zip(places.answer_queries.tolist(), places.types.tolist()):
        if seen is not None:
            if kind in seen:
                continue
            seen.add(kind)
        step = steps[query]
        known = list(dict.fromkeys([*step.sources, query]))
        choices = [range(len(task.symbols)) if places.symbol[k] else [int(places.tokens[k])] for k in known]
        if math.prod(map(len, choices)) > MOST_CASES:
            raise UserError(f"a step of task '{task.name}' may read more than {MOST_CASES} combinations of tokens")
        cases = list(itertools.product(*choices))
        function = circuit.functions[step.operator].function
        held = [dict(zip(known, case)) for case in cases]
        target = [task.ids[function(*(task.vocab[tokens[s]] for s in step.sources))] for tokens in held]
        exists = places.named.key[query] >= 0
        key = places.named.key[query][exists]
        token = torch.where(places.symbol[key], -1, places.tokens[key]).repeat(len(cases), 1)
        for position, column in zip(known, torch.tensor(cases).T):
            token[:, key == position] = column[:, None]
        bias, pooled = (part[0][:, query][:, exists] for part in (places.named.bias, places.named.pooled))
        yield ProofStep(query, key, bias, pooled, token, torch.tensor(target))


@torch.no_grad()
def least_lead(model: HookedModel, task: Task, step: ProofStep, first: Tensor, last: Tensor) -> Tensor:
    """A lower bound on the lead of the right token at a step, at any position from `first` to `last`. [range]

    Both [range], in float64: rounding apart, the bound holds for every instance.
    """
    heat = torch.stack([temperature(model, end).double() for end in (first, last)])  # [2, range]
    ends = torch.stack([first, last]).double()
    rest = (ends + 1 - len(step.key)).clamp(min=0)  # how many other keys
    scores = score_table(model).double()  # [head, query token, key token]
    attn = model.layers[0].attn
    value = torch.einsum("tm,hmd->htd", model.embed.W_E, attn.W_V) + attn.b_V[:, None]
    logits = (torch.einsum("htd,hdm->htm", value, attn.W_O) @ model.unembed.W_U).double()  # [head, token, logit]
    alone = (model.embed.W_E + attn.b_O) @ model.unembed.W_U + model.unembed.b_U
    own = step.token[:, (step.key == step.query).nonzero()[0, 0]]  # [case]
    right = step.target[:, None]
    lead = alone[own].gather(1, right) - alone[own]  # [case, logit]
    total = lead.double()[None].expand(len(first), -1, -1).clone()
    token = torch.arange(len(task.vocab))
    any_symbol = token < len(task.symbols)
    possible = torch.where(step.token[..., None] < 0, any_symbol, token == step.token[..., None])
    for head in range(model.cfg.n_heads):
        gain = logits[head][:, step.target].T[:, None] - logits[head].T[None]  # [case, logit, token]
        named = scores[head][own][:, None] + step.bias[head][:, None]  # [case, name, token]
        top = named.masked_fill(~possible, -math.inf).amax((1, 2), keepdim=True)
        low, high = _weights(named - top, heat)  # [range, case, name, token]
        other_low, other_high = _weights((scores[head][own] - top[..., 0])[:, None], heat)
        count = torch.ones_like(rest)
        if model.pos_embed.pools_others:
            count = (ends + 1 - (~step.pooled[head]).sum()).clamp(min=1)  # pooled keys
        each = rest / count
        share = torch.where(step.pooled[head], 1 / count[..., None], 1.0)[:, :, None, :, None]  # [2, range, 1, name, 1]
        low, high = low * share.amin(0), high * share.amax(0)
        low = torch.cat([low, other_low * each.amin(0)[:, None, None, None]], 2)
        high = torch.cat([high, other_high * each.amax(0)[:, None, None, None]], 2)
        may = torch.cat([possible, any_symbol.expand(len(own), 1, -1)], 1)
        total += _least_mean(low, high, may, gain)
    return total.scatter(2, right.expand(len(first), -1, -1), math.inf).amin((1, 2))


def _weights(score: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
    """e^(heat·score) at its least and greatest while heat goes from one end to the other. [range, *]"""
    both = (heat.view(*heat.shape, 1, 1, 1) * score).exp()
    return both.amin(0), both.amax(0)


def _least_mean(low: Tensor, high: Tensor, may: Tensor, gain: Tensor) -> Tensor:
    """The least of Σ w g / Σ w where each key chooses one of the tokens it `may` hold, and w between its bounds.

    `low`, `high` [range, case, key, token], `may` [case, key, token], `gain` [case, logit, token]; out [range, case,
    logit]. With F(ρ) = min Σ w·(g−ρ) the least mean is at least ρ + F(ρ) / Σ low, for any ρ.
    """
    low, high = low[:, :, None], high[:, :, None]  # [range, case, 1, key, token]
    may, gain = may[None, :, None], gain[None, :, :, None]
    least_sum = low.masked_fill(~may, math.inf).amin(-1).sum(-1)
    rho = gain.masked_fill(~may, -math.inf).amax((3, 4)).expand(*low.shape[:2], -1)
    for _ in range(ROUNDS):
        excess = gain - rho[..., None, None]
        weight = torch.where(excess < 0, high, low)
        term = (weight * excess).masked_fill(~may, math.inf)
        least, which = term.min(-1)
        short = least.sum(-1)
        chosen = weight.gather(-1, which[..., None])[..., 0]
        bound = rho + short.clamp(max=0) / least_sum
        rho = rho + short / chosen.sum(-1)
    return bound


def proof(model: HookedModel, task: Task, settled: int, limit: int) -> tuple[int, ProofStep | None, float]:
    """The largest scale up to `limit` at which the right token leads at every step of every instance.

    With the step that is not certain behind it (None if the limit was reached), and the least lead up to there.

    Steps of scales up to `settled` are bounded where they are; the kinds of steps that there are from then on, at
    every position at which any of them could be.
    """
    least = math.inf
    for scale in range(task.min_scale, min(settled, limit + 1)):
        for step in steps_of(task, Places(model.pos_embed, task, scale)):
            here = torch.tensor([step.query])
            lead = float(least_lead(model, task, step, here, here))
            if lead <= 0:
                return scale - 1, step, least
            least = min(least, lead)
    if limit < settled:
        return limit, None, least
    seen: set[int] = set()
    lasting = [s for n in (settled, settled + 1) for s in steps_of(task, Places(model.pos_embed, task, n), seen)]
    end, weakest = task.length(limit) - 2, None
    for step in lasting:
        good, lead = certain_up_to(model, task, step, task.prompt_length(settled) - 1, end)
        if good < end:
            weakest, end = step, good
        least = min(least, lead)
    # The largest scale, from settled − 1 (which is certain) on, whose last query is not behind that position.
    more = bisect_right(range(settled, limit + 1), end, key=lambda scale: task.length(scale) - 2)
    return settled - 1 + more, weakest, least


def certain_up_to(model: HookedModel, task: Task, step: ProofStep, first: int, last: int) -> tuple[int, float]:
    """The last position up to which a step's right token leads wherever it may be, and the least lead on the way.

    Ranges of positions are halved where the bound for all of a range at once fails.
    """
    least, at = math.inf, first
    ends: list[int] = []
    while at <= last:
        end = ends.pop() if ends else min(last, 2 * at)
        lead = float(least_lead(model, task, step, torch.tensor([at]), torch.tensor([end])))
        if lead > 0:
            least, at = min(least, lead), end + 1
        elif end == at or end <= at * FINE:
            return at - 1, least
        else:
            ends += [end, (at + end) // 2]
    return last, least
