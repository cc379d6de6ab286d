"""Attention to a long input where all keys but a few have score 0 (``other=mean``): those few keys, and one mean.

No score is held and the time is linear in the length. A network trained with `lbpe` names one key or a few. For copy at
n = 1000 on one core its pass takes 0.03 s and by scores in blocks 0.40 s, twenty of them in batches 0.56 s and 2.3 s.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthlens.models.schemes import NamedKeys, Positions, PositionScheme

LONG = 512  # tokens; shorter inputs gain little
MOST_NAMES = 32  # keys that a query names; with more of them, scores in blocks are quicker
BLOCK = 1 << 21  # numbers of keys gathered at once


def names_of(scheme: PositionScheme, positions: Positions) -> NamedKeys | None:
    """The keys that every query names, where all rows name the same few and all others have score 0; else None."""
    tokens = positions.tokens.shape[1]
    if tokens < LONG or not scheme.means_others or positions.limit is not None or scheme.acts() != ["score"]:
        return None
    one = scheme.names_in(positions, slice(0, 1))
    if one is None or not 0 < one.key.shape[1] <= MOST_NAMES:
        return None
    return positions.memo("named", lambda: scheme.names_in(positions, slice(0, tokens)), "pass")


def attend_to_named(q: Tensor, k: Tensor, v: Tensor, named: NamedKeys, layer: int, times: Tensor) -> Tensor:
    """What the last queries mix of the keys they see, [row, query, head, d_head].

    The keys without a value are one key of score 0 with their mean value: the sum of all values up to the query, less
    those of the first key and of the keys with a value, which have scores of their own.

    Arguments:
        q: [row, query, head, d_head], already divided by what scores are divided by.
        k, v: [row, key, head, d_head]; the last of them is that of the last query.
        named: the keys that these queries name.
        layer: whose biases are meant.
        times: [query], what every score of a query is multiplied by, its biases, too.
    """
    q = q * times[:, None, None]
    sums = v.transpose(1, 2).cumsum(2, dtype=torch.float64)
    sums = sums - sums[:, :, :1]  # without the first key
    first, step = k.shape[1] - q.shape[1], max(1, BLOCK // max(1, (named.key.shape[1] + 1) * q[:, 0].numel()))
    parts = []
    for start in range(0, q.shape[1], step):
        block = slice(start, min(start + step, q.shape[1]))
        query, factor = torch.arange(first + block.start, first + block.stop), times[block, None]
        key, bias, alone = distinct(
            NamedKeys(named.key[block], named.bias[layer, :, block], named.valued[layer, :, block]), query
        )
        valued = alone & (key > 0)
        others = (query - valued.sum(-1)).clamp(min=1)  # how many keys have no value, [head, query]
        score = torch.einsum("rqhd,rqnhd->rhqn", q[:, block], k[:, key.clamp(min=0)]) + factor * bias
        # `others` keys, each with 1 / others of the weight of a key of score 0
        pool = ((1 - factor) * others[..., None].log()).expand(*score.shape[:-1], 1)
        pool = pool.masked_fill(~(query[:, None] > valued.sum(-1, keepdim=True)), -torch.inf)  # where there is none
        weights = torch.cat([score.masked_fill(~alone, -torch.inf), pool], -1).softmax(-1)
        values = v[:, key.clamp(min=0)]  # [row, query, name, head, d_head]
        apart = torch.einsum("hqn,rqnhd->rhqd", valued.to(v.dtype), values)
        mean = ((sums[:, :, query] - apart) / others[..., None]).to(v.dtype)
        mixed = torch.einsum("rhqn,rqnhd->rhqd", weights[..., :-1], values) + weights[..., -1:] * mean
        parts.append(mixed.transpose(1, 2))
    return torch.cat(parts, 1)


def distinct(named: NamedKeys, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each named key once, and the first: the key [query, name], −1 where there is none, the sum of its biases and
    whether it has a score of its own [head, query, name]."""
    key, bias, valued = F.pad(named.key, (0, 1)), F.pad(named.bias, (0, 1)), F.pad(named.valued, (0, 1))
    key = torch.where((key >= 0) & (key <= query[:, None]), key, -1)
    same = ((key[:, :, None] == key[:, None, :]) & (key >= 0)[:, :, None]).to(bias.dtype)  # [query, name, name]
    bias, number = (torch.einsum("qnm,hqm->hqn", same, part.to(bias.dtype)) for part in (bias, valued))
    key = torch.where(same.tril(-1).sum(2) > 0, -1, key)
    return key, bias, ((number > 0) & (key >= 0)) | (key == 0)
