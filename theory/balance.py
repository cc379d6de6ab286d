"""Reading by several pointers together: what one head can do that adds up a bias for each of them.

A *pointer* is a linear form of i, j, n with a value: ``i−j = n``. At a query it points at one key, or at none if that
key would lie before the start or behind the query. A head of a learned relation gives each pointer a weight, and the
score of a key is the sum of the weights of all that point at it. So they serve a slot if there are weights under which,
at every step, the source outweighs every other key. Each other key says one inequality: weights of the pointers at the
source minus those at the other key ≥ 1. There are few different ones, since all that matters of a key is what points
at it, and whether all of them can hold is a linear program.

It has to be learned from the training range: among the pointers that have a weight, each inequality that comes up
beyond the range must come up within it. Fewer pointers have fewer inequalities, so those that are not needed go first,
and small values are tried before large ones.

Worked example: ``duplicate`` reads the key n back in its first round, and the key 2n back in the second, in which the
key n back is not in the prompt any more. So i−j = n has a weight of 1 and i−j = 2n has 2. In the last step of the first
round i−j = 2n points at ``^``, and must not be followed: j = 0 has −2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from lengthlens.models.codes import Ints, numbered
from lengthlens.models.schemes.forms import Form
from lengthlens.models.schemes.lbpe import LearnedRelation
from lengthlens.theory.program import Steps, up_to

NOWHERE = -1
BLOCK = 1 << 14  # steps looked at together
PACKED = 39  # digits of base 3 that fit into 63 bits
Floats = NDArray[np.float64]


class Pointer(NamedTuple):
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
    """Pointers with the weights under which the source outweighs every other key at every step."""

    pointers: tuple[Pointer, ...]
    weights: Floats  # [pointer]
    signature: Ints  # which of the pointers point at the source of each step, as a number. [step]

    def __str__(self) -> str:
        texts = [f"{one.form.says(one.value)} ({w:+.3g})" for one, w in zip(self.pointers, self.weights)]
        return " with ".join(texts).replace("-", "−")


def pointers_of(scheme: LearnedRelation) -> list[list[Pointer]]:
    """Every (form, value) that a head may still go by: one list for each kind of head that there is."""
    window = scheme.options.window
    kinds = scheme.alive.flatten(0, 1).unique(dim=0)
    return [[Pointer(scheme.forms[f], v - window) for f, v in kind.nonzero().tolist()] for kind in kinds]


def balance(pointers: Sequence[Pointer], steps: Steps, train_max: int) -> Balance | None:
    """Weights that serve the one slot of these steps, learnable from scales up to `train_max`; None if none were found.

    They are looked for on scales up to twice that, and what they rest on is then checked on all.
    """
    for window in sorted({abs(one.value) for one in pointers}):
        chosen = fewest([one for one in pointers if abs(one.value) <= window], up_to(steps, 2 * train_max))
        if chosen is not None and covered(chosen[0], steps, train_max):
            signature = numbered(at_source(chosen[0], steps))[1]
            return Balance(tuple(chosen[0]), chosen[1], signature)
    return None


def covered(pointers: Sequence[Pointer], steps: Steps, train_max: int) -> bool:
    """Whether every inequality already comes up at scales up to `train_max`."""
    known = {tuple(row) for row in comparisons(pointers, up_to(steps, train_max)).tolist()}
    return {tuple(row) for row in comparisons(pointers, steps).tolist()} <= known


def fewest(pointers: Sequence[Pointer], steps: Steps) -> tuple[list[Pointer], Floats] | None:
    """Pointers none of which can go, and their weights; None if no weights will do."""
    rows = comparisons(pointers, steps)
    weights = lightest(rows)
    if weights is None or not weights.any():
        return None
    kept = [int(k) for k in np.abs(weights).argsort() if abs(weights[k]) > 0]  # the lightest first
    for k in list(kept):
        without = [other for other in kept if other != k]
        if without and lightest(distinct(rows[:, without])) is not None:
            kept = without
    kept.sort()
    weights = lightest(distinct(rows[:, kept]))
    assert weights is not None
    return [pointers[k] for k in kept], weights


def lightest(rows: Ints) -> Floats | None:
    """The weights of least absolute sum with rows · weights ≥ 1; None if there are none. `rows` [inequality, pointer]

    >>> lightest(np.array([[1, 0], [1, -1]])).tolist(), lightest(np.array([[1, 0], [-1, 0]]))
    ([1.0, 0.0], None)
    """
    both = np.concatenate([rows, -rows], 1)  # weights as differences of two that are not negative
    found = linprog(np.ones(both.shape[1]), A_ub=-both, b_ub=-np.ones(len(rows)), method="highs")
    return np.subtract(*np.split(found.x, 2)) if found.success else None


# -- what is compared -----------------------------------------------------------------------------------------


def comparisons(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """Every different (what points at the source) − (what points at another key). [comparison, pointer]"""
    found = [_block(pointers, _part(steps, start)) for start in range(0, len(steps), BLOCK)]
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


def at_source(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """Which of them point at the source of each step. [step, pointer]"""
    return np.stack([one.points_at(steps) == steps.sources[:, 0] for one in pointers], 1).astype(np.int64)


def _part(steps: Steps, start: int) -> Steps:
    rows = slice(start, start + BLOCK)
    return replace(steps, scale=steps.scale[rows], query=steps.query[rows], sources=steps.sources[rows])


def _block(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """The same for a few steps. Keys that nothing points at are all alike, and the others are few."""
    points = np.stack([one.points_at(steps) for one in pointers], 1)  # [step, pointer]
    source = at_source(pointers, steps)
    found = []
    for k in range(len(pointers)):
        rival = points[:, [k]]  # the key that this one points at
        other = (rival[:, 0] != NOWHERE) & ~source[:, k].astype(bool)
        found.append(distinct(source[other] - (points[other] == rival[other])))
    keys = np.sort(np.concatenate([points, steps.sources[:, :1], np.full((len(points), 1), NOWHERE)], 1), 1)
    pointed = (np.diff(keys, axis=1) > 0).sum(1)  # keys that something points at, and the source
    found.append(distinct(source[pointed < steps.query + 1]))
    return np.concatenate(found)
