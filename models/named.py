"""Attention to many keys of which a scheme names few: all keys in a fused kernel, then those few put right.

For long inputs, without gradients and with nobody looking: no score is ever held.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthlens.models.schemes import NamedKeys, Positions, PositionScheme

LONG = 512  # tokens; shorter inputs gain nothing
MOST_NAMES = 64  # keys that a query names; with more of them, scores in blocks are quicker
LEFT = 1e-3  # share of the weight of all keys that must be left once the named are put right, or digits cancel
BLOCK = 1 << 21  # numbers of keys gathered at once


def names_of(scheme: PositionScheme, positions: Positions) -> NamedKeys | None:
    """The keys that every query names, where all rows have one scale and the scheme names few; else None."""
    tokens, scales = positions.tokens.shape[1], positions.scales
    if tokens < LONG or positions.limit is not None or not scales or len(set(scales)) > 1 or scheme.acts() != ["score"]:
        return None
    one = scheme.named_keys(torch.arange(1), scales[0])
    if one is None or not 0 < one.key.shape[1] <= MOST_NAMES:
        return None
    return positions.once("named", lambda: scheme.named_keys(torch.arange(tokens), scales[0]))


def attend(q: Tensor, k: Tensor, v: Tensor, named: NamedKeys, pools: bool, layer: int, times: Tensor) -> Tensor | None:
    """What the last queries mix of the keys they see, [row, query, head, d_head]; None where rounding would show.

    Say a key has weight w by its content, W is the sum of all, and `a` their mix. A named key weighs w·e^bias instead,
    so that (W·a + Σ w·(e^bias − 1)·v) / (W + Σ w·(e^bias − 1)) is the mix, with sums over the named keys alone. Where
    keys without a value weigh as one, W and their w are divided by how many they are.

    Arguments:
        q: [row, query, head, d_head], already divided by what scores are divided by.
        k, v: [row, key, head, d_head]; the last of them is that of the last query.
        named: the keys that these queries name; `pools`, whether all keys without a value weigh as one.
        layer: whose biases are meant.
        times: [query], what every score of a query is multiplied by, its biases, too.
    """
    first = k.shape[1] - q.shape[1]
    q = q * times[:, None, None]
    mix, log_weight = over_all(q, k, v, first)
    step = max(1, BLOCK // max(1, (named.key.shape[1] + 1) * q.shape[0] * q.shape[2] * q.shape[3]))
    parts = []
    for start in range(0, q.shape[1], step):
        block = slice(start, min(start + step, q.shape[1]))
        query = torch.arange(first + block.start, first + block.stop)
        own = NamedKeys(named.key[block], named.bias[layer, :, block], named.valued[layer, :, block])
        key, bias, less = apart(own, query, pools)
        score = torch.einsum("rqhd,rqnhd->rhqn", q[:, block], k[:, key.clamp(min=0)])
        factor = times[block, None]
        weight_all = log_weight[:, :, block, None] - factor * less
        there, without = score + factor * bias, score - factor * less
        top = torch.maximum(there.amax(-1, keepdim=True), weight_all)
        more = torch.where(key >= 0, (there - top).exp() - (without - top).exp(), 0)
        kept = (weight_all - top).exp()
        total = kept + more.sum(-1, keepdim=True)
        if not bool((total > LEFT * kept).all()):
            return None
        named_mix = torch.einsum("rhqn,rqnhd->rqhd", more, v[:, key.clamp(min=0)])
        whole = kept.transpose(1, 2) * mix[:, :, block].transpose(1, 2) + named_mix
        parts.append(whole / total.transpose(1, 2))
    return torch.cat(parts, 1)


def over_all(q: Tensor, k: Tensor, v: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Attention by content alone: the mix [row, head, query, d_head], and the log of the sum of weights."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mix, weight = kernel(q, k[:, :, first:], v[:, :, first:], 0.0, True, scale=1.0)
    if first:  # all keys before the first query, which every query sees
        earlier, earlier_weight = kernel(q, k[:, :, :first], v[:, :, :first], 0.0, False, scale=1.0)
        both = torch.logaddexp(weight, earlier_weight)
        mix = (weight - both).exp()[..., None] * mix + (earlier_weight - both).exp()[..., None] * earlier
        weight = both
    return mix, weight


def apart(named: NamedKeys, query: Tensor, pools: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Each named key once: the key [query, name], −1 if it is none, and its bias [head, query, name], less the log of
    how many keys weigh as one, [head, query, 1], where it is one of those. The first key stands apart."""
    key, bias, valued = F.pad(named.key, (0, 1)), F.pad(named.bias, (0, 1)), F.pad(named.valued, (0, 1))
    key = torch.where((key >= 0) & (key <= query[:, None]), key, -1)
    same = (key[:, :, None] == key[:, None, :]) & (key >= 0)[:, :, None]  # [query, name, name]
    bias = torch.einsum("qnm,hqm->hqn", same.to(bias.dtype), bias)
    again = same.tril(-1).any(2)
    less = bias.new_zeros(*bias.shape[:2], 1)
    if pools:
        valued = torch.einsum("qnm,hqm->hqn", same.to(bias.dtype), valued.to(bias.dtype)) > 0
        number = query - (valued & ~again & (key > 0)).sum(-1)  # [head, query]
        less = number.clamp(min=1).to(bias.dtype).log()[..., None]
        bias = torch.where(valued | (key == 0), bias, bias - less)
    return torch.where(again, -1, key), bias, less
