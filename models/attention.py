"""Causal attention with any position embedding: one way that is fast, one that shows scores and pattern."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.FactoredMatrix import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from lengthlens.models.config import LensConfig
from lengthlens.models.layers import affine, watched
from lengthlens.models.schemes import Frame, PositionScheme

# Elements of one block of scores. Large enough that the work per block outweighs its overhead, small enough that a
# dozen temporaries of this size (a scheme computes distances, codes, …) stay far below 1 GiB.
BLOCK_ELEMENTS = 1 << 22


class Places:
    """What attention needs to know about positions in one forward pass, the same for every layer."""

    def __init__(self, scheme: PositionScheme, frame: Frame, temperature: Tensor | None) -> None:
        acts = scheme.acts()
        self.scheme = scheme
        self.frame = frame
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

    def forward(self, query_input: Tensor, key_input: Tensor, value_input: Tensor, places: Places) -> Tensor:
        """Inputs [row, pos, d_model], or [row, pos, head, d_model] if each head has its own; out as the former."""
        shared = query_input is key_input and key_input is value_input and query_input.dim() == 3
        seen = self.explicit or watched(self.hook_attn_scores, self.hook_pattern)
        if shared and not watched(self.hook_q, self.hook_k, self.hook_v):
            q, k, v = self._joint(query_input)
        else:
            q, k, v = self._separate(query_input, key_input, value_input)
        if places.rotates:
            q = self.hook_rot_q(places.scheme.rotate(q, places.frame))
            k = self.hook_rot_k(places.scheme.rotate(k, places.frame))
        z = self._explicit(q, k, v, places) if seen else self._fused(q, k, v, places)
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

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
        rows = slice(0, q.shape[1])
        scores = self.hook_attn_scores(self._scores(q, k, places, rows))
        pattern: Tensor = self.hook_pattern(self._reweighted(scores.softmax(-1), places, rows))
        return (pattern.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
        if not (places.scores or places.factors):
            return self._kernel(q, k, v, places)
        length = q.shape[1]
        step = max(1, self.block_elements // max(1, q.shape[0] * q.shape[2] * length))
        blocks = [slice(start, min(start + step, length)) for start in range(0, length, step)]
        # The last block first: it is the largest, and what it frees fits all others. The other way round the
        # allocator finds no freed piece large enough for the next block, and memory grows without need.
        parts = [self._block(q, k[:, : rows.stop], v[:, : rows.stop], places, rows) for rows in reversed(blocks)]
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], 1)

    def _kernel(self, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
        """The scheme does not touch the scores: fused causal attention, linear in memory by itself."""
        q, k, v = same_dtype(q, k, v)
        if places.temperature is not None:
            q = q * places.temperature[:, None, None].to(q.dtype)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.cfg.attn_scale).transpose(1, 2)

    def _block(self, q: Tensor, k: Tensor, v: Tensor, places: Places, rows: slice) -> Tensor:
        """A block of queries with all keys up to its end."""
        scores = self._scores(q, k, places, rows)
        pattern = self._reweighted(scores.softmax(-1), places, rows)
        return (pattern.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2)

    def _scores(self, q: Tensor, k: Tensor, places: Places, rows: slice) -> Tensor:
        """Scores of a block of queries with all keys up to its end, [row, head, query, key]."""
        q = q[:, rows] / self.cfg.attn_scale
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        if places.scores:
            bias = places.scheme.score(self.layer, places.frame, rows, q, k)
            scores = scores if bias is None else scores + bias
        if places.temperature is not None:
            scores = scores * places.temperature[rows, None]
        return scores.masked_fill(later(rows, scores.device), -math.inf)

    def _reweighted(self, pattern: Tensor, places: Places, rows: slice) -> Tensor:
        factor = places.scheme.factor(self.layer, places.frame, rows) if places.factors else None
        return pattern if factor is None else pattern * factor


def per_head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[row, pos, d_model] or [row, pos, head, d_model] to [row, pos, head, d_head]."""
    if x.dim() == 4:
        return torch.einsum("rphm,hmd->rphd", x, weight) + bias
    flat = affine(x, weight.transpose(0, 1).flatten(1), bias.flatten())
    return flat.view(*x.shape[:2], *bias.shape)


def later(rows: slice, device: torch.device) -> Tensor:
    """True where the key comes after the query, [query, key]; keys end with the block."""
    query = torch.arange(rows.start, rows.stop, device=device)
    return torch.arange(rows.stop, device=device) > query[:, None]


def same_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast a rotation leaves float32 beside bfloat16 values; a fused kernel wants one type."""
    return q.to(v.dtype), k.to(v.dtype), v
