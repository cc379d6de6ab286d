"""A layer of the model: causal attention with any position embedding, and the block around it.

Attention has one way that is fast, one that shows scores and pattern, and one for long inputs of which few keys matter.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformer_lens.FactoredMatrix import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from lengthlens.models.config import LensConfig
from lengthlens.models.layers import MLP, affine, make_norm, watched
from lengthlens.models.schemes import NamedKeys, Positions, PositionScheme

# Elements of one block of scores. Large enough that the work per block outweighs its overhead, small enough that a
# dozen temporaries of this size (a scheme computes distances, codes, …) stay far below 1 GiB.
BLOCK_ELEMENTS = 1 << 22
LONG = 64  # keys from which on scores that a scheme adds to are best left to a fused kernel
NAMED_LENGTH = 512  # tokens from which on it is quicker to look at the few keys that a scheme names
MOST_NAMES = 32  # keys that a query names; with more of them, scores in blocks are quicker
NAMED_BLOCK = 1 << 21  # numbers of named keys gathered at once

# What is done to scores. Where no gradient needs what they were before, no memory is taken for what they become.
KEPT = (torch.Tensor.add, torch.Tensor.mul)
IN_PLACE = (torch.Tensor.add_, torch.Tensor.mul_)


class AttentionContext:
    """What attention needs to know about positions in one forward pass, the same for every layer."""

    def __init__(self, scheme: PositionScheme, positions: Positions, temperature: Tensor | None) -> None:
        self.scheme, self.positions = scheme, positions
        self.temperature = temperature  # [query] or None: what every score of a query is multiplied by
        acts = scheme.acts()
        self.rotates, self.scores, self.factors = (act in acts for act in ("rotate", "score", "factor"))


def log_temperature(length: int, train_ctx: int, device: torch.device) -> Tensor:
    """log(i+2) / log(L+2) for each query i: 1 at the training length L, above it beyond. [query]

    It depends on the query's own position only, so a token's output does not change when more tokens follow.

    >>> log_temperature(3, 2, torch.device("cpu"))
    tensor([0.5000, 0.7925, 1.0000])
    """
    return torch.log(torch.arange(2.0, length + 2, device=device)) / math.log(train_ctx + 2)


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """[row, pos, d_model] to [row, pos, head, d_model]; a copy, because hooks may write into it."""
    return x[:, :, None].repeat(1, 1, n_heads, 1)


class Attention(nn.Module):
    """One attention layer.

    Scores and pattern are computed explicitly, all at once, only when someone looks at them (or `explicit` is set).
    Otherwise they exist for one block of queries at a time, inside a fused kernel where the scheme allows it. With
    `blocked` set, who looks at them sees such blocks, one after the other: [row, head, query, key] with all keys up to
    the last query of the block, so that its first query is the number of keys less that of queries.
    """

    def __init__(self, cfg: LensConfig, layer: int, acts: Sequence[str]) -> None:
        super().__init__()
        self.cfg, self.layer = cfg, layer
        self.explicit, self.blocked, self.block_elements = False, False, BLOCK_ELEMENTS
        heads = (cfg.n_heads, cfg.d_model, cfg.d_head)
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.W_O = nn.Parameter(torch.empty(cfg.n_heads, cfg.d_head, cfg.d_model))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head)) for _ in range(3))
        self.b_O = nn.Parameter(torch.zeros(cfg.d_model))
        self.hook_q, self.hook_k, self.hook_v, self.hook_z = (HookPoint() for _ in range(4))  # [row, pos, head, d_head]
        self.hook_attn_scores = HookPoint()  # [row, head, query, key], −inf above the diagonal
        self.hook_pattern = HookPoint()  # [row, head, query, key], what values are mixed with
        self.hook_result = HookPoint()  # [row, pos, head, d_model]
        self.hook_q_input, self.hook_k_input, self.hook_v_input = HookPoint(), HookPoint(), HookPoint()
        if "score" in acts:
            self.hook_pos_score = HookPoint()  # [row, head, query, key], what the scheme adds, before any temperature
        if "rotate" in acts:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()  # [row, pos, head, d_head]

    @property
    def OV(self) -> FactoredMatrix:
        """What a head writes for what it reads: W_V W_O, [head, d_model, d_model]."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """The bilinear form of the content part of the scores: W_Q W_Kᵀ, [head, d_model, d_model]."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    def forward(
        self,
        query_input: Tensor,
        key_input: Tensor,
        value_input: Tensor,
        context: AttentionContext,
        queries: slice | None = None,
    ) -> Tensor:
        """Inputs [row, pos, d_model], or [row, pos, head, d_model] if each head has its own; out as the former.

        Of `queries` alone, if they are given.
        """
        shared = query_input is key_input and key_input is value_input and query_input.dim() == 3
        if shared and not watched(self.hook_q, self.hook_k, self.hook_v):
            weight, bias = torch.cat((self.W_Q, self.W_K, self.W_V)), torch.cat((self.b_Q, self.b_K, self.b_V))
            q, k, v = per_head(query_input, weight, bias).chunk(3, 2)  # in one product
        else:  # someone may look at them or change them
            q = self.hook_q(per_head(query_input, self.W_Q, self.b_Q))
            k = self.hook_k(per_head(key_input, self.W_K, self.b_K))
            v = self.hook_v(per_head(value_input, self.W_V, self.b_V))
        if context.rotates:
            q = self.hook_rot_q(context.scheme.rotate_in(self.layer, q, context.positions))
            k = self.hook_rot_k(context.scheme.rotate_in(self.layer, k, context.positions))
        looked_at, wanted = self.explicit or self._watched(), queries or slice(0, q.shape[1])
        if looked_at and not self.blocked:
            z = self._mixed(q, k[:, : wanted.stop], v[:, : wanted.stop], context, wanted)
        elif looked_at or context.scores or context.factors or queries is not None:
            named = None if looked_at else self._to_named(q, k, v, context, wanted)
            z = self._in_blocks(q, k, v, context, wanted) if named is None else named
        else:
            z = self._kernel(q, k, v, context)
        z = self.hook_z(z)
        if self.cfg.use_attn_result:
            result: Tensor = self.hook_result(torch.einsum("rphd,hdm->rphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return affine(z.flatten(2), self.W_O.flatten(0, 1), self.b_O)

    def _watched(self) -> bool:
        """Whether someone looks at scores or pattern."""
        return watched(self.hook_attn_scores, self.hook_pattern, *self._position_scores())

    def _position_scores(self) -> list[HookPoint]:
        """The hook point of what the scheme adds to scores, if it does."""
        return [self.hook_pos_score] if hasattr(self, "hook_pos_score") else []

    def _to_named(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, wanted: slice) -> Tensor | None:
        """What heads give where the scheme names few keys of a long input; None where that way is closed."""
        known = q.dtype == v.dtype == torch.float32 and q.device.type == "cpu" and not torch.is_grad_enabled()
        named = names_of(context.scheme, context.positions) if known else None
        if named is None:
            return None
        own = NamedKeys(named.key[wanted], named.bias[:, :, wanted], named.valued[:, :, wanted])
        times = torch.ones(wanted.stop) if context.temperature is None else context.temperature
        keys, values = k[:, : wanted.stop], v[:, : wanted.stop]
        return attend_to_named(q[:, wanted] / self.cfg.attn_scale, keys, values, own, self.layer, times[wanted])

    def _in_blocks(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, wanted: slice) -> Tensor:
        first, end = wanted.start, wanted.stop
        step = max(1, self.block_elements // max(1, q.shape[0] * q.shape[2] * end))
        # The last block first: it is the largest, and what it frees fits all others. The other way round the
        # allocator finds no freed piece large enough for the next block, and memory grows without need.
        blocks = [slice(start, min(start + step, end)) for start in reversed(range(first, end, step))]
        mixed: Callable[..., Tensor] = self._mixed
        fused = not (torch.is_grad_enabled() or self.explicit or context.factors or self._watched())  # nobody looks
        if self.blocked and len(blocks) > 1 and torch.is_grad_enabled():  # a gradient would keep all blocks
            mixed = partial(checkpoint, self._alone, use_reentrant=False, preserve_rng_state=False)
        elif end >= LONG and fused and q.dtype == torch.float32 and q.device.type == "cpu":
            mixed = self._fused
        parts = [mixed(q, k[:, : block.stop], v[:, : block.stop], context, block) for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], 1)

    def _alone(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, queries: slice) -> Tensor:
        """`_mixed` that shares nothing with other blocks and layers, so that it does the same when it is repeated."""
        positions = context.positions.alone()
        return self._mixed(q, k, v, AttentionContext(context.scheme, positions, context.temperature), queries)

    def _kernel(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext) -> Tensor:
        """The scheme does not touch the scores: fused causal attention, linear in memory by itself."""
        q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast a rotation leaves float32 beside bfloat16 values
        if context.temperature is not None:
            q = q * context.temperature[:, None, None].to(q.dtype)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.cfg.attn_scale).transpose(1, 2)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, queries: slice) -> Tensor:
        """The same as `_mixed`, scores never being held: what the scheme adds to them is the mask of a fused kernel."""
        q, mask = q[:, queries] / self.cfg.attn_scale, q.new_zeros(1, 1, 1, 1)
        if context.scores:
            bias = context.scheme.score(self.layer, context.positions, queries, q, k)
            mask = mask if bias is None else bias
        if context.temperature is not None:
            times = context.temperature[queries, None]
            q, mask = q * times[:, None], mask * times
        mask = (mask + later_keys(queries, q)).expand(q.shape[0], q.shape[2], -1, -1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).transpose(1, 2)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, context: AttentionContext, queries: slice) -> Tensor:
        """A block of queries with all keys up to its end: scores, pattern, mix of values."""
        scores = self.hook_attn_scores(self._scores(q, k, context, queries))
        pattern: Tensor = scores.softmax(-1)
        if context.factors:
            factor = context.scheme.factor(self.layer, context.positions, queries)
            pattern = pattern if factor is None else pattern * factor
        pattern = self.hook_pattern(pattern)
        return (pattern.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)

    def _scores(self, q: Tensor, k: Tensor, context: AttentionContext, queries: slice) -> Tensor:
        """Scores of a block of queries with all keys up to its end, [row, head, query, key]."""
        q = q[:, queries] / self.cfg.attn_scale
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        add, times = KEPT if torch.is_grad_enabled() else IN_PLACE
        if context.scores:
            bias = context.scheme.score(self.layer, context.positions, queries, q, k)
            if bias is not None and watched(*self._position_scores()):  # who looks sees all of it, and may write to it
                bias = self.hook_pos_score(bias.expand_as(scores).clone())
            scores = scores if bias is None else add(scores, bias)
        if context.temperature is not None:
            scores = times(scores, context.temperature[queries, None])
        key = ("later", queries.start, queries.stop, scores.dtype)
        return add(scores, context.positions.memo(key, lambda: later_keys(queries, scores), "length", square=True))


def names_of(scheme: PositionScheme, positions: Positions) -> NamedKeys | None:
    """The keys that every query of a long input names, where all rows name the same few and all others have score 0.

    None otherwise. A network trained with `lbpe` names one key or a few. For copy at n = 1000, on one core, its pass
    takes 0.03 s this way and by scores in blocks 0.40 s; twenty of them in batches take 0.56 s and 2.3 s.
    """
    tokens = positions.tokens.shape[1]
    if tokens < NAMED_LENGTH or not scheme.means_others or positions.limit is not None or scheme.acts() != ["score"]:
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
    first, step = k.shape[1] - q.shape[1], max(1, NAMED_BLOCK // max(1, (named.key.shape[1] + 1) * q[:, 0].numel()))
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


def later_keys(queries: slice, like: Tensor) -> Tensor:
    """What hides a key that comes after the query when it is added to its score: −∞, and 0 elsewhere. [query, key]"""
    return like.new_full((queries.stop - queries.start, queries.stop), -math.inf).triu(queries.start + 1)


def per_head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[row, pos, d_model] or [row, pos, head, d_model] to [row, pos, head, d_head]."""
    if x.dim() == 4:
        return torch.einsum("rphm,hmd->rphd", x, weight) + bias
    flat = affine(x, weight.transpose(0, 1).flatten(1), bias.flatten())
    return flat.view(*x.shape[:2], *bias.shape)


class Block(nn.Module):
    """A pre-norm Transformer block under HookedTransformer's names."""

    hook_out_is_single_residual_stream: ClassVar[bool] = True  # TransformerLens' logit lens asks for this

    def __init__(self, cfg: LensConfig, layer: int, acts: Sequence[str]) -> None:
        super().__init__()
        self.cfg = cfg
        self.ln1 = make_norm(cfg)
        self.attn = Attention(cfg, layer, acts)
        self.hook_attn_in = HookPoint()  # [row, pos, head, d_model]
        self.hook_q_input, self.hook_k_input, self.hook_v_input = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_out = HookPoint()  # [row, pos, d_model]
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()  # [row, pos, d_model]
        if not cfg.attn_only:
            self.ln2 = make_norm(cfg)
            self.mlp = MLP(cfg)
            self.hook_mlp_in, self.hook_mlp_out = HookPoint(), HookPoint()
            if not cfg.parallel_attn_mlp:
                self.hook_resid_mid = HookPoint()  # [row, pos, d_model], between attention and MLP

    def forward(
        self, resid_pre: Tensor, context: AttentionContext, embed_qk: Tensor | None, queries: slice | None = None
    ) -> Tensor:
        """The residual stream behind the block; where only `queries` are wanted, there alone."""
        resid_pre = self.hook_resid_pre(resid_pre)
        inputs = self._attention_inputs(resid_pre, embed_qk)
        resid_pre = resid_pre if queries is None else resid_pre[:, queries]
        residual = resid_pre + self.hook_attn_out(self.attn(*inputs, context, queries))
        if self.cfg.attn_only:
            mlp_in = None
        elif self.cfg.parallel_attn_mlp:
            mlp_in = resid_pre
        else:
            mlp_in = residual = self.hook_resid_mid(residual)
        if mlp_in is not None:
            mlp_in = self.hook_mlp_in(mlp_in.clone()) if self.cfg.use_hook_mlp_in else mlp_in
            residual = residual + self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
        resid_post: Tensor = self.hook_resid_post(residual)
        return resid_post

    def _attention_inputs(self, resid_pre: Tensor, embed_qk: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """What queries, keys and values are made from; with a head dimension where a flag asks for it."""
        cfg = self.cfg
        if embed_qk is not None and (cfg.use_attn_in or cfg.use_split_qkv_input):
            embed_qk = embed_qk[:, :, None]
        if cfg.use_split_qkv_input:  # a copy for each, under the names of TransformerLens 3 and of 4
            outer = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
            inner = (self.attn.hook_q_input, self.attn.hook_k_input, self.attn.hook_v_input)
            copies = [i(o(repeat_heads(resid_pre, cfg.n_heads))) for o, i in zip(outer, inner)]
            q, k, v = map(self.ln1, copies)
        else:
            shared = self.hook_attn_in(repeat_heads(resid_pre, cfg.n_heads)) if cfg.use_attn_in else resid_pre
            q = k = v = self.ln1(shared)
        if embed_qk is None:
            return q, k, v
        q_positioned = q + embed_qk
        return q_positioned, q_positioned if k is q else k + embed_qk, v


def dead_hook(name: str, cfg: LensConfig) -> str | None:
    """The switch that a hook point of this name waits for; None if it fires, so that a hook on it does something."""
    split = ("use_split_qkv_input", cfg.use_split_qkv_input)
    switches: dict[str, tuple[str, bool]] = {
        **{f"hook_{part}_input": split for part in "qkv"},
        "hook_result": ("use_attn_result", cfg.use_attn_result),
        "hook_attn_in": ("use_attn_in", cfg.use_attn_in and not cfg.use_split_qkv_input),
        "hook_mlp_in": ("use_hook_mlp_in", cfg.use_hook_mlp_in),
    }
    switch, on = switches.get(name.rpartition(".")[2], ("", True))
    return None if on else switch
