"""Everything that one looks at inside a network, as `lengthlens inspect` shows it; and one sequence as a whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.ablation import ablate
from lengthlens.inside.heads import Glance, HeadRelation, glance, head_relations, measure_table, role_table
from lengthlens.inside.instances import (
    by_head_and_scale,
    checked_scales,
    drawn,
    fitting_scales,
    known_task,
    roles_in,
    watch,
)
from lengthlens.inside.plane import head_plane, plane_over_training
from lengthlens.inside.residual import residual_shares
from lengthlens.inside.scores import score_shares
from lengthlens.probes.network import AnyModel, label, largest_within, network_of, reachable
from lengthlens.runs.run import Run
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

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> seen = look_at(copy_by_hand(), "^ 7 3 =")
    >>> seen.words[3], seen.sources[3], seen.patterns[0, 0, 3].argmax().item(), seen.lens[-1][3][0].token
    ('=', {'token': [1]}, 1, '7')
    """
    task = known_task(model, task)
    tokens, scale = _instance(model, text, scale, task)
    if tokens.shape[1] > LONGEST:
        most = "" if task is None else f" (n up to {largest_within(task, LONGEST)})"
        raise UserError(f"a sequence of {tokens.shape[1]} tokens is too long to be shown: take up to {LONGEST}{most}")
    layers = network_of(model).layers(None)
    patterns: dict[int, Tensor] = {}
    resid: dict[int, Tensor] = {}

    def keep(where: dict[int, Tensor], layer: int) -> Callable[[Tensor], None]:
        return lambda value: where.update({layer: value[0].detach().float().cpu()})

    watchers: list[Any] = [("blocks.0.hook_resid_pre", keep(resid, -1))]
    watchers += [(f"blocks.{layer}.hook_resid_post", keep(resid, layer)) for layer in layers]
    watchers += [(f"blocks.{layer}.attn.hook_pattern", keep(patterns, layer)) for layer in layers]
    watch(model, tokens, scale, watchers, blocked=False)
    words = _words(task, tokens[0])
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


def _words(task: Task | None, ids: Tensor) -> list[str]:
    return [str(k) for k in ids.tolist()] if task is None else [task.vocab[k] for k in ids.tolist()]


def _guesses(model: AnyModel, task: Task | None, resid: Tensor) -> list[list[Guess]]:
    """The likeliest tokens at each position if the network ended here. `resid` [pos, d_model]"""
    inner: Any = network_of(model).model
    with torch.no_grad():
        logits = inner.unembed(inner.ln_final(resid[None].to(network_of(model).device)))[0].float().cpu()
    best = logits.softmax(-1).topk(min(GUESSES, logits.shape[-1]))
    return [
        [Guess(*guess) for guess in zip(_words(task, ids), probabilities.tolist())]
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


TRAIN_MAX = 10  # that of runs by default
FACTORS = (0.5, 1, 2, 5)  # of the largest training scale: within it and beyond
SAMPLES = 64  # instances for exact match with and without a head: differences of 0.1 are then more than chance


@dataclass(frozen=True)
class Inspection:
    """What was seen: tables with one row for each head and scale (or hook point and scale), and one sequence."""

    train_max: int
    scales: list[int]
    glances: list[Glance]  # one for each scale
    relations: list[HeadRelation]  # one for each head
    measures: pd.DataFrame  # layer, head, scale, measure, value
    roles: pd.DataFrame  # layer, head, scale, role, weight
    plane: pd.DataFrame  # layer, head, scale, positional, symbolic, weight, kind
    scores: pd.DataFrame  # layer, head, scale, part, share
    residual: pd.DataFrame  # hook, scale, mean, position, content, remainder, …
    ablation: pd.DataFrame  # layer, head, scale, whole, without: exact match; empty without a task
    sequence: SequenceView
    training: pd.DataFrame  # as plane, with a column step in front; empty where no checkpoints were kept

    def summary(self) -> list[dict[str, Any]]:
        """A row for each head, in plain values: the relation in words, and the measures at the largest scales."""
        inside, last = max([n for n in self.scales if n <= self.train_max], default=self.scales[0]), self.scales[-1]
        measures = self.measures.set_index(["layer", "head", "measure", "scale"])["value"]
        plane = self.plane.set_index(["layer", "head", "scale"])
        without = self.ablation.set_index(["layer", "head", "scale"])["without"] if len(self.ablation) else None
        rows = []
        for each in self.relations:
            head = (each.layer, each.head)
            row: dict[str, Any] = {
                "head": label(head),
                "attends_to": each.words,
                "kind": plane.loc[(*head, inside), "kind"],
            }
            row |= {f"entropy_{n}": measures[(*head, "entropy", n)] for n in dict.fromkeys((inside, last))}
            row |= {f"first_key_{n}": measures[(*head, "first_key", n)] for n in dict.fromkeys((inside, last))}
            row |= {"position_share": measures[(*head, "position_share", inside)]}
            if without is not None:
                row |= {f"without_{n}": without[(*head, n)] for n in dict.fromkeys((inside, last))}
            plain = {key: value if isinstance(value, str) else float(value) for key, value in row.items()}
            rows.append({key: None if pd.isna(value) else value for key, value in plain.items()})
        return rows


def inspect(
    model: AnyModel,
    task: Task | None = None,
    *,
    train_max: int = TRAIN_MAX,
    scales: Sequence[int] | None = None,
    text: str | None = None,
    length: int | None = None,
    checkpoints: Run | Mapping[int, AnyModel] | None = None,
    report: Callable[[str], None] | None = None,
) -> Inspection:
    """Look inside a network: what every head does at several lengths, and one sequence in full.

    Arguments:
        model: a HookedModel, or a model with HookedTransformer's hook names.
        task: the task; the model's own if None. A model without one is shown random tokens twice.
        train_max: the largest scale in training.
        scales: the scales n to look at; half, once, twice and five times `train_max` if None, as far as they exist.
        text: the sequence to show in full, as the task writes it.
        length: where no text is given, the scale of a random one; `train_max` if None.
        checkpoints: the run, or models by training step, for the plane of heads over training; left out if None.
        report: is told what is being done.

    Result: an `Inspection`, which `lengthlens.analyses.page.inside.inside_page` makes a page of.

    Errors: UserError for a model without hooks, a text that is no instance, and a scale that does not exist.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> print(inspect(copy_by_hand(), scales=[3, 6], text="^ 7 3 =").relations[0])
    L0H0 attends to i−j = n, weight 1.00 at every length up to 6
    """
    tell = report or (lambda _: None)
    if text is not None and length is not None:
        raise UserError("give a sequence, or the length of one, not both")
    task = known_task(model, task)
    if scales is None:
        scales = _default_scales(model, task, train_max)
    scales = checked_scales(model, task, scales)
    tell("one sequence")
    sequence = look_at(model, text, _shown_length(task, train_max) if length is None else length, task)
    glances = []
    for n in scales:
        tell(f"heads at n = {n}")
        glances.append(glance(model, drawn(model, task, n)))
    tell("permuting keys")
    plane = head_plane(model, task, _permutable(task, scales))
    tell("parts of scores and of the residual stream")
    parts = (
        score_shares(model, task, scales),
        residual_shares(model, task, scales, train_max=scales_in(scales, train_max)),
    )
    tell("leaving out heads")
    ablation = pd.DataFrame() if task is None else without_heads(model, task, scales)
    training = pd.DataFrame()
    if checkpoints is not None:
        tell("the course of training")
        training = plane_over_training(checkpoints, task, max(2, scales_in(scales, train_max)))
    tables = measure_table(glances), role_table(glances), plane, *parts, ablation
    return Inspection(train_max, scales, glances, head_relations(glances), *tables, sequence, training)


def _default_scales(model: AnyModel, task: Task | None, train_max: int) -> list[int]:
    wanted = sorted({max(2, int(factor * train_max)) for factor in FACTORS})
    return wanted if task is None else reachable(model, task, wanted) or reachable(model, task, [train_max])


def _shown_length(task: Task | None, train_max: int) -> int:
    return train_max if task is None else max(task.min_scale, train_max)


def _permutable(task: Task | None, scales: Sequence[int]) -> list[int]:
    """At least two free keys are needed."""
    return [n for n in scales if n >= 2] or [max(2, task.min_scale if task else 2)]


def scales_in(scales: Sequence[int], train_max: int) -> int:
    """The largest of the scales in the training range; the smallest if there is none."""
    return max([n for n in scales if n <= train_max], default=scales[0])


def without_heads(model: AnyModel, task: Task, scales: Sequence[int], samples: int = SAMPLES) -> pd.DataFrame:
    """Exact match as it is, and without each head: its output replaced by its mean at the same position (`ablate`).

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> from lengthlens.tasks import TASKS
    >>> without_heads(copy_by_hand(), TASKS["copy"], [6])[["whole", "without"]].values.tolist()
    [[1.0, 0.0]]
    """
    table = ablate(model, task, scales, rows=samples)
    alone = table[table["head"] >= 0].rename(columns={"exact_match": "without"})
    return by_head_and_scale(alone[["layer", "head", "scale", "whole", "without"]])
