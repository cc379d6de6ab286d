"""What a scheme offers the verdict: the relation it has, or the family of relations it can still learn one from."""

from collections.abc import Callable

import numpy as np
import torch

from lengthlens.models.codes import Ints
from lengthlens.models.schemes import PositionScheme
from lengthlens.models.schemes.forms import Form
from lengthlens.models.schemes.ideal import OTHER, Ideal
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.tasks import Task
from lengthlens.theory.ledger import evaluate
from lengthlens.theory.other_keys import Relation


def relation_of(scheme: PositionScheme, task: Task, largest: int) -> Relation:
    """The scheme's relation, and what is known about it that saves work."""
    if isinstance(scheme, Ideal):
        return Relation(scheme.relation, True, reads_of(scheme), (OTHER,), scheme.describe)
    return Relation(scheme.relation, looks_at_scale(scheme, task, largest), describe=scheme.describe)


def reads_of(scheme: Ideal) -> Callable[[int], tuple[Ints, Ints]]:
    """All pairs but those that the circuit reads have the code OTHER."""

    def listed(scale: int) -> tuple[Ints, Ints]:
        reads = scheme.circuits.reads(scale)
        return reads.query.numpy(), reads.key.numpy()

    return listed


def looks_at_scale(scheme: PositionScheme, task: Task, largest: int) -> bool:
    """Whether codes depend on the scale: if the scheme says so, or if a few scales show it."""
    if scheme.uses_scale:
        return True
    position = np.arange(min(task.length(largest), 32))
    scales = sorted({task.min_scale, min(task.min_scale + 1, largest), (task.min_scale + largest) // 2, largest})
    found = [evaluate(scheme.relation, position[:, None], position, np.asarray(n)) for n in scales]
    return any(not np.array_equal(found[0], other) for other in found[1:])


def family_of(scheme: PositionScheme) -> dict[str, Relation]:
    """The relations among which a scheme chooses in training, by name; empty if its relation is fixed.

    For linear forms: each form that some head still goes by, alone.
    """
    if not isinstance(scheme, LearnedRelation) or scheme.options.variant != "forms":
        return {}
    alive = scheme.alive.flatten(0, 1).any(0)  # [form, value]
    forms = [(form, values) for form, values in zip(scheme.forms, alive) if bool(values.any())]
    return {str(form): one_form(scheme, form, values, k) for k, (form, values) in enumerate(forms)}


def one_form(scheme: LearnedRelation, form: Form, alive: torch.Tensor, component: int) -> Relation:
    """One component of the relation of learned forms; `alive` [value] says which of its values count."""
    window = scheme.options.window
    coded = torch.where(alive, torch.arange(-window, window + 1), window + 1)
    coded = torch.nn.functional.pad(coded, (1, 1), value=window + 1)  # beyond the window, at either end

    def phi(query: torch.Tensor, key: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        value = form.value(query, key, scale).clamp(-window - 1, window + 1)
        return coded[value + window + 1][..., None]

    def listed(scale: int) -> tuple[Ints, Ints]:
        assert scheme.task is not None
        query = np.arange(scheme.task.length(scale))[:, None]
        key = form.key * (np.arange(-window, window + 1) - form.query * query - form.scale * scale - form.constant)
        row, value = np.nonzero((key >= 0) & (key <= query))
        return query[row, 0], key[row, value]

    def describe(code: tuple[int, ...]) -> str:
        return form.says(code[0]) if code[0] <= window else f"a value of {form} outside its window"

    return Relation(phi, True, listed, (window + 1,), describe, component)
