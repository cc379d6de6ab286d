"""Patching by role: which layer and head carries what a step reads, within one length and from one length to another.

A *minimal pair* (`Task.minimal_pair`) is two instances that differ in what one slot of one step reads, and so in one
answer token. In the *corrupted* run of one of them, an activation is replaced by its counterpart in a *clean* run; the
effect is the share of the way from the corrupted to the clean answer that this goes:

    effect = (lead patched − lead corrupted) / (lead clean − lead corrupted),  lead = logit clean − logit corrupted

both answers' logits at the query of the step. Positions are aligned by the circuit, not by index: the query with the
query, the key in a role with the key in that role. So the clean run may be shorter: a step at n = 10 is patched into
its counterpart at n = 40. There the clean run is a *twin* (`probes/interchange.py`): an instance in which a step of the
same operator reads the tokens that the clean answer needs. The steps whose states are exchanged there to measure SRC
are exchanged here one component at a time.

The patched runs are TransformerLens' (`patching.generic_activation_patch`), one for each component with all pairs in a
batch. `attribution_patching` estimates the same effects from gradients, in two forward passes and one backward.
"""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import torch
import transformer_lens.patching as patching
from torch import Tensor

from lengthlens.errors import UserError, unknown
from lengthlens.inside.instances import checked_scales, in_blocks, role_names, roles_in
from lengthlens.probes.network import AnyModel, network_of, task_of
from lengthlens.probes.steps import StepAt, tokens_read, twins
from lengthlens.runs.evaluation import evaluating
from lengthlens.tasks import Task

# Of each component, the name that TransformerLens gives its activation.
ACTIVATIONS: dict[str, str] = {"head": "z", "attention": "attn_out", "mlp": "mlp_out", "residual": "resid_pre"}
HOOKS = tuple(f"hook_{name}" for name in ACTIVATIONS.values())
PAIRS = 24  # of each role and step: effects are known to a few hundredths
STEPS = 4  # of each role, spread over the answer
QUERY = "query"


@dataclass(frozen=True)
class MinimalPairs:
    """Minimal pairs of several steps, and where their steps and roles are in both runs. All on one device."""

    clean: Tensor  # [row, pos], of the run that activations are taken from
    corrupted: Tensor  # [row, longer pos]
    role: list[str]  # of each row: the slot in which they differ
    clean_answer: Tensor  # [row]
    corrupted_answer: Tensor  # [row]
    places: dict[str, tuple[Tensor, Tensor]]  # query, and each role: position in either run, −1 where there is none

    @cached_property
    def rows(self) -> Tensor:
        return torch.arange(len(self.clean), device=self.clean.device)

    def lead(self, logits: Tensor, query: Tensor) -> Tensor:
        """By how much the clean answer leads the corrupted one at each row's query. [row]"""
        at = logits[self.rows, query]
        return at[self.rows, self.clean_answer] - at[self.rows, self.corrupted_answer]


def patch_by_role(
    model: AnyModel,
    task: Task | None = None,
    scale: int = 10,
    onto: int | None = None,
    *,
    roles: Sequence[str] | None = None,
    components: Sequence[str] = tuple(ACTIVATIONS),
    pairs: int = PAIRS,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """Which component carries what each slot of a step reads: the effect of patching it from a clean run.

    Arguments:
        model: a HookedModel, or any model on which TransformerLens' patching works.
        task: the task; the model's own if None.
        scale: of the clean run.
        onto: of the corrupted run that is patched; the same if None.
        roles: the slots looked at, by name; all that a minimal pair is found for if None.
        components: among head, attention, mlp, residual (the stream before a layer).
        pairs: minimal pairs of each role and step.
        steps: how many steps of each role, spread over the answer.
        generator: of the instances; seed 0 if None.

    Result: a row for each role in which the pair differs, component, layer, head and `place` at which it was patched
    (the query, or the key in a role): the mean `effect`, and `flips`, the share in which the clean answer then leads.

    Errors: UserError for a role or component that does not exist, with the nearest; for another length on a task whose
    sources follow from its tokens; for a model without hooks.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> table = patch_by_role(copy_by_hand("lbpe"), scale=3, onto=9, components=["head"])
    >>> table.round(3).to_dict("records")[0]
    {'role': 'token', 'component': 'head', 'layer': 0, 'head': 0, 'place': 'query', 'effect': 1.0, 'flips': 1.0}
    """
    for component in components:
        if component not in ACTIVATIONS:
            raise unknown("component", component, ACTIVATIONS)
    subject = network_of(model)
    found = minimal_pairs(model, task, scale, onto, roles=roles, pairs=pairs, steps=steps, generator=generator)
    network: Any = subject.model
    with evaluating(network):
        names = [name for name in network.hook_dict if name.rpartition(".")[2] in HOOKS]
        clean_logits, cache = network.run_with_cache(found.clean, names_filter=names)
        clean, corrupted = found.lead(clean_logits, found.places[QUERY][0]), _corrupted(network, found)
        tables = [
            _patched(network, found, component, place, cache, clean, corrupted)
            for component in components
            for place in (found.places if component == "residual" else [QUERY])
            if _exists(network, component)
        ]
    return pd.concat(tables, ignore_index=True)


def _exists(network: Any, component: str) -> bool:
    return component != "mlp" or not network.cfg.attn_only


def _corrupted(network: Any, pairs: MinimalPairs) -> Tensor:
    lead: Tensor = pairs.lead(network(pairs.corrupted), pairs.places[QUERY][1])
    return lead


def _patched(
    network: Any, pairs: MinimalPairs, component: str, place: str, cache: Any, clean: Tensor, corrupted: Tensor
) -> pd.DataFrame:
    """The effects of one component at one place, for every layer (and head)."""
    here, there = pairs.places[place]
    rows = pairs.rows[(here >= 0) & (there >= 0)]
    name, by_head = ACTIVATIONS[component], component == "head"
    heads = range(network.cfg.n_heads) if by_head else [0]
    index = pd.DataFrame(
        [(layer, head) for layer in range(network.cfg.n_layers) for head in heads], columns=["layer", "head_index"]
    )

    def put(activation: Tensor, at: Sequence[int], given: Tensor) -> Tensor:
        if by_head:
            activation[rows, there[rows], at[1]] = given[rows, here[rows], at[1]]
        else:
            activation[rows, there[rows]] = given[rows, here[rows]]
        return activation

    def metric(logits: Tensor) -> Tensor:
        return pairs.lead(logits, pairs.places[QUERY][1])

    with redirect_stderr(io.StringIO()):  # a bar for each component
        done = patching.generic_activation_patch(
            network, pairs.corrupted, cache, metric, put, name, index_df=index, reduce="none"
        )
    lead = done.values.reshape(len(index), -1)  # [component, row]
    effect = (lead - corrupted) / (clean - corrupted)
    return _by_role(pairs, component, place, index, effect, lead > 0, rows)


def _by_role(
    pairs: MinimalPairs, component: str, place: str, index: pd.DataFrame, effect: Tensor, flips: Tensor, rows: Tensor
) -> pd.DataFrame:
    """Means over the rows of each role."""
    found, kept = [], set(rows.tolist())
    for role in dict.fromkeys(pairs.role):
        mine = [row for row, own in enumerate(pairs.role) if own == role and row in kept]
        if mine:
            for k, (layer, head) in enumerate(index.itertuples(index=False)):
                about = {"role": role, "component": component, "layer": layer}
                about |= {"head": head if component == "head" else -1, "place": place}
                means = {"effect": float(effect[k, mine].mean()), "flips": float(flips[k, mine].float().mean())}
                found.append({**about, **means})
    return pd.DataFrame(found)


def attribution_patching(
    model: AnyModel,
    task: Task | None = None,
    scale: int = 10,
    onto: int | None = None,
    *,
    roles: Sequence[str] | None = None,
    pairs: int = PAIRS,
    steps: int = STEPS,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """The effects of `patch_by_role` for every head at the query, estimated from gradients.

    The change of the lead is, to first order, the product of its gradient in the corrupted run with the difference of
    the activations. Two forward passes and one backward, however many heads there are. Arguments and columns as there,
    without `flips`; `agreement` compares the two.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> float(attribution_patching(copy_by_hand("lbpe"), scale=3, onto=9)["effect"].round(3)[0])
    1.0
    """
    subject = network_of(model)
    found = minimal_pairs(model, task, scale, onto, roles=roles, pairs=pairs, steps=steps, generator=generator)
    network: Any = subject.model
    layers = subject.layers(None)
    names = [f"blocks.{layer}.attn.hook_z" for layer in layers]
    here, there = found.places[QUERY]
    with evaluating(network):
        clean_logits, cache = network.run_with_cache(found.clean, names_filter=names)
    kept: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Any) -> Tensor:
        kept[hook.name] = activation = activation.detach().requires_grad_() if not kept else activation
        activation.retain_grad()
        return activation

    with evaluating(network), torch.enable_grad(), in_blocks(network):  # else a gradient keeps whole patterns
        lead = found.lead(network.run_with_hooks(found.corrupted, fwd_hooks=[(n, keep) for n in names]), there)
        gradients = torch.autograd.grad(lead.sum(), [kept[name] for name in names])
    change = [
        ((cache[name][found.rows, here] - kept[name][found.rows, there]) * gradient[found.rows, there]).sum(-1)
        for name, gradient in zip(names, gradients)
    ]  # [row, head] each
    difference = found.lead(clean_logits, here) - lead.detach()
    index = pd.DataFrame([(x, h) for x in layers for h in range(network.cfg.n_heads)], columns=["layer", "head_index"])
    effect = (torch.cat(change, 1).detach() / difference[:, None]).T
    table = _by_role(found, "head", QUERY, index, effect, effect > 0, found.rows)
    return table.drop(columns="flips")


def agreement(exact: pd.DataFrame, estimated: pd.DataFrame) -> pd.DataFrame:
    """How well estimated effects of heads agree with exact ones, role by role.

    Pearson's and Spearman's correlation over heads, the largest difference, and whether both name the same first head.
    """
    keys = ["role", "layer", "head"]
    heads = exact[(exact["component"] == "head") & (exact["place"] == QUERY)]
    both = heads.merge(estimated[[*keys, "effect"]], on=keys, suffixes=("", "_estimated"))
    found = []
    for role, part in both.groupby("role", sort=False):
        one, other = part["effect"], part["effect_estimated"]
        same = int(one.to_numpy().argmax()) == int(other.to_numpy().argmax())
        worst = float((one - other).abs().max())
        ranks = one.rank().corr(other.rank())
        found.append({"role": role, "pearson": one.corr(other), "spearman": ranks, "worst": worst, "same_first": same})
    return pd.DataFrame(found)


# -- pairs ---------------------------------------------------------------------------------------------------------


def minimal_pairs(
    model: AnyModel,
    task: Task | None,
    scale: int,
    onto: int | None,
    *,
    roles: Sequence[str] | None,
    pairs: int,
    steps: int,
    generator: torch.Generator | None,
) -> MinimalPairs:
    """Minimal pairs of several steps and roles; where lengths differ, twins of the clean ones at the shorter length."""
    task, subject = task_of(model, task), network_of(model)
    subject.layers(None)  # refuses a model without hooks
    onto, generator = scale if onto is None else onto, generator or torch.Generator().manual_seed(0)
    checked_scales(model, task, sorted({scale, onto}))
    if onto != scale and task.family == "content-addressed":
        raise UserError(f"the sources of '{task.name}' follow from its tokens, so that its steps have no counterparts")
    example = task.sample(onto, 1, generator).tokens[0]
    known = role_names(task.circuit(onto, task.words(example)))
    for role in roles or ():
        if role not in known:
            raise unknown("role", role, known)
    parts = []
    for role in roles or known:
        for step in _spread(task.answer_length(onto), steps):
            if (part := _pairs_of(task, role, step, scale, onto, pairs, generator)) is not None:
                parts.append(part)
    if not parts:
        raise UserError(f"no minimal pair of '{task.name}' at n = {onto} was found for {', '.join(roles or known)}")
    return _joined(parts, subject.device)


def _spread(number: int, most: int) -> list[int]:
    """Up to `most` of `number` steps, evenly spread, ends included."""
    return sorted({round(k * (number - 1) / max(1, most - 1)) for k in range(most)})


def _pairs_of(
    task: Task, role: str, step: int, scale: int, onto: int, pairs: int, generator: torch.Generator
) -> MinimalPairs | None:
    """Minimal pairs of one step that differ in one role; None if there are none."""
    try:
        clean, corrupted = task.minimal_pair(onto, step, role, pairs, generator)
    except UserError:
        return None
    tokens, place, fits = clean.tokens, step, torch.ones(len(clean), dtype=torch.bool)
    if scale != onto:
        counterpart = _counterpart(task, step, scale, onto)
        if counterpart is None:
            return None
        place = counterpart
        tokens, fits = twins(task, StepAt(scale, place), tokens_read(task.circuit(onto), step, clean.tokens), generator)
    if not fits.any():
        return None
    here, there = _places(task, scale, tokens, place), _places(task, onto, corrupted.tokens, step)
    answer = int(there[QUERY][0]) + 1
    answers = clean.tokens[fits, answer], corrupted.tokens[fits, answer]
    places = {name: (here[name][fits], there[name][fits]) for name in there if name in here}
    return MinimalPairs(tokens[fits], corrupted.tokens[fits], [role] * int(fits.sum()), *answers, places)


def _places(task: Task, scale: int, tokens: Tensor, step: int) -> dict[str, Tensor]:
    """Where a step's query is, and the key in each of its roles, [row] each; −1 where there is none."""
    roles, rows = roles_in(task, scale, tokens), len(tokens)
    found = {name: roles.keys_of(name)[:, step].expand(rows) for name in roles.names}
    return {QUERY: roles.query[step].expand(rows), **found}


def _counterpart(task: Task, step: int, scale: int, onto: int) -> int | None:
    """The step at `scale` that is as far along as `step` is at `onto`, of the same operator; None if there is none."""
    short, operator = list(task.circuit(scale)), list(task.circuit(onto))[step].operator
    same = [k for k, each in enumerate(short) if each.operator == operator]
    wanted = step * (len(short) - 1) / max(1, len(task.circuit(onto)) - 1)
    return min(same, key=lambda k: abs(k - wanted), default=None)


def _joined(parts: Sequence[MinimalPairs], device: torch.device) -> MinimalPairs:
    """All pairs as one batch."""
    names = list(dict.fromkeys(name for part in parts for name in part.places))

    def gathered(name: str, side: int) -> Tensor:
        empty = [torch.full((len(part.clean),), -1) for part in parts]
        return torch.cat([p.places[name][side] if name in p.places else e for p, e in zip(parts, empty)]).to(device)

    tensors = {
        key: torch.cat([getattr(part, key) for part in parts]).to(device)
        for key in ("clean", "corrupted", "clean_answer", "corrupted_answer")
    }
    places = {name: (gathered(name, 0), gathered(name, 1)) for name in names}
    return MinimalPairs(role=[role for part in parts for role in part.role], places=places, **tensors)
