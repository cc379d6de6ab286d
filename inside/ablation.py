"""Ablation: what exact match is left without a head, without what it reads in a relation, and which heads suffice.

A head is ablated by replacing what it gives (`hook_z`) with

- ``mean``: its mean over instances at the same position, so that what depends on positions alone stays;
- ``resample``: what it gives on another instance of the same size, so that activations stay in distribution;
- ``zero``: nothing.

A *relation* is ablated by hiding keys from the queries of one head, of a layer or of all: those in a role of the
circuit's step (by its name), or those for which a linear form of i, j and n is 0 (``i-j-n``: the key n back).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.inside.instances import checked_scales, first_query, in_blocks, roles_in
from lengthlens.models.schemes.relation import read_form
from lengthlens.probes.network import AnyModel, Head, all_heads, head_named, label, network_of, task_of
from lengthlens.runs.evaluation import evaluating, refuse_looking_ahead, right_tokens
from lengthlens.tasks import Batch, Task

HOW = ("mean", "resample", "zero")
N_INSTANCES = 128
KEEPS = 0.9  # exact match that a set of heads has to keep
EXHAUSTIVE = 10  # heads up to which every set is tried, in the order of size; beyond, heads are taken away one by one
Hook = tuple[str, Callable[..., Any]]
Hidden = Callable[[slice], Tensor]  # a block of queries to which keys up to its end are hidden, [1|row, query, key]


def ablate(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] = (10,),
    *,
    how: str = "mean",
    heads: Sequence[str | Head] | None = None,
    relations: Sequence[str] | None = None,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Exact match without each head; with `relations`, with the keys in each of them hidden from each head.

    Arguments:
        model: a HookedModel, or any model with `run_with_hooks` and HookedTransformer's hook names.
        task: the task; the model's own if None.
        scales: the input sizes n at which to try.
        how: mean, resample or zero; what a head's output is replaced with.
        heads: the heads to try, as ``L0H3`` or (layer, head); all if None.
        relations: roles of the circuit by name, or forms such as ``i-j-n``; whole heads if None.
        rows: instances of each input size.
        generator: of the instances; seed 0 if None.

    Result: a row for each input size, head (and relation): `whole` is the exact match of the model as it is,
    `exact_match` what is left, `token_accuracy` the share of answer tokens that is right. Head −1 is all heads at once.

    Errors: UserError for a head, relation, input size or way that does not exist, with the nearest.

    >>> from lengthlens.models.by_hand import induction_by_hand
    >>> table = ablate(induction_by_hand(), scales=[6], rows=32)
    >>> {label((row.layer, row.head)): row.exact_match for row in table.itertuples()}["L1H1"]
    1.0
    """
    if how not in HOW:
        raise unknown("way to ablate", how, HOW)
    task, subject = task_of(model, task), network_of(model)
    subject.layers(None)
    chosen = all_heads(model) if heads is None else [head_named(model, head) for head in heads]
    generator, rows_of_heads = generator or torch.Generator().manual_seed(0), []
    for scale in checked_scales(model, task, scales):
        trial = Ablations(subject.model, task.sample(scale, rows, generator), scale)
        whole = trial.share([])
        for relation in relations or [""]:
            keys = hidden_keys(task, scale, trial.batch.tokens, relation) if relation else None
            for group in [*([head] for head in chosen), *([chosen] if len(chosen) > 1 else [])]:
                hooks = trial.without(group, how) if keys is None else trial.hiding(group, keys)
                exact, accuracy = trial.share(hooks)
                layer, head = group[0] if len(group) == 1 else (-1, -1)
                about = {"scale": scale, "layer": layer, "head": head, "relation": relation}
                rows_of_heads.append({**about, "whole": whole[0], "exact_match": exact, "token_accuracy": accuracy})
    table = pd.DataFrame(rows_of_heads)
    return table if relations else table.drop(columns="relation").assign(how=how)


@dataclass(frozen=True)
class LeastHeads:
    """The heads that suffice, what they keep, and whether every smaller set was tried."""

    heads: list[Head]
    exact_match: float
    whole: float  # with all heads
    exhaustive: bool

    def __str__(self) -> str:
        names = ", ".join(map(label, self.heads)) or "no head"
        kind = "no smaller set does" if self.exhaustive else "no one of them can go"
        return f"{names} keep exact match {self.exact_match:.3f} of {self.whole:.3f}; {kind}"


def least_heads(
    model: AnyModel,
    task: Task | None = None,
    scale: int = 10,
    *,
    keep: float = KEEPS,
    how: str = "mean",
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> LeastHeads:
    """The least set of heads that keeps exact match when all others are ablated.

    With up to ten heads every set is tried in the order of size, so that no smaller one does. With more, heads are
    taken away one by one, the one that costs least first, until none can go.

    Arguments: as of `ablate`; `keep` is the exact match that has to be left. Errors: also where the model has less.

    >>> from lengthlens.models.by_hand import induction_by_hand
    >>> print(least_heads(induction_by_hand(), scale=6, rows=32))  # L0H1 gives the same on every instance
    L0H0, L1H0 keep exact match 1.000 of 1.000; no smaller set does
    >>> print(least_heads(induction_by_hand(), scale=6, rows=32, how="zero"))
    L0H0, L0H1, L1H0 keep exact match 1.000 of 1.000; no smaller set does
    """
    if how not in HOW:
        raise unknown("way to ablate", how, HOW)
    task, subject, every = task_of(model, task), network_of(model), all_heads(model)
    checked_scales(model, task, [scale])
    trial = Ablations(subject.model, task.sample(scale, rows, generator or torch.Generator().manual_seed(0)), scale)
    whole = trial.share([])[0]
    if whole < keep:
        raise UserError(f"the whole model has exact match {whole:.3f} at n = {scale}, less than the {keep:g} to keep")

    def left(heads: Sequence[Head]) -> float:
        return trial.share(trial.without([head for head in every if head not in heads], how))[0]

    if len(every) <= EXHAUSTIVE:
        for size in range(len(every) + 1):
            best = max(((left(heads), heads) for heads in combinations(every, size)), key=lambda pair: pair[0])
            if best[0] >= keep:
                return LeastHeads(list(best[1]), best[0], whole, True)
    heads, share = list(every), whole
    while heads:
        tried = {head: left([other for other in heads if other != head]) for head in heads}
        head = max(tried, key=lambda each: tried[each])
        if tried[head] < keep:
            break
        heads.remove(head)
        share = tried[head]
    return LeastHeads(heads, share, whole, False)


class Ablations:
    """Instances of one input size on which a model is run with hooks."""

    def __init__(self, model: Any, batch: Batch, scale: int) -> None:
        self.model, self.batch = model, batch
        self.tokens, self.scale = batch.tokens.to(network_of(model).device), network_of(model).told(scale)
        refuse_looking_ahead(model, batch, self.scale)
        self.outputs: dict[str, Tensor] = {}  # of the heads of a layer, without ablation

    def share(self, hooks: Sequence[Hook]) -> tuple[float, float]:
        """Exact match, and the share of answer tokens that are right, under hooks."""
        with evaluating(self.model), in_blocks(self.model):
            logits = self.model.run_with_hooks(self.tokens, fwd_hooks=list(hooks), **self.scale)
        right = right_tokens(logits.float(), self.batch).cpu()
        return float(right.all(1).double().mean()), float(right.double().mean())

    def without(self, heads: Sequence[Head], how: str) -> list[Hook]:
        """Hooks that replace what these heads give."""

        def replace(z: Tensor, hook: Any, numbers: list[int], instead: Tensor) -> Tensor:
            z = z.clone()
            z[:, :, numbers] = instead.to(z)
            return z

        hooks: list[Hook] = []
        for layer, numbers in _by_layer(heads).items():
            name, instead = f"blocks.{layer}.attn.hook_z", torch.zeros(())
            if how != "zero":
                if name not in self.outputs:
                    with evaluating(self.model):
                        _, cache = self.model.run_with_cache(self.tokens, names_filter=[name], **self.scale)
                    self.outputs[name] = cache[name]
                output = self.outputs[name][:, :, numbers]
                instead = output.mean(0, keepdim=True) if how == "mean" else output.roll(1, 0)
            hooks.append((name, partial(replace, numbers=numbers, instead=instead)))
        return hooks

    def hiding(self, heads: Sequence[Head], keys: Hidden) -> list[Hook]:
        """Hooks that hide keys from the queries of these heads."""

        def hide(scores: Tensor, hook: Any, numbers: list[int]) -> Tensor:  # of a block of queries
            scores = scores.clone()
            mask = keys(slice(first_query(scores), scores.shape[-1])).to(scores.device)
            hidden = scores[:, numbers].masked_fill(mask[:, None], -torch.inf)
            # A query from which every key is hidden sees them all: there is nothing else it could attend to.
            none = hidden.isneginf().all(-1, keepdim=True)
            scores[:, numbers] = torch.where(none, scores[:, numbers], hidden)
            return scores

        points = {f"blocks.{layer}.attn.hook_attn_scores": numbers for layer, numbers in _by_layer(heads).items()}
        return [(name, partial(hide, numbers=numbers)) for name, numbers in points.items()]


def _by_layer(heads: Sequence[Head]) -> dict[int, list[int]]:
    """The numbers of heads in each layer."""
    return {layer: [head for at, head in heads if at == layer] for layer, _ in heads}


def hidden_keys(task: Task, scale: int, tokens: Tensor, relation: str) -> Hidden:
    """The keys in a relation to each query of a block: in a role at answer queries, or where a form is 0.

    >>> from lengthlens.tasks import TASKS
    >>> tokens = TASKS["copy"].parse("^ 7 3 =").tokens
    >>> hidden_keys(TASKS["copy"], 2, tokens, "token")(slice(0, 7)).nonzero().tolist()  # row, query, key
    [[0, 3, 1], [0, 4, 2], [0, 5, 3]]
    """
    length, roles = tokens.shape[1], roles_in(task, scale, tokens)
    place = torch.arange(length)
    if relation in roles.names:
        key = roles.keys_of(relation)  # [1|row, step]
        pointed = torch.full((len(key), length), -1).index_copy(1, roles.query, key)
        return lambda queries: pointed[:, queries, None] == place[: queries.stop]
    try:
        form = read_form(relation)
    except UserError:
        raise unknown("role or form", relation, [*roles.names, "i-j", "i-j-n", "i+j-2n", "j"]) from None
    of_query, of_key = form.query * place[:, None] + form.scale * scale + form.constant, form.key * place
    return lambda queries: (of_query[queries] + of_key[: queries.stop] == 0)[None]
