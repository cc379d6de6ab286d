"""Models to try probes on: built by hand, with a known answer."""

from typing import Any, cast

import torch
from torch import Tensor

from lengthlens.errors import unknown
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import SchemeSpec
from lengthlens.models.transformer import HookedModel, build
from lengthlens.tasks import TASKS, Task

BY_HAND = ("ideal", "hinted:relative", "lbpe")  # schemes that can be set to read the key n back, and no other
SHARP = 30.0  # a score at which softmax leaves e⁻³⁰ for every other key: nothing, in float32


def copy_by_hand(scheme: str = "ideal", max_distance: int = 3) -> HookedModel:
    """A model that copies perfectly at every length, with weights set by hand: one layer, one head, no norm, no MLP.

    The first half of the residual stream holds the token, the second half the next token, and only that is unembedded.
    Queries and keys are zero: the position embedding alone decides, by a score of 30, that the head reads the key n
    back (``ideal``: the key that the circuit reads; ``hinted:relative`` and ``lbpe``: the key with i−j−n = 0). The head
    moves the token there to the second half, with ``$`` for ``=``.

    So under the relation of ``ideal`` and ``lbpe`` one weight, 1, has one code at every n:
    LRC_M(n) = SRC_M(n) = 1. With ``hinted:relative`` the code (min(n, K), 0) makes both min(n, K); seen as i−j both
    are n, and seen as (i, j) both are 2 + 3 + … + (n+1) = n(n+3)/2.

    >>> model = copy_by_hand()
    >>> model.task.render(model.generate("^ 7 3 =", 3)[0])
    '^ 7 3 = 7 3 $'
    """
    if scheme not in BY_HAND:
        raise unknown("scheme by hand", scheme, BY_HAND)
    task = TASKS["copy"]
    tokens, same = len(task.vocab), torch.eye(len(task.vocab))
    usual: dict[str, Any] = {"max_distance": max_distance, "forms": "nine", "other": "each"}
    options = {name: value for name, value in usual.items() if name in SchemeSpec.of(scheme).options}
    model = _blank("copy", scheme, parts=2, n_layers=1, n_heads=1, scheme_options=options)
    with torch.no_grad():
        attention = model.layers[0].attn
        attention.W_V[0, :tokens] = same
        attention.W_O[0, :, tokens:] = SHARP * _stops_at_equals(task)
        model.unembed.W_U[tokens:] = same
        pe: Any = model.pos_embed
        if scheme == "ideal":
            pe.table.fill_(SHARP)  # the one role there is
        elif scheme == "hinted:relative":
            pe.anchored.table[..., -pe.anchored.least] = SHARP  # i−j−n = 0
        else:
            back = [str(form) for form in pe.forms].index("i−j−n")
            pe.gate_logits[..., back] = 100.0  # so that its gate is 1
            pe.bias[..., back, pe.options.window] = SHARP
    return model


def copy_by_content() -> HookedModel:
    """A model that sorts perfectly at every length by content alone: one layer, one head, no position embedding.

    Each answer token is the least number above the one before (``=`` counts as less than all). A score that falls by 30
    with each number in between finds it among the keys, wherever it stands; where there is none, ``=`` is next, and
    ``$`` is written for it. The residual stream is laid out as in `copy_by_hand`.

    >>> model = copy_by_content()
    >>> model.task.render(model.generate("^ 7 3 5 =", 4)[0])
    '^ 7 3 5 = 3 5 7 $'
    """
    model = _blank("sort", "none", parts=2, n_layers=1, n_heads=1)
    task = TASKS["sort"]
    numbers, size = torch.arange(len(task.symbols)), len(task.vocab)
    rank = torch.full((size,), -1)  # of each token as a query
    rank[numbers] = numbers
    scores = torch.full((size, size), -SHARP)  # [query's token, key's token]
    above = numbers - rank[:, None]
    scores[:, numbers] = torch.where(above > 0, SHARP * (size - above), -SHARP)
    scores[:, task.ids["="]] = 0
    with torch.no_grad():
        attention = model.layers[0].attn
        attention.W_Q[0, :size] = scores * model.cfg.attn_scale
        attention.W_K[0, :size] = torch.eye(size)
        attention.W_V[0, :size] = torch.eye(size)
        attention.W_O[0, :, size:] = SHARP * _stops_at_equals(task)
        model.unembed.W_U[size:] = torch.eye(size)
    return model


def induction_by_hand() -> HookedModel:
    """A model that solves `induction` at every length by a two-layer induction head, with weights set by hand.

    In layer 0, heads attend by position: L0H0 to the key 1 back and L0H1 to the key 2 back (``relative``), each moving
    the token there to its part of the residual stream. In layer 1, by content: L1H0 attends to the keys whose
    token before equals the query's token and writes the key's token; where the token 2 back is ``=``, so that the
    answer is complete, it attends to ``=`` instead and writes ``$``. L1H1 does nothing.

    >>> model = induction_by_hand()
    >>> model.task.render(model.generate("^ c a b = a", 2)[0])
    '^ c a b = a b $'
    """
    model = _blank("induction", "relative", parts=4, n_layers=2, n_heads=2, extra=1)
    task = TASKS["induction"]
    size, equals = len(task.vocab), task.ids["="]
    same = torch.eye(size)
    token, before, two_back, written = (slice(k * size, (k + 1) * size) for k in range(4))
    first, second = (block.attn for block in model.layers)
    scale = SHARP * model.cfg.attn_scale
    with torch.no_grad():
        for head, (back, part) in enumerate([(1, before), (2, two_back)]):
            cast(Any, model.pos_embed).table[0, head, back] = SHARP
            first.W_V[head, token, :size] = same
            first.W_O[head, :size, part] = same
        second.W_Q[0, token, :size] = scale * same
        second.W_K[0, before, :size] = same
        second.W_Q[0, two_back.start + equals, size] = 2 * scale
        second.W_K[0, token.start + equals, size] = 1
        second.W_V[0, token, :size] = same
        second.W_O[0, :size, written] = SHARP * _stops_at_equals(task)
        model.unembed.W_U[written] = same
    return model


def _blank(task: str, scheme: str, parts: int, extra: int = 0, **sizes: Any) -> HookedModel:
    """A model without MLPs whose weights are zero, but for the embedding, which puts tokens into the first part.

    Its residual stream has `parts` parts as wide as the vocabulary, each head one such part and `extra` dimensions.
    """
    size = len(TASKS[task].vocab)
    widths: dict[str, Any] = {"d_model": parts * size, "d_head": size + extra}
    model: HookedModel = build(
        ModelConfig(task, scheme, attn_only=True, normalization_type=None, **widths, **sizes)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :size] = torch.eye(size)
    return model


def _stops_at_equals(task: Task) -> Tensor:
    """What is written for each token that is read: itself, and ``$`` for ``=``. [token, token]"""
    written = torch.eye(len(task.vocab))
    written[task.ids["="]] = torch.eye(len(task.vocab))[task.ids["$"]]
    return written
