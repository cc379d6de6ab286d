"""Which keys a query can tell apart by position, and whether long sequences hold anything that short ones do not.

A scheme that adds a bias for a finite number of codes *names* a bounded number of keys at each query. All other keys,
the *rest*, have no bias: a head sees of them only what their tokens are. Here a key is named if its code has a bias in
any head, if it is the query itself, or if it holds a mark such as ``=`` (of which an instance has a fixed number).

Where all keys without a value weigh together as one (``other=one``), a key is named if any head has a value for it,
even if that is 0. The rest is then pooled in every head; a named key is pooled where a head has no value for it. The
first key never is.
"""

from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes import PositionScheme
from lengthlens.tasks import Task

NONE = -1  # no such key
Hashes = NDArray[np.uint64]

FIRST = 8  # the smallest scale that may be settled: below it there are borders all over
MOST_SETTLED = 100  # where the kinds of steps have not settled by then, they hardly will
ALL_UP_TO = 128  # scales whose kinds of steps are compared with those of the settled one
FAR = (500, 501)  # and two more: an even and an odd one


class Named(NamedTuple):
    """The keys that queries name, each once."""

    key: Tensor  # [query, name], NONE where a query names fewer than the widest one
    bias: Tensor  # [layer, head, query, name], what the scheme adds there
    pooled: Tensor  # [layer, head, query, name], whether it is one of those that weigh together as one key

    @property
    def exists(self) -> Tensor:
        return self.key != NONE


class Places:
    """Instances of one scale, as a scheme sees them: the keys named at each position."""

    def __init__(self, scheme: PositionScheme, task: Task, scale: int) -> None:
        self.task, self.scale = task, scale
        any_row = torch.zeros(1, task.input_length(scale), dtype=torch.long)
        self.tokens = task.assemble(any_row, scale).tokens[0, :-1]  # of one instance; nothing reads the end token
        self.length = len(self.tokens)
        self.symbol = self.tokens < len(task.symbols)  # [pos]: any symbol in other instances; else a mark, always
        self.first_answer = task.prompt_length(scale)
        query = torch.arange(self.length)
        named = scheme.named_keys(query, scale)
        assert named is not None  # other schemes are refused before
        key, bias, valued = named
        marks = (~self.symbol).nonzero().T.expand(self.length, -1)
        key = torch.cat([key, marks, query[:, None]], 1)
        more = (0, key.shape[1] - bias.shape[3])
        bias, valued = (torch.nn.functional.pad(part, more) for part in (bias, valued))
        self.named = _merged(key, bias, valued | (not scheme.pools_others), query)

    @property
    def answer_queries(self) -> Tensor:
        return torch.arange(self.first_answer - 1, self.length)

    @cached_property
    def types(self) -> Hashes:
        """A number for each answer query: equal if the named keys, and those that these name, have the same codes.

        What two layers can see of positions at a query is that, and how many other keys there are. [answer]
        """
        named = self.named
        kind = torch.where(self.symbol, torch.arange(self.length) >= self.first_answer, 2 + self.tokens)
        fixed = torch.Generator().manual_seed(0)
        shade = torch.randn(2, *named.bias.shape[:2], generator=fixed, dtype=torch.float64)
        seen = torch.stack([named.bias.double(), named.pooled.double()])
        code = torch.einsum("plhqm,plh->qm", seen, shade).mul(1e6).round().long()
        key = named.key.clamp(min=0)
        own = _mixed(code.numpy(), kind[key].numpy())
        near = _total(own, named.exists)  # [pos]
        far = _total(_mixed(own, near[key.numpy()]), named.exists)
        return far[self.first_answer - 1 :]


def settled_scale(scheme: PositionScheme, task: Task) -> int:
    """The scale n from which on every kind of step occurs at n or n+1 already.

    Whether keys exist, and which coincide, is decided by the signs of linear forms α·i + γ·n + δ with small whole
    factors and constants. Two such forms that are not parallel meet at an n of a few times their constants at most;
    from then on the order in which i crosses them stays, and the kinds of steps at n are those at n+2 (not n+1: i
    counts twice where i+j meets i−j). So what holds for all scales up to `ALL_UP_TO`, and at `FAR`, holds for all.
    """

    @cache
    def kinds(scale: int) -> frozenset[int]:
        return frozenset(Places(scheme, task, scale).types.tolist())

    for scale in range(FIRST, MOST_SETTLED + 1):
        known = kinds(scale) | kinds(scale + 1)
        if all(kinds(n) <= known for n in (*range(scale + 2, ALL_UP_TO + 1), *FAR)):
            return scale
    raise UserError(f"new kinds of steps come behind scale {MOST_SETTLED}: short instances say nothing about long ones")


def carried(position: Tensor, scale: int, to: int) -> Tensor:
    """Where positions of an instance of one scale lie in a larger one: near a multiple of the scale they stay as near.

    >>> carried(torch.tensor([1, 39, 41, 60, 82]), 40, 1000).tolist()
    [1, 999, 1001, 1500, 2002]
    """
    part, offset, near = position // scale, position % scale, scale // 4
    middle = near + (offset - near) * (to - 2 * near) / (scale - 2 * near)
    inside = torch.where(offset <= near, offset, torch.where(offset >= scale - near, to - scale + offset, middle))
    return part * to + inside.long()


def _merged(key: Tensor, bias: Tensor, valued: Tensor, query: Tensor) -> Named:
    """Each key once, with the sum of its biases; keys that do not exist left out. The first key is never pooled."""
    key = torch.where((key >= 0) & (key <= query[:, None]), key, NONE)
    same = (key[:, :, None] == key[:, None, :]) & (key != NONE)[:, None, :]  # [query, name, name]
    again = same.tril(-1).any(2)
    parts = (bias, valued.to(bias.dtype))
    total, values = (torch.einsum("qmk,lhqk->lhqm", same.to(bias.dtype), part) for part in parts)
    key, order = torch.where(again, NONE, key).sort(dim=1, descending=True)
    width = int((key != NONE).sum(1).max())
    key, order = key[:, :width], order.expand_as(total)[..., :width]
    return Named(key, total.gather(3, order), (values.gather(3, order) == 0) & (key > 0))


def _mixed(*parts: NDArray[Any]) -> Hashes:
    """Numbers of 64 bits that depend on all parts."""
    mixed: Hashes = np.full(1, 0x9E3779B97F4A7C15, dtype=np.uint64)
    for part in parts:
        mixed = (mixed ^ part.view(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


def _total(hashes: Hashes, exists: Tensor) -> Hashes:
    """One number for the keys of a query, whatever their order. [query]"""
    total: Hashes = np.where(exists.numpy(), hashes, np.uint64(0)).sum(1, dtype=np.uint64)
    return total
