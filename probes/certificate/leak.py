"""How much attention can leak to keys that are not named, at most: from the weights alone, for every instance."""

import math

import torch
from torch import Tensor

from lengthlens.models.transformer import HookedModel
from lengthlens.probes.certificate.places import Places, weighs_as_one
from lengthlens.tasks import Task


@torch.no_grad()
def leak_bound(model: HookedModel, task: Task, steps: Places, length: int) -> Tensor:
    """An upper bound on the share of attention that goes to keys without a name, at any answer query of any instance of
    scale `length`. [layer, head]

    `steps` are places of a scale with all kinds of steps that there are at `length`. At a query with token q let x be
    the largest score of a symbol, and x + δ_m the least score of the named key m. There are fewer than i+2 other keys,
    and all scores are multiplied by the temperature s(i), so the share is at most 1 / (1 + Σ_m e^{s(i)·δ_m} / (i+2)).
    Each term is a power of i+2 under length-scaled scores, and falls with i otherwise: over the answer's queries it is
    least at an end. Where other keys weigh together as one, and scores are not scaled, they have e^x at most, however
    many they are: the number i+2 then stands only below named keys that are in the crowd themselves.

    In layer 0 scores are known from the tokens. Behind it, a norm leaves vectors of length √d_model, which bounds by
    how much the scores of two keys can differ; without a norm nothing does.

    Example: one head, no content, one named key with a bias of 5, no scaling, n = 100. The last query is i = 201; it
    reads ``=``, and names ``^`` and itself, without a bias: at most 1 / (1 + (e⁵ + 1 + 1) / 203) = 0.57 leaks.
    """
    ends = torch.tensor([task.prompt_length(length) - 1, task.length(length) - 2])
    heat, number = temperature(model, ends), torch.log(ends + 2.0)
    bounds = []
    for layer in range(model.cfg.n_layers):
        gaps, fades = _first_gaps(model, task, steps) if layer == 0 else _later_gaps(model, steps, layer)
        kept = (gaps[..., None] * heat - fades[..., None] * number).amin(-1).exp().sum(-1)  # [head, case]
        bounds.append((1 / (1 + kept)).amax(-1))
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


def _fades(model: HookedModel, steps: Places, layer: int) -> Tensor:
    """Whether a named key loses weight against the rest as that grows in number. [head, query, name]"""
    crowd = steps.named.crowd[layer][:, steps.answer_queries]
    return crowd if weighs_as_one(model.pos_embed) else torch.ones_like(crowd)


def _first_gaps(model: HookedModel, task: Task, steps: Places) -> tuple[Tensor, Tensor]:
    """δ of each named key in layer 0, for each answer query and each token that it may hold, and whether it fades.

    [head, case, name] both.
    """
    table, symbols, token = score_table(model), len(task.symbols), torch.arange(len(task.vocab))
    query = steps.answer_queries
    key = steps.named.key[query]  # [query, name]
    holds = steps.tokens[key.clamp(min=0)]  # of a mark; a symbol may be any
    lowest, highest = (table[..., :symbols].amin(-1)[:, None, :, None], table[..., :symbols].amax(-1)[:, None, :, None])
    score = torch.where((holds < symbols)[:, None], lowest, table[:, :, holds].transpose(1, 2))
    score = torch.where((key == query[:, None])[:, None], table[:, token, token][:, None, :, None], score)
    gap = score + steps.named.bias[0][:, query][:, :, None] - highest  # [head, query, token, name]
    gap = gap.masked_fill((key < 0)[:, None], -math.inf)
    own = steps.tokens[query][:, None]
    fades = _fades(model, steps, 0)[:, :, None].expand(gap.shape)
    case = torch.where(own < symbols, token < symbols, token == own)
    return gap[:, case], fades[:, case].to(gap.dtype)


def _later_gaps(model: HookedModel, steps: Places, layer: int) -> tuple[Tensor, Tensor]:
    """δ of each named key in a layer behind a norm, at least, and whether it fades. [head, query, name] both"""
    query = steps.answer_queries
    bias = steps.named.bias[layer][:, query]
    gap = bias - score_range(model, layer)[:, None, None]
    gap = gap.masked_fill((steps.named.key[query] < 0)[None], -math.inf)
    return gap, _fades(model, steps, layer).to(gap.dtype)


def score_range(model: HookedModel, layer: int) -> Tensor:
    """By how much the scores of two keys can differ at one query, at most, whatever the residual stream. [head]

    Behind a norm, queries are q = yA + a and keys k = y'B + b with |y|, |y'| ≤ √d: |q·(k−k')| ≤ 2√d·(√d·‖ABᵀ‖ + ‖aBᵀ‖).
    """
    block, d = model.layers[layer], model.cfg.d_model
    if model.cfg.normalization_type is None:
        return torch.full((model.cfg.n_heads,), math.inf)
    norm = block.ln1
    scale = getattr(norm, "w", None)
    scale = torch.ones(d) if scale is None else scale
    shift = getattr(norm, "b", None)
    shift = torch.zeros(d) if shift is None else shift
    A, B = scale[:, None] * block.attn.W_Q, scale[:, None] * block.attn.W_K  # [head, d_model, d_head]
    a = torch.einsum("m,hmd->hd", shift, block.attn.W_Q) + block.attn.b_Q
    moved = math.sqrt(d) * torch.linalg.matrix_norm(A @ B.transpose(1, 2), 2)
    fixed = torch.linalg.vector_norm(torch.einsum("hd,hmd->hm", a, B), dim=-1)
    most: Tensor = 2 * math.sqrt(d) * (moved + fixed) / model.cfg.attn_scale
    return most
