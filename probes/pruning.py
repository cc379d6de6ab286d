"""What a trained position embedding needs for its answers in range, and a copy of the model without the rest.

Training leaves biases behind that no answer in the training range depends on. They are harmless there and only there:
beyond it they meet others in combinations that were never seen. So whatever can go without changing exact match at any
scale of the training range, on the same instances, is switched off in a copy. What stays names the codes that the
model depends on. Nothing is trained, and no input is longer than those of training.

Worked example: ``hinted:relative`` with max_distance 12 has a table for min(i−j, 12) and one for clip(i−j−n, ±12). On
copying, only the second one at 0 is needed. With both, the key to read has the codes (1, 0), (2, 0), … (n, 0), a new
one for each scale; without the first, one code at every scale.
"""

import copy

import torch

from lengthlens.errors import UserError
from lengthlens.models.schemes.relation import Relation
from lengthlens.models.schemes.scheme import scheme_of
from lengthlens.models.schemes.spec import RelationLike, relation_of
from lengthlens.probes.network import AnyModel, Network, exact_of, network_of, scales_up_to, task_of
from lengthlens.tasks import Task

ROWS = 256  # instances of each scale on which nothing may change


def own_relation(
    model: AnyModel, task: Task, train_max: int, relation: RelationLike | None = None
) -> tuple[Network, Relation]:
    """What to probe, and the relation it uses.

    A relation that is given is taken as it is. Otherwise it is that of the model's own scheme, as the scheme states it
    (content-addressed ones state an approximation, in their words). A scheme that learns its relation has small gates
    left over from training that no answer depends on, and each would add codes: so they are switched off in a copy,
    as many as leave every answer in the training range as it is, and that copy is probed in its place.
    """
    subject = network_of(model)
    if relation is not None:
        return subject, relation_of(relation)
    scheme = scheme_of(subject.model)
    if scheme is None:
        raise UserError("the model's relation is not known: give one, e.g. relation='i-j' or relation='(i,j)'")
    pruned = prune(subject, task, train_max) if scheme.learns_relation else None
    return pruned or (subject, scheme.relation())


def prune(model: AnyModel, task: Task | None = None, train_max: int = 10) -> tuple[Network, Relation] | None:
    """A copy of a trained model without what its answers in range do not need, and the relation that is left.

    Arguments:
        model: a model of this project; it is not changed.
        task: the model's own if None.
        train_max: exact match at every scale up to here, on the same instances, stays what it was.

    Returns the copy (its `model` is the network) and its `Relation`, whose `words` say what stays; None where the
    scheme has nothing that can go. It can be had for ``lbpe``, for schemes with a bias for each code (``relative``,
    ``t5``, and ``hinted:`` of them), and for any scheme of your own with `tables` or `prune`. Raises `UserError` for a
    model whose task is not known.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> copy, relation = prune(copy_by_hand("hinted:relative", 12), train_max=3)
    >>> relation.words.partition(" in ")[2]
    'min(i−j, max_distance): none; clip(i−j−n, ±max_distance): 0'
    """
    task = task_of(model, task)
    trial = Network(copy.deepcopy(network_of(model).model))
    scheme = scheme_of(trial.model)
    if scheme is None:
        return None
    scales = scales_up_to(task, train_max)
    generator = torch.Generator().manual_seed(0)
    batches = {scale: task.sample(scale, ROWS, generator) for scale in scales}
    before = {scale: exact_of(trial, task, scale, batch) for scale, batch in batches.items()}

    def unchanged() -> bool:
        return all(exact_of(trial, task, scale, batches[scale]) == before[scale] for scale in reversed(scales))

    relation = scheme.prune(unchanged)
    return None if relation is None else (trial, relation)
