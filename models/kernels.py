"""Attention on short sequences, faster on a CPU than torch's fused kernel: the whole of it as one autograd node.

At the lengths of training here (some tens of tokens) torch's kernel spends most of its time on its own bookkeeping, and
plain operations on copies that autograd makes. Here the products are batched, everything that can happens in place,
and the gradients of queries, keys and values are written where they are needed.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SHORT = 48  # tokens; measured: from here on torch's kernel, which skips masked blocks, is the faster one


def usable(x: Tensor) -> bool:
    """Whether the kernels serve this tensor: they are for a CPU, full precision, and ordinary differentiation."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def mix(q: Tensor, k: Tensor, v: Tensor, multiplier: float | Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
    """``softmax(q · k · multiplier + mask + bias) v``, [row, query, head, d_head].

    `q` [row, query, head, d_head], `k` and `v` [row, key, head, d_head], `multiplier` a number or [query, 1], `mask`
    [query, key], `bias` [1|row, 1|head, query, key] or None. Differentiable once.

    >>> x = torch.ones(1, 2, 1, 4)
    >>> mix(x, x, x.cumsum(1), 0.5, torch.tensor([[0, -torch.inf], [0, 0]]), None)[0, :, 0, 0]
    tensor([1.0000, 1.5000])
    """
    z: Tensor = Mix.apply(q, k, v, multiplier, mask, bias)  # type: ignore[no-untyped-call]
    return z


def packed_mix(qkv: Tensor, multiplier: float | Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
    """The same for `qkv` [row, pos, 3, head, d_head] as one product gives them: one copy each way is enough."""
    z: Tensor = PackedMix.apply(qkv, multiplier, mask, bias)  # type: ignore[no-untyped-call]
    return z


class Mix(torch.autograd.Function):
    """`mix`, as a node of the graph."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, multiplier: float | Tensor, mask: Tensor, bias: Tensor | None
    ) -> Tensor:
        rows = len(q)
        q, k, v = by_head(q), by_head(k), by_head(v)
        z, pattern = mixed(q, k, v, multiplier, mask, bias, rows)
        ctx.save_for_backward(q, k, v, pattern)
        ctx.multiplier, ctx.bias_shape = multiplier, None if bias is None else bias.shape
        return from_heads(z, rows).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = len(grad)
        q, k, v, pattern = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        scores = unmixed(by_head(grad), q, k, v, pattern, ctx.multiplier, (dq, dk, dv))
        dbias = summed(scores, rows, ctx.bias_shape) if ctx.needs_input_grad[5] else None
        return from_heads(dq, rows), from_heads(dk, rows), from_heads(dv, rows), None, None, dbias


class PackedMix(torch.autograd.Function):
    """`packed_mix`, as a node of the graph."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, multiplier: float | Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = flat_heads(qkv.permute(2, 0, 1, 3, 4))
        z, pattern = mixed(q, k, v, multiplier, mask, bias, len(qkv))
        ctx.save_for_backward(q, k, v, pattern)
        ctx.multiplier, ctx.bias_shape = multiplier, None if bias is None else bias.shape
        return from_heads(z, len(qkv)).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = len(grad)
        q, k, v, pattern = ctx.saved_tensors
        packed = q.new_empty(3, *q.shape)
        scores = unmixed(by_head(grad), q, k, v, pattern, ctx.multiplier, tuple(packed))
        dbias = summed(scores, rows, ctx.bias_shape) if ctx.needs_input_grad[3] else None
        dqkv = packed.view(3, rows, -1, *q.shape[1:]).permute(1, 3, 0, 2, 4).contiguous()
        return dqkv, None, None, dbias


def mixed(
    q: Tensor, k: Tensor, v: Tensor, multiplier: float | Tensor, mask: Tensor, bias: Tensor | None, rows: int
) -> tuple[Tensor, Tensor]:
    """Output and pattern; all [row·head, …], and `q` is multiplied in place."""
    scores = torch.baddbmm(mask, q.mul_(multiplier), k.transpose(1, 2))
    if bias is not None:
        scores.view(rows, -1, *mask.shape).add_(bias)
    pattern = torch.softmax(scores, -1)
    return torch.bmm(pattern, v), pattern


def unmixed(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, pattern: Tensor, multiplier: float | Tensor, out: tuple[Tensor, ...]
) -> Tensor:
    """The gradient of the scores, [row·head, query, key]; those of queries, keys and values are written to `out`."""
    dq, dk, dv = out
    torch.bmm(pattern.transpose(1, 2), grad, out=dv)
    scores = torch._softmax_backward_data(torch.bmm(grad, v.transpose(1, 2)), pattern, -1, pattern.dtype)
    torch.bmm(scores, k, out=dq).mul_(multiplier)
    torch.bmm(scores.transpose(1, 2), q, out=dk)
    return scores


def by_head(x: Tensor) -> Tensor:
    """A copy of [row, pos, head, d_head] as [row·head, pos, d_head]."""
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).flatten(0, 1)


def flat_heads(x: Tensor) -> Tensor:
    """A copy of [3, row, pos, head, d_head] as [3, row·head, pos, d_head]."""
    return x.transpose(2, 3).clone(memory_format=torch.contiguous_format).flatten(1, 2)


def from_heads(x: Tensor, rows: int) -> Tensor:
    """[row·head, pos, d_head] as [row, pos, head, d_head]."""
    return x.view(rows, -1, *x.shape[1:]).transpose(1, 2)


def summed(scores: Tensor, rows: int, shape: torch.Size) -> Tensor:
    """Over the rows and heads that share a bias."""
    return scores.view(rows, -1, *scores.shape[1:]).sum_to_size(shape)
