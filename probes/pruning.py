"""What a trained position embedding needs for its answers in range, and a copy of the model without the rest.

Training leaves biases behind that no answer in the training range depends on. They are harmless there and only there:
beyond it they meet others in combinations that were never seen. So whatever can go without changing exact match at any
scale of the training range, on the same instances, is switched off in a copy. What stays names the codes that the
model goes by. Nothing is trained, and no input is longer than those of training.

Worked example: ``hinted:relative`` with max_distance 12 has a table for min(i−j, 12) and one for clip(i−j−n, ±12). On
copying, only the second one at 0 is needed. With both, the key to read has the codes (1, 0), (2, 0), … (n, 0), a new
one for each scale; without the first, one code at every scale.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes import PositionScheme
from lengthlens.models.schemes.lbpe import THRESHOLDS, LearnedRelation
from lengthlens.models.schemes.scheme import CodeTable
from lengthlens.probes.relations import Phi, Relation, RelationLike, relation_of
from lengthlens.probes.subject import Subject, exact_by_scale, scales_up_to, subject_of, task_of
from lengthlens.tasks import Task


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
        raise UserError("the model's relation is not known: give one, e.g. relation='i-j' or relation='(i,j)'")
    if isinstance(scheme, LearnedRelation) and scheme.options.variant == "forms":
        return pruned_forms(subject, task, train_max)
    return subject, relation_of(scheme)


def prune(
    model: Callable[..., Any] | Subject, task: Task | None = None, train_max: int = 10
) -> tuple[Subject, Relation] | None:
    """A copy without what answers in range do not need, and the relation that is left; None where nothing can go.

    It can be had for ``lbpe`` and for schemes with a bias for each code: ``relative``, ``t5``, and ``hinted:`` of them.

    >>> from lengthlens.probes.controls import copy_by_hand
    >>> copy, relation = prune(copy_by_hand("hinted:relative", 12), train_max=3)
    >>> relation.words.partition(" in ")[2]
    'min(i−j, max_distance): none; clip(i−j−n, ±max_distance): 0'
    """
    task = task_of(model, task)
    subject = subject_of(model)
    scheme = getattr(subject.model, "pos_embed", None)
    if isinstance(scheme, LearnedRelation) and scheme.options.variant == "forms":
        return pruned_forms(subject, task, train_max)
    if isinstance(scheme, PositionScheme) and scheme.tables():
        return pruned_tables(subject, task, train_max)
    return None


def _trial(subject: Subject, task: Task, train_max: int) -> tuple[Subject, Any, Callable[[], bool]]:
    """A copy to try things on, its scheme, and whether it still answers in range as the model does."""
    model: Any = copy.deepcopy(subject.model)
    trial, scales = Subject(model), scales_up_to(task, train_max)
    before = exact_by_scale(trial, task, scales)
    return trial, model.pos_embed, lambda: exact_by_scale(trial, task, scales) == before


# -- tables: one bias for each code --------------------------------------------------------------------------


class Levelled:
    """A table of which some entries are made alike: in each head, they all get the table's median.

    Softmax does not feel what all entries have in common, so that it is the distance to the median that counts.
    """

    def __init__(self, table: CodeTable) -> None:
        self.table = table
        self.before = table.values.detach().clone()
        self.distance = (self.before - self.before.median(-1, keepdim=True).values).abs()
        self.level = torch.zeros_like(self.before, dtype=torch.bool)  # which entries are alike, by head

    def where(self, level: Tensor) -> None:
        """Make these entries alike, and leave all others as they were trained."""
        median = self.before.median(-1, keepdim=True).values
        with torch.no_grad():
            self.table.values.copy_(torch.where(level, median, self.before))
        self.level = level

    def within(self, threshold: float) -> None:
        self.where(self.distance <= threshold)

    def codes(self, code: Tensor, level: Tensor) -> Tensor:
        """The component's value where an entry stands out, and one value for all that are alike. `level` [entry]"""
        place = (code - self.table.first).clamp(0, len(level) - 1)
        alike = level[place] & (code >= self.table.first)
        return torch.where(alike, self.table.first + len(level), code)

    def in_words(self) -> str:
        stays = (~self.level.flatten(0, -2).all(0)).nonzero()[:, 0] + self.table.first
        return f"{self.table.words}: {' '.join(map(str, stays.tolist())) or 'none'}"


def pruned_tables(subject: Subject, task: Task, train_max: int) -> tuple[Subject, Relation]:
    """A copy in which entries of its tables are alike that need not differ for the answers in range.

    First the largest threshold on the distance to the table's median, then whole tables, the weakest first.
    """
    trial, scheme, unchanged = _trial(subject, task, train_max)
    tables = [Levelled(table) for table in scheme.tables()]
    threshold = _level(tables, unchanged)
    for table in sorted(tables, key=lambda table: float(table.distance.max())):
        kept = table.level
        table.where(torch.ones_like(kept))
        if not unchanged():
            table.where(kept)

    def relation(level_of: Callable[[Levelled], Tensor]) -> Phi:
        def phi(i: Tensor, j: Tensor, n: Tensor) -> Tensor:
            parts = scheme.relation(i, j, n).unbind(-1)
            return torch.stack([table.codes(part, level_of(table).cpu()) for table, part in zip(tables, parts)], -1)

        return phi

    words = f"what stands out by more than {threshold:g} in {'; '.join(t.in_words() for t in tables)}"
    return trial, Relation(
        relation(lambda table: table.level.flatten(0, -2).all(0)),
        words,
        lambda layer, head: relation(
            lambda table: (table.level if table.level.ndim == 2 else table.level[layer])[head]
        ),
    )


def _level(tables: list[Levelled], unchanged: Callable[[], bool]) -> float:
    """Level all tables at the largest threshold that changes no answer; 0 if there is none, and nothing is levelled."""
    for threshold in sorted(THRESHOLDS, reverse=True):
        for table in tables:
            table.within(threshold)
        if unchanged():
            return threshold
    for table in tables:
        table.where(torch.zeros_like(table.level))
    return 0.0


# -- learned relations: what survives ------------------------------------------------------------------------


def pruned_forms(subject: Subject, task: Task, train_max: int) -> tuple[Subject, Relation]:
    """A copy of an ``lbpe`` model without the (form, value) pairs that its answers in range do not need.

    First the largest threshold on what a pair adds to a score, then whole forms, the weakest first: each goes if exact
    match at every scale up to `train_max`, on the same instances, stays what it was.
    """
    trial, scheme, unchanged = _trial(subject, task, train_max)
    threshold = scheme.prune_while(unchanged) or 0.0
    _prune_forms(scheme, unchanged)
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
