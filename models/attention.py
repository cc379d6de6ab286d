"""The parts of a network: embeddings, norms, MLP, causal attention with any position embedding, and their block.

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

from lengthlens.errors import UserError
from lengthlens.models.config import LensConfig
from lengthlens.models.normalization import Normalization
from lengthlens.models.schemes import NamedKeys, Positions, PositionScheme

# Elements of one block of scores. Large enough that the work per block outweighs its overhead, small enough that a
# dozen temporaries of this size (a scheme computes distances, codes, …) stay far below 1 GiB.
BLOCK_ELEMENTS = 1 << 22
LONG = 64  # keys from which on scores that a scheme adds to are best left to a fused kernel
NAMED_LENGTH = 512  # tokens from which on it is quicker to look at the few keys that a scheme names
MOST_NAMES = 32  # keys that a query names; with more of them, scores in blocks are quicker
NAMED_BLOCK = 1 << 21  # numbers of named keys gathered at once


def solu(x: Tensor) -> Tensor:
    return x * x.softmax(-1)


ACT_FN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "solu": solu,
}


def watched(*points: HookPoint | None) -> bool:
    """Whether one of the hook points has a hook; None stands for a point that this network does not have.

    Besides hooks of torch and TransformerLens this sees NNsight, which shadows a module's `forward`.
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(p is not None and ("forward" in p.__dict__ or any(getattr(p, kind) for kind in kinds)) for p in points)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight + bias`` in one kernel; `x` [..., d_in], `weight` [d_in, d_out]."""
    flat = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)
    return flat.view(*x.shape[:-1], weight.shape[1])


def outside(d_vocab: int) -> UserError:
    """The error for a token id that does not exist."""
    return UserError(f"a token id is outside the vocabulary of {d_vocab} tokens")


class Embed(nn.Module):
    """Token ids to vectors."""

    def __init__(self, cfg: LensConfig) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(cfg.d_vocab, cfg.d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        try:
            return F.embedding(tokens, self.W_E)  # [row, pos, d_model]
        except IndexError:
            raise outside(len(self.W_E)) from None


class Unembed(nn.Module):
    """Residual stream to logits."""

    def __init__(self, cfg: LensConfig) -> None:
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(cfg.d_model, cfg.d_vocab_out))
        self.b_U = nn.Parameter(torch.zeros(cfg.d_vocab_out))
        self.hook_in, self.hook_out = HookPoint(), HookPoint()  # [row, pos, d_model], [row, pos, d_vocab_out]

    def forward(self, residual: Tensor) -> Tensor:
        logits: Tensor = self.hook_out(affine(self.hook_in(residual), self.W_U, self.b_U))
        return logits


class Norm(nn.Module):
    """LayerNorm or RMSNorm, with or without weights: ``LN``, ``LNPre``, ``RMS``, ``RMSPre``.

    The fused kernel runs unless someone looks at the scale or at the normalised vector.
    """

    def __init__(self, cfg: LensConfig) -> None:
        super().__init__()
        kind = cfg.normalization_type
        self.centred, self.eps, self.shape = kind in ("LN", "LNPre"), cfg.eps, (cfg.d_model,)
        self.w = nn.Parameter(torch.ones(cfg.d_model)) if kind in ("LN", "RMS") else None
        self.b = nn.Parameter(torch.zeros(cfg.d_model)) if kind == "LN" else None
        self.hook_scale, self.hook_normalized = HookPoint(), HookPoint()  # [row, pos, 1], [row, pos, d_model]

    def forward(self, x: Tensor) -> Tensor:
        if not watched(self.hook_scale, self.hook_normalized):
            if self.centred:
                return F.layer_norm(x, self.shape, self.w, self.b, self.eps)
            return F.rms_norm(x, self.shape, self.w, self.eps)
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())
        normalized: Tensor = self.hook_normalized(x / scale)
        if self.w is None:
            return normalized
        return normalized * self.w if self.b is None else normalized * self.w + self.b


def make_norm(cfg: LensConfig) -> nn.Module:
    return nn.Identity() if cfg.normalization_type is None else Norm(cfg)


class MLP(nn.Module):
    """Two linear maps with an activation between them; gated, a third map gives what the second is multiplied by."""

    def __init__(self, cfg: LensConfig) -> None:
        super().__init__()
        d_mlp = cfg.d_mlp or 4 * cfg.d_model
        self.W_gate = nn.Parameter(torch.empty(cfg.d_model, d_mlp)) if cfg.gated_mlp else None
        self.W_in = nn.Parameter(torch.empty(cfg.d_model, d_mlp))
        self.b_in = nn.Parameter(torch.zeros(d_mlp))
        self.W_out = nn.Parameter(torch.empty(d_mlp, cfg.d_model))
        self.b_out = nn.Parameter(torch.zeros(cfg.d_model))
        self.act_fn = ACT_FN[cfg.act_fn]
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()  # [row, pos, d_mlp]
        if cfg.gated_mlp:
            self.hook_pre_linear = HookPoint()  # [row, pos, d_mlp], what the activation of `hook_pre` is multiplied by

    def forward(self, x: Tensor) -> Tensor:
        if self.W_gate is None:
            post = self.act_fn(self.hook_pre(affine(x, self.W_in, self.b_in)))
        else:  # the bias comes after the product, as in HookedTransformer
            post = self.act_fn(self.hook_pre(x @ self.W_gate)) * self.hook_pre_linear(x @ self.W_in) + self.b_in
        return affine(self.hook_post(post), self.W_out, self.b_out)


class AttentionContext:
    """What attention of a layer needs to know about positions in one forward pass."""

    def __init__(self, scheme: PositionScheme, positions: Positions, layer: int, temperature: Tensor | None) -> None:
        self.scheme, self.positions, self.layer = scheme, positions, layer
        self.temperature = temperature if scheme.spreads_in(layer) else None  # [query]: what scores are multiplied by
        acts = scheme.acts_in(layer)
        places = ("rotate", "score", "factor", "read")
        self.rotates, self.scores, self.factors, self.reads = (place in acts for place in places)


def log_temperature(length: int, train_ctx: int, device: torch.device) -> Tensor:
    """log(i+2) / log(L+2) for each query i: 1 at the training length L, above it beyond. [query]

    It depends on the query's own position only, so a token's output does not change when more tokens follow.

    >>> log_temperature(3, 2, torch.device("cpu"))
    tensor([0.5000, 0.7925, 1.0000])
    """
    return torch.log(torch.arange(2.0, length + 2, device=device)) / math.log(train_ctx + 2)


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
        self.normalization = Normalization(cfg)
        if "read" in acts:
            self.hook_gate = HookPoint()  # [row, pos, head] or [row, pos, head, …], what the scheme makes of the input
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
        # Where heads have inputs of their own, which hooks may have changed, a scheme reads their mean.
        x = value_input if value_input.dim() == 3 else value_input.mean(2)
        if context.reads:
            context.scheme.take_in(self.layer, x, context.positions, self.hook_gate)
        if context.rotates:
            q = self.hook_rot_q(context.scheme.rotate_in(self.layer, q, context.positions))
            k = self.hook_rot_k(context.scheme.rotate_in(self.layer, k, context.positions, keys=True))
        added = getattr(self, "hook_pos_score", None)
        looked_at = self.explicit or watched(self.hook_attn_scores, self.hook_pattern, added)
        asked = queries or slice(0, q.shape[1])
        times = self.normalization.times(x, context.temperature)
        few = None if looked_at or not self.normalization.plain else names_of(context, q, v, asked)
        if looked_at and not self.blocked:
            z = self._mixed(q, k[:, : asked.stop], v[:, : asked.stop], times, context, asked)
        elif few is not None:
            by = (torch.ones(asked.stop) if context.temperature is None else context.temperature)[asked]
            seen = k[:, : asked.stop], v[:, : asked.stop]
            z = attend_to_named(q[:, asked] / self.cfg.attn_scale, *seen, few, self.layer, by)
        elif looked_at or context.scores or context.factors or queries is not None or not self.normalization.fuses:
            z = self._in_blocks(q, k, v, times, context, asked, looked_at)
        else:  # the scheme leaves the scores as they are: fused causal attention, linear in memory by itself
            q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast a rotation leaves float32 beside bfloat16 values
            if times is not None:
                q = q * times[..., None].to(q.dtype)
            width, wider = v.shape[-1], q.shape[-1] - v.shape[-1]  # kernels for GPUs want one width
            q, k, v = (x.transpose(1, 2) for x in (q, k, F.pad(v, (0, wider)) if wider else v))
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.cfg.attn_scale).transpose(1, 2)
            z = z[..., :width] if wider else z
        z = self.hook_z(z)
        if self.cfg.use_attn_result:
            result: Tensor = self.hook_result(torch.einsum("rphd,hdm->rphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return affine(z.flatten(2), self.W_O.flatten(0, 1), self.b_O)

    def _in_blocks(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        times: Tensor | None,
        context: AttentionContext,
        asked: slice,
        looked_at: bool,
    ) -> Tensor:
        """What heads mix at the queries that are asked for, a block of them at a time. [row, query, head, d_head]"""
        step = max(1, self.block_elements // max(1, q.shape[0] * q.shape[2] * asked.stop))
        # The last block first: it is the largest, and what it frees fits all others. The other way round the
        # allocator finds no freed piece large enough for the next block, and memory grows without need.
        starts = reversed(range(asked.start, asked.stop, step))
        blocks = [slice(start, min(start + step, asked.stop)) for start in starts]
        mixed: Callable[..., Tensor] = self._mixed
        on_cpu = q.dtype == torch.float32 and q.device.type == "cpu"
        if self.blocked and len(blocks) > 1 and torch.is_grad_enabled():  # a gradient would keep all blocks
            mixed = partial(checkpoint, self._alone, use_reentrant=False, preserve_rng_state=False)
        elif asked.stop >= LONG and on_cpu and not (torch.is_grad_enabled() or looked_at or context.factors):
            mixed = self._fused if self.normalization.fuses else mixed
        parts = [mixed(q, k[:, : block.stop], v[:, : block.stop], times, context, block) for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], 1)

    def _alone(
        self, q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, context: AttentionContext, queries: slice
    ) -> Tensor:
        """`_mixed` that shares nothing with other blocks and layers, so that it does the same when it is repeated."""
        alone = AttentionContext(context.scheme, context.positions.alone(), self.layer, context.temperature)
        return self._mixed(q, k, v, times, alone, queries)

    def _fused(
        self, q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, context: AttentionContext, queries: slice
    ) -> Tensor:
        """The same as `_mixed` without holding scores: what the scheme adds to them is the mask of a fused kernel."""
        q, mask = q[:, queries] / self.cfg.attn_scale, q.new_zeros(1, 1, 1, 1)
        if context.scores:
            bias = context.scheme.score(self.layer, context.positions, queries, q, k)
            mask = mask if bias is None else bias
        if times is not None:
            q, mask = q * times[:, queries, :, None], mask * times[:, queries, :, None].transpose(1, 2)
        mask = (mask + later_keys(queries, q)).expand(q.shape[0], q.shape[2], -1, -1)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0).transpose(1, 2)

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, times: Tensor | None, context: AttentionContext, queries: slice
    ) -> Tensor:
        """What heads mix at a block of queries: scores [row, head, query, key] with all keys up to the last of these
        queries, then the pattern, then the mean of the values under it. [row, query, head, d_head]
        """
        q = q[:, queries] / self.cfg.attn_scale
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        # Where no gradient needs what scores were before, no memory is taken for what they become.
        in_place = not torch.is_grad_enabled()
        if context.scores:
            bias = context.scheme.score(self.layer, context.positions, queries, q, k)
            if bias is not None and watched(getattr(self, "hook_pos_score", None)):
                bias = self.hook_pos_score(bias.expand_as(scores).clone())  # all of it, which a hook may write to
            if bias is not None:
                scores = scores.add_(bias) if in_place else scores + bias
        if times is not None:
            by = times[:, queries, :, None].transpose(1, 2)  # [1|row, 1|head, query, 1]
            scores = scores.mul_(by) if in_place else scores * by
        key = ("later", queries.start, queries.stop, scores.dtype)
        later = context.positions.memo(key, lambda: later_keys(queries, scores), square=True)
        scores = self.hook_attn_scores(scores.add_(later) if in_place else scores + later)
        pattern: Tensor = self.normalization(scores)
        if context.factors:
            factor = context.scheme.factor(self.layer, context.positions, queries)
            pattern = pattern if factor is None else pattern * factor
        pattern = self.hook_pattern(pattern)
        return (pattern.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)


def names_of(context: AttentionContext, q: Tensor, v: Tensor, queries: slice) -> NamedKeys | None:
    """The keys that these queries of a long input name, where all rows name the same few and all others have score 0.

    None where that is not so, or where scores in blocks are needed: for a gradient, or on a GPU. A network trained with
    `lbpe` names one key or a few. For copy at n = 1000, on one core, its pass takes 0.03 s this way and by scores in
    blocks 0.40 s; twenty of them in batches take 0.56 s and 2.3 s.
    """
    scheme, positions = context.scheme, context.positions
    tokens = positions.tokens.shape[1]
    if torch.is_grad_enabled() or tokens < NAMED_LENGTH:
        return None
    if not scheme.means_others or positions.limit is not None or scheme.acts_in(context.layer) != ["score"]:
        return None
    if not q.dtype == v.dtype == torch.float32 or q.device.type != "cpu":
        return None
    one = scheme.names_in(positions, slice(0, 1))
    if one is None or not 0 < one.key.shape[1] <= MOST_NAMES:
        return None
    named = positions.memo("named", lambda: scheme.names_in(positions, slice(0, tokens)))
    assert named is not None
    return NamedKeys(named.key[queries], named.bias[:, :, queries], named.valued[:, :, queries])


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
    whether it has a score [head, query, name]."""
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
        """The residual stream after the block; where only `queries` are wanted, there alone."""
        cfg, resid_pre = self.cfg, self.hook_resid_pre(resid_pre)
        each_head = resid_pre[:, :, None].expand(-1, -1, cfg.n_heads, -1)  # copied where hooks may write into it
        if cfg.use_split_qkv_input:  # a copy for each, under the names of TransformerLens 3 and of 4
            outer = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
            inner = (self.attn.hook_q_input, self.attn.hook_k_input, self.attn.hook_v_input)
            q, k, v = (self.ln1(i(o(each_head.clone()))) for o, i in zip(outer, inner))
        else:
            q = k = v = self.ln1(self.hook_attn_in(each_head.clone()) if cfg.use_attn_in else resid_pre)
        if embed_qk is not None:
            embed_qk = embed_qk[:, :, None] if q.dim() == 4 else embed_qk
            shared, q = q is k, q + embed_qk
            k = q if shared else k + embed_qk
        resid_pre = resid_pre if queries is None else resid_pre[:, queries]
        residual = resid_pre + self.hook_attn_out(self.attn(q, k, v, context, queries))
        if not cfg.attn_only and not cfg.parallel_attn_mlp:
            residual = self.hook_resid_mid(residual)
        if not cfg.attn_only:
            mlp_in = resid_pre if cfg.parallel_attn_mlp else residual
            mlp_in = self.hook_mlp_in(mlp_in.clone()) if cfg.use_hook_mlp_in else mlp_in
            residual = residual + self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
        resid_post: Tensor = self.hook_resid_post(residual)
        return resid_post


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
