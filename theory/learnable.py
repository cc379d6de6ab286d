"""A relation that is still to be learned: which choice within its family serves each slot of a program.

It is judged by the best choice, slot by slot: one relation, or several *pointers* together. A pointer is a linear form
of i, j, n with a value: ``i−j = n``. At a query it points at one key, or at none if that key would lie before the start
or after the query. A head of a learned relation gives each pointer a weight, and the score of a key is the sum of the
weights of all that point at it. So they serve a slot if there are weights under which, at every step, the source
outweighs every other key. Each other key gives one inequality: the weights of the pointers at the source, minus those
at the other key, are at least 1. Few of them differ, since all that matters of a key is what points at it. Whether all
inequalities can hold is a linear program.

The weights have to be learned from the training range: among the pointers that have a weight, each inequality that
occurs beyond the range must occur within it. Fewer pointers have fewer inequalities, so needless pointers are dropped,
and small values are tried before large ones.

Worked example: ``duplicate`` reads the key n back in its first round, and the key 2n back in the second, in which the
key n back is no longer in the prompt. So i−j = n has a weight of 1 and i−j = 2n has 2. In the last step of the first
round i−j = 2n points at ``^``, and must not be followed: j = 0 has −2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from lengthlens.models.schemes.relation import NOWHERE, Ints, Pointer, numbered
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.theory.properties import Findings, counts, examine, source_codes
from lengthlens.theory.steps import FIRST_STEPS, Steps, up_to

LOOKED_AT = 9  # relations of a family that are examined for each slot
SAMPLED = 256  # steps by which they are chosen


@dataclass(frozen=True)
class Choice:
    """What serves one slot of one operator best: one relation of a family, or several pointers together."""

    operator: str
    slot: str
    name: str
    findings: Findings


class Family:
    """A relation that is still to be learned, and what the best choice within it makes of a program, slot by slot.

    A slot is served if its source is isolated, stable and covered under one relation (a head can use that relation
    alone), or if weights on the pointers of one of the `heads` single it out. Slots are examined one after the other.
    """

    def __init__(self, scheme: PositionScheme, operators: Sequence[Steps], train_max: int) -> None:
        self.relations, self.heads, self.joint = scheme.candidates(), scheme.pointers(), scheme.relation()
        self.operators, self.train_max = operators, train_max
        self._slots = ((k, slot) for k, steps in enumerate(operators) for slot in range(steps.arity))
        self._known: list[tuple[int, Choice, Ints]] = []  # the operator's place, what serves the slot, signatures

    def __iter__(self) -> Iterator[tuple[int, Choice, Ints]]:
        yield from self._known
        for k, slot in self._slots:
            self._known.append((k, *chosen_for(self, self.operators[k].only(slot))))
            yield self._known[-1]

    @property
    def possible(self) -> bool:
        return all(choice.findings.possible for _, choice, _ in self)

    def findings(self) -> tuple[Findings, list[Choice]]:
        """Those of the first slot that nothing serves, with the number of signatures of all, and all choices."""
        choices = [choice for _, choice, _ in self]
        signatures = []
        for k, steps in enumerate(self.operators):
            codes = [np.zeros(len(steps), dtype=np.int64), *(own for of, _, own in self._known if of == k)]
            signatures.append(numbered(np.stack(codes, 1))[1])
        unserved = (choice.findings for choice in choices if not choice.findings.possible)
        worst = next(unserved, Findings(None, None, None, 0, 0))
        train, test = counts(signatures, self.operators, self.train_max)
        return replace(worst, src_train=train, src_test=test), choices

    def most_often(self, steps: Steps, most: int) -> list[str]:
        """The relations under which most sources have a code other than the background's, the best ones first."""
        every = list(self.relations.values())
        if len(every) <= most or [relation.component for relation in every] != list(range(len(every))):
            return list(self.relations)
        some = steps[:: max(1, len(steps) // SAMPLED)]
        others = [code for relation in every for code in relation.background or (NOWHERE,)]
        often = (self.joint.codes(some.query, some.sources[:, 0], some.scale) != others).sum(0)
        return [name for _, name in sorted(zip(-often, self.relations), key=itemgetter(0))[:most]]


def chosen_for(family: Family, steps: Steps) -> tuple[Choice, Ints]:
    """What serves the one slot of these steps, and the signature of each step under it.

    Where the largest length of a tuple does not determine the source, no relation that knows only that length does.
    """
    train_max = family.train_max
    # Undecided: two steps with the same query and largest length read different keys in their one slot.
    order = np.lexsort((steps.sources[:, 0], steps.size, steps.query))
    query, size, source = (np.diff(part[order]) for part in (steps.query, steps.size, steps.sources[:, 0]))
    undecided = bool(((query == 0) & (size == 0) & (source != 0)).any())
    open_ended = undecided and not any(relation.whole_scale for relation in family.relations.values())
    best = best_of(family, steps, 1 if open_ended else LOOKED_AT)
    tried = (weighted_pointers(pointers, steps, train_max) for pointers in family.heads)
    together = None if best.findings.possible or open_ended else next(filter(None, tried), None)
    if together is None:
        return best, source_codes(family.relations[best.name], [steps])[0].signature
    served = Findings(None, None, None, *counts([together.signature], [steps], train_max))
    return replace(best, name=str(together), findings=served), together.signature


def best_of(family: Family, steps: Steps, most: int) -> Choice:
    """The first relation that serves a slot, or else the one with the fewest failures; small sizes decide on most.

    Of a large family only the `most` relations that name the source most often are examined: one that serves names it
    always. Where more of them do, the others still serve as pointers (`weighted_pointers`).
    """
    few, tried = up_to(steps, 2 * family.train_max), {}
    for name in family.most_often(few, most):
        relation = family.relations[name]
        tried[name] = examine(relation, [few], family.train_max)
        if tried[name].possible:
            tried[name] = examine(relation, [steps], family.train_max)
            if tried[name].possible:
                break
    name = min(tried, key=lambda name: tried[name].failures)
    return Choice(steps.operator, steps.slot_names[0], name, tried[name])


# -- several pointers together ---------------------------------------------------------------------------------------

STEPS_TOGETHER = 1 << 14
PACKED = 39  # digits of base 3 that fit into 63 bits
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WeightedPointers:
    """Pointers with the weights under which the source outweighs every other key at every step."""

    pointers: tuple[Pointer, ...]
    weights: Floats  # [pointer]
    signature: Ints  # which of the pointers point at the source of each step, as a number. [step]

    def __str__(self) -> str:
        texts = [f"{one} ({w:+.3g})" for one, w in zip(self.pointers, self.weights)]
        return " with ".join(texts).replace("-", "−")


def weighted_pointers(pointers: Sequence[Pointer], steps: Steps, train_max: int) -> WeightedPointers | None:
    """Weights that serve the one slot of these steps, learnable from n up to `train_max`; None if there are none.

    They are sought on n up to twice that, and the inequalities are then checked on all n. Pointers that never point at
    another key, and serve all steps between them, need no weights against each other.
    """
    if (alone := unfailing(pointers, steps)) and all_covered(alone, steps, train_max):
        return WeightedPointers(tuple(alone), np.ones(len(alone)), numbered(at_source(alone, steps))[1])
    for window in sorted({abs(one.value) for one in pointers}):
        chosen = fewest([one for one in pointers if abs(one.value) <= window], up_to(steps, 2 * train_max))
        if chosen is not None and all_covered(chosen[0], steps, train_max):
            return WeightedPointers(tuple(chosen[0]), chosen[1], numbered(at_source(chosen[0], steps))[1])
    return None


def unfailing(pointers: Sequence[Pointer], steps: Steps) -> list[Pointer]:
    """A few pointers that point at the source or at nothing, one of them at every step; [] if there are none.

    Each is the one that serves most of the steps that are left.
    """
    never, start, size = list(pointers), 0, FIRST_STEPS  # those that never point at another key
    while never and start < len(steps):
        part = steps[start : start + size]
        points = pointed_at(never, part)
        well = ((points == part.sources[:, :1]) | (points == NOWHERE)).all(0)
        never, start, size = [one for one, own in zip(never, well) if own], start + size, STEPS_TOGETHER
    chosen, left = [], np.ones(len(steps), dtype=bool)
    right = at_source(never, steps).astype(bool) if never else left[:, None][:, :0]
    while left.any():
        served = right[left].sum(0)
        if not served.any():
            return []
        chosen.append(never[int(served.argmax())])
        left &= ~right[:, served.argmax()]
    return chosen


def all_covered(pointers: Sequence[Pointer], steps: Steps, train_max: int) -> bool:
    """Whether every inequality already occurs at n up to `train_max`."""
    known, every = (set(map(tuple, comparisons(pointers, part).tolist())) for part in (up_to(steps, train_max), steps))
    return every <= known


def fewest(pointers: Sequence[Pointer], steps: Steps) -> tuple[list[Pointer], Floats] | None:
    """Pointers all of which are needed, and their weights; None if no weights will do."""
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
    if not rows.any(1).all():
        return None  # nothing tells the source from some other key
    from scipy.optimize import linprog  # slow to import

    both = np.concatenate([rows, -rows], 1)  # weights as differences of two that are not negative
    solved = linprog(np.ones(both.shape[1]), A_ub=-both, b_ub=-np.ones(len(rows)), method="highs")
    return np.subtract(*np.split(solved.x, 2)) if solved.success else None


def comparisons(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """Every different (what points at the source) − (what points at another key). [comparison, pointer]"""
    starts = range(0, len(steps), STEPS_TOGETHER)
    return distinct(np.concatenate([_block(pointers, steps[k : k + STEPS_TOGETHER]) for k in starts]))


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


def pointed_at(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """The key that each points at from each step's query, `NOWHERE` if there is none. [step, pointer]"""
    key = type(pointers[0]).keys(pointers, steps.query, steps.scale)
    return np.where((key >= 0) & (key <= steps.query[:, None]), key, NOWHERE)


def at_source(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """Which pointers point at the source of each step. [step, pointer]"""
    return np.asarray(pointed_at(pointers, steps) == steps.sources[:, :1], dtype=np.int64)


def _block(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """`comparisons` of a few steps. Keys that nothing points at are all alike, and the others are few."""
    points = pointed_at(pointers, steps)  # [step, pointer]
    source = (points == steps.sources[:, :1]).astype(np.int64)
    rows = []
    for k in range(len(pointers)):
        pointed = points[:, [k]]  # the key that this one points at
        other = (pointed[:, 0] != NOWHERE) & ~source[:, k].astype(bool)
        rows.append(distinct(source[other] - (points[other] == pointed[other])))
    keys = np.sort(np.concatenate([points, steps.sources[:, :1], np.full((len(points), 1), NOWHERE)], 1), 1)
    number = (np.diff(keys, axis=1) > 0).sum(1)  # keys that something points at, and the source
    rows.append(distinct(source[number < steps.query + 1]))
    return np.concatenate(rows)
