"""Models to try probes on: untrained, trained on shuffled labels, and built by hand with a known answer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lengthlens.errors import Registry
from lengthlens.models.config import ModelConfig
from lengthlens.models.schemes import SchemeSpec
from lengthlens.models.transformer import HookedModel, build
from lengthlens.runs.config import RunConfig
from lengthlens.runs.trainer import Trainer
from lengthlens.tasks import TASKS, Batch

SHARP = 30.0  # a score at which softmax leaves e⁻³⁰ for every other key: nothing, in float32


def untrained(config: ModelConfig) -> HookedModel:
    """The model of a config with its first weights."""
    model: HookedModel = build(config).eval()
    return model


class ShuffledTrainer(Trainer):
    """Trains as usual, on answers that have nothing to do with their prompts."""

    def _draw(self) -> Batch:
        return shuffled_answers(super()._draw(), self.data)


def shuffled_answers(batch: Batch, generator: torch.Generator | None) -> Batch:
    """Every answer position shuffled over the rows, each by itself: the same tokens there, from other instances."""
    rows, length = batch.tokens.shape
    order = torch.rand(rows, length, generator=generator).argsort(0).to(batch.tokens.device)
    same_place = batch.answer_mask.all(0) if rows else batch.answer_mask.any(0)
    tokens = torch.where(same_place, batch.tokens.gather(0, order), batch.tokens)
    return Batch(tokens, batch.answer_mask, batch.scale)


def trained_on_shuffled(config: RunConfig) -> HookedModel:
    """The model of a run's config after as many steps on shuffled labels (one scale for each batch)."""
    trainer = ShuffledTrainer(replace(config, lengths="one"))
    while not trainer.done:
        trainer.advance()
    model: HookedModel = trainer.model.eval()
    return model


def copy_by_hand(scheme: str = "ideal", max_distance: int = 3) -> HookedModel:
    """A model that copies perfectly at every length, its weights written down: one layer, one head, no norm, no MLP.

    The first half of the residual stream holds the token, the second half what comes next, and only that is
    unembedded. Queries and keys are zero: the position embedding alone decides, by a score of 30, that the head reads
    the key n back (``ideal``: the key that the circuit reads; ``hinted:relative`` and ``lbpe``: the key with
    i−j−n = 0). The head moves the token there to the second half, with ``$`` for ``=``.

    So under its own relation one weight, 1, has one code at every scale with ``ideal`` and ``lbpe``:
    LRC_M(n) = SRC_M(n) = 1. With ``hinted:relative`` the code (min(n, K), 0) makes both min(n, K); seen as i−j both
    are n, and seen as (i, j) both are 2 + 3 + … + (n+1) = n(n+3)/2.

    >>> model = copy_by_hand()
    >>> model.task.render(model.generate("^ 7 3 =", 3)[0])
    '^ 7 3 = 7 3 $'
    """
    point = BY_HAND[scheme]
    task = TASKS["copy"]
    tokens, same = len(task.vocab), torch.eye(len(task.vocab))
    options = {"max_distance": max_distance} if "max_distance" in SchemeSpec.of(scheme).options else {}
    sizes: dict[str, Any] = {"n_layers": 1, "n_heads": 1, "d_model": 2 * tokens, "d_head": tokens}
    config = ModelConfig("copy", scheme, options, attn_only=True, normalization_type=None, **sizes)
    model: HookedModel = build(config).eval()
    written = same.clone()  # for each token that is read: itself, and ``$`` for ``=``
    written[task.ids["="]] = same[task.ids["$"]]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :tokens] = same
        attention = model.layers[0].attn
        attention.W_V[0, :tokens] = same
        attention.W_O[0, :, tokens:] = SHARP * written
        model.unembed.W_U[tokens:] = same
        point(model.pos_embed)
    return model


def _every_role(scheme: Any) -> None:
    scheme.table.fill_(SHARP)  # the one role there is


def _distance_from_scale(scheme: Any) -> None:
    scheme.anchored.table[..., -scheme.anchored.least] = SHARP  # i−j−n = 0


def _form(scheme: Any) -> None:
    back = [str(form) for form in scheme.forms].index("i−j−n")
    scheme.gate_logits[..., back] = 100.0  # so that its gate is 1
    scheme.bias[..., back, scheme.options.window] = SHARP


# How a scheme is told to give its score to the key n back, and to no other.
BY_HAND: Registry[Callable[[Any], None]] = Registry(
    "scheme by hand", {"ideal": _every_role, "hinted:relative": _distance_from_scale, "lbpe": _form}
)
