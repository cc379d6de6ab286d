"""Positional against symbolic heads: what becomes of a head's pattern when what stands at its keys is permuted.

The key vectors of a head are split into a part that follows from the position (their mean over instances there) and
the rest, their content. In the prompt, contents are permuted among positions while position parts stay, and the query
is left alone. A *positional* head attends to the same positions as before (its pattern is invariant), a *symbolic* one
follows the contents to where they stand now (equivariant). Both similarities lie between 0 and 1 and are a point in a
plane: a head that spreads evenly is near (1, 1), one that needs a content at a certain position near (0, 0).
"""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.inside.heads import Mean
from lengthlens.inside.instances import BY_CHANCE, Instances, by_head_and_scale, first_query, instances_at, watch
from lengthlens.probes.network import AnyModel, network_of
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

N_INSTANCES = 128  # of each input size; more than elsewhere, since the mean over them is taken for the position part
CLEAR = 0.2  # by which one similarity exceeds the other in a head that is called positional or symbolic
ALIKE = 0.8  # from which both are high: permuting makes no difference, since the head spreads
ELSEWHERE = 0.05  # least share of a head's weight on the permuted keys for it to be called anything
KINDS = {
    "positional": "follows positions", "symbolic": "follows contents", "even": "spreads evenly", "mixed": "in between",
    "elsewhere": "attends elsewhere",
}  # fmt: skip


def head_plane(
    model: AnyModel,
    task: Task | None = None,
    scales: Sequence[int] | None = None,
    *,
    rows: int = N_INSTANCES,
    generator: torch.Generator | None = None,
) -> pd.DataFrame:
    """How positional and how symbolic each head is.

    Arguments as of `attention_by_role`. At least two instances are needed, to know the position part of a key.

    Result: a row for each head and input size: `positional` and `symbolic`, similarities between 0 and 1; `weight`, how
    much of the head's attention is on permuted keys; and `kind`, one of `KINDS`: positional, symbolic, even (both are
    high), mixed, or elsewhere, for a head that does not attend to these keys.

    >>> from lengthlens.models.by_hand import copy_by_content, copy_by_hand
    >>> head_plane(copy_by_hand(), scales=[6])[["positional", "symbolic", "kind"]].values.tolist()
    [[1.0, 0.0, 'positional']]
    >>> head_plane(copy_by_content(), scales=[6])[["positional", "symbolic", "kind"]].values.tolist()
    [[0.0, 1.0, 'symbolic']]
    """
    if rows < 2:
        raise UserError(f"the position part of a key is a mean over instances: rows must be at least 2, not {rows}")
    rows_of_heads = []
    for instances in instances_at(model, task, scales, rows, generator):
        for layer in network_of(model).layers(None):
            for head, values in enumerate(zip(*(x.tolist() for x in _similarities(model, instances, layer)))):
                point = dict(zip(("positional", "symbolic", "weight"), (round(x, 4) + 0.0 for x in values)))
                about = {"layer": layer, "head": head, "scale": instances.scale}
                rows_of_heads.append({**about, **point, "kind": kind_of(**point)})
    return by_head_and_scale(rows_of_heads)


def plane_over_training(
    checkpoints: Run | Mapping[int, AnyModel], task: Task | None = None, scale: int | None = None
) -> pd.DataFrame:
    """The plane at several moments of a training: `head_plane` at one input size, with a column `step` in front.

    Arguments:
        checkpoints: a run that was trained with `keep`, or models by training step.
        task: the task; the models' own if None.
        scale: the input size n; the largest in the run's training if None, 10 for models.

    Errors: UserError where nothing was kept, with what to do.

        run = ll.train(config, store, keep=range(0, 2001, 200)).run
        ll.plane_over_training(run)
    """
    models: Mapping[int, AnyModel]
    if isinstance(checkpoints, Run):
        models = {step: checkpoints.model(step=step) for step in checkpoints.checkpoints}
        if (end := checkpoints.status()).has_model:
            models[end.steps] = checkpoints.model()
        scale = scale or checkpoints.config.train_max
    else:
        models = checkpoints
    if len(models) < 1 + isinstance(checkpoints, Run):  # the end of training alone is no course
        why = "no checkpoints were kept, so that there is no course of training to follow"
        raise UserError(f"{why}: train with keep=[0, 200, …], or --keep")
    tables = [head_plane(model, task, [scale or 10]).assign(step=step) for step, model in sorted(models.items())]
    joined = pd.concat(tables, ignore_index=True)
    return joined[["step", *(name for name in joined if name != "step")]]


def kind_of(positional: float, symbolic: float, weight: float) -> str:
    """What a head is called by its place in the plane, one of `KINDS`.

    >>> kind_of(0.9, 0.2, 0.8), kind_of(0.9, 0.9, 0.8), kind_of(0.3, 0.3, 0.8), kind_of(0.9, 0.2, 0.01)
    ('positional', 'even', 'mixed', 'elsewhere')
    """
    if not weight >= ELSEWHERE:
        return "elsewhere"
    if abs(positional - symbolic) >= CLEAR:
        return "positional" if positional > symbolic else "symbolic"
    return "even" if min(positional, symbolic) >= ALIKE else "mixed"


def _similarities(model: AnyModel, instances: Instances, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Invariance, equivariance, and the weight on permuted keys, of each head of a layer. [head] each"""
    places = _permuted_places(instances)
    rows, queries = len(instances.tokens), instances.queries
    cycles = _cycles(len(places), rows, torch.Generator().manual_seed(layer))  # [row, place]
    common, same, moved, weight = (Mean() for _ in range(4))

    def permute(keys: Tensor) -> Tensor:
        """[row, pos, head, d_head], first the rows as they are, then those to be permuted."""
        position = _position_part(keys[:rows, places])  # [place, head, d_head]
        content = keys[rows:, places] - position
        index = cycles.to(keys.device)[..., None, None].expand_as(content)
        changed = keys.clone()
        changed[rows:, places] = position + content.gather(1, index)
        return changed

    def compare(block: Tensor) -> None:
        start = first_query(block)
        at = queries[(queries >= start) & (queries < block.shape[-1])] - start
        weights = block[:, :, at.to(block.device)].abs().float().cpu()[..., places]  # [row, head, query, place]
        before, after = weights[:rows], weights[rows:]
        there = before.gather(-1, cycles[:, None, None].expand_as(before))  # where the contents went
        common.add(torch.maximum(before.sum(-1), after.sum(-1)).sum((0, 2)), 1)
        same.add(torch.minimum(before, after).sum((0, 2, 3)), 1)
        moved.add(torch.minimum(there, after).sum((0, 2, 3)), 1)
        weight.add(weights[:rows].sum((0, 2, 3)), float(rows * len(at)))

    hooks = [(f"blocks.{layer}.attn.hook_k", permute), (f"blocks.{layer}.attn.hook_pattern", compare)]
    watch(model, instances.tokens.repeat(2, 1), instances.scale, hooks)
    assert same.total is not None and moved.total is not None and common.total is not None
    return same.total / common.total, moved.total / common.total, weight.value


def _position_part(keys: Tensor) -> Tensor:
    """What follows from the place in keys [row, place, head, d_head]. [place, head, d_head]

    The mean over instances at each place, drawn towards the mean of all places as far as its differences could come
    from drawing so few instances: where they do not exceed that, nothing follows from the place. (By F, the variance of
    the means in units of what chance gives them; a share 1/F of it is chance.)
    """
    means = keys.mean(0)
    centre = means.mean(0)
    chance = keys.var(0).sum(-1).mean(0) / len(keys)  # [head]
    f = (means - centre).square().sum(-1).sum(0) / (len(means) - 1) / chance.clamp(min=1e-30)
    kept = torch.where(f > BY_CHANCE, 1 - 1 / f.clamp(min=1), 0)
    return centre + kept[:, None] * (means - centre)


def _permuted_places(instances: Instances) -> Tensor:
    """The positions before all queries whose token is not the same in all instances. [place]"""
    varies = (instances.tokens != instances.tokens[:1]).any(0).nonzero()[:, 0]
    places = varies[varies < int(instances.queries[0])]
    if len(places) < 2:
        raise UserError(f"there are fewer than two free keys to permute at n = {instances.scale}: take a larger one")
    return places


def _cycles(size: int, rows: int, generator: torch.Generator) -> Tensor:
    """Random permutations that leave nothing in its place: all places in one circle. [row, size]"""
    order = torch.rand(rows, size, generator=generator).argsort(1)
    return torch.empty_like(order).scatter_(1, order, order.roll(-1, 1))
