"""The three properties that the verdict rests on: isolated, stable, covered.

Everything here is exhaustive and exact up to the largest scale: every step of the circuit, every key that its query
sees. What makes a scale of a thousand quick: codes are compared by a hash (a hit is confirmed on the codes
themselves), a relation that does not look at the scale is evaluated once for all scales, one that gives a single
code to all but a few listed pairs is evaluated on those, and a property that has its counterexample is not looked at
any further.

A relation that is still to be learned is judged by the best choice within its family, slot by slot: one relation, or
several *pointers* together. A pointer is a linear form of i, j, n with a value: ``i−j = n``. At a query it points
at one key, or at none if that key would lie before the start or behind the query. A head of a learned relation gives
each pointer a weight, and the score of a key is the sum of the weights of all that point at it. So they serve a slot if
there are weights under which, at every step, the source outweighs every other key. Each other key says one inequality:
weights of the pointers at the source minus those at the other key ≥ 1. There are few different ones, since all that
matters of a key is what points at it, and whether all of them can hold is a linear program.

It has to be learned from the training range: among the pointers that have a weight, each inequality that comes up
beyond the range must come up within it. Fewer pointers have fewer inequalities, so those that are not needed go first,
and small values are tried before large ones.

Worked example: ``duplicate`` reads the key n back in its first round, and the key 2n back in the second, in which the
key n back is not in the prompt any more. So i−j = n has a weight of 1 and i−j = 2n has 2. In the last step of the first
round i−j = 2n points at ``^``, and must not be followed: j = 0 has −2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lengthlens.models.schemes.relation import Ints, Pointer, Relation, by_value, numbered
from lengthlens.models.schemes.scheme import PositionScheme
from lengthlens.tasks.task import SHAPES
from lengthlens.theory.steps import (
    Bools,
    Counterexample,
    SourceCodes,
    Steps,
    codes_of,
    scales_by_size,
    source_codes,
    up_to,
)

Found: TypeAlias = tuple[int, Counterexample | None] | None  # at a place among all steps
BLOCK = 1 << 16  # pairs looked at together: few enough to stay in the processor's cache
MOST_ROWS = 1 << 12
FIRST_LOOK = 1 << 9  # steps that are looked at first, where most relations fail


@dataclass(frozen=True)
class Findings:
    """What a relation makes of a program: None stands for a property that holds."""

    isolated: Counterexample | None
    stable: Counterexample | None
    covered: Counterexample | None
    src_train: int
    src_test: int

    @property
    def failures(self) -> int:
        """How many of the three properties do not hold."""
        return sum(example is not None for example in (self.isolated, self.stable, self.covered))

    @property
    def possible(self) -> bool:
        return self.failures == 0

    def worded(self, relation: Relation) -> "Findings":
        """The same with its counterexamples in the words of a relation, which has these codes."""

        def told(found: Counterexample | None) -> Counterexample | None:
            return found and replace(
                found, words=tuple(map(relation.describe, found.codes)), component=relation.component
            )

        return replace(self, isolated=told(self.isolated), stable=told(self.stable), covered=told(self.covered))


def examine(relation: Relation, operators: Sequence[Steps], train_max: int) -> Findings:
    """Everything that the definitions ask about a relation, with a counterexample for what does not hold."""
    sources = source_codes(relation, operators)
    covered = next(filter(None, (own.uncovered(train_max) for own in sources)), None)
    isolated = next(filter(None, (own.sources_alike() for own in sources)), None)
    stable = next(filter(None, (own.sources_swapped() for own in sources)), None)
    if any(own.steps.arity for own in sources):
        sparse = relation.listed is not None and not any(
            (own.codes == np.array(relation.background)).all(1).any() for own in sources
        )
        examine_keys = examine_listed if sparse else examine_rows
        isolated, stable = examine_keys(relation, sources, isolated, stable)

    src = counts([own.signature for own in sources], operators, train_max)
    return Findings(isolated, stable, covered, *src).worded(relation)


def counts(signatures: Sequence[Ints], operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of distinct signatures up to `train_max`, and of all."""
    train = [len(np.unique(own[steps.size <= train_max])) for own, steps in zip(signatures, operators)]
    return sum(train), sum(len(np.unique(own)) for own in signatures)


def sources_only(relation: Relation, operators: Sequence[Steps], train_max: int) -> tuple[int, int]:
    """The number of signatures up to `train_max`, and of all, without a look at any other key."""
    once = [int(steps.size[0]) for steps in operators if len(steps) == 1]  # one step has one signature
    often = [steps for steps in operators if len(steps) > 1]
    if not often:
        return sum(scale <= train_max for scale in once), len(once)
    sizes, wide = [len(steps) for steps in often], max(steps.arity for steps in often)
    rows = np.full((sum(sizes), 1 + wide), -1)  # the number of the operator, and those of the codes. [step, 1 + slot]
    rows[:, 0] = np.repeat(np.arange(len(often)), sizes)
    rows[:, 1:][np.arange(wide) < np.repeat([steps.arity for steps in often], sizes)[:, None]] = numbered(
        codes_of(relation, often)
    )[1]
    trained = np.concatenate([steps.size for steps in often]) <= train_max
    train, test = (len({row.tobytes() for row in part}) for part in (rows[trained], rows))
    return train + sum(scale <= train_max for scale in once), test + len(once)


# -- every key of every step, block by block: whether one that is no source bears the code of a source ---------------


class RowBlock:
    """Some queries, each with all the keys that it sees: a row for each."""

    def __init__(self, relation: Relation, query: Ints, scale: Ints) -> None:
        self.relation, self.query = relation, query
        self.keys = np.arange(int(query.max()) + 1)
        one_scale = (scale == scale[0]).all()
        # [row, key, component]; those of keys that are still to come mean nothing
        self.codes = relation.codes(query[:, None], self.keys, scale[0] if one_scale else scale[:, None])

    def seen(self, found: Bools) -> Bools:
        """Of a table [row, key], in place, what the queries can see."""
        edge = int(self.query.min()) + 1
        found[:, edge:] &= self.keys[edge:] <= self.query[:, None]
        return found

    def monotone(self) -> Bools:
        """Which components grow with the key in every row, or shrink: these tell all keys apart. [component]"""
        each = (self.codes[..., k] for k in range(self.codes.shape[-1]))
        return np.array([(own[:, 1:] > own[:, :-1]).all() or (own[:, 1:] < own[:, :-1]).all() for own in each])

    def unread_marked(self, operator: SourceCodes, steps: Ints, row: Ints) -> tuple[Counterexample | None, bool]:
        """A step at which a code of a source marks a key that is not read, though at another step it is read.

        And whether all is well in this block: no code of a source is on any other key.
        """
        hot = self.seen(operator.hash.known(operator.hash(self.codes)))
        suspects = hot.sum(1)[row] != operator.steps.keys_read[steps]
        for step, here in zip(steps[suspects], row[suspects]):
            keys = np.setdiff1d(np.flatnonzero(hot[here]), operator.steps.sources[step])
            example = unread_at(operator, step, keys, operator.hash.index(self.codes[here, keys]))
            if example:
                return example, False
        return None, not suspects.any()

    def unread_alike(self, operator: SourceCodes, steps: Ints, row: Ints) -> Counterexample | None:
        """A step at which some other key has the code of a source."""
        if self.monotone().any():
            return None
        hashes = operator.hash(self.codes)
        if not self.relation.uses_scale:
            repeated = np.zeros(hashes.shape, dtype=np.bool_)  # which keys share their hash with another of the row
            alone = np.where(self.keys <= self.query[:, None], hashes, self.keys)  # those still to come differ
            order = np.argsort(alone, 1)
            same = np.diff(np.take_along_axis(alone, order, 1)) == 0
            np.put_along_axis(repeated, order, np.pad(same, ((0, 0), (1, 0))) | np.pad(same, ((0, 0), (0, 1))), 1)
            suspects = repeated[row[:, None], operator.steps.sources[steps]].any(1)
        else:
            suspects = np.zeros(len(steps), dtype=np.bool_)
            for slot in range(operator.steps.arity):
                wanted = operator.hash.of_codes[operator.code[steps, slot]]
                same = np.zeros(hashes.shape, dtype=np.bool_)
                same[row] = hashes[row] == wanted[:, None]  # a query of one scale has one step
                suspects |= self.seen(same).sum(1)[row] > 1
        for step, here in zip(steps[suspects], row[suspects]):
            keys = self.keys[: self.query[here] + 1]
            example = alike_at(operator, step, keys, operator.hash.index(self.codes[here, keys]))
            if example:
                return example
        return None


def unread_at(operator: SourceCodes, step: int, keys: Ints, found: Ints) -> Counterexample | None:
    """The first of the unread `keys` of a step whose code `found` marks a source at some other step."""
    first, last = operator.marked_by
    wrong = (found >= 0) & ((first[found] != step) | (last[found] != step))
    if not wrong.any():
        return None
    code = found[wrong][0]
    marking = np.flatnonzero((operator.code == code).any(1))
    other = marking[marking != step][0]
    source = operator.steps.sources[other, (operator.code[other] == code).argmax()]
    return operator.example(code, (other, source), (step, keys[wrong][0]))


def alike_at(operator: SourceCodes, step: int, keys: Ints, found: Ints) -> Counterexample | None:
    """The first of the `keys` of a step whose code `found` is that of a source, and which is not that source."""
    for code, source in zip(operator.code[step], operator.steps.sources[step]):
        same = keys[(found == code) & (keys != source)]
        if len(same):
            return operator.example(code, (step, source), (step, same[0]))
    return None


def block_bounds(query: Ints) -> Iterator[tuple[int, int]]:
    """Rows that are looked at together, from the first to before the last: `BLOCK` pairs, or one row."""
    start = 0
    while start < len(query):
        ahead = np.maximum.accumulate(query[start : start + MOST_ROWS]) + 1
        size = max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), BLOCK)))
        yield start, min(start + size, len(query))
        start += size


def examine_rows(
    relation: Relation, operators: Sequence[SourceCodes], isolated: Counterexample | None, stable: Counterexample | None
) -> tuple[Counterexample | None, Counterexample | None]:
    """Look at every key of every step, until neither property is in doubt."""
    operators = [operator for operator in operators if operator.steps.arity]
    scale = np.concatenate([operator.steps.scale for operator in operators])
    query = np.concatenate([operator.steps.query for operator in operators])
    if not relation.uses_scale:
        scale = np.full_like(scale, scale[0])  # any will do, and steps of all scales share a row
    width = int(query.max()) + 1
    scales, scale = scales_by_size(scale)
    number, row = np.unique(scale * width + query, return_inverse=True)
    scale, query = scales[number // width], number % width  # [row]
    row_of = np.split(row, np.cumsum([len(operator.steps) for operator in operators])[:-1])
    orders = [np.argsort(rows, kind="stable") for rows in row_of]
    apart = None  # whether no two keys of a row have the same code, once that has been asked
    for start, stop in block_bounds(query):
        if isolated and stable:
            break
        if start and stable and apart is None:
            apart = tells_apart(relation, query[start:], scale[start:])
            if apart:
                break
        block = RowBlock(relation, query[start:stop], scale[start:stop])
        for operator, rows, order in zip(operators, row_of, orders):
            a, b = np.searchsorted(rows, [start, stop], sorter=order)
            steps = np.sort(order[a:b])  # those of this block, in the order of scale and query
            all_well = False
            if stable is None:
                stable, all_well = block.unread_marked(operator, steps, rows[steps] - start)
            if isolated is None and not all_well:
                isolated = block.unread_alike(operator, steps, rows[steps] - start)
    return isolated, stable


def tells_apart(relation: Relation, query: Ints, scale: Ints) -> bool:
    """Whether some component of the codes tells all keys of every row apart, by their order. [row] each"""
    if not relation.whole_scale:
        scale = scale % SHAPES  # which is all that it looks at
    width = int(query.max()) + 1
    number = np.unique(scale * width + query)
    query, scale, there = number % width, number // width, None
    for start, stop in block_bounds(query):
        own = RowBlock(relation, query[start:stop], scale[start:stop]).monotone()
        there = own if there is None else there & own
        if not there.any():
            return False
    return True


def examine_listed(
    relation: Relation, operators: Sequence[SourceCodes], isolated: Counterexample | None, stable: Counterexample | None
) -> tuple[Counterexample | None, Counterexample | None]:
    """As `examine_rows`, for a relation that lists the pairs worth a look: no source has the code of all others."""
    operators = [operator for operator in operators if operator.steps.arity]
    scale = np.concatenate([operator.steps.scale for operator in operators])
    number = np.repeat(np.arange(len(operators)), [len(operator.steps) for operator in operators])
    first = np.cumsum([0, *(len(operator.steps) for operator in operators)])
    order, start, size = np.lexsort((number, scales_by_size(scale)[1])), 0, FIRST_LOOK
    while start < len(order) and not (isolated and stable):
        block = order[start : start + size]
        start, size = start + size, min(2 * size, BLOCK)
        parts = [in_list(relation, operators[k], block[own] - first[k], own) for k, own in by_value(number[block])]
        isolated = isolated or min(filter(None, (one for one, _ in parts)), key=itemgetter(0), default=(0, None))[1]
        stable = stable or min(filter(None, (one for _, one in parts)), key=itemgetter(0), default=(0, None))[1]
    return isolated, stable


def in_list(relation: Relation, operator: SourceCodes, steps: Ints, place: Ints) -> tuple[Found, Found]:
    """Of some steps of an operator, at their `place` [step] among all, the first at which some other key has the code
    of a source, and the first at which a code marks a key that is not read, though at another step it is read."""
    assert relation.listed is not None
    about = operator.steps
    row, key = relation.listed(about.query[steps], about.scale[steps])
    code = operator.hash.index(relation.codes(about.query[steps[row]], key, about.scale[steps[row]]))
    row, key, code = row[code >= 0], key[code >= 0], code[code >= 0]  # [pair]
    step, sources = steps[row], about.sources[steps[row]]
    unread, (first, last) = (key[:, None] != sources).all(1), operator.marked_by
    alike = ((operator.code[step] == code[:, None]) & (sources != key[:, None])).any(1)

    def found(wrong: Bools, among: Bools, example: Callable[..., Counterexample | None]) -> Found:
        if not wrong.any():
            return None
        mine = among & (step == step[wrong.argmax()])
        return int(place[row[wrong.argmax()]]), example(operator, step[wrong.argmax()], key[mine], code[mine])

    marked = unread & ((first[code] != step) | (last[code] != step))
    return found(alike, code >= 0, alike_at), found(marked, unread, unread_at)


# -- a relation that is still to be learned --------------------------------------------------------------------------

LOOKED_AT = 9  # relations of a family, for each slot
SAMPLED = 256  # steps by which they are chosen


@dataclass(frozen=True)
class Choice:
    """What serves one slot of one operator best: a relation out of a family of them, or several pointers together."""

    operator: str
    slot: str
    name: str
    findings: Findings


class Family:
    """A relation that is still to be learned, and what the best choice within it makes of a program, slot by slot.

    A slot is served if its source is isolated, stable and covered under one relation (a head can use that relation
    alone), or if weights on the pointers of one of the `heads` single it out. A slot is looked at when it is asked for.
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
        """The relations under which most of the sources have a code of their own, those with most of them first."""
        every = list(self.relations.values())
        if len(every) <= most or [relation.component for relation in every] != list(range(len(every))):
            return list(self.relations)
        some = steps[:: max(1, len(steps) // SAMPLED)]
        others = [code for relation in every for code in relation.background or (NOWHERE,)]
        often = (self.joint.codes(some.query, some.sources[:, 0], some.scale) != others).sum(0)
        return [name for _, name in sorted(zip(-often, self.relations), key=itemgetter(0))[:most]]


def chosen_for(family: Family, steps: Steps) -> tuple[Choice, Ints]:
    """What serves the one slot of these steps, and the signature of each step under it.

    Where the largest length of a tuple does not say where the source is, nothing does that knows only that length.
    """
    train_max = family.train_max
    open_ended = is_undecided(steps) and not any(relation.whole_scale for relation in family.relations.values())
    best = best_of(family, steps, 1 if open_ended else LOOKED_AT)
    tried = (weighted_pointers(pointers, steps, train_max) for pointers in family.heads)
    together = None if best.findings.possible or open_ended else next((found for found in tried if found), None)
    if together is None:
        return best, source_codes(family.relations[best.name], [steps])[0].signature
    served = Findings(None, None, None, *counts([together.signature], [steps], train_max))
    return replace(best, name=str(together), findings=served), together.signature


def is_undecided(steps: Steps) -> bool:
    """Whether two steps with the same query and largest length read different keys in their one slot."""
    order = np.lexsort((steps.sources[:, 0], steps.size, steps.query))
    query, size, source = (np.diff(part[order]) for part in (steps.query, steps.size, steps.sources[:, 0]))
    return bool(((query == 0) & (size == 0) & (source != 0)).any())


def best_of(family: Family, steps: Steps, most: int) -> Choice:
    """The first relation that serves a slot, or else the one that comes nearest; small scales decide on most.

    Of a large family at most so many are looked at as name the source most often: one that serves names it always.
    Where more of them do, one that is not looked at still serves as one of the pointers (`weighted_pointers`).
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

NOWHERE = -1
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
    """Weights that serve the one slot of these steps, learnable from scales up to `train_max`; None if none were found.

    They are looked for on scales up to twice that, and what they rest on is then checked on all. Where some never point
    at another key and serve all steps between them, no weights need be weighed against each other.
    """
    if (alone := unfailing(pointers, steps)) and all_covered(alone, steps, train_max):
        return WeightedPointers(tuple(alone), np.ones(len(alone)), numbered(at_source(alone, steps))[1])
    for window in sorted({abs(one.value) for one in pointers}):
        chosen = fewest([one for one in pointers if abs(one.value) <= window], up_to(steps, 2 * train_max))
        if chosen is not None and all_covered(chosen[0], steps, train_max):
            return WeightedPointers(tuple(chosen[0]), chosen[1], numbered(at_source(chosen[0], steps))[1])
    return None


def unfailing(pointers: Sequence[Pointer], steps: Steps) -> list[Pointer]:
    """Few pointers that point at the source or at nothing, and of which one does at every step; [] if there are none.

    Each time the one that serves most of the steps that are left.
    """
    never, start, size = list(pointers), 0, FIRST_LOOK  # those that never point at another key
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
    """Whether every inequality already comes up at scales up to `train_max`."""
    known, every = (set(map(tuple, comparisons(pointers, part).tolist())) for part in (up_to(steps, train_max), steps))
    return every <= known


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
    if not rows.any(1).all():
        return None  # nothing tells the source from some other key
    from scipy.optimize import linprog  # slow to import

    both = np.concatenate([rows, -rows], 1)  # weights as differences of two that are not negative
    found = linprog(np.ones(both.shape[1]), A_ub=-both, b_ub=-np.ones(len(rows)), method="highs")
    return np.subtract(*np.split(found.x, 2)) if found.success else None


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
    """Which of them point at the source of each step. [step, pointer]"""
    return np.asarray(pointed_at(pointers, steps) == steps.sources[:, :1], dtype=np.int64)


def _block(pointers: Sequence[Pointer], steps: Steps) -> Ints:
    """`comparisons` of a few steps. Keys that nothing points at are all alike, and the others are few."""
    points = pointed_at(pointers, steps)  # [step, pointer]
    source = (points == steps.sources[:, :1]).astype(np.int64)
    found = []
    for k in range(len(pointers)):
        pointed = points[:, [k]]  # the key that this one points at
        other = (pointed[:, 0] != NOWHERE) & ~source[:, k].astype(bool)
        found.append(distinct(source[other] - (points[other] == pointed[other])))
    keys = np.sort(np.concatenate([points, steps.sources[:, :1], np.full((len(points), 1), NOWHERE)], 1), 1)
    number = (np.diff(keys, axis=1) > 0).sum(1)  # keys that something points at, and the source
    found.append(distinct(source[number < steps.query + 1]))
    return np.concatenate(found)
