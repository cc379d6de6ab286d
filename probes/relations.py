"""Which relation a probed model goes by: the codes that its position embedding gives to pairs of positions."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lengthlens.models.codes import Ints
from lengthlens.models.schemes import PositionScheme, make_scheme
from lengthlens.models.schemes.learned import LearnedRelation
from lengthlens.probes.activations import Subject, exact_by_scale, scales_up_to, subject_of
from lengthlens.registry import UserError
from lengthlens.tasks import Task

Phi: TypeAlias = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Relation:
    """A position relation φ(i, j; n), and how to say it.

    `of_head` gives the relation of one head, (layer, head), where heads have relations of their own.
    """

    phi: Phi
    words: str
    of_head: Callable[[int, int], Phi] | None = None

    def codes(
        self, queries: Sequence[int], keys: Sequence[int], scale: int, head: tuple[int, int] | None = None
    ) -> Ints:
        """φ at every query and key, [query, key, component].

        >>> relation_of("i-j").codes([5, 6], [0, 4], scale=3)[..., 0].tolist()
        [[5, 1], [6, 2]]
        """
        i, j, n = torch.tensor(list(queries))[:, None], torch.tensor(list(keys)), torch.tensor(scale)
        phi = self.phi if head is None or self.of_head is None else self.of_head(*head)
        with torch.no_grad():
            found = np.asarray(phi(i, j, n))
        if not np.issubdtype(found.dtype, np.integer):
            raise UserError(f"a relation gives integer codes, not {found.dtype} numbers")
        shape = (len(queries), len(keys))
        if found.ndim < 3:
            found = np.broadcast_to(found, shape)[..., None]
        return np.broadcast_to(found, (*shape, found.shape[-1])).astype(np.int64)


RelationLike: TypeAlias = str | PositionScheme | Phi | Relation


def relation_of(relation: RelationLike) -> Relation:
    """The relation meant: ``"i-j"``, ``"(i,j)"``, the name of a scheme, a scheme, or a function of (i, j, n).

    A function takes integer tensors that broadcast together and gives codes [*] or [*, component].
    """
    if isinstance(relation, Relation):
        return relation
    if isinstance(relation, PositionScheme):
        return Relation(relation.relation, relation.relation_in_words)
    if not isinstance(relation, str):
        return Relation(relation, getattr(relation, "__name__", "a function"))
    plain = relation.replace(" ", "").replace("−", "-")
    if plain == "i-j":
        return Relation(lambda i, j, n: i - j, "i−j")
    if plain == "(i,j)":
        return Relation(lambda i, j, n: torch.stack(torch.broadcast_tensors(i, j), -1), "(i, j)")
    return relation_of(make_scheme(relation))


def own_relation(
    model: Callable[..., Any] | Subject, task: Task, train_max: int, relation: RelationLike | None = None
) -> tuple[Subject, Relation]:
    """What to probe, and the relation it goes by.

    A relation that is given is taken as it is. Otherwise it is that of the model's own scheme, as the scheme states it
    (content-addressed ones state an approximation, in their words). The scheme ``lbpe`` has small gates left over
    from training that no answer depends on, and each would add codes: so they are switched off in a copy, as
    many as leave every answer in the training range as it is, and that copy is probed in its place.
    """
    subject = subject_of(model)
    if relation is not None:
        return subject, relation_of(relation)
    scheme = getattr(subject.model, "pos_embed", None)
    if not isinstance(scheme, PositionScheme):
        raise UserError(
            "the model's relation is not known: give one, e.g. relation='i-j' or relation='(i,j)'"
        )
    if isinstance(scheme, LearnedRelation) and scheme.options.variant == "forms":
        return pruned(subject, task, train_max)
    return subject, relation_of(scheme)


# -- learned relations: what survives ------------------------------------------------------------------------


def pruned(subject: Subject, task: Task, train_max: int) -> tuple[Subject, Relation]:
    """A copy of an ``lbpe`` model without the (form, value) pairs that its answers in range do not need.

    First the largest threshold on what a pair adds to a score, then whole forms, the weakest first: each goes if exact
    match at every scale up to `train_max`, on the same instances, stays what it was.
    """
    model: Any = copy.deepcopy(subject.model)
    scheme, trial, scales = model.pos_embed, Subject(model), scales_up_to(task, train_max)
    before = exact_by_scale(trial, task, scales)
    threshold = scheme.prune_while(lambda: exact_by_scale(trial, task, scales) == before) or 0.0
    _prune_forms(scheme, lambda: exact_by_scale(trial, task, scales) == before)
    words = f"surviving forms (|bias| > {threshold:g}) {_forms_in_words(scheme)}"
    return trial, Relation(scheme.relation, words, lambda layer, head: _of_head(scheme, layer, head))


def _prune_forms(scheme: LearnedRelation, unchanged: Callable[[], bool]) -> None:
    """Switch off one form after the other, in all heads, where that changes nothing."""
    strength = scheme.weights().detach().abs().amax((0, 1, 3))
    for form in strength.argsort().tolist():
        kept = scheme.alive[:, :, form].clone()
        if not bool(kept.any()):
            continue
        scheme.alive[:, :, form] = False
        if not unchanged():
            scheme.alive[:, :, form] = kept


def _of_head(scheme: LearnedRelation, layer: int, head: int) -> Phi:
    """The relation of one head: each form's value where that head goes by it, else OTHER."""
    window = scheme.options.window

    def phi(i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        parts = []
        for form, counts in zip(scheme.forms, scheme.alive[layer, head].cpu()):
            value = form.value(i, j, n) + 0 * (i + j + n)
            inside = (value.abs() <= window) & counts[(value + window).clamp(0, 2 * window)]
            parts.append(torch.where(inside, value, window + 1))
        return torch.stack(parts, -1)

    return phi


def _forms_in_words(scheme: LearnedRelation) -> str:
    """The forms that still count with their values: ``i−j−n: 0; i−j: −1 0``."""
    window = scheme.options.window
    counts = scheme.alive.flatten(0, 1).any(0)
    texts = [
        f"{form}: {' '.join(str(int(v) - window) for v in values.nonzero()[:, 0])}"
        for form, values in zip(scheme.forms, counts)
        if bool(values.any())
    ]
    return "; ".join(texts) or "none"
