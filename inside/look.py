"""What `lengthlens inspect` shows: tables of what every head does at several input sizes, and one sequence in full."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.ablation import ablate
from lengthlens.inside.heads import (
    HeadRelation,
    HeadStatistics,
    head_plane,
    head_relations,
    head_statistics,
    head_table,
    plane_over_training,
)
from lengthlens.inside.instances import by_head_and_scale, checked_scales, known_task, roles_in, sample_instances
from lengthlens.inside.residual import residual_shares
from lengthlens.inside.scores import score_shares
from lengthlens.probes.network import AnyModel, label, largest_within, network_of, reachable
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

LONGEST = 256  # tokens of a sequence that is shown whole: patterns grow with its square
GUESSES = 3  # tokens that the logit lens names at each position


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
    lens: list[list[list[Guess]]]  # for the embedding and after each layer, at each position: the likeliest tokens

    def right(self, query: int) -> bool | None:
        """Whether the next token is the likeliest one in the end; None after the last token."""
        return self.lens[-1][query][0].token == self.words[query + 1] if query + 1 < len(self.words) else None


def look_at(
    model: AnyModel, text: str | None = None, scale: int | None = None, task: Task | None = None
) -> SequenceView:
    """The inside of a network on one sequence.

    Arguments:
        model: a HookedModel, or a model with HookedTransformer's names.
        text: an instance of the task, with or without its answer; without a task, ids with spaces between them.
        scale: where no text is given, the input size n of a random instance; 10 if None.
        task: the task; the model's own if None.

    Result: a `SequenceView`. Errors: UserError for a text that is no instance, and for more than 256 tokens.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> seen = look_at(copy_by_hand(), "^ 7 3 =")
    >>> seen.words[3], seen.sources[3], seen.patterns[0, 0, 3].argmax().item(), seen.lens[-1][3][0].token
    ('=', {'token': [1]}, 1, '7')
    """
    task, network = known_task(model, task), network_of(model)
    if text is None:
        (scale,) = checked_scales(model, task, [10 if scale is None else scale])
        tokens = sample_instances(model, task, scale, 1).tokens
    elif task is not None:
        batch = task.parse(text)
        tokens, scale = batch.tokens, int(batch.scale)
    elif text.split() and all(word.isdigit() for word in text.split()):
        tokens = torch.tensor([[int(word) for word in text.split()]])
        scale = tokens.shape[1]
    else:
        raise UserError(f"the model has no task, and so no words: give ids with spaces between them, not {text!r}")
    if tokens.shape[1] > LONGEST:
        most = "" if task is None else f" (n up to {largest_within(task, LONGEST)})"
        raise UserError(f"a sequence of {tokens.shape[1]} tokens is too long to be shown: take up to {LONGEST}{most}")
    layers = network.layers(None)
    stream = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in layers)]
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    seen = network.activations(tokens.to(network.device), scale, [*stream, *patterns])

    def words(ids: Tensor) -> list[str]:
        return [str(k) if task is None else task.vocab[k] for k in ids.tolist()]

    def guesses(resid: Tensor) -> list[list[Guess]]:
        """The likeliest tokens at each position if the network ended here. `resid` [1, pos, d_model]"""
        with torch.no_grad():
            logits = network.model.unembed(network.model.ln_final(resid))[0].float().cpu()  # type: ignore[attr-defined]
        best = logits.softmax(-1).topk(min(GUESSES, logits.shape[-1]))
        return [list(map(Guess, words(ids), values.tolist())) for ids, values in zip(best.indices, best.values)]

    sources: dict[int, dict[str, list[int]]] = {}
    if task is not None:
        roles = roles_in(task, scale, tokens)
        for query, keys, numbers in zip(roles.query.tolist(), roles.key[0].tolist(), roles.role[0].tolist()):
            for key, number in zip(keys, numbers):
                if number >= 0:
                    sources.setdefault(query, {}).setdefault(roles.names[number], []).append(key)
    of_layers = torch.stack([seen[name][0].cpu() for name in patterns])
    return SequenceView(words(tokens[0]), scale, of_layers, sources, [guesses(seen[name]) for name in stream])


TRAIN_MAX = 10  # that of runs by default
FACTORS = (0.5, 1, 2, 5)  # of the largest n in training: within it and beyond
N_ABLATED = 64  # instances for exact match with and without a head: differences of 0.1 are then more than chance


@dataclass(frozen=True)
class Inspection:
    """Tables with one row for each head and input size (or hook point and input size), and one sequence."""

    train_max: int
    scales: list[int]
    statistics: list[HeadStatistics]  # one for each input size
    relations: list[HeadRelation]  # one for each head
    measures: pd.DataFrame  # layer, head, scale, measure, value
    roles: pd.DataFrame  # layer, head, scale, role, weight
    plane: pd.DataFrame  # layer, head, scale, positional, symbolic, weight, kind
    scores: pd.DataFrame  # layer, head, scale, part, share
    residual: pd.DataFrame  # hook, scale, mean, position, content, remainder, …
    ablation: pd.DataFrame  # layer, head, scale, whole, without: exact match; empty without a task
    sequence: SequenceView
    training: pd.DataFrame  # as plane, with a column step in front; empty where there are no checkpoints
    in_range: int  # the largest of the input sizes in the training range; the smallest if none is

    def summary(self) -> list[dict[str, Any]]:
        """A row for each head, in plain values: the relation in words, and the measures at the largest sizes."""
        sizes = dict.fromkeys((self.in_range, self.scales[-1]))
        measures = self.measures.set_index(["layer", "head", "measure", "scale"])["value"]
        plane = self.plane.set_index(["layer", "head", "scale"])
        without = self.ablation.set_index(["layer", "head", "scale"])["without"] if len(self.ablation) else None
        rows = []
        for each in self.relations:
            head = (each.layer, each.head)
            row: dict[str, Any] = {"head": label(head), "attends_to": each.words}
            row |= {"kind": plane.loc[(*head, self.in_range), "kind"]}
            row |= {f"entropy_{n}": measures[(*head, "entropy", n)] for n in sizes}
            row |= {f"first_key_{n}": measures[(*head, "first_key", n)] for n in sizes}
            row |= {"position_share": measures[(*head, "position_share", self.in_range)]}
            if without is not None:
                row |= {f"without_{n}": without[(*head, n)] for n in sizes}
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
    """Look inside a network: what every head does at several input sizes, and one sequence in full.

    Arguments:
        model: a HookedModel, or a model with HookedTransformer's hook names.
        task: the task; the model's own if None. A model without one is shown random tokens twice.
        train_max: the largest n in training.
        scales: the input sizes n; half, once, twice and five times `train_max` if None, as far as they exist.
        text: the sequence to show in full, as the task writes it.
        length: where no text is given, the input size n of a random one; `train_max` if None.
        checkpoints: the run, or models by training step, for the plane of heads over training; left out if None.
        report: is told what is being done.

    Result: an `Inspection`, which `lengthlens.analyses.page.inspection.inside_page` makes a page of.

    Errors: UserError for a model without hooks, a text that is no instance, and an input size that does not exist.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> print(inspect(copy_by_hand(), scales=[3, 6], text="^ 7 3 =").relations[0])
    L0H0 attends to i−j = n, weight 1.00 at every length up to 6
    """
    tell = report or (lambda _: None)
    if text is not None and length is not None:
        raise UserError("give a sequence, or the length of one, not both")
    task = known_task(model, task)
    least = 2 if task is None else task.min_scale
    if scales is None:
        scales = sorted({max(2, int(factor * train_max)) for factor in FACTORS})
        scales = scales if task is None else reachable(model, task, scales) or reachable(model, task, [train_max])
    scales = sorted(checked_scales(model, task, scales))
    known = max([n for n in scales if n <= train_max], default=scales[0])
    tell("one sequence")
    sequence = look_at(model, text, max(least, train_max) if length is None else length, task)
    statistics = []
    for n in scales:
        tell(f"heads at n = {n}")
        statistics.append(head_statistics(model, sample_instances(model, task, n)))
    tell("permuting keys")
    plane = head_plane(model, task, [n for n in scales if n >= 2] or [max(2, least)])  # two keys can change places
    tell("parts of scores and of the residual stream")
    parts = score_shares(model, task, scales), residual_shares(model, task, scales, train_max=known)
    tell("leaving out heads")
    without = pd.DataFrame()
    if task is not None:
        single = ablate(model, task, scales, rows=N_ABLATED).rename(columns={"exact_match": "without"})
        single = single.loc[single["head"] >= 0, ["layer", "head", "scale", "whole", "without"]]
        without = by_head_and_scale(single)
    training = pd.DataFrame()
    if checkpoints is not None:
        tell("the course of training")
        training = plane_over_training(checkpoints, task, max(2, known))
    tables = head_table(statistics, "measure"), head_table(statistics, "role"), plane, *parts, without
    return Inspection(train_max, scales, statistics, head_relations(statistics), *tables, sequence, training, known)
