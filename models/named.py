"""Attention to many keys of which a scheme names few: all keys in a fused kernel, then those few put right.

For long inputs, without gradients and with nobody looking: no score is ever held.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthlens.models.schemes import NamedKeys, Positions, PositionScheme

LONG = 512  # tokens; shorter inputs gain nothing
MOST_NAMES = 64  # keys that a query names; with more of them, scores in blocks are quicker
LEFT = 1e-3  # share of the weight of all keys that must be left once the named are put right, or digits cancel
BLOCK = 1 << 21  # numbers of keys gathered at once


def names_of(scheme: PositionScheme, positions: Positions) -> NamedKeys | None:
    """The keys that every query names, where all rows name the same few; else None."""
    tokens = positions.tokens.shape[1]
    if tokens < LONG or positions.limit is not None or scheme.acts() != ["score"]:
        return None
    one = scheme.names_in(positions, slice(0, 1))
    if one is None or not 0 < one.key.shape[1] <= MOST_NAMES:
        return None
    return positions.memo("named", lambda: scheme.names_in(positions, slice(0, tokens)), "pass")


def attend(q: Tensor, k: Tensor, v: Tensor, named: NamedKeys, layer: int, times: Tensor, pools: bool) -> Tensor | None:
    """What the last queries mix of the keys they see, [row, query, head, d_head]; None where rounding would show.

    Say a key has weight w by its content, W is the sum of all, and `a` their mix. A named key weighs w·e^bias instead,
    so that (W·a + Σ w·(e^bias − 1)·v) / (W + Σ w·(e^bias − 1)) is the mix, with sums over the named keys alone. Where
    keys without a value weigh as one, W and their w are divided by how many they are.

    Arguments:
        q: [row, query, head, d_head], already divided by what scores are divided by.
        k, v: [row, key, head, d_head]; the last of them is that of the last query.
        named: the keys that these queries name.
        layer: whose biases are meant.
        times: [query], what every score of a query is multiplied by, its biases, too.
        pools: whether all keys without a value weigh as one.
    """
    q = q * times[:, None, None]
    mix, log_weight = over_all(q, k, v)
    parts = []
    for block, query, own in blocks(q, k, named, layer):
        key, bias, valued, number = apart(own, query)
        less = number.log()[..., None] if pools else bias.new_zeros(())
        bias = bias if not pools else torch.where(valued | (key == 0), bias, bias - less)
        score, factor = scores_of(q[:, block], k, key), times[block, None]
        weight_all = log_weight[:, :, block, None] - factor * less
        there, without = score + factor * bias, score - factor * less
        top = torch.maximum(there.amax(-1, keepdim=True), weight_all)
        more = torch.where(key >= 0, (there - top).exp() - (without - top).exp(), 0)
        kept = (weight_all - top).exp()
        total = kept + more.sum(-1, keepdim=True)
        if not bool((total > LEFT * kept).all()):
            return None
        whole = kept * mix[:, :, block] + mixed(more, v, key)
        parts.append((whole / total).transpose(1, 2))
    return torch.cat(parts, 1)


def attend_to_mean(q: Tensor, k: Tensor, v: Tensor, named: NamedKeys, layer: int, times: Tensor) -> Tensor:
    """The same where all keys without a value are one of score 0 with their mean value: no score of theirs is needed,
    and their mean is the sum of all values up to the query less that of the few that stand apart."""
    q = q * times[:, None, None]
    sums = v.transpose(1, 2).cumsum(2, dtype=torch.float64)
    sums = sums - sums[:, :, :1]  # without the first
    parts = []
    for block, query, own in blocks(q, k, named, layer):
        key, bias, valued, number = apart(own, query)
        alone = (valued & (key >= 0)) | (key == 0)  # [head, query, name]
        factor = times[block, None]
        score = (scores_of(q[:, block], k, key) + factor * bias).masked_fill(~alone, -torch.inf)
        pool = ((1 - factor) * number.log()[..., None]).expand(*score.shape[:-1], 1)  # `number` keys, each with 1 / it
        some = query[:, None] > (alone & (key > 0)).sum(-1, keepdim=True)  # whether there is any
        weights = torch.cat([score, pool.masked_fill(~some, -torch.inf)], -1).softmax(-1)
        apart_sum = mixed((alone & (key > 0)).to(v.dtype).expand(len(v), -1, -1, -1), v, key)
        mean = ((sums[:, :, query] - apart_sum) / number[..., None]).to(v.dtype)
        parts.append((mixed(weights[..., :-1], v, key) + weights[..., -1:] * mean).transpose(1, 2))
    return torch.cat(parts, 1)


def blocks(q: Tensor, k: Tensor, named: NamedKeys, layer: int) -> Iterator[tuple[slice, Tensor, NamedKeys]]:
    """Queries in blocks: which of q, at which positions, and what this layer names there."""
    first, step = k.shape[1] - q.shape[1], max(1, BLOCK // max(1, (named.key.shape[1] + 1) * q[:, 0].numel()))
    for start in range(0, q.shape[1], step):
        block = slice(start, min(start + step, q.shape[1]))
        own = NamedKeys(named.key[block], named.bias[layer, :, block], named.valued[layer, :, block])
        yield block, torch.arange(first + block.start, first + block.stop), own


def scores_of(q: Tensor, k: Tensor, key: Tensor) -> Tensor:
    """By content, of these keys [query, name]. [row, head, query, name]"""
    return torch.einsum("rqhd,rqnhd->rhqn", q, k[:, key.clamp(min=0)])


def mixed(weights: Tensor, v: Tensor, key: Tensor) -> Tensor:
    """The values of these keys [query, name] with weights [row, head, query, name]. [row, head, query, d_head]"""
    return torch.einsum("rhqn,rqnhd->rhqd", weights, v[:, key.clamp(min=0)])


def over_all(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention by content alone: the mix [row, head, query, d_head], and the log of the sum of weights."""
    first = k.shape[1] - q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mix, weight = kernel(q, k[:, :, first:], v[:, :, first:], 0.0, True, scale=1.0)
    if first:  # all keys before the first query, which every query sees
        earlier, earlier_weight = kernel(q, k[:, :, :first], v[:, :, :first], 0.0, False, scale=1.0)
        both = torch.logaddexp(weight, earlier_weight)
        mix = (weight - both).exp()[..., None] * mix + (earlier_weight - both).exp()[..., None] * earlier
        weight = both
    return mix, weight


def apart(named: NamedKeys, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each named key once, and the first: the key [query, name], −1 if it is none, its bias and whether it has a value
    [head, query, name], and how many of the others have none, 1 at least [head, query]."""
    key, bias, valued = F.pad(named.key, (0, 1)), F.pad(named.bias, (0, 1)), F.pad(named.valued, (0, 1))
    key = torch.where((key >= 0) & (key <= query[:, None]), key, -1)
    same = ((key[:, :, None] == key[:, None, :]) & (key >= 0)[:, :, None]).to(bias.dtype)  # [query, name, name]
    bias, number = (torch.einsum("qnm,hqm->hqn", same, part.to(bias.dtype)) for part in (bias, valued))
    key = torch.where(same.tril(-1).sum(2) > 0, -1, key)
    valued = number > 0
    others = query - (valued & (key > 0)).sum(-1)
    return key, bias, valued, others.clamp(min=1).to(bias.dtype)
