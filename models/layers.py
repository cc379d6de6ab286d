"""The parts of a block that do not know about positions: embedding, normalisation, MLP, unembedding."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lengthlens.errors import UserError
from lengthlens.models.config import LensConfig


def watched(*points: HookPoint) -> bool:
    """Whether anyone looks at one of the hook points.

    Besides hooks of torch and TransformerLens this sees NNsight, which shadows a module's `forward`.
    """
    return any(
        p._forward_hooks
        or p._forward_pre_hooks
        or p._backward_hooks
        or p._backward_pre_hooks
        or "forward" in p.__dict__
        for p in points
    )


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight + bias`` in one kernel; `x` [..., d_in], `weight` [d_in, d_out]."""
    flat = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)
    return flat.view(*x.shape[:-1], weight.shape[1])


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


def outside(d_vocab: int) -> UserError:
    """What is said of a token id that does not exist."""
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
        else:  # the bias comes behind the product, as in HookedTransformer
            post = self.act_fn(self.hook_pre(x @ self.W_gate)) * self.hook_pre_linear(x @ self.W_in) + self.b_in
        return affine(self.hook_post(post), self.W_out, self.b_out)
