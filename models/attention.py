"""A layer of the model: causal attention with any position embedding, and the block around it.

Attention has one way that is fast, and one that shows scores and pattern.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.FactoredMatrix import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from lengthlens.models.config import LensConfig
from lengthlens.models.layers import MLP, affine, make_norm, watched
from lengthlens.models.schemes import Positions, PositionScheme

# Elements of one block of scores. Large enough that the work per block outweighs its overhead, small enough that a
# dozen temporaries of this size (a scheme computes distances, codes, …) stay far below 1 GiB.
BLOCK_ELEMENTS = 1 << 22


class Placement:
    """What attention needs to know about positions in one forward pass, the same for every layer."""

    def __init__(self, scheme: PositionScheme, positions: Positions, temperature: Tensor | None) -> None:
        acts = scheme.acts()
        self.scheme = scheme
        self.positions = positions
        self.temperature = temperature  # [query] or None: what every score of a query is multiplied by
        self.rotates = "rotate" in acts
        self.scores = "score" in acts
        self.factors = "factor" in acts


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
    Otherwise they exist for one block of queries at a time, inside a fused kernel where the scheme allows it.
    """

    def __init__(self, cfg: LensConfig, layer: int, rotates: bool) -> None:
        super().__init__()
        self.cfg = cfg
        self.layer = layer
        self.explicit = False
        self.block_elements = BLOCK_ELEMENTS
        heads = (cfg.n_heads, cfg.d_model, cfg.d_head)
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.W_O = nn.Parameter(torch.empty(cfg.n_heads, cfg.d_head, cfg.d_model))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(cfg.n_heads, cfg.d_head)) for _ in range(3))
        self.b_O = nn.Parameter(torch.zeros(cfg.d_model))
        self.hook_q, self.hook_k, self.hook_v = (HookPoint(), HookPoint(), HookPoint())  # [row, pos, head, d_head]
        self.hook_z = HookPoint()  # [row, pos, head, d_head]
        self.hook_attn_scores = HookPoint()  # [row, head, query, key], −inf above the diagonal
        self.hook_pattern = HookPoint()  # [row, head, query, key], what values are mixed with
        self.hook_result = HookPoint()  # [row, pos, head, d_model]
        self.hook_q_input, self.hook_k_input, self.hook_v_input = HookPoint(), HookPoint(), HookPoint()
        if rotates:
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()  # [row, pos, head, d_head]

    @property
    def OV(self) -> FactoredMatrix:
        """What a head writes for what it reads: W_V W_O, [head, d_model, d_model]."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def QK(self) -> FactoredMatrix:
        """The bilinear form of the content part of the scores: W_Q W_Kᵀ, [head, d_model, d_model]."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    def forward(self, query_input: Tensor, key_input: Tensor, value_input: Tensor, placement: Placement) -> Tensor:
        """Inputs [row, pos, d_model], or [row, pos, head, d_model] if each head has its own; out as the former."""
        shared = query_input is key_input and key_input is value_input and query_input.dim() == 3
        seen = self.explicit or watched(self.hook_attn_scores, self.hook_pattern)
        if shared and not watched(self.hook_q, self.hook_k, self.hook_v):
            q, k, v = self._joint(query_input)
        else:
            q, k, v = self._separate(query_input, key_input, value_input)
        if placement.rotates:
            q = self.hook_rot_q(placement.scheme.rotate(q, placement.positions))
            k = self.hook_rot_k(placement.scheme.rotate(k, placement.positions))
        z = self._explicit(q, k, v, placement) if seen else self._fused(q, k, v, placement)
        return self._output(self.hook_z(z))

    # -- linear maps in and out ----------------------------------------------------------------------------------

    def _separate(self, query_input: Tensor, key_input: Tensor, value_input: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, [row, pos, head, d_head] each, where someone may look at or change them."""
        return (
            self.hook_q(per_head(query_input, self.W_Q, self.b_Q)),
            self.hook_k(per_head(key_input, self.W_K, self.b_K)),
            self.hook_v(per_head(value_input, self.W_V, self.b_V)),
        )

    def _joint(self, x: Tensor) -> tuple[Tensor, ...]:
        """The same in one product."""
        weight = torch.cat((self.W_Q, self.W_K, self.W_V))  # [3 head, d_model, d_head]
        bias = torch.cat((self.b_Q, self.b_K, self.b_V)).flatten()
        qkv = affine(x, weight.transpose(0, 1).flatten(1), bias)
        return qkv.view(*x.shape[:2], 3, *self.b_Q.shape).unbind(2)

    def _output(self, z: Tensor) -> Tensor:
        if self.cfg.use_attn_result:
            result: Tensor = self.hook_result(torch.einsum("rphd,hdm->rphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return affine(z.flatten(2), self.W_O.flatten(0, 1), self.b_O)

    # -- scores, pattern, mix ------------------------------------------------------------------------------------

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor, placement: Placement) -> Tensor:
        queries = slice(0, q.shape[1])
        scores = self.hook_attn_scores(self._scores(q, k, placement, queries))
        pattern: Tensor = self.hook_pattern(self._reweighted(scores.softmax(-1), placement, queries))
        return (pattern.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, placement: Placement) -> Tensor:
        if not (placement.scores or placement.factors):
            return self._kernel(q, k, v, placement)
        length = q.shape[1]
        step = max(1, self.block_elements // max(1, q.shape[0] * q.shape[2] * length))
        blocks = [slice(start, min(start + step, length)) for start in range(0, length, step)]
        # The last block first: it is the largest, and what it frees fits all others. The other way round the
        # allocator finds no freed piece large enough for the next block, and memory grows without need.
        parts = [
            self._block(q, k[:, : queries.stop], v[:, : queries.stop], placement, queries)
            for queries in reversed(blocks)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], 1)

    def _kernel(self, q: Tensor, k: Tensor, v: Tensor, placement: Placement) -> Tensor:
        """The scheme does not touch the scores: fused causal attention, linear in memory by itself."""
        q, k, v = same_dtype(q, k, v)
        if placement.temperature is not None:
            q = q * placement.temperature[:, None, None].to(q.dtype)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.cfg.attn_scale).transpose(1, 2)

    def _block(self, q: Tensor, k: Tensor, v: Tensor, placement: Placement, queries: slice) -> Tensor:
        """A block of queries with all keys up to its end."""
        scores = self._scores(q, k, placement, queries)
        pattern = self._reweighted(scores.softmax(-1), placement, queries)
        return (pattern.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)

    def _scores(self, q: Tensor, k: Tensor, placement: Placement, queries: slice) -> Tensor:
        """Scores of a block of queries with all keys up to its end, [row, head, query, key]."""
        q = q[:, queries] / self.cfg.attn_scale
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        if placement.scores:
            bias = placement.scheme.score(self.layer, placement.positions, queries, q, k)
            scores = scores if bias is None else scores + bias
        if placement.temperature is not None:
            scores = scores * placement.temperature[queries, None]
        return scores.masked_fill(later(queries, scores.device), -math.inf)

    def _reweighted(self, pattern: Tensor, placement: Placement, queries: slice) -> Tensor:
        factor = placement.scheme.factor(self.layer, placement.positions, queries) if placement.factors else None
        return pattern if factor is None else pattern * factor


def per_head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[row, pos, d_model] or [row, pos, head, d_model] to [row, pos, head, d_head]."""
    if x.dim() == 4:
        return torch.einsum("rphm,hmd->rphd", x, weight) + bias
    flat = affine(x, weight.transpose(0, 1).flatten(1), bias.flatten())
    return flat.view(*x.shape[:2], *bias.shape)


def later(queries: slice, device: torch.device) -> Tensor:
    """True where the key comes after the query, [query, key]; keys end with the block."""
    query = torch.arange(queries.start, queries.stop, device=device)
    return torch.arange(queries.stop, device=device) > query[:, None]


def same_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast a rotation leaves float32 beside bfloat16 values; a fused kernel wants one type."""
    return q.to(v.dtype), k.to(v.dtype), v


class Block(nn.Module):
    """A pre-norm Transformer block under HookedTransformer's names."""

    hook_out_is_single_residual_stream: ClassVar[bool] = True  # TransformerLens' logit lens asks for this

    def __init__(self, cfg: LensConfig, layer: int, rotates: bool) -> None:
        super().__init__()
        self.cfg = cfg
        self.ln1 = make_norm(cfg)
        self.attn = Attention(cfg, layer, rotates)
        self.hook_attn_in = HookPoint()  # [row, pos, head, d_model]
        self.hook_q_input, self.hook_k_input, self.hook_v_input = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_out = HookPoint()  # [row, pos, d_model]
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()  # [row, pos, d_model]
        if not cfg.attn_only:
            self.ln2 = make_norm(cfg)
            self.mlp = MLP(cfg)
            self.hook_resid_mid, self.hook_mlp_in, self.hook_mlp_out = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid_pre: Tensor, placement: Placement, embed_qk: Tensor | None) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_pre)
        query, key, value = self._attention_inputs(resid_pre, embed_qk)
        attn_out = self.hook_attn_out(self.attn(query, key, value, placement))
        if self.cfg.attn_only:
            return self._resid_post(resid_pre + attn_out)
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.cfg.use_hook_mlp_in else resid_mid
        return self._resid_post(resid_mid + self.hook_mlp_out(self.mlp(self.ln2(mlp_in))))

    def _resid_post(self, residual: Tensor) -> Tensor:
        resid_post: Tensor = self.hook_resid_post(residual)
        return resid_post

    def _attention_inputs(self, resid_pre: Tensor, embed_qk: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """What queries, keys and values are made from; with a head dimension where a flag asks for it."""
        cfg = self.cfg
        if embed_qk is not None and (cfg.use_attn_in or cfg.use_split_qkv_input):
            embed_qk = embed_qk[:, :, None]
        if cfg.use_split_qkv_input:
            q, k, v = (self.ln1(x) for x in self._split_inputs(resid_pre))
        else:
            shared = self.hook_attn_in(repeat_heads(resid_pre, cfg.n_heads)) if cfg.use_attn_in else resid_pre
            q = k = v = self.ln1(shared)
        if embed_qk is None:
            return q, k, v
        q_positioned = q + embed_qk
        return q_positioned, q_positioned if k is q else k + embed_qk, v

    def _split_inputs(self, resid_pre: Tensor) -> tuple[Tensor, ...]:
        """One copy for each of queries, keys and values, under the names of TransformerLens 3 and 4."""
        outer = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
        inner = (self.attn.hook_q_input, self.attn.hook_k_input, self.attn.hook_v_input)
        return tuple(i(o(repeat_heads(resid_pre, self.cfg.n_heads))) for o, i in zip(outer, inner))


def dead_hook(name: str, cfg: LensConfig) -> str | None:
    """The switch that a hook point of this name waits for, or None if it fires as things stand.

    A hook on a point that does not fire would silently do nothing.
    """
    switches = {
        ("hook_result",): ("use_attn_result", cfg.use_attn_result),
        ("hook_q_input", "hook_k_input", "hook_v_input"): ("use_split_qkv_input", cfg.use_split_qkv_input),
        ("hook_attn_in",): ("use_attn_in", cfg.use_attn_in and not cfg.use_split_qkv_input),
        ("hook_mlp_in",): ("use_hook_mlp_in", cfg.use_hook_mlp_in),
    }
    for endings, (switch, on) in switches.items():
        if name.rpartition(".")[2] in endings and not on:
            return switch
    return None
