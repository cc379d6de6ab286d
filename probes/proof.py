"""What is proven from the weights alone, for every instance: how much attention can leak, and that answers are right.

The leak is the share of attention that goes to keys that are not named (`lengthlens.probes.step_kinds`).

A proof that the answer is right is for models in which logits are linear in what heads move: one layer of attention, no
norm, no MLP. There the right token's lead over another is a sum over heads of weighted means Σ w g / Σ w, with one term
for each key: g is what the key's token adds to the lead, and w is e^score, divided by the number of pooled keys for
those. Named keys that are the circuit's sources hold known tokens. All other keys may hold any symbol; the least value
of such a quotient is found by Dinkelbach's method, head by head.

Which steps there are at any scale follows from the lines on which everything stands (`kinds`). A kind of step is
bounded at all positions from the first to the last that it can have, so no scale is left out.

The model is run in floating point. Its own rounding is bounded, too, by the usual worst case: a chain of k operations
is off by k·u/(1−k·u) of what it would be with all signs positive, u being half the distance of 1 to the next number.
The number of keys enters k, in whatever order sums over them are taken.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes import PositionScheme
from lengthlens.models.schemes.relation import MOST_FORMS
from lengthlens.models.transformer import HookedModel
from lengthlens.probes.step_kinds import GRAIN, NamedSteps, settling_of
from lengthlens.tasks import Operator, Task
from lengthlens.tasks.circuit import Layout
from lengthlens.tasks.task import END

ROUNDS = 8  # of the iteration, which converges quadratically; a bound holds after any of them
MOST_CASES = 100_000  # combinations of tokens that a step may read
FINE = 1.002  # ratio of the ends of a range of positions that is not halved any more
MOST_STEPS = 300_000  # to look at, one by one: some seconds, and all of them up to n = 700 or so
ELEMENTS = 1 << 22  # numbers that a bound is computed from at once: 32 MB


@torch.no_grad()
def leak_bound(model: HookedModel, task: Task, layout: Layout, length: int) -> Tensor:
    """An upper bound on the share of attention of the first layer that goes to keys without a name. [head]

    It holds at every answer query of every instance of input size `length`. At a query with token q let x be the
    largest score of a symbol, and x + δ_m the least score of the named key m. There are fewer than i+2 other keys, and
    all scores are multiplied by the temperature s(i), so the share is at most 1 / (1 + Σ_m e^{s(i)·δ_m} / (i+2)). Each
    term is a power of i+2 under length-scaled scores, and falls with i otherwise: over the answer's queries it is least
    at an end. Where other keys weigh together as one, and scores are not scaled, they have e^x at most, however many
    they are: the number i+2 then stands only below named keys that are pooled themselves. Where other keys are one of
    score 0, so is x.

    In the first layer scores are known from the tokens. Of later layers nothing is said: a norm leaves vectors of
    length √d_model, and the bound that follows from that alone is 1 in every trained network that was tried.

    Example: one head, no content, one named key with a bias of 5, no scaling, n = 100. The last query is i = 201; it
    attends to ``=``, and names ``^`` and itself, without a bias: at most 1 / (1 + (e⁵ + 1 + 1) / 203) = 0.57 leaks.
    """
    scheme, ends = model.pos_embed, torch.tensor([task.prompt_length(length) - 1, task.length(length) - 2])
    steps = NamedSteps.of_size(scheme, task, settling_of(scheme, task, layout).alike(length), layout)
    heat, number = temperature(model, ends), torch.log(ends + 2.0)
    token, symbols = torch.arange(model.cfg.d_vocab), len(task.symbols)
    key, own = steps.named.key, steps.own[:, None]
    occurs = torch.where(own < 0, token < symbols, token == own)  # [query, token], at the query itself
    table = score_table(model)
    most, lowest = (part[:, None, :, None] for part in (table[..., :symbols].amax(-1), table[..., :symbols].amin(-1)))
    of_mark = table[:, :, steps.token.clamp(min=0)].transpose(1, 2)
    least = torch.where((steps.token < 0)[:, None], lowest, of_mark)  # a symbol may be any: [head, query, token, name]
    least = torch.where((key == steps.query[:, None])[:, None], table[:, token, token][:, None, :, None], least)
    pooled = steps.named.pooled[0][:, :, None]
    if scheme.means_others:  # others have score 0
        least, most = torch.where(pooled, 0.0, least), torch.zeros(())
    gap = (least + steps.named.bias[0][:, :, None] - most).masked_fill((key < 0)[:, None], -math.inf)
    # Whether a named key loses weight against the rest as that grows in number.
    fades = (pooled if scheme.pools_others else torch.ones_like(pooled)).to(gap.dtype)
    kept = (gap[..., None] * heat - fades[..., None] * number).amin(-1).exp().sum(-1)  # [head, query, token]
    return torch.where(occurs, 1 / (1 + kept), 0.0).amax((1, 2))


def temperature(model: HookedModel, position: Tensor) -> Tensor:
    """What the scores of a query at a position are multiplied by."""
    if model.config.score_scaling == "none":
        return torch.ones(position.shape, dtype=position.dtype if position.is_floating_point() else None)
    return torch.log(position + 2.0) / math.log(model.config.train_ctx + 2)


def score_table(model: HookedModel) -> Tensor:
    """The first layer's score of every token as a key for every token as a query. [head, query token, key token]"""
    attn = model.layers[0].attn
    y = model.layers[0].ln1(model.embed.W_E)
    q, k = (torch.einsum("tm,hmd->htd", y, w) + b[:, None] for w, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)))
    return q @ k.transpose(1, 2) / model.cfg.attn_scale


class ProofStep(NamedTuple):
    """An answer query: what it names, and all that the circuit may find there."""

    query: int
    key: Tensor  # [name]
    bias: Tensor  # [head, name]
    pooled: Tensor  # [head, name], whether it weighs together with the rest as one key
    token: Tensor  # [case, name], −1 where it may be any symbol
    target: Tensor  # [case]
    size: Tensor  # [head], of the biases that the scheme adds up, without their signs


def steps_of(task: Task, steps: NamedSteps) -> Iterator[ProofStep]:
    """Steps with all combinations of tokens that they may read."""
    symbols, functions = range(len(task.symbols)), dict[str, Operator]()
    for k, (query, scale) in enumerate(zip(steps.query.tolist(), steps.scale.tolist())):
        read = [s for s in steps.sources[k].tolist() if s >= 0]
        marks = dict(zip([*read, query], [*steps.held[k].tolist(), int(steps.own[k])]))  # −1 for any symbol
        choices = [symbols if mark < 0 else [mark] for mark in marks.values()]
        if math.prod(map(len, choices)) > MOST_CASES:
            raise UserError(f"a step of task '{task.name}' may read more than {MOST_CASES} combinations of tokens")
        cases = list(itertools.product(*choices))
        operator = steps.layout.steps[steps.which[k]].operator
        if operator not in functions:
            functions |= task.circuit(scale).functions
        function, place = functions[operator].function, [list(marks).index(s) for s in read]
        target = torch.tensor([task.ids[function(*(task.vocab[case[at]] for at in place))] for case in cases])
        last = query == int(steps.layout.last.at(query, scale))
        if not bool(((target == task.ids[END]) if last else (target < len(symbols))).all()):
            raise UserError(f"operator '{operator}' of task '{task.name}' may write a mark where a symbol is due")
        exists = steps.named.exists[k]
        key = steps.named.key[k][exists]
        token = steps.token[k][exists].repeat(len(cases), 1)
        for position, column in zip(marks, torch.tensor(cases).T):
            token[:, key == position] = column[:, None]
        bias, pooled = (part[0][:, k][:, exists] for part in (steps.named.bias, steps.named.pooled))
        yield ProofStep(query, key, bias, pooled, token, target, steps.named.size[0])


class Tables:
    """What a model of one layer of attention alone does with tokens, in float64, and how it rounds."""

    @torch.no_grad()
    def __init__(self, model: HookedModel, task: Task) -> None:
        attn, self.symbols = model.layers[0].attn, len(task.symbols)
        self.pools, self.means = model.pos_embed.pools_others, model.pos_embed.means_others
        self.heat = partial(temperature, model)
        E, U, out = (part.double() for part in (model.embed.W_E, model.unembed.W_U, attn.W_O))
        b_O, b_U = attn.b_O.double(), model.unembed.b_U.double()
        weights = [
            (w.double(), b.double()[:, None])
            for w, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
        ]
        q, k, v = (torch.einsum("tm,hmd->htd", E, w) + b for w, b in weights)
        self.scores = q @ k.transpose(1, 2) / model.cfg.attn_scale  # [head, query token, key token]
        self.logits = torch.einsum("htd,hdm->htm", v, out) @ U  # [head, token, logit]
        self.alone = (E + b_O) @ U + b_U  # [token, logit]
        # The same with all signs positive, at most over tokens.
        q, k, v = (torch.einsum("tm,hmd->htd", E.abs(), w.abs()) + b.abs() for w, b in weights)
        self.score_size = (q @ k.transpose(1, 2)).amax((1, 2)) / model.cfg.attn_scale  # [head]
        moved = torch.einsum("htd,hdm->htm", v, out.abs()).amax(1).sum(0)
        self.logit_size = float(((E.abs().amax(0) + moved + b_O.abs()) @ U.abs() + b_U.abs()).max())
        number = torch.finfo(model.cfg.dtype)
        self.unit, self.tiny = number.eps / 2, number.tiny
        cfg = model.cfg
        self.score_chain = (
            2 * cfg.d_model + cfg.d_head + 64
        )  # operations behind a score, those of exp and gates included
        self.logit_chain = 2 * cfg.d_model + cfg.n_heads * cfg.d_head + 64

    def score_error(self, step: ProofStep, last: Tensor) -> Tensor:
        """By how much a score may be off, and the exponent that is made of it, up to a position. [head, range]"""
        size = (self.score_size + step.size.double())[:, None] + torch.log(last.double() + 2)
        names = step.bias.shape[1]
        return 2 * (self._off(self.score_chain + names) * size + MOST_FORMS / GRAIN) * self.heat(last.double())

    def lead_error(self, last: int) -> float:
        """By how much the lead of a token may be off, weights apart, at positions up to `last`.

        Softmax sums over all keys, and so does the mean of the values: one chain as long as there are keys for each.
        Weights may vanish below the smallest number there is.
        """
        return 4 * self.logit_size * (self._off(2 * (last + 1) + self.logit_chain) + (last + 1) * self.tiny)

    def _off(self, chain: int) -> float:
        return chain * self.unit / (1 - chain * self.unit) if chain * self.unit < 0.5 else math.inf


@torch.no_grad()
def least_lead(tables: Tables, step: ProofStep, first: int, last: int) -> float:
    """A lower bound on the lead of the right token at a step, for every instance, at any position from first to last.

    It holds for the model as it is run: what rounding can do is taken off.
    """
    names, tokens, logits = len(step.key) + 1, *tables.alone.shape
    block = max(1, ELEMENTS // (names * tokens * logits))
    cases = range(0, len(step.target), block)
    parts = [step._replace(token=step.token[c : c + block], target=step.target[c : c + block]) for c in cases]
    ends = torch.tensor([first, last])
    return min(_least_lead(tables, part, ends) for part in parts) - tables.lead_error(last)


def _least_lead(tables: Tables, step: ProofStep, ends: Tensor) -> float:
    ends = ends.double()
    heat = tables.heat(ends)  # [2]
    rest = (ends + 1 - len(step.key)).clamp(min=0)  # how many other keys
    own = step.token[:, (step.key == step.query).nonzero()[0, 0]]  # [case]
    right = step.target[:, None]
    total = tables.alone[own].gather(1, right) - tables.alone[own]  # [case, logit]
    token = torch.arange(len(tables.alone))
    any_symbol = token < tables.symbols
    possible = torch.where(step.token[..., None] < 0, any_symbol, token == step.token[..., None])
    off = tables.score_error(step, ends[1:])[:, 0].exp()  # [head]
    for head, scores in enumerate(tables.scores):
        gain = tables.logits[head][:, step.target].T[:, None] - tables.logits[head].T[None]  # [case, logit, token]
        content = scores[own][:, None]
        if tables.means:
            content, scores = torch.where(step.pooled[head][:, None], 0.0, content), torch.zeros_like(scores)
        named = content + step.bias[head].double()[:, None]  # [case, name, token]
        top = named.masked_fill(~possible, -math.inf).amax((1, 2), keepdim=True)
        low, high = _weights(named - top, heat)
        other_low, other_high = _weights((scores[own] - top[..., 0])[:, None], heat)
        count = torch.ones_like(rest)
        if tables.pools:
            count = (ends + 1 - (~step.pooled[head]).sum()).clamp(min=1)  # pooled keys
        each = rest / count
        share = torch.where(step.pooled[head], 1 / count[:, None], 1.0)[..., None]  # [2, name, 1]
        low = torch.cat([low * share.amin(0), other_low * each.min()], 1) / off[head]
        high = torch.cat([high * share.amax(0), other_high * each.max()], 1) * off[head]
        may = torch.cat([possible, any_symbol.expand(len(own), 1, -1)], 1)
        total = total + _least_mean(low, high, may, gain)
    return float(total.scatter(1, right, math.inf).min())


def _weights(score: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
    """e^(heat·score) at its least and greatest while heat goes from one end to the other."""
    both = (heat.view(2, *[1] * score.dim()) * score).exp()
    return both.amin(0), both.amax(0)


def _least_mean(low: Tensor, high: Tensor, may: Tensor, gain: Tensor) -> Tensor:
    """The least of Σ w g / Σ w where each key chooses one of the tokens it `may` hold, and w between its bounds.

    `low`, `high`, `may` [case, key, token], `gain` [case, logit, token]; out [case, logit]. With F(ρ) = min Σ w·(g−ρ)
    the least mean is at least ρ + F(ρ) / Σ low, for any ρ.
    """
    low, high, may, gain = low[:, None], high[:, None], may[:, None], gain[:, :, None]  # [case, logit, key, token]
    least_sum = low.masked_fill(~may, math.inf).amin(-1).sum(-1)
    rho = gain.masked_fill(~may, -math.inf).amax((2, 3))
    bound = torch.full_like(rho, -math.inf)
    for _ in range(ROUNDS):
        excess = gain - rho[..., None, None]
        weight = torch.where(excess < 0, high, low)
        least, which = (weight * excess).masked_fill(~may, math.inf).min(-1)
        short = least.sum(-1)
        bound = torch.maximum(bound, rho + short.clamp(max=0) / least_sum)
        rho = rho + short / weight.gather(-1, which[..., None])[..., 0].sum(-1)
    return bound


@dataclass(frozen=True)
class Kind:
    """A kind of step, and where it may occur: at scales from `since` on, at positions from `low` to `high`."""

    step: NamedSteps  # one of it
    since: int
    low: int
    high: int


def all_kinds(scheme: PositionScheme, task: Task, layout: Layout, limit: int) -> tuple[list[Kind], int, int]:
    """Every kind of step at an n up to `limit`, the earliest first; the n from which on none is new; and `limit`, or a
    smaller one up to which these are all kinds if there are more than `MOST_STEPS` steps to look at.

    Every step of every n is looked at until none is new. From there on a kind may occur at any position up to the last.
    """
    settled, period = settling_of(scheme, task, layout)
    found, looked_at = dict[bytes, Kind](), 0
    for n in range(task.min_scale, min(limit, settled + period - 1) + 1):
        steps = NamedSteps.of_size(scheme, task, n, layout)
        looked_at += len(steps.query)
        if looked_at > MOST_STEPS:
            return list(found.values()), settled, n - 1
        rows, number = steps.kinds()
        for k, row in enumerate(rows):
            at = np.flatnonzero(number == k)
            low, high = int(steps.query[at[0]]), int(steps.query[at[-1]])
            kind = found.get(row) or Kind(steps.only(at[0]), n, low, high)
            highest = max(kind.high, task.length(limit) - 2 if n >= settled else high)
            found[row] = Kind(kind.step, kind.since, min(kind.low, low), highest)
    return list(found.values()), settled, limit


class Proof(NamedTuple):
    """What is proven: up to which n the right token leads at every step of every instance."""

    length: int  # below the task's smallest n if nothing is
    step: ProofStep | None  # the one that is not certain beyond; None if the limit was reached
    least: float  # a bound on all leads up to there
    settled: int  # the n from which on no kind of step is new


def proof(model: HookedModel, task: Task, layout: Layout, limit: int) -> Proof:
    """The largest n up to `limit` at which the right token leads at every step of every instance."""
    kinds, settled, end = all_kinds(model.pos_embed, task, layout, limit)
    tables, weakest, least = Tables(model, task), None, math.inf
    for kind in kinds:
        if kind.since > end:
            break
        last = min(kind.high, task.length(end) - 2)
        (step,) = steps_of(task, kind.step)
        good, lead = certain_up_to(tables, step, kind.low, last)
        least = min(least, lead)
        if good < last:
            weakest = step
            # Sizes before it occurs, and those that have no position after the last at which it is certain.
            more = bisect_right(range(kind.since, end + 1), good, key=lambda scale: task.length(scale) - 2)
            end = kind.since - 1 + more
    return Proof(end, weakest, least, settled)


def certain_up_to(tables: Tables, step: ProofStep, first: int, last: int) -> tuple[int, float]:
    """The last position up to which a step's right token leads wherever it may be, and the least lead on the way.

    Ranges of positions are halved where the bound for all of a range at once fails.
    """
    least, at, ends = math.inf, first, [last]
    while ends:
        end = ends[-1]
        lead = least_lead(tables, step, at, end)
        if lead > 0:
            least, at = min(least, lead), end + 1
            ends.pop()
        elif end <= at * FINE:
            return at - 1, least
        else:
            ends.append(max(at, min(end - 1, math.isqrt(at * end))))
    return last, least
