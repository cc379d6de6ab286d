"""How the scores of a query become weights of its keys: softmax, and what is proposed in its place for long inputs.

Each goes with any position embedding: it is an option of the network (`ModelConfig.attn_normalization`), and a part of
attention beside the scheme.

================  ==================================================================================================
softmax           exp(s_j) / Σ_t exp(s_t)
ssmax             softmax of a·log(i+1)·s with a learned for each head: i+1 is the number of keys (arXiv 2501.19399)
entmax            α-entmax with α learned for each head: weights of low scores are exactly 0 (arXiv 1909.00015)
asentmax          α-entmax of (1 + β·log(i+2)^γ)·s with β and γ made from the layer's input (arXiv 2506.16640)
stick-breaking    σ(s_j) Π_{j<t<i} (1 − σ(s_t)): from the nearest key back, each takes its share (arXiv 2410.17980)
================  ==================================================================================================

A sink is a learned score for each head that takes part in all but the last and whose weight is given to no value.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lengthlens.models.config import LensConfig

ROUNDS = (5, 8)  # Newton steps for α-entmax with up to FEW keys, and with more
FEW = 64
LOWEST = -1e9  # a score in the place of −∞, whose product with 0 is no number
GAMMA = 2.0  # ASEntmax keeps γ within ±2


class Normalization(nn.Module):
    """Scores [row, head, query, key] to weights of the same shape; −∞ stands at later keys.

    Queries are the last ones, so that the first of them is the number of keys less that of queries.

    >>> from lengthlens.models.config import ModelConfig
    >>> kinds = ("softmax", "entmax", "stick-breaking")
    >>> configs = [ModelConfig(d_vocab=2, n_heads=1, attn_normalization=kind).resolved() for kind in kinds]
    >>> scores = torch.tensor([[[[0.0, 2.0, 0.0]]]])
    >>> [[round(w, 2) for w in Normalization(LensConfig.of(each))(scores).flatten().tolist()] for each in configs]
    [[0.11, 0.79, 0.11], [0.0, 1.0, 0.0], [0.06, 0.88, 0.0]]
    """

    def __init__(self, cfg: LensConfig) -> None:
        super().__init__()
        self.kind = kind = cfg.attn_normalization
        heads = cfg.n_heads
        self.sink = nn.Parameter(torch.zeros(heads)) if cfg.attn_sink else None
        if kind == "ssmax":
            self.a = nn.Parameter(torch.ones(heads))
        if kind in ("entmax", "asentmax"):
            self.raw_alpha = nn.Parameter(torch.zeros(heads))  # α = 1 + σ of it: 1.5 at the start
        if kind == "asentmax":
            self.W_beta, self.W_gamma = (nn.Parameter(torch.empty(cfg.d_model, heads)) for _ in range(2))

    @property
    def fuses(self) -> bool:
        """Whether the map itself is a softmax over keys, as in fused kernels."""
        return self.kind in ("softmax", "ssmax") and self.sink is None

    @property
    def plain(self) -> bool:
        return self.kind == "softmax" and self.sink is None

    def times(self, x: Tensor, temperature: Tensor | None) -> Tensor | None:
        """What scores of each query are multiplied by, [1|row, pos, 1|head]; None if by nothing.

        `x` [row, pos, d_model] is the layer's input, `temperature` [pos] what multiplies them whatever the map is.
        """
        given = None if temperature is None else temperature[None, :, None]
        if self.kind not in ("ssmax", "asentmax"):
            return given
        first = 1.0 if self.kind == "ssmax" else 2.0  # one key gives log 1 = 0; published with 2 for ASEntmax
        logs = torch.arange(first, first + x.shape[1], device=x.device).log()[None, :, None]
        if self.kind == "ssmax":
            times = self.a * logs
        else:
            times = 1 + F.softplus(x @ self.W_beta) * logs ** (GAMMA * torch.tanh(x @ self.W_gamma))
        return times if given is None else given * times

    def forward(self, scores: Tensor) -> Tensor:
        if self.kind == "stick-breaking":
            return broken_sticks(scores)
        if self.sink is not None:
            sink = self.sink.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sink], -1)
        if self.kind in ("softmax", "ssmax"):
            pattern = scores.softmax(-1)
        else:
            pattern = entmax(scores, 1 + self.raw_alpha.sigmoid().view(-1, 1, 1))
        return pattern if self.sink is None else pattern[..., :-1]


def entmax(scores: Tensor, alpha: Tensor) -> Tensor:
    """α-entmax over the last dimension, with gradients for the scores and α, 1 < α ≤ 2.

    Weights are [(α−1)·s − τ]₊^(1/(α−1)), with the τ for which they add up to 1. That of the package `entmax` has a
    gradient in α, too, but cannot be mapped over stacked runs, and takes 50 halvings where eight steps do.

    The norm of [(α−1)·s − τ]₊ with exponent 1/(α−1) falls with τ nearly along a line and is convex, so that Newton's
    steps from below never pass the τ at which it is 1. The last one is taken with gradients: they are those of τ.

    >>> entmax(torch.tensor([0.5, 0.0, -2.0]), torch.tensor(2.0))
    tensor([0.7500, 0.2500, 0.0000])
    """
    low = scores.dtype
    scores, alpha = scores.float(), alpha.float()
    # The largest score is 0, which changes nothing and keeps digits.
    scores = (scores - scores.amax(-1, keepdim=True).detach()).clamp(min=LOWEST) * (alpha - 1)
    power = 1 / (alpha - 1)
    with torch.no_grad():
        tau, fixed, exponent = -torch.ones_like(scores[..., :1]), scores.detach(), 2 - alpha
        less = (power - 1).clamp(min=1e-6)  # keys without weight count 0, which 0 to the power of 0 is not
        for _ in range(ROUNDS[scores.shape[-1] > FEW]):
            above = (fixed - tau).clamp(min=0)
            slopes = above**less
            total = (above * slopes).sum(-1, keepdim=True)
            tau = torch.addcdiv(tau, total - total**exponent, slopes.sum(-1, keepdim=True))
        slope = power * ((fixed - tau).clamp(min=0) ** less).sum(-1, keepdim=True)
    tau = tau + ((scores - tau).clamp(min=0) ** power).sum(-1, keepdim=True).sub(1) / slope
    return ((scores - tau).clamp(min=0) ** power).to(low)


def broken_sticks(scores: Tensor) -> Tensor:
    """σ(s_j) Π_{j<t<i} (1 − σ(s_t)) for the keys j before each query i; a query does not see itself, as published.

    What is left of the stick is given to no value, so that weights add up to at most 1.
    """
    queries, keys = scores.shape[-2:]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries - 1)
    scores = scores.float().masked_fill(~seen, LOWEST)
    passed = F.logsigmoid(-scores)
    behind = passed.flip(-1).cumsum(-1).flip(-1) - passed  # of the keys between j and i
    return (F.logsigmoid(scores) + behind).exp()
