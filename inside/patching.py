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

    def lead(self, logits: Tensor, run: int) -> Tensor:
        """By how much the clean answer leads at each query of the clean run (0) or the corrupted one (1). [row]"""
        at = logits[self.rows, self.places[QUERY][run]]
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
        roles: the slots looked at, by name; all that have a minimal pair if None.
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
    network: Any = network_of(model).model
    pairs_of_all = minimal_pairs(model, task, scale, onto, roles=roles, pairs=pairs, steps=steps, generator=generator)
    with evaluating(network):
        names = [name for name in network.hook_dict if name.rpartition("hook_")[2] in ACTIVATIONS.values()]
        logits, cache = network.run_with_cache(pairs_of_all.clean, names_filter=names)
        leads = pairs_of_all.lead(logits, 0), pairs_of_all.lead(network(pairs_of_all.corrupted), 1)
        tables = [
            _patched(network, pairs_of_all, component, place, cache, *leads)
            for component in components
            for place in (pairs_of_all.places if component == "residual" else [QUERY])
            if component != "mlp" or not network.cfg.attn_only
        ]
    return pd.concat(tables, ignore_index=True)


def _patched(
    network: Any, pairs: MinimalPairs, component: str, place: str, cache: Any, clean: Tensor, corrupted: Tensor
) -> pd.DataFrame:
    """The effects of one component at one place, for every layer (and head)."""
    here, there = pairs.places[place]
    rows = pairs.rows[(here >= 0) & (there >= 0)]
    heads = range(network.cfg.n_heads) if component == "head" else [0]
    index = [(layer, head) for layer in range(network.cfg.n_layers) for head in heads]

    def put(activation: Tensor, at: Sequence[int], given: Tensor) -> Tensor:
        part = at[1] if component == "head" else slice(None)
        activation[rows, there[rows], part] = given[rows, here[rows], part]
        return activation

    with redirect_stderr(io.StringIO()):  # TransformerLens shows a bar for each component
        patched = patching.generic_activation_patch(
            network, pairs.corrupted, cache, lambda logits: pairs.lead(logits, 1), put, ACTIVATIONS[component],
            index_df=pd.DataFrame(index, columns=["layer", "head_index"]), reduce="none",
        )  # fmt: skip
    lead = patched.values.reshape(len(index), -1)  # [component, row]
    return _by_role(pairs, component, place, index, (lead - corrupted) / (clean - corrupted), lead > 0, rows)


def _by_role(
    pairs: MinimalPairs, component: str, place: str, index: Sequence[tuple[int, int]], effect: Tensor, flips: Tensor,
    rows: Tensor,
) -> pd.DataFrame:  # fmt: skip
    """Means over the rows of each role."""
    table, among = [], set(rows.tolist())
    for role in dict.fromkeys(pairs.role):
        of_role = [row for row, name in enumerate(pairs.role) if name == role and row in among]
        for k, (layer, head) in enumerate(index if of_role else ()):
            about = {"role": role, "component": component, "layer": layer}
            about |= {"head": head if component == "head" else -1, "place": place}
            means = {"effect": float(effect[k, of_role].mean()), "flips": float(flips[k, of_role].float().mean())}
            table.append({**about, **means})
    return pd.DataFrame(table)


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
    without `flips`.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> float(attribution_patching(copy_by_hand("lbpe"), scale=3, onto=9)["effect"].round(3)[0])
    1.0
    """
    network: Any = network_of(model).model
    pairs_of_all = minimal_pairs(model, task, scale, onto, roles=roles, pairs=pairs, steps=steps, generator=generator)
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(network.cfg.n_layers)]
    with evaluating(network):
        clean_logits, clean = network.run_with_cache(pairs_of_all.clean, names_filter=names)
    corrupted: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Any) -> Tensor:
        activation = activation if corrupted else activation.detach().requires_grad_()
        corrupted[hook.name] = activation
        return activation

    with evaluating(network), torch.enable_grad(), in_blocks(network):  # else a gradient keeps whole patterns
        hooks = [(name, keep) for name in names]
        lead = pairs_of_all.lead(network.run_with_hooks(pairs_of_all.corrupted, fwd_hooks=hooks), 1)
        gradients = torch.autograd.grad(lead.sum(), [corrupted[name] for name in names])
    rows, (here, there) = pairs_of_all.rows, pairs_of_all.places[QUERY]
    change = [
        ((clean[name][rows, here] - corrupted[name][rows, there]) * gradient[rows, there]).sum(-1)
        for name, gradient in zip(names, gradients)
    ]  # [row, head] each
    difference = pairs_of_all.lead(clean_logits, 0) - lead.detach()
    index = [(layer, head) for layer in range(network.cfg.n_layers) for head in range(network.cfg.n_heads)]
    effect = (torch.cat(change, 1).detach() / difference[:, None]).T
    return _by_role(pairs_of_all, "head", QUERY, index, effect, effect > 0, rows).drop(columns="flips")


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
    answer = task.answer_length(onto)
    spread = sorted({round(k * (answer - 1) / max(1, steps - 1)) for k in range(steps)})  # evenly, ends included
    tried = [_pairs_of(task, role, step, scale, onto, pairs, generator) for role in roles or known for step in spread]
    parts = [part for part in tried if part is not None]
    if not parts:
        raise UserError(f"no minimal pair of '{task.name}' at n = {onto} was found for {', '.join(roles or known)}")

    def gathered(name: str, run: int) -> Tensor:
        """The positions of a role in all pairs, −1 where a pair has no such role. [row]"""
        none = [(torch.full((len(part.clean),), -1),) * 2 for part in parts]
        return torch.cat([part.places.get(name, none[k])[run] for k, part in enumerate(parts)]).to(subject.device)

    places = {name: (gathered(name, 0), gathered(name, 1)) for part in parts for name in part.places}
    joined = {
        name: torch.cat([getattr(part, name) for part in parts]).to(subject.device)
        for name in ("clean", "corrupted", "clean_answer", "corrupted_answer")
    }
    return MinimalPairs(role=[role for part in parts for role in part.role], places=places, **joined)


def _pairs_of(
    task: Task, role: str, step: int, scale: int, onto: int, pairs: int, generator: torch.Generator
) -> MinimalPairs | None:
    """Minimal pairs of one step that differ in one role; None if there are none."""
    try:
        clean, corrupted = task.minimal_pair(onto, step, role, pairs, generator)
    except UserError:
        return None
    tokens, place, fits = clean.tokens, step, torch.ones(len(clean), dtype=torch.bool)
    if scale != onto:  # the step of the same operator that is as far along at `scale` as this one is at `onto`
        short, long = list(task.circuit(scale)), list(task.circuit(onto))
        wanted = step * (len(short) - 1) / max(1, len(long) - 1)
        same = [k for k, each in enumerate(short) if each.operator == long[step].operator]
        if not same:
            return None
        place = min(same, key=lambda k: abs(k - wanted))
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
    places = {QUERY: roles.query[step].expand(rows)}
    return places | {name: roles.keys_of(name)[:, step].expand(rows) for name in roles.names}
