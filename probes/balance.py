"""Reading by several marks together: what one head can do that adds up a bias for each of them.

A *mark* is a linear form of i, j, n with a value: ``i−j = n``. At a query it points at one key, or at none if that key
would lie before the start or behind the query. A head of a learned relation gives each mark a weight, and the score of
a key is the sum of the weights of all marks that point at it. So marks serve a slot if there are weights under which,
at every step, the source outweighs every other key. Each other key says one inequality: weights of the marks at the
source minus those at the other key ≥ 1. There are few different ones, since all that matters of a key is which marks
point at it; whether all of them can hold is a linear program, and the solution with the least sum of absolute weights
uses few marks, which can be said in words.

It has to be learned from the training range: among the marks that have a weight, each inequality that comes up beyond
the range must come up within it.

Worked example: ``shift`` reads x_{k+1} in step k < n, where i−j = n−1, then x_1 in step n, where i−j = 2n−1, and then
``=``, where i−j = n. No form marks all three with one value, and none of these marks is right at every step at which it
points at a key. But i−j = n−1 can be overruled where it is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from lengthlens.models.codes import Ints, numbered
from lengthlens.models.schemes.forms import Form
from lengthlens.models.schemes.learned import LearnedRelation
from lengthlens.probes.program import Steps, up_to

NOWHERE = -1
BLOCK = 1 << 14  # steps looked at together
PACKED = 39  # digits of base 3 that fit into 63 bits
NEGLIGIBLE = 1e-6  # a weight below is the solver's rounding
Floats = NDArray[np.float64]


class Mark(NamedTuple):
    """A form and one of its values."""

    form: Form
    value: int

    def points_at(self, steps: Steps) -> Ints:
        """The key it points at from each step's query, `NOWHERE` if there is none. [step]"""
        a, b, c, d = self.form
        key = b * (self.value - a * steps.query - c * steps.scale - d)
        return np.where((key >= 0) & (key <= steps.query), key, NOWHERE)


@dataclass(frozen=True)
class Balance:
    """Marks with the weights under which the source outweighs every other key at every step."""

    marks: tuple[Mark, ...]
    weights: Floats  # [mark]
    signature: Ints  # which of the marks point at the source of each step, as a number. [step]

    def __str__(self) -> str:
        texts = [f"{mark.form.says(mark.value)} ({w:+.3g})" for mark, w in zip(self.marks, self.weights)]
        return " with ".join(texts)


def marks_of(scheme: LearnedRelation) -> list[Mark]:
    """Every (form, value) that some head of a scheme may still go by."""
    alive, window = scheme.alive.flatten(0, 1).any(0), scheme.options.window
    return [Mark(scheme.forms[f], v - window) for f, v in alive.nonzero().tolist()]


def balance(marks: Sequence[Mark], steps: Steps, train_max: int) -> Balance | None:
    """Weights that serve the one slot of these steps, learnable from scales up to `train_max`; None if there are none.

    They are found on scales up to twice that, and what they rest on is then checked on all.
    """
    weights = lightest(comparisons(marks, up_to(steps, 2 * train_max)))
    if weights is None:
        return None
    chosen = np.flatnonzero(np.abs(weights) > NEGLIGIBLE)
    kept = [marks[k] for k in chosen.tolist()]
    known = set(map(tuple, comparisons(kept, up_to(steps, train_max)).tolist()))
    if not set(map(tuple, comparisons(kept, steps).tolist())) <= known:
        return None
    signature = numbered(at_source(kept, steps))[1]
    return Balance(tuple(kept), weights[chosen], signature)


def lightest(rows: Ints) -> Floats | None:
    """The weights of least absolute sum with rows · weights ≥ 1; None if there are none. `rows` [inequality, mark]

    >>> lightest(np.array([[1, 0], [1, -1]])).tolist(), lightest(np.array([[1, 0], [-1, 0]]))
    ([1.0, 0.0], None)
    """
    both = np.concatenate([rows, -rows], 1)  # weights as differences of two that are not negative
    found = linprog(np.ones(both.shape[1]), A_ub=-both, b_ub=-np.ones(len(rows)), method="highs")
    return None if found.x is None else np.subtract(*np.split(found.x, 2))


# -- what is compared -----------------------------------------------------------------------------------------


def comparisons(marks: Sequence[Mark], steps: Steps) -> Ints:
    """Every different (marks at the source) − (marks at another key), over all steps and keys. [comparison, mark]"""
    found = [_block(marks, _part(steps, start)) for start in range(0, len(steps), BLOCK)]
    return distinct(np.concatenate(found))


def distinct(rows: Ints) -> Ints:
    """The different rows of numbers −1, 0, 1; exact, and quicker than sorting whole rows.

    >>> distinct(np.array([[1, -1], [0, 1], [1, -1]])).tolist()
    [[1, -1], [0, 1]]
    """
    packed = [
        rows[:, k : k + PACKED] @ 3 ** np.arange(min(PACKED, rows.shape[1] - k))
        for k in range(0, rows.shape[1], PACKED)
    ]
    which = numbered(np.stack(packed, 1))[1]
    return rows[np.sort(np.unique(which, return_index=True)[1])]


def at_source(marks: Sequence[Mark], steps: Steps) -> Ints:
    """Which marks point at the source of each step. [step, mark]"""
    return np.stack([mark.points_at(steps) == steps.sources[:, 0] for mark in marks], 1).astype(np.int64)


def _part(steps: Steps, start: int) -> Steps:
    rows = slice(start, start + BLOCK)
    return replace(steps, scale=steps.scale[rows], query=steps.query[rows], sources=steps.sources[rows])


def _block(marks: Sequence[Mark], steps: Steps) -> Ints:
    """The same for a few steps. Keys that no mark points at are all alike, and the others are few."""
    points = np.stack([mark.points_at(steps) for mark in marks], 1)  # [step, mark]
    source = at_source(marks, steps)
    found = []
    for mark in range(len(marks)):
        rival = points[:, [mark]]  # the key that this mark points at
        other = (rival[:, 0] != NOWHERE) & ~source[:, mark].astype(bool)
        found.append(distinct(source[other] - (points[other] == rival[other])))
    keys = np.sort(np.concatenate([points, steps.sources[:, :1], np.full((len(points), 1), NOWHERE)], 1), 1)
    pointed = (np.diff(keys, axis=1) > 0).sum(1)  # keys with a mark, and the source
    found.append(distinct(source[pointed < steps.query + 1]))
    return np.concatenate(found)
