"""One sequence, seen from inside: the whole pattern of every head, what the circuit reads, the logit lens by layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.instances import drawn, known_task, watch
from lengthlens.inside.subject import fitting_scales, roles_in
from lengthlens.probes.subject import AnyModel, subject_of
from lengthlens.tasks import Task

LONGEST = 256  # tokens of a sequence that is shown whole: patterns grow with its square
GUESSES = 3  # tokens that the logit lens names at each place


class Guess(NamedTuple):
    """A token that the residual stream would predict, and with which probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class SequenceView:
    """What happens on one sequence."""

    words: list[str]
    scale: int
    patterns: Tensor  # [layer, head, query, key]
    sources: dict[int, dict[str, list[int]]]  # for each answer query, the keys in each role of the circuit's step
    lens: list[list[list[Guess]]]  # for the embedding and behind each layer, at each position: the likeliest tokens

    def right(self, query: int) -> bool | None:
        """Whether the next token is the likeliest one in the end; None behind the last token."""
        return self.lens[-1][query][0].token == self.words[query + 1] if query + 1 < len(self.words) else None


def look_at(
    model: AnyModel, text: str | None = None, scale: int | None = None, task: Task | None = None
) -> SequenceView:
    """The inside of a network on one sequence.

    Arguments:
        model: a HookedModel, or a model with HookedTransformer's names.
        text: an instance of the task, with or without its answer; without a task, ids with spaces between them.
        scale: where no text is given, the scale of a random instance; 10 if None.
        task: the task; the model's own if None.

    Result: a `SequenceView`. Errors: UserError for a text that is no instance, and for more than 256 tokens.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> seen = look_at(copy_by_hand(), "^ 7 3 =")
    >>> seen.words[3], seen.sources[3], seen.patterns[0, 0, 3].argmax().item(), seen.lens[-1][3][0].token
    ('=', {'token': [1]}, 1, '7')
    """
    task = known_task(model, task)
    tokens, scale = _instance(model, text, scale, task)
    if tokens.shape[1] > LONGEST:
        most = "" if task is None else f" (n up to {_most(task)})"
        raise UserError(f"a sequence of {tokens.shape[1]} tokens is too long to be shown: take up to {LONGEST}{most}")
    layers = subject_of(model).layers(None)
    patterns: dict[int, Tensor] = {}
    resid: dict[int, Tensor] = {}

    def keep(where: dict[int, Tensor], layer: int) -> Callable[[Tensor], None]:
        return lambda value: where.update({layer: value[0].detach().float().cpu()})

    watchers: list[Any] = [("blocks.0.hook_resid_pre", keep(resid, -1))]
    watchers += [(f"blocks.{layer}.hook_resid_post", keep(resid, layer)) for layer in layers]
    watchers += [(f"blocks.{layer}.attn.hook_pattern", keep(patterns, layer)) for layer in layers]
    watch(model, tokens, scale, watchers, blocked=False)
    words = _words(model, task, tokens[0])
    lens = [_guesses(model, task, resid[layer]) for layer in (-1, *layers)]
    sources = {} if task is None else _sources(task, scale, tokens)
    return SequenceView(words, scale, torch.stack([patterns[layer] for layer in layers]), sources, lens)


def _instance(model: AnyModel, text: str | None, scale: int | None, task: Task | None) -> tuple[Tensor, int]:
    """The tokens [1, pos] and their scale."""
    if text is None:
        if task is not None:
            fitting_scales(model, task, [10 if scale is None else scale])
        found = drawn(model, task, 10 if scale is None else scale, rows=1)
        return found.tokens, found.scale
    if task is not None:
        batch = task.parse(text)
        return batch.tokens, int(batch.scale)
    if not text.split() or not all(word.isdigit() for word in text.split()):
        raise UserError(f"the model has no task, and so no words: give ids with spaces between them, not {text!r}")
    ids = torch.tensor([[int(word) for word in text.split()]])
    return ids, ids.shape[1]


def _most(task: Task) -> int:
    """The largest scale whose instances are short enough."""
    scale = task.min_scale
    while task.length(scale + 1) <= LONGEST:
        scale += 1
    return scale


def _words(model: AnyModel, task: Task | None, ids: Tensor) -> list[str]:
    return [str(k) for k in ids.tolist()] if task is None else [task.vocab[k] for k in ids.tolist()]


def _guesses(model: AnyModel, task: Task | None, resid: Tensor) -> list[list[Guess]]:
    """The likeliest tokens at each position if the network ended here. `resid` [pos, d_model]"""
    inner: Any = subject_of(model).model
    with torch.no_grad():
        logits = inner.unembed(inner.ln_final(resid[None].to(subject_of(model).device)))[0].float().cpu()
    best = logits.softmax(-1).topk(min(GUESSES, logits.shape[-1]))
    return [
        [Guess(*guess) for guess in zip(_words(model, task, ids), probabilities.tolist())]
        for ids, probabilities in zip(best.indices, best.values)
    ]


def _sources(task: Task, scale: int, tokens: Tensor) -> dict[int, dict[str, list[int]]]:
    roles = roles_in(task, scale, tokens)
    found: dict[int, dict[str, list[int]]] = {}
    for query, keys, names in zip(roles.query.tolist(), roles.key[0].tolist(), roles.role[0].tolist()):
        for key, name in zip(keys, names):
            if name >= 0:
                found.setdefault(query, {}).setdefault(roles.names[name], []).append(key)
    return found
