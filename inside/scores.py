"""What attention scores are made of, split exactly: content and position, or one part for each rotary pair.

The score of query i and key j is T·(q·k/√d + bias), with T the temperature of the query where scores are scaled with
length. What q·k splits into depends on where the position embedding acts:

- *added to the residual stream* (or to what queries and keys are made from): a query is W_Q applied to the position
  vector as it stands in the stream, plus everything else (tokens, what earlier layers wrote, biases), which is called
  content here; keys likewise. Four parts: content–content, content–position, position–content, position–position, query
  before key. The norm is held at the scale that it has on the whole.
- *turning queries and keys*: one part for each pair of dimensions that turn together, and one for dimensions that do
  not.
- *elsewhere*: one part, content.

What a scheme adds to scores is a part of its own, bias. A factor that acts after the softmax is no part of the score.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lengthlens.inside.instances import (
    N_INSTANCES,
    Instances,
    as_instances,
    by_head_and_scale,
    first_query,
    instances_at,
    watch,
)
from lengthlens.models.schemes.scheme import scheme_of
from lengthlens.probes.network import AnyModel, hook_named, network_of
from lengthlens.tasks import Task

CONTENT, BIAS, UNTURNED = "content", "bias", "not turned"


def score_parts(model: AnyModel, tokens: Tensor | str, scale: int | None = None, layer: int = 0) -> dict[str, Tensor]:
    """The parts of every score of a layer on some tokens, by name, [row, head, query, key] each.

    Arguments:
        model: a HookedModel, or a model with HookedTransformer's hook names.
        tokens: ids [row, pos] of one input size, or a text in the task's tokens.
        scale: the input size n; read off the tokens by the task's rule if None.
        layer: which layer's heads.

    Result: the parts. Their sum is what ``hook_attn_scores`` shows wherever the key is not after the query.

    Errors: UserError for a layer that does not exist, and for a model without hooks.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> parts = score_parts(copy_by_hand("lbpe"), "^ 7 3 = 7 3 $")
    >>> sorted(parts), round(float(parts["bias"][0, 0, 3, 1]), 2)  # "=" attends to the key 2 back
    (['bias', 'content'], 270.0)
    """
    ids, scale = as_instances(model, tokens, scale)
    network_of(model).layers([layer])
    whole: dict[str, Tensor] = {}
    _watch_parts(model, ids, scale, layer, lambda parts, scores: whole.update(parts), blocked=False)
    return whole


def score_shares(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] | None = None,
    *,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """How much of the difference between keys is due to each part of the score, for every head.

    The share of a part is its covariance with the score over the keys that a query sees, in units of the score's
    variance, at the answer's queries; shares of a head add up to 1. A part that works against the others has a negative
    share. Columns layer, head, scale, part, share. Arguments as of `attention_by_role`.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> score_shares(copy_by_hand("lbpe"), scales=[4])[["part", "share"]].values.tolist()
    [['content', 0.0], ['bias', 1.0]]
    """
    rows_of_heads = []
    for instances in instances_at(model, task, scales, rows, generator):
        for layer in network_of(model).layers(None):
            for part, shares in _shares(model, instances, layer).items():
                for head, share in enumerate(shares.tolist()):
                    about = {"layer": layer, "head": head, "scale": instances.scale, "part": part}
                    rows_of_heads.append({**about, "share": round(share, 6) + 0.0})
    return by_head_and_scale(rows_of_heads)


def _shares(model: AnyModel, instances: Instances, layer: int) -> dict[str, Tensor]:
    """The share of each part, by head, summed block by block. [head]"""
    queries = instances.queries
    sums: dict[str, Tensor] = {}
    variance = torch.zeros((), dtype=torch.double)

    def gather(parts: dict[str, Tensor], scores: Tensor) -> None:
        nonlocal variance
        start, keys = first_query(scores), scores.shape[-1]
        at = queries[(queries >= start) & (queries < keys)]
        seen = torch.arange(keys) <= at[:, None]

        def centred(block: Tensor) -> Tensor:
            """The answer's queries of a block, less their mean over the keys that they see, and 0 elsewhere."""
            part = torch.where(seen, block[:, :, (at - start).to(block.device)].cpu().double(), 0)
            return torch.where(seen, part - part.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True), 0)

        whole = centred(scores)
        variance = variance + whole.square().sum((0, 2, 3))
        for name, part in parts.items():
            sums[name] = sums.get(name, torch.zeros(())) + (centred(part) * whole).sum((0, 2, 3))

    _watch_parts(model, instances.tokens, instances.scale, layer, gather, blocked=True)
    return {name: total / torch.where(variance > 0, variance, torch.nan) for name, total in sums.items()}


def _watch_parts(model: AnyModel, tokens: Tensor, scale: int, layer: int, tell: Any, blocked: bool) -> None:
    """Tell `tell` the parts and the scores of each block of queries."""
    dots = dot_parts(model, tokens, scale, layer)
    network: Any = network_of(model).model
    temperature = network.temperature(tokens.shape[1]) if hasattr(network, "temperature") else None
    added = f"blocks.{layer}.attn.hook_pos_score"
    bias: list[Tensor] = []

    def score(block: Tensor) -> None:
        start, stop = first_query(block), block.shape[-1]
        parts = {
            name: q[:, start:stop].transpose(1, 2) @ k[:, :stop].permute(0, 2, 3, 1) / network.cfg.attn_scale
            for name, (q, k) in dots.items()
        }
        if bias:
            parts[BIAS] = bias.pop()
        if temperature is not None:
            parts = {name: part * temperature[start:stop, None] for name, part in parts.items()}
        tell(parts, block)

    watchers: list[Any] = [(f"blocks.{layer}.attn.hook_attn_scores", score)]
    if added in network.hook_dict:
        watchers.append((added, lambda block: bias.append(block.clone())))
    watch(model, tokens, scale, watchers, blocked)


# -- what q·k splits into --------------------------------------------------------------------------------------------


def dot_parts(model: AnyModel, tokens: Tensor, scale: int, layer: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Queries and keys of a layer, turned, in parts whose products add up to q·k. [row, pos, head, d_head] each"""
    q, k = _queries_and_keys(model, tokens, scale, layer, [])
    without = _without_position(model, tokens, scale, layer)
    if without:
        q_content, k_content = _queries_and_keys(model, tokens, scale, layer, without)
        queries = {"content": q_content, "position": q - q_content}
        keys = {"content": k_content, "position": k - k_content}
        return {f"{a}–{b}": (queries[a], keys[b]) for a in queries for b in keys}
    scheme = scheme_of(network_of(model).model)
    pairs = scheme.rotary_pairs(tokens.shape[1]) if scheme is not None else None
    if pairs is None:
        return {CONTENT: (q, k)}
    dims = {f"pair {k}, wavelength {2 * math.pi / each.frequency:.4g}": list(each.dims) for k, each in enumerate(pairs)}
    turned = {dim for pair in pairs for dim in pair.dims}
    if rest := [dim for dim in range(q.shape[-1]) if dim not in turned]:
        dims[UNTURNED] = rest
    return {name: (q[..., some], k[..., some]) for name, some in dims.items()}


def _queries_and_keys(
    model: AnyModel, tokens: Tensor, scale: int, layer: int, changes: list[Any]
) -> tuple[Tensor, Tensor]:
    """As they enter the product, [row, pos, head, d_head], with some activations changed on the way."""
    hooks = network_of(model).model.hook_dict  # type: ignore[attr-defined]
    turned = f"blocks.{layer}.attn.hook_rot_q" in hooks
    names = [f"blocks.{layer}.attn.hook_{'rot_' if turned else ''}{x}" for x in "qk"]
    q, k = _activations(model, tokens, scale, names, changes)
    return q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)  # where several heads share keys


def _activations(
    model: AnyModel, tokens: Tensor, scale: int, names: Sequence[str], changes: Sequence[Any] = ()
) -> list[Tensor]:
    """What hook points see, with some activations changed on the way."""
    seen: dict[str, Tensor] = {}
    watchers: list[Any] = [*changes]
    for name in names:
        hook_named(model, name)
        watchers.append((name, lambda value, name=name: seen.update({name: value.detach().clone()})))
    watch(model, tokens, scale, watchers)
    return [seen[name] for name in names]


def _without_position(model: AnyModel, tokens: Tensor, scale: int, layer: int) -> list[Any]:
    """Changes that take an added position vector out of what a layer's queries and keys are made from; none if none is.

    Everything else stays as it is: the residual stream before the layer, and the scale of the norm.
    """
    network: Any = network_of(model).model
    hooks, before, norm = network.hook_dict, f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.ln1.hook_normalized"
    if "hook_qk_embed" in hooks:  # added after the norm, in every layer
        (resid,) = _activations(model, tokens, scale, [before])
        return [("hook_qk_embed", torch.zeros_like), (before, lambda _: resid)]
    if "hook_pos_embed" not in hooks:
        return []
    if norm not in hooks:
        (position,) = _activations(model, tokens, scale, ["hook_pos_embed"])
        return [(before, lambda resid: resid - position)]
    position, size = _activations(model, tokens, scale, ["hook_pos_embed", f"blocks.{layer}.ln1.hook_scale"])
    if str(network.cfg.normalization_type).startswith("LN"):
        position = position - position.mean(-1, keepdim=True)
    return [(norm, lambda normalized: normalized - position / size)]
