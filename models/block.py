"""One layer of the model: attention, then an MLP, each added to the residual stream."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from lengthlens.models.attention import Attention, Places, repeat_heads
from lengthlens.models.config import LensConfig
from lengthlens.models.layers import MLP, make_norm


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

    def forward(self, resid_pre: Tensor, places: Places, embed_qk: Tensor | None) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_pre)
        query, key, value = self._attention_inputs(resid_pre, embed_qk)
        attn_out = self.hook_attn_out(self.attn(query, key, value, places))
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


def stack(blocks: nn.ModuleList, part: str, weight: str) -> Tensor:
    """A weight of every layer, [layer, ...]."""
    return torch.stack([getattr(getattr(block, part), weight) for block in blocks])
